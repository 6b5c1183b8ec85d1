"""How well orders mix: unrelated epochs, runs that stay together, draws that are uniform."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_orders import EPOCHS, UNEQUAL, make, orders, pairs

from lightning_shards.plan import draws
from lightning_shards.plan.draws import MAX_TABLE, scale_words


@pytest.mark.parametrize("sampling", ["resampled", "shuffled"])
@pytest.mark.parametrize(("seed", "epoch"), [(2, 0), (1, 1), (0, 1)])
@pytest.mark.parametrize(("run", "block"), [(1, 0), (5, 0), (5, 64)])
def test_another_seed_or_epoch_is_unrelated(sampling, seed, epoch, run, block):
    counts = np.full(40, 50)
    one = make(counts, 1, sampling, run, block).at(0, 0, 2000)
    other = make(counts, seed, sampling, run, block).at(epoch, 0, 2000)
    assert (one == other).all(axis=1).sum() <= 6 * run  # one by chance, in runs


def test_blocks_of_one_epoch_have_their_own_permutations():
    order = make([1000], sampling="shuffled", run=0, block=20)
    blocks = order.at(0, 0, 1000)[:, 1].reshape(50, 20)
    assert len({tuple(row) for row in (blocks % 20).tolist()}) == 50


def test_blocks_keep_their_samples():
    mixed, shuffled = (make(UNEQUAL, run=4, block=block).at(0, 0, 51) for block in (1, 10))
    for start in range(0, 51, 10):
        block = slice(start, start + 10)
        assert sorted(mixed[block].tolist()) == sorted(shuffled[block].tolist())


@pytest.mark.parametrize("max_table", [0, MAX_TABLE])
@given(seed=st.integers(0, 2**64 - 1), run=st.integers(2, 9), samples=st.integers(10, 200))
def test_runs_stay_together_before_blocks(max_table, seed, run, samples):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(draws, "MAX_TABLE", max_table)
        numbers = make([samples], seed, run=run, block=1).at(0, 0, samples)[:, 1]
    for before, after in pairwise(numbers.tolist()):
        assert after == before + 1 or (after % run == 0 and before in ends_of_runs(samples, run))


def ends_of_runs(samples, run):
    return {*range(run - 1, samples, run), samples - 1}


def test_the_short_run_is_not_always_last():
    slots = {
        make([7], seed, run=3, block=0).at(0, 0, 7)[:, 1].tolist().index(6) for seed in range(9)
    }
    assert slots == {0, 3, 6}


def test_run_0_keeps_whole_shards_together():
    found = make(UNEQUAL, 3, run=0, block=0).at(0, 0, 51)
    stretches = np.split(found, np.flatnonzero(np.diff(found[:, 0])) + 1)
    assert sorted(len(stretch) for stretch in stretches) == [1, 3, 7, 40]
    assert all((stretch[:, 1] == np.arange(len(stretch))).all() for stretch in stretches)


@pytest.mark.parametrize("run", [1, 2, 5, 50])
def test_every_sample_is_equally_likely_at_every_position_of_a_draw(run):
    counts = np.array([1, 9, 0, 30, 3])
    draws = 43 * 200
    found = make(counts, 11, "resampled", run, 0).at(0, 0, draws * run)
    numbers = (np.cumsum(counts) - counts)[found[:, 0]] + found[:, 1]
    # One row a draw; draws are independent, so each column alone is a sample of a uniform one.
    for column in numbers.reshape(draws, run).T[:: max(1, run // 5)]:
        seen = np.bincount(column, minlength=43)
        assert 15 < ((seen - 200) ** 2 / 200).sum() < 85  # 42 +- 9


def test_samples_of_shuffled_draws_are_uniform():
    found = make([4, 16], 3, "resampled", 8, 64).at(0, 0, 80_000)
    seen = np.bincount(found[:, 0] * 4 + found[:, 1], minlength=20)
    assert np.abs(seen / 4000 - 1).max() < 0.1


@given(orders(("resampled",)), EPOCHS)
def test_draws_go_on_in_their_shard_and_wrap_round(order, epoch):
    order = make(order.counts, order.seed, "resampled", order.run, 0)
    found = order.at(epoch, 0, 40 * order.run).reshape(40, order.run, 2)
    assert (found[:, :, 0] == found[:, :1, 0]).all()
    steps = np.diff(found[:, :, 1], axis=1) % order.counts[found[:, :1, 0]]
    assert (steps == 1 % order.counts[found[:, :1, 0]]).all()


def test_a_resampled_epoch_does_not_repeat():
    order = make([10], 1, "resampled", 1, 0)
    assert pairs(order, 0, 0, 50) != pairs(order, 0, 10, 60)


@given(st.integers(1, 2**63 - 1), st.lists(st.integers(0, 2**64 - 1), max_size=5))
def test_scaled_words_are_exact(total, words):
    words += [0, 2**32 - 1, 2**32, 2**64 - 1]
    scaled = scale_words(np.array(words, np.uint64), total)
    assert scaled.tolist() == [word * total >> 64 for word in words]
