"""Small data sets of which some samples are left out, and strategies that draw their orders."""

from functools import partial

import numpy as np
from hypothesis import strategies as st

from lightning_shards.plan.kept_order import HeldNumbers, KeptOrder, kept_samples, pack_masks
from lightning_shards.plan.order import SampleOrder

SAMPLINGS = ("resampled", "shuffled", "sequential")


def small_kept(masks):
    """What is left of shards with these masks."""
    totals = np.array([len(mask) for mask in masks], np.int64)
    return kept_samples(totals, HeldNumbers(pack_masks(np.array(mask, bool) for mask in masks)))


def kept_order(masks, sampling="shuffled", run=3, block=8, seed=0):
    kept = small_kept(masks)
    return KeptOrder(SampleOrder(kept.counts, seed, sampling, run, block), kept)


def ids_left(masks):
    """By hand: shard and number of each sample that is left, in file order."""
    return [
        (shard, number)
        for shard, mask in enumerate(masks)
        for number, is_kept in enumerate(mask)
        if is_kept
    ]


LENGTHS = st.one_of(st.integers(0, 12), st.integers(60, 130))
MASKS = st.lists(
    LENGTHS.flatmap(lambda n: st.lists(st.booleans(), min_size=n, max_size=n)),
    min_size=1,
    max_size=6,
).filter(lambda masks: any(map(any, masks)))
"""Of shards of less than a word of bits, or of a word and more."""


def kept_orders(masks, samplings=SAMPLINGS):
    """Orders of what is left of shards with these masks."""
    return st.builds(
        partial(kept_order, masks),
        st.sampled_from(samplings),
        st.integers(1, 9),
        st.integers(0, 50),
        st.integers(0, 2**64 - 1),
    )


KEPT = MASKS.flatmap(kept_orders)
