"""Users' transforms and stages: their randomness, their failures, and what they may do."""

import random
from itertools import chain, islice, product

import numpy as np
import pytest
import torch
from webdataset.filters import map as map_samples
from webdataset.filters import shuffle

from lightning_shards.errors import ConfigError, SampleError
from lightning_shards.plan.place import Cursor, Place
from lightning_shards.readers.source import batch_keys

ALONE = Place()
PLACES = [Place(rank, 2, worker, 2) for rank, worker in product(range(2), range(2))]


def labels(source, num_batches, place=ALONE, epoch=0):
    made = islice(source.batches(place, Cursor(epoch)), num_batches)
    return [label for batch, *_ in made for label in batch["label"].tolist()]


@pytest.fixture
def urls(pack_shards):
    return pack_shards([4, 3, 5])


@pytest.fixture(params=["resampled", "shuffled", "sequential"])
def any_source(request, urls, make_source):
    """Makes a source of each sampling in turn."""
    return lambda **settings: make_source(urls, sampling=request.param, **settings)


# --- randomness -----------------------------------------------------------------------------------


def drawn_by_rng(value, rng):
    return float(rng.random())


def drawn_from_random(value):
    return random.random()


def drawn_from_numpy(value):
    return np.random.random()  # noqa: NPY002 what users' transforms do


def drawn_from_torch(value):
    return float(torch.rand(()))


def draw_for_each(samples):
    for sample in samples:
        yield sample | {"label": random.random()}


TRANSFORMS = [drawn_by_rng, drawn_from_random, drawn_from_numpy, drawn_from_torch]
DRAWING = [{"stages": (draw_for_each,)}, *({"transforms": {"label": each}} for each in TRANSFORMS)]
KINDS = pytest.mark.parametrize(
    "drawing", DRAWING, ids=["stage", *(each.__name__ for each in TRANSFORMS)]
)


@KINDS
def test_equal_epochs_and_seeds_alone_draw_equal_numbers(any_source, drawing):
    source, other = (any_source(**drawing, seed=seed) for seed in (0, 1))
    drawn = labels(source, 6, epoch=2)
    assert labels(source, 6, epoch=2) == drawn
    assert not set(drawn) & set(labels(source, 6, epoch=3))
    assert not set(drawn) & set(labels(other, 6, epoch=2))


@KINDS
def test_each_sample_of_each_rank_and_worker_draws_its_own_numbers(urls, make_source, drawing):
    source = make_source(urls, **drawing, samples=80)
    drawn = list(chain.from_iterable(labels(source, 5, place) for place in PLACES))
    assert len(set(drawn)) == len(drawn) == 5 * 2 * 4


# --- stages ---------------------------------------------------------------------------------------


def keep_odd(samples):
    return (sample for sample in samples if sample["label"] % 2)


def repeat_each(samples):
    return (copy for sample in samples for copy in (sample, dict(sample)))


def drop_all(samples):
    return (sample for sample in samples if sample is None)


def add_hundred(samples):
    return (sample | {"label": sample["label"] + 100} for sample in samples)


def test_stages_run_in_order_before_the_transforms(any_source):
    source = any_source(stages=(keep_all, add_hundred), transforms={"label": lambda x: -x})
    assert set(labels(source, 6)) <= {-100 - label for label in range(10)}


def keep_all(samples):
    for sample in samples:
        assert sample["label"] < 100
        yield sample


def test_stages_of_webdataset_are_stages(urls, make_source):
    stages = (map_samples(lambda sample: sample | {"label": 7}), shuffle(5))
    assert labels(make_source(urls, sampling="sequential", stages=stages), 6) == [7] * 12


def test_a_stage_may_drop_samples_under_resampled(urls, make_source):
    found = labels(make_source(urls, stages=(keep_odd,)), 20)
    assert len(found) == 40
    assert set(found) == {1, 3, 5, 7, 9}


def drop_first(samples):
    return islice(samples, 1, None)


@pytest.mark.parametrize("sampling", ["shuffled", "sequential"])
@pytest.mark.parametrize(
    ("stage", "said"),
    [
        (keep_odd, r"a stage dropped some.*need sampling='resampled'"),
        (drop_first, r"only 1 of 2 samples are left for a batch"),
        (repeat_each, r"a stage made more samples.*need sampling='resampled'"),
    ],
)
def test_a_stage_drops_and_adds_no_sample_where_each_is_planned(
    urls, make_source, sampling, stage, said
):
    source = make_source(urls, sampling=sampling, stages=(stage,))
    with pytest.raises(SampleError, match=said):
        labels(source, 6)


def test_what_stages_make_has_no_replay(urls, make_source):
    with pytest.raises(ConfigError, match="stages"):
        batch_keys(make_source(urls, stages=(keep_odd,)), ALONE, 0, range(1), num_workers=1)


@pytest.mark.timeout(30)
@pytest.mark.parametrize("counted", [True, False])
def test_a_stage_that_drops_everything_is_an_error(urls, make_source, counted):
    settings = {"counted": counted, "samples": 12, "shuffle_buffer": 50}
    source = make_source(urls, stages=(drop_all,), **settings)
    with pytest.raises(SampleError, match=r"no sample came out of 72 shards in a row.*`stages`"):
        labels(source, 1)
    with pytest.raises(SampleError, match=r"out of 22 shards"):  # no buffer is filled for it
        source.first_sample(ALONE)


@pytest.mark.timeout(30)
def test_shards_without_a_sample_are_an_error(pack_shards, make_source):
    source = make_source(pack_shards([0, 0]), counted=False, samples=12)
    with pytest.raises(SampleError, match=r"no sample came out of \d+ shards in a row: they are"):
        labels(source, 1)
