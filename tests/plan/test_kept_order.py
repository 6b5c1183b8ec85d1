"""What is left of a data set is served as a data set of its own, under the samples' own ids."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_kept import KEPT, MASKS, ids_left, kept_orders, small_kept

from lightning_shards.plan.kept_order import HeldNumbers, kept_samples
from lightning_shards.plan.order import SampleOrder


def pairs(array):
    return list(map(tuple, array.tolist()))


@given(MASKS.flatmap(lambda m: st.tuples(st.just(m), kept_orders(m))), st.integers(0, 9))
def test_the_sequence_is_that_of_a_data_set_of_the_kept_samples_alone(drawn, epoch):
    """As if they had been packed anew: sample k of a shard is the k-th that is left of it."""
    masks, order = drawn
    numbers = [[n for n, is_kept in enumerate(mask) if is_kept] for mask in masks]
    packed = order.inner.at(epoch, 0, 2 * order.samples).tolist()
    assert isinstance(order.inner, SampleOrder)
    assert order.inner.counts.tolist() == [len(each) for each in numbers]
    own = pairs(order.at(epoch, 0, 2 * order.samples))
    assert own == [(shard, numbers[shard][number]) for shard, number in packed]
    if order.identity()["sampling"] != "resampled":
        assert sorted(own[: order.samples]) == ids_left(masks)


@given(KEPT, st.integers(0, 3), st.integers(0, 60))
def test_the_footing_adds_only_samples_between_neighbours_that_are_near(order, epoch, start):
    inner, filled = (
        each.footing(epoch, start, start + 5).tolist() for each in (order.inner, order)
    )
    own = order.kept.own_ids(np.array(inner, np.int64).reshape(-1, 2)).tolist()
    expected = []
    for before, after, (shard, number), (next_shard, next_number) in zip(
        inner, inner[1:], own, own[1:], strict=False
    ):
        expected.append([shard, number])
        is_neighbour = before[0] == after[0] and before[1] + 1 == after[1]
        if is_neighbour and shard == next_shard and next_number - number <= 5:
            expected += [[shard, between] for between in range(number + 1, next_number)]
    assert filled == [*expected, own[-1]]


def test_damaged_words_are_told():
    words = small_kept([[True, False, True], [False] * 70]).words.values()
    for row, column in ((0, 1), (1, 0)):
        damaged = words.copy()
        damaged[row, column] ^= 1 << 3
        with pytest.raises(ValueError, match="its bits are not as many as it says"):
            kept_samples(np.array([3, 70]), HeldNumbers(damaged))
    with pytest.raises(ValueError, match="its bits are not as many as it says"):
        kept_samples(np.array([3, 64]), HeldNumbers(words))


def test_the_identity_has_always_been_the_same():
    """Checkpoints hold it."""
    assert small_kept([[True, False, True], [], [False, True] * 40]).identity == "92b33040d7a8b7dd"
