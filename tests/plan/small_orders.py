"""Small orders of every kind, and strategies that draw them."""

from itertools import product

import numpy as np
from hypothesis import strategies as st

from lightning_shards.plan.draws import MAX_TABLE
from lightning_shards.plan.epoch import plan_epoch
from lightning_shards.plan.order import SampleOrder

SMALL_WORLD = [
    plan_epoch(samples, batch_size, world_size, remainder, done)
    for samples, batch_size, world_size, remainder in product(
        range(13), range(1, 4), range(1, 5), ("drop", "pad", "balanced")
    )
    for done in range(samples + 1)
]
"""Every plan of a world small enough to see it all."""

SAMPLINGS = ("resampled", "shuffled", "sequential")
UNEQUAL = np.array([3, 0, 40, 7, 1], dtype=np.int64)
HUGE = np.full(10**6, 10_000, dtype=np.int64)
JUST_ABOVE = (MAX_TABLE + 1, MAX_TABLE + 2, 65_792, 65_793, 70_001)


def make(counts, seed=0, sampling="shuffled", run=3, block=8):
    return SampleOrder(np.array(counts, dtype=np.int64), seed, sampling, run, block)


def file_ids(counts):
    """Shard and number of each sample, in file order."""
    return [(shard, sample) for shard, count in enumerate(counts) for sample in range(count)]


def philox(seed, epoch, purpose, number, stream=0):
    """The first words of the random stream that `Purpose` names, as Python's integers."""
    generator = np.random.Philox(
        key=np.array([seed, epoch], np.uint64),
        counter=np.array([0, stream, 0, int(purpose)], np.uint64),
    )
    return generator.random_raw(number).tolist()


def sorted_by(values, words):
    """The values in the order of their words; an iterator of words goes on behind them."""
    keyed = zip(values, words, strict=False)
    return [value for value, _ in sorted(keyed, key=lambda pair: pair[1])]


def pairs(order, epoch, start, stop):
    return [(shard, sample) for shard, sample in order.at(epoch, start, stop).tolist()]


def orders(samplings=SAMPLINGS, max_count=12):
    """Small orders of every kind with at least one sample."""
    return st.builds(
        make,
        counts=st.lists(st.integers(0, max_count), min_size=1, max_size=7).filter(any),
        seed=st.integers(0, 2**64 - 1),
        sampling=st.sampled_from(samplings),
        run=st.integers(0 if "resampled" not in samplings else 1, 9),
        block=st.integers(0, 50),
    )


EITHER = orders() | orders(("shuffled", "sequential"))
EPOCHS = st.integers(0, 2**64 - 1)
