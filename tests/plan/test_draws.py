"""What is drawn: cut anywhere, uniform, and split without loss."""

from collections import Counter
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_orders import EPOCHS, JUST_ABOVE, SMALL_WORLD

from lightning_shards.plan.draws import (
    FEISTEL_ROUNDS,
    Feistel,
    order_runs,
    shard_draws,
    shard_order,
    spans,
    stream_start,
)
from lightning_shards.plan.place import Place

MANY_SHARDS = 2**32 - 1
UNEQUAL = np.array([3, 0, 40, 7], dtype=np.int64)


@given(
    st.integers(1, MANY_SHARDS),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**40),
    st.integers(0, 9),
    st.integers(0, 99),
)
def test_draws_are_words_of_philox_scaled_with_exact_integers(
    num_shards, seed, epoch, start, resumed_at
):
    philox = np.random.Philox(
        key=np.array([seed, epoch], np.uint64), counter=np.array([0, 0, resumed_at, 1], np.uint64)
    )
    expected = [int(word) * num_shards >> 64 for word in philox.random_raw(18)[start : start + 9]]
    found = shard_draws(num_shards, seed, epoch, start, start + 9, resumed_at=resumed_at)
    assert found.tolist() == expected


def test_streams_begin_at_samples_of_their_own():
    starts = [stream_start(UNEQUAL, 1, stream) for stream in range(4000)]
    assert set(starts) == set(range(40))
    assert max(Counter(starts).values()) < 150  # 100 +- 10
    assert starts[:50] != [stream_start(UNEQUAL, 2, stream) for stream in range(50)]


@given(st.integers(1, 300), st.integers(0, 2**64 - 1), st.integers(0, 1000))
def test_shuffled_order_has_every_shard_once(num_shards, seed, epoch):
    order = shard_order(num_shards, seed, epoch, shuffled=True)
    assert sorted(order.tolist()) == list(range(num_shards))


def positions(plan, place, weight):
    return [position for span in spans(plan, place, weight) for position in range(*span)]


def test_small_world_reads_each_position_once_in_order_of_ranks_and_workers():
    """Repeats begin anew with the first sample, and each worker has those of its own steps."""
    for plan, num_workers in product(SMALL_WORLD, range(1, 4)):
        numbers = product(range(plan.world_size), range(num_workers))
        every = [Place(rank, plan.world_size, worker, num_workers) for rank, worker in numbers]
        read = [[p for place in every for p in positions(plan, place, weight)] for weight in (1, 0)]
        assert read[0] == list(range(plan.done, plan.done + plan.served)), (plan, num_workers)
        assert read[1] == [k % plan.samples for k in range(plan.padded)], (plan, num_workers)
        for place in every:
            mine = range(place.worker, plan.steps, num_workers)
            held = sum(plan.num_repeats(step, place.rank) for step in mine)
            assert len(positions(plan, place, 0)) == held, (plan, place)


# Permutations of runs.


@pytest.mark.parametrize("size", [*range(1, 40), 255, 257, 1000, *JUST_ABOVE, 2**18 - 5])
def test_feistel_is_a_bijection(size):
    keys = np.random.Philox(0).random_raw(FEISTEL_ROUNDS).tolist()
    images = Feistel(size, tuple(keys)).forward(np.arange(size))
    assert np.array_equal(np.sort(images), np.arange(size))


@given(st.integers(1, 10**18) | st.integers(1, 300), st.integers(0, 1000), EPOCHS)
def test_the_slot_of_the_last_run_is_where_it_is(size, seed, epoch):
    """By a table of few runs, and by the inverse of a network of many."""
    permutation, slot = order_runs(size, seed, epoch)
    assert permutation.forward(np.array([slot])).tolist() == [size - 1]
