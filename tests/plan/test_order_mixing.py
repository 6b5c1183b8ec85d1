"""How well orders mix: unrelated epochs, runs that stay together, draws that are uniform."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_orders import make

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


@given(st.integers(1, 2**63 - 1), st.lists(st.integers(0, 2**64 - 1), max_size=5))
def test_scaled_words_are_exact(total, words):
    words += [0, 2**32 - 1, 2**32, 2**64 - 1]
    scaled = scale_words(np.array(words, np.uint64), total)
    assert scaled.tolist() == [word * total >> 64 for word in words]
