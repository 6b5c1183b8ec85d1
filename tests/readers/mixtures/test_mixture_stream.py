"""Streams in a mixture: exact counts for all ranks and workers, and each component's own draws."""

import gc
from collections import Counter
from contextlib import closing
from itertools import chain, islice
from math import gcd
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lightning_shards.errors import SampleError
from lightning_shards.plan.mixture import component_seed
from lightning_shards.plan.place import Cursor, Place
from tests.readers.mixtures.conftest import COUNTS, PAIR, rows_in_turn, rows_of

ALONE = Place()
PLACES = [Place(rank, 2, worker, 2) for rank in range(2) for worker in range(2)]
EIGHT = {"web": 5, "labels": 2, "synth": 1}
"""Whole in rounds of eight."""


def components_of(rows):
    return [number for number, *_ in rows]


def rounds_of(rows, length):
    """The counts of components in each whole round of these rows."""
    whole = range(0, len(rows) - length + 1, length)
    return [Counter(components_of(rows[start : start + length])) for start in whole]


# --- quotas ---------------------------------------------------------------------------------------


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    weights=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    batch_size=st.integers(1, 5),
    world_size=st.integers(1, 3),
    num_workers=st.integers(1, 3),
    seed=st.integers(0, 2**64 - 1),
)
def test_each_round_holds_the_weights_whatever_ranks_and_workers_are(
    make_mixture, weights, batch_size, world_size, num_workers, seed
):
    names = dict(zip(COUNTS, weights, strict=False))
    rounds = 3 * batch_size * world_size // sum(weights) + 2
    source = make_mixture(names, batch_size=batch_size, rounds=rounds, seed=seed)
    rows = rows_in_turn(source, world_size, num_workers)
    assert len(rows) == source.epochs.plan(world_size).served
    divisor = gcd(*weights)
    quota = Counter({number: weight // divisor for number, weight in enumerate(weights)})
    assert all(counts == quota for counts in rounds_of(rows, quota.total()))


@pytest.mark.parametrize("remainder", ["pad", "balanced"])
def test_repeats_are_of_the_components_of_their_positions(make_mixture, remainder):
    source = make_mixture(EIGHT, batch_size=5, rounds=2, remainder=remainder)
    rows = rows_in_turn(source, 3)
    padded = source.epochs.plan(3).padded
    expected = source.slots.components(0, 0, 16 + padded).tolist()
    assert components_of(rows) == expected


# --- the components' own draws --------------------------------------------------------------------


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("cursor", [Cursor(), Cursor(2), Cursor(1, 16)])
def test_rows_are_the_draws_of_the_component_alone(
    make_mixture, make_source, shards_of, place, cursor
):
    source = make_mixture(EIGHT, batch_size=4, rounds=20, seed=11)
    run_position = cursor.epoch * source.slots.epoch_samples + cursor.samples
    stride = place.world_size * place.num_workers
    rows = [
        row for loaded in islice(source.batches(place, cursor), 8) for row in rows_of(loaded.batch)
    ]
    first_shard = 0
    for number, name in enumerate(EIGHT):
        seed = component_seed(11, name)
        alone = make_source(shards_of[name], samples=800, batch_size=1, seed=seed)
        before = int(source.slots.before(run_position)[number]) // stride
        served = [(shard - first_shard, sample) for n, shard, sample in rows if n == number]
        made = islice(alone.batches(place, Cursor(0, before * stride)), len(served))
        expected = chain.from_iterable(loaded.batch["__id__"].tolist() for loaded in made)
        assert served == list(map(tuple, islice(expected, len(served))))
        first_shard += len(shards_of[name])


# --- resuming -------------------------------------------------------------------------------------


@pytest.mark.parametrize("world", [(1, 1), (2, 2), (3, 1)])
@pytest.mark.parametrize("done", [3, 8, 13, 39])
def test_counts_stay_exact_over_a_resume_at_any_step_and_on_other_ranks(make_mixture, done, world):
    source = make_mixture(EIGHT, batch_size=2, rounds=8)
    whole = source.slots.components(1, 0, source.slots.epoch_samples).tolist()
    rows = rows_in_turn(source, *world, cursor=Cursor(1, done))
    assert components_of(rows) == whole[done : done + len(rows)]
    assert len(rows) == source.epochs.plan(world[0], done).served


def test_a_resumed_stream_goes_on_in_its_draws(make_mixture):
    source = make_mixture(EIGHT, batch_size=8, rounds=20)
    whole, resumed = rows_in_turn(source), rows_in_turn(source, cursor=Cursor(0, 80))
    assert whole[80:] == resumed


# --- components that differ, fail and end -------------------------------------------------------


def batches(source, number):
    with closing(source.batches(ALONE, Cursor())) as made:
        return list(islice(made, number))


def not_three(label):
    if label == 3:
        raise RuntimeError("cannot bear 3")
    return label


def test_a_substitute_is_of_the_component_of_the_bad_sample(make_mixture):
    transforms = {"label": not_three}
    source = make_mixture(
        PAIR, {"web": {"transforms": transforms}}, batch_size=8, rounds=40, max_bad=99
    )
    made = batches(source, 20)
    bad = [each for loaded in made for each in loaded.bad]
    assert {each[:2] for each in bad} == {(0, 3), (2, 6)}  # samples 3 and 13 of web
    weights = [loaded.batch["__weight__"] for loaded in made]
    assert sum(weight.size - weight.sum() for weight in weights) == len(bad)
    for loaded in made:
        assert np.bincount(loaded.batch["__component__"]).tolist() == [6, 2]
        assert all((shard < 3) == (number == 0) for number, shard, _ in rows_of(loaded.batch))
        standing = loaded.batch["__component__"][loaded.batch["__weight__"] == 0]
        assert not standing.any()


def first_three(samples):
    return islice(samples, 3)


def test_a_stage_that_ends_a_stream_names_its_component(make_mixture):
    source = make_mixture(PAIR, {"labels": {"stages": (first_three,)}}, batch_size=8, rounds=40)
    with pytest.raises(SampleError, match=r"component 'labels' gave 1 of 2 samples.*stages"):
        batches(source, 20)


def test_closing_closes_what_all_pipelines_have_open(make_mixture, shards_of, open_files):
    gc.collect()  # what earlier tests left open
    folder = Path(shards_of["web"][0]).parents[1]
    source = make_mixture({"web": 1, "labels": 1, "code": 1}, batch_size=3, rounds=40)
    made = source.batches(ALONE, Cursor())
    next(made)
    assert len(open_files(folder)) >= 2
    made.close()
    assert open_files(folder) == []
