"""Orders of huge data sets take little memory, and impossible ones are refused."""

import tracemalloc
from itertools import product

import numpy as np
import pytest
from small_orders import HUGE, SAMPLINGS, UNEQUAL, make

from lightning_shards.errors import ConfigError, PlanError
from lightning_shards.plan import order as order_module
from lightning_shards.plan.order import MAX_BLOCK, SampleOrder


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize(
    ("run", "block", "limit"), [(64, 16_384, 64), (1, 0, 64), (64, MAX_BLOCK, 128)]
)
def test_seeking_in_a_huge_data_set_takes_little_memory(sampling, run, block, limit):

    tracemalloc.start()
    try:
        order = SampleOrder(HUGE, 1, sampling, run, block)
        for epoch, start in product(range(2), (0, 6_543_210_987, 10**10 - 128)):
            order.at(epoch, start, start + 256)
        assert tracemalloc.get_traced_memory()[1] / 2**20 < limit
    finally:
        tracemalloc.stop()


def test_remembered_blocks_are_few():
    order = make([100_000], run=1, block=1000)
    for start in range(0, 100_000, 1000):
        order.at(0, start, start + 10)
    assert order._blocks.cache_info().currsize == order_module.BLOCKS_KEPT


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": -1}, "seed must be from 0 to 18446744073709551615, got -1;"),
        ({"seed": 2**64}, "seed must be from 0 to .*, got 18446744073709551616;"),
        ({"run": -1}, "run must be from 0 to 4294967296, got -1;"),
        ({"run": 2**33}, "run must be from 0 to 4294967296, got 8589934592;"),
        ({"block": -1}, "block must be from 0 to 1048576, got -1;"),
        ({"block": MAX_BLOCK + 1}, "block must be from 0 to 1048576, got 1048577; to mix more"),
        ({"sampling": "random"}, "sampling must be one of resampled, shuffled, sequential, got 'r"),
        ({"sampling": "resampled", "run": 0}, "a draw needs a fixed number of samples; set shuffl"),
        ({"counts": [1, -1]}, "counts must be one int64 per shard, at least 0, got int64 of shape"),
        ({"counts": [[1]]}, r"counts must be .*, got int64 of shape \(1, 1\); check"),
    ],
)
def test_impossible_orders_are_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        make(**{"counts": [1, 2]} | changes)


def test_counts_that_are_no_int64_are_refused():
    with pytest.raises(ConfigError, match="got float64 of shape"):
        SampleOrder(np.array([1.0]), 0, "shuffled")


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ((-1, 0, 1), r"epoch must be at least 0 and below 2\*\*64, got -1;"),
        ((2**64, 0, 1), r"epoch must be .*, got 18446744073709551616;"),
        ((0, -1, 1), r"positions must be 0 <= start <= stop < 2\*\*63, got -1 to 1;"),
        ((0, 2, 1), "positions must be .*, got 2 to 1;"),
        ((0, 0, 2**63), "positions must be .*, got 0 to 9223372036854775808;"),
    ],
)
def test_impossible_queries_are_refused(query, message):
    with pytest.raises(ConfigError, match=message):
        make(UNEQUAL).at(*query)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_no_samples_are_refused_as_such(sampling):
    with pytest.raises(PlanError, match="there is no sample to order; check"):
        make([0, 0], sampling=sampling).at(0, 0, 1)
    assert make([], sampling=sampling).at(0, 0, 0).shape == (0, 2)
