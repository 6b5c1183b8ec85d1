"""Orders that draw the classes of small data sets, whose labels are given by hand."""

import hashlib

import numpy as np

from lightning_shards.plan.balanced_order import BalancedOrder
from lightning_shards.plan.draws import FileOrder
from lightning_shards.plan.kept_order import HeldNumbers


def balanced_order(counts, labels, weights=None, seed=0):
    """Draws of samples with these labels, in file order; classes are numbered as they come."""
    names = list(dict.fromkeys(labels))
    classes = np.array([names.index(label) for label in labels])
    starts = np.cumsum([0, *np.bincount(classes)])
    return BalancedOrder(
        FileOrder(np.array(counts, np.int64)),
        HeldNumbers(np.argsort(classes, kind="stable")),
        HeldNumbers(starts),
        hashlib.sha256(repr((counts, labels)).encode()).hexdigest(),
        tuple(float((weights or {}).get(name, 1)) for name in names),
        seed,
    )
