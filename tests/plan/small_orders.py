"""Small orders of every kind, and strategies that draw them."""

import numpy as np
from hypothesis import strategies as st

from lightning_shards.plan.draws import MAX_TABLE
from lightning_shards.plan.order import SampleOrder

SAMPLINGS = ("resampled", "shuffled", "sequential")
UNEQUAL = np.array([3, 0, 40, 7, 1], dtype=np.int64)
HUGE = np.full(10**6, 10_000, dtype=np.int64)
JUST_ABOVE = (MAX_TABLE + 1, MAX_TABLE + 2, 65_792, 65_793, 70_001)


def make(counts, seed=0, sampling="shuffled", run=3, block=8):
    return SampleOrder(np.array(counts, dtype=np.int64), seed, sampling, run, block)


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
