"""Samples of like size stand together, and all that an order promises holds as before."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_alike import ALIKE, alike, sizes
from small_orders import make, pairs

from lightning_shards.plan.digest import add_digests, digest_ids, digest_share
from lightning_shards.plan.place import Place

COUNTS = [30, 0, 41, 12, 20]  # 103 samples: six windows of 16, and 7 samples
EPOCHS = st.integers(0, 9)


def windows(order, epoch=0):
    starts = range(0, order.samples, order.window)
    return [order.at(epoch, start, min(start + order.window, order.samples)) for start in starts]


@pytest.mark.parametrize(
    ("block", "group", "window"), [(16, 4, 16), (16, 5, 15), (16, 16, 16), (16, 20, 20), (0, 4, 4)]
)
def test_a_window_is_as_many_whole_groups_as_fit_a_block(block, group, window):
    assert alike(make(COUNTS, block=block), group).window == window


@given(ALIKE, EPOCHS)
def test_each_window_has_the_samples_that_the_inner_order_has_there(order, epoch):
    is_endless = order.identity()["sampling"] == "resampled"
    for start in range(0, order.samples, order.window):
        stop = start + order.window if is_endless else min(start + order.window, order.samples)
        assert sorted(pairs(order, epoch, start, stop)) == sorted(
            pairs(order.inner, epoch, start, stop)
        )


def test_groups_hold_neighbours_in_size_and_neither_they_nor_their_samples_are_sorted():
    order = alike(make(COUNTS, block=48), sizes=lambda ids: ids[:, 0] * 100 + ids[:, 1])
    first, second = (sized.reshape(-1, 4) for sized in map(order.sizes, windows(order)[:2]))
    for groups in (first, second):
        assert (
            sorted(np.sort(groups).tolist()) == np.sort(groups, axis=None).reshape(-1, 4).tolist()
        )
        assert np.sort(groups, axis=None).tolist() != np.sort(groups).ravel().tolist()
        assert (np.sort(groups) != groups).any(axis=1).sum() > 6
    ranks = [np.argsort(np.argsort(groups[:, 0])).tolist() for groups in (first, second)]
    assert ranks[0] != ranks[1]  # each window is drawn by itself


def test_what_fills_no_group_stands_last_and_is_drawn_without_a_look_at_sizes():
    """103 samples: the last window has 7, of which 3 are left over, anyone with one chance."""
    inner = make(COUNTS, sampling="sequential", block=16)
    left_over, counted = [], np.zeros(7, int)
    for seed in range(700):
        order = alike(inner, seed=seed)
        last = [sample for _, sample in pairs(order, 0, 96, 103)]
        grouped, left = sorted(last[:4]), sorted(last[4:])
        assert sorted(grouped + left) == list(range(13, 20))
        left_over.append(left)
        counted[np.array(left) - 13] += 1
    assert counted.min() > 250  # of 700 x 3 / 7 = 300
    blind = alike(inner, seed=3, sizes=lambda ids: np.zeros(len(ids), np.int64))
    assert sorted(n for _, n in pairs(blind, 0, 100, 103)) == left_over[3]


@pytest.mark.parametrize("sampling", ["shuffled", "resampled"])
@pytest.mark.parametrize("world_size", [1, 3])
def test_a_digest_asks_for_the_sizes_of_windows_that_are_cut_only(sampling, world_size):
    asked = []

    def watched(ids):
        asked.append(len(ids))
        return sizes(ids)

    order = alike(make(COUNTS, sampling=sampling, block=16), sizes=watched)
    expected = digest_ids(order.at(2, 5, 99))
    again = alike(order.inner, sizes=watched)
    asked.clear()
    places = [Place(rank, world_size) for rank in range(world_size)]
    assert add_digests(*(digest_share(again, 2, 5, 99, place) for place in places)) == expected
    assert len(asked) == 2  # of the windows that begin at 0 and 96
    asked.clear()
    assert digest_share(again, 3, 0, 96, Place()) == digest_ids(order.inner.at(3, 0, 96))
    assert asked == []


@given(ALIKE, EPOCHS, st.integers(0, 200), st.integers(1, 60))
def test_what_is_read_for_a_position_is_known_without_any_size(order, epoch, start, length):
    unknown = alike(order.inner, order.group, sizes=None)
    read = set(map(tuple, unknown.footing(epoch, start, start + length).tolist()))
    assert read >= set(pairs(order, epoch, start, start + length))


def test_the_checksum_is_of_the_sizes_in_the_window_of_a_position():
    order = alike(make(COUNTS, block=16))
    changed = order.at(1, 20, 21)

    def other(ids):
        return sizes(ids) + (ids == changed).all(axis=1)

    after = alike(order.inner, sizes=other)
    differs = [order.checksum(1, at) != after.checksum(1, at) for at in range(103)]
    assert differs == [16 <= position < 32 for position in range(103)]
    assert order.checksum(1, 103) == order.checksum(1, 0)


def test_sizes_that_two_samples_exchange_change_the_checksum():
    order = alike(make([2], sampling="sequential"), 2, sizes=lambda ids: ids[:, 1])
    swapped = alike(order.inner, 2, sizes=lambda ids: 1 - ids[:, 1])
    assert order.checksum(0, 0) != swapped.checksum(0, 0)
