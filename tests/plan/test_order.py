"""The order of samples: equal to a naive model, mixed well, and refused where there is none."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_mixtures import example_mixture
from small_orders import EITHER, EPOCHS, UNEQUAL, file_ids, make, pairs, philox, sorted_by
from small_strands import strands

from lightning_shards.errors import ConfigError, PlanError
from lightning_shards.plan.draws import Purpose, scale_words
from lightning_shards.plan.order import MAX_BLOCK

# A naive model: Python's integers, whole lists, one sample at a time.


def naive_draws(order, epoch, length):
    ids, found = file_ids(order.counts.tolist()), []
    for word in philox(order.seed, epoch, Purpose.SAMPLE_DRAWS, -(-length // order.run)):
        shard, first = ids[word * len(ids) >> 64]
        found += [(shard, (first + i) % int(order.counts[shard])) for i in range(order.run)]
    return found[:length]


def naive_mixed(order, epoch):
    """One whole epoch before blocks, for few runs."""
    ids = file_ids(order.counts.tolist())
    if order.sampling == "sequential":
        return ids
    if order.run:
        runs = [ids[i : i + order.run] for i in range(0, len(ids), order.run)]
        purpose = Purpose.RUN_ORDER
    else:
        runs = [[pair for pair in ids if pair[0] == s] for s in range(len(order.counts))]
        purpose = Purpose.SHARD_ORDER
    runs = sorted_by(runs, philox(order.seed, epoch, purpose, len(runs)))
    return [pair for run in runs for pair in run]


def naive(order, epoch, length):
    """The first `length` samples of the epoch; the others than resampled repeat themselves."""
    endless = order.sampling == "resampled"
    mixed = (
        naive_draws(order, epoch, length + order.block) if endless else naive_mixed(order, epoch)
    )
    if order.block > 1 and order.sampling != "sequential":
        blocks = [mixed[i : i + order.block] for i in range(0, len(mixed), order.block)]
        # The naive draws are cut off somewhere; no block that is cut off belongs to the answer.
        mixed = [
            pair
            for number, block in enumerate(blocks)
            if not endless or len(block) == order.block
            for pair in sorted_by(
                block, philox(order.seed, epoch, Purpose.SAMPLE_BLOCKS, len(block), number)
            )
        ]
    return [mixed[position % len(mixed)] for position in range(length)]


@given(EITHER, EPOCHS)
def test_orders_equal_the_naive_model(order, epoch):
    length = 2 * order.samples + 5
    assert pairs(order, epoch, 0, length) == naive(order, epoch, length)


def test_workers_get_no_cached_arrays():
    order = make(UNEQUAL)
    size = len(pickle.dumps(order))
    order.at(0, 0, 51)
    assert len(pickle.dumps(order)) == size


# How well it mixes.


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


def test_the_footing_is_that_of_the_blocks_of_the_positions():
    order = make([10, 0, 20], run=3, block=8)
    wraps_round = [(24, 30), (0, 8)]
    for span, blocks in (((9, 10), [(8, 16)]), ((7, 25), [(0, 30)]), ((24, 31), wraps_round)):
        of_blocks = [sample for block in blocks for sample in pairs(order, 2, *block)]
        assert sorted(map(tuple, order.footing(2, *span).tolist())) == sorted(of_blocks)


# What is refused.


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": -1}, "seed must be from 0 to 18446744073709551615, got -1$"),
        ({"run": 2**33}, "run must be from 0 to 4294967296, got 8589934592$"),
        ({"block": MAX_BLOCK + 1}, "block must be from 0 to 1048576, got 1048577; to mix more"),
        ({"sampling": "random"}, r"sampling must be one of \['resampled', .*, got 'random'"),
        ({"sampling": "resampled", "run": 0}, "a draw needs a fixed number of samples; set shuffl"),
        ({"counts": [1, -1]}, "counts must be one int64 per shard, at least 0, got int64 of shape"),
    ],
)
def test_impossible_orders_are_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        make(**{"counts": [1, 2]} | changes)


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ((-1, 0, 1), r"epoch must be at least 0 and below 2\*\*64, got -1;"),
        ((0, 2, 1), "positions must be .*, got 2 to 1;"),
        ((0, 0, 2**63), "positions must be .*, got 0 to 9223372036854775808;"),
    ],
)
def test_impossible_queries_are_refused(query, message):
    for order in (make(UNEQUAL), strands(UNEQUAL, 2), example_mixture()):
        for ask in (order.at, order.footing):
            with pytest.raises(ConfigError, match=message):
                ask(*query)


def test_no_samples_are_refused_as_such():
    with pytest.raises(PlanError, match="there is no sample to order; check"):
        make([0, 0]).at(0, 0, 1)
    assert make([]).at(0, 0, 0).shape == (0, 2)
