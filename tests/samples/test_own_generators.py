"""Draws that can be repeated give the same batches; others are told of before the fit."""

import itertools
import random
from functools import partial

import numpy as np
import pytest
import torch
from torch.utils.data import get_worker_info
from torch.utils.data._utils import worker as torch_worker

from lightning_shards import SplitConfig
from lightning_shards.plan.place import Cursor, Place


class Noise:
    """A transform of albumentations 2, or a pipeline of them: its generator is its own."""

    def __init__(self, *inner):
        self.inner, self.generator = inner, np.random.default_rng()

    def set_random_seed(self, seed):
        if get_worker_info() is not None:
            seed = (seed + torch.initial_seed()) % 2**32
        self.generator = np.random.default_rng(seed)
        for each in self.inner:
            each.set_random_seed(seed)

    def __call__(self, value):
        for each in self.inner:
            value = each(value)
        return value + self.generator.random()


class Wrapped:
    """What users write around a pipeline."""

    def __init__(self, *pipelines):
        self.pipelines = {"all": list(pipelines)}

    def __call__(self, value):
        for pipeline in self.pipelines["all"]:
            value = pipeline(value)
        return value


class WithRng(Wrapped):
    def __call__(self, value, rng):
        return super().__call__(value) + rng.random()


def apply_all(pipeline, value):
    return pipeline(value)


def closure_of(pipeline):
    return lambda value: pipeline(value)  # noqa: PLW0108 a closure


WAYS = {
    "itself": Noise,
    "attributes": lambda: Wrapped(Noise(Noise()), Noise()),
    "partial, closure": lambda: partial(apply_all, closure_of(Noise())),
    "with rng": lambda: WithRng(Noise()),
}


@pytest.fixture(params=["indexed", "stream"])
def source_of(request, make_module, pack_shards):
    urls = pack_shards([5, 4])

    def make(transform=None, **settings):
        split = SplitConfig(urls, reader=request.param, sampling="shuffled")
        given = {"transforms": {"label": transform}} if transform else {}
        return make_module(split, **given | settings).source("train")

    return make


def epoch_of(source):
    batches = source.batches(Place(), Cursor())
    return [next(batches).batch["label"].tolist() for _ in range(4)]


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_what_can_be_seeded_gives_the_same_batches_in_every_run(source_of, caplog, way):
    for source in (source_of(way()), source_of(way())):
        source.first_sample(Place())
    runs = [epoch_of(source_of(way())) for _ in range(2)]
    assert runs[0] == runs[1]
    assert len(set(np.ravel(runs[0]) % 1)) == 8
    assert not caplog.records


def test_what_can_be_seeded_does_not_depend_on_the_worker(source_of, monkeypatch):
    """albumentations adds torch's seed in worker processes, where torch tells of them."""
    expected = epoch_of(source_of(Wrapped(Noise())))
    monkeypatch.setattr(torch_worker, "_worker_info", "a worker")
    assert epoch_of(source_of(Wrapped(Noise()))) == expected
    assert get_worker_info() == "a worker"


HIDDEN = random.Random(0)
NUMBERS = itertools.count()


class Foreign:
    """A table or a bitmap of another library."""


DIFFERING = {
    "a number": HIDDEN.random,
    "an array": lambda: np.array([HIDDEN.random()]),
    "a tensor": lambda: torch.tensor([HIDDEN.random()]),
    "a shape": lambda: np.zeros(next(NUMBERS)),
    "a type": lambda: [np.zeros(2, f"i{2 ** (next(NUMBERS) % 2)}")],
    "a length": lambda: [0] * next(NUMBERS),
    "a text, deep": lambda: {"a": [Foreign(), f"text {next(NUMBERS)}"]},
}


@pytest.mark.parametrize("make", DIFFERING.values(), ids=DIFFERING)
def test_a_hidden_generator_is_named_once(source_of, caplog, make):
    source_of(lambda _: make()).first_sample(Place())
    (record,) = caplog.records
    assert "transform of field 'label' made two results" in record.getMessage()
    assert "a parameter `rng`" in record.getMessage()


def jitter_globally(value):
    return value + float(torch.rand(())) + random.random() + np.random.random()  # noqa: NPY002


def states():
    return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # noqa: NPY002


def test_the_comparison_leaves_generators_and_batches_alone(source_of):
    source = source_of(jitter_globally)
    expected, before = epoch_of(source), states()
    source.first_sample(Place())
    assert states() == before
    assert epoch_of(source) == expected


# --- what draws from the generators of the process, which are not seeded for it -------------------

DRAWS = {"python": random.random, "torch": lambda: torch.rand(1)}


def keyed(draw):
    def transform(value, rng):
        rng.random()
        draw()
        return value

    return transform


def deterministic(draw):
    def transform(value):
        draw()
        return value

    transform.deterministic = True
    return transform


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_a_draw_from_the_whole_process_is_told(source_of, caplog, draw):
    told = {
        "the transform of field 'label'": {"transforms": {"label": keyed(draw)}},
        "sample_transforms[0], which": {"sample_transforms": [deterministic(draw)]},
        "the decoder of 'label'": {"decode": {"label": deterministic(draw)}},
    }
    for settings in told.values():
        source_of(**settings).first_sample(Place())
    assert [called in caplog.text for called in told] == [True] * 3


def in_place(value):
    value += 1
    return value


REPEATED = {
    "globals": jitter_globally,
    "in place": in_place,
    "a type": float,
    "keyed": keyed(int),
    "deterministic": deterministic(int),
    "no number": lambda _: np.array([1, np.nan]),
    "a tensor of no number": lambda _: torch.tensor([1, np.nan], dtype=torch.bfloat16),
    "deep": lambda _: {"a": [np.zeros(2), b"x", Foreign()]},
}


@pytest.mark.parametrize("transform", REPEATED.values(), ids=REPEATED)
def test_what_can_be_repeated_is_taken(source_of, caplog, transform):
    source_of(transform).first_sample(Place())
    assert not caplog.records
