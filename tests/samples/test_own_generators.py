"""Transforms that draw from generators of their own give the same batches, or a warning."""

import random
from functools import partial

import numpy as np
import pytest
import torch
from torch.utils.data import get_worker_info
from torch.utils.data._utils import worker as torch_worker

from lightning_shards import LoaderConfig, ShardDataModule, SplitConfig
from lightning_shards.errors import ConfigError
from lightning_shards.plan.place import Cursor, Place
from lightning_shards.samples.generators import are_same
from lightning_shards.workers.threads import require_own_randomness


class Noise:
    """A transform of albumentations 2, or a pipeline of them: its generator is its own."""

    def __init__(self, *inner):
        self.inner, self.generator = inner, np.random.default_rng()
        self.seeds = []

    def set_random_seed(self, seed):
        self.seeds.append(seed)
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

    def method(self, value):
        return self(value)


class WithRng(Wrapped):
    def __call__(self, value, rng):
        return super().__call__(value) + rng.random()


def apply_all(pipeline, value):
    return pipeline(value)


def closure_of(pipeline):
    return lambda value: pipeline(value)  # noqa: PLW0108 a closure


WAYS = {
    "itself": Noise,
    "pipeline": lambda: Noise(Noise(), Noise()),
    "attributes": lambda: Wrapped(Noise(Noise()), Noise()),
    "partial": lambda: partial(apply_all, Noise()),
    "method": lambda: Wrapped(Noise()).method,
    "closure": lambda: closure_of(Noise()),
    "with rng": lambda: WithRng(Noise()),
}


class Hidden:
    """Draws from a generator that nothing can seed."""

    def __init__(self):
        self.generator = random.Random()

    def __call__(self, value):
        return float(value) + self.generator.random()


def jitter_globally(value):
    return value + float(torch.rand(())) + random.random() + np.random.random()  # noqa: NPY002


def in_place(value):
    value += 1
    return value


def module_of(urls, tmp_path, transform, **settings):
    split = {"sampling": "shuffled", "reader": "indexed"} | settings
    return ShardDataModule(
        train=SplitConfig(urls, **split),
        fields={"label": "cls"},
        transforms={"label": transform},
        batch_size=2,
        seed=7,
        # so that a closure need not be pickled
        loader=LoaderConfig(cache_dir=str(tmp_path / "cache"), multiprocessing_context="fork"),
    )


READERS = pytest.mark.parametrize("reader", ["indexed", "stream"])


def epoch_of(source, num_workers=1, batches=4):
    places = [Place().with_worker(worker, num_workers) for worker in range(num_workers)]
    shares = [source.batches(place, Cursor()) for place in places]
    return [next(shares[step % num_workers]).batch["label"].tolist() for step in range(batches)]


def source_of(*module, **settings):
    return module_of(*module, **settings).loader("train").source


@READERS
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_what_can_be_seeded_gives_the_same_batches_in_every_run(
    pack_shards, tmp_path, caplog, way, reader
):
    urls = pack_shards([5, 4])
    runs = [epoch_of(source_of(urls, tmp_path, way(), reader=reader)) for _ in range(2)]
    assert runs[0] == runs[1]
    assert len(set(np.ravel(runs[0]) % 1)) == 8
    assert not caplog.records


def test_what_can_be_seeded_does_not_depend_on_the_workers(pack_shards, tmp_path, monkeypatch):
    """albumentations adds torch's seed in worker processes, where torch tells of them."""
    urls = pack_shards([5, 4])
    expected = epoch_of(source_of(urls, tmp_path, Wrapped(Noise())))
    monkeypatch.setattr(torch_worker, "_worker_info", "a worker")
    assert epoch_of(source_of(urls, tmp_path, Wrapped(Noise())), num_workers=3) == expected
    assert get_worker_info() == "a worker"


def test_threads_refuse_objects_that_they_would_share(pack_shards, tmp_path):
    source = source_of(pack_shards([9]), tmp_path, WithRng(Noise()))
    with pytest.raises(ConfigError, match="the transform of 'label'"):
        require_own_randomness(source)


@READERS
def test_a_hidden_generator_is_named_once(pack_shards, tmp_path, caplog, reader):
    source_of(pack_shards([5, 4]), tmp_path, Hidden(), reader=reader)  # with workers: one is made
    (record,) = caplog.records
    assert "transform of field 'label'" in record.getMessage()
    assert "a parameter `rng`" in record.getMessage()


REPEATED = {
    "globals": lambda: jitter_globally,
    "in place": lambda: in_place,
    "a type": lambda: float,
}


@pytest.mark.parametrize("way", REPEATED.values(), ids=REPEATED)
def test_what_can_be_repeated_is_not_warned_of(pack_shards, tmp_path, caplog, way):
    source_of(pack_shards([5, 4]), tmp_path, way()).first_sample(Place())
    assert not caplog.records


@READERS
def test_the_comparison_leaves_generators_and_batches_alone(pack_shards, tmp_path, reader):
    urls = pack_shards([5, 4])
    source = source_of(urls, tmp_path, jitter_globally, reader=reader)
    expected = epoch_of(source)
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # noqa: NPY002
    source.first_sample(Place())
    after = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # noqa: NPY002
    assert before == after
    assert epoch_of(source) == expected


class Foreign:
    """A table or a bitmap of another library."""

    def __init__(self, *numbers):
        self.numbers = numbers


NAN = float("nan")
SAME = [
    (NAN, float("nan")),
    (np.array([1, NAN]), np.array([1, NAN])),
    (torch.tensor([NAN]), torch.tensor([NAN])),
    (torch.tensor(2, dtype=torch.bfloat16), torch.tensor(2, dtype=torch.bfloat16)),
    ({"a": [np.zeros(2), b"x"]}, {"a": [np.zeros(2), b"x"]}),
    (complex(NAN, 2), complex(float("nan"), 2)),
    (Foreign(1), Foreign(2)),
]
OTHERS = [
    (1, 1.0),
    (np.zeros(2), np.zeros(3)),
    (np.zeros(2), np.zeros(2, np.float32)),
    (torch.zeros(2), torch.ones(2)),
    ({"a": [np.zeros(2)]}, {"a": [np.ones(2)]}),
    ([1], [1, 2]),
    (np.float32(1), np.float32(2)),
    ("a", "b"),
    ([Foreign(1), 3], [Foreign(1), 4]),
]


@pytest.mark.parametrize(
    ("pairs", "expected"), [(SAME, True), (OTHERS, False)], ids=["same", "others"]
)
def test_arrays_tensors_and_numbers_are_compared(pairs, expected):
    assert [are_same(*pair) for pair in pairs] == [expected] * len(pairs)
