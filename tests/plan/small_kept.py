"""Small data sets of which some samples are left out, and strategies that draw their orders."""

import numpy as np
from hypothesis import strategies as st

from lightning_shards.plan.kept_order import HeldNumbers, KeptOrder, KeptSamples
from lightning_shards.plan.order import SampleOrder

SAMPLINGS = ("resampled", "shuffled", "sequential")


def kept_samples(masks, *, are_kept=False, kind=np.uint32):
    """What is left of shards with these masks, in either of the two forms."""
    mask = np.array([each for mask in masks for each in mask], np.bool_)
    left_out = np.flatnonzero(~mask)
    numbers = np.flatnonzero(mask) if are_kept else left_out - np.arange(len(left_out))
    totals = np.array([len(mask) for mask in masks], np.int64)
    counts = np.array([sum(mask) for mask in masks], np.int64)
    identity = "".join(f"{int(each)}" for each in mask)
    return KeptSamples(totals, counts, HeldNumbers(numbers.astype(kind)), are_kept, identity)


def kept_order(masks, sampling="shuffled", run=3, block=8, seed=0, **form):
    kept = kept_samples(masks, **form)
    return KeptOrder(SampleOrder(kept.counts, seed, sampling, run, block), kept)


def ids_left(masks):
    """By hand: shard and number of each sample that is left, in file order."""
    return [
        (shard, number)
        for shard, mask in enumerate(masks)
        for number, is_kept in enumerate(mask)
        if is_kept
    ]


MASKS = st.lists(st.lists(st.booleans(), max_size=12), min_size=1, max_size=6).filter(
    lambda masks: any(map(any, masks))
)
FORMS = st.fixed_dictionaries(
    {"are_kept": st.booleans(), "kind": st.sampled_from((np.uint32, np.int64))}
)


def kept_orders(masks, samplings=SAMPLINGS):
    """Orders of what is left of shards with these masks."""
    return st.builds(
        lambda sampling, run, block, seed, form: kept_order(
            masks, sampling, run, block, seed, **form
        ),
        st.sampled_from(samplings),
        st.integers(1, 9),
        st.integers(0, 50),
        st.integers(0, 2**64 - 1),
        FORMS,
    )


KEPT = MASKS.flatmap(kept_orders)
