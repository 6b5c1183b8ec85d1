"""The digest of a set of sample ids: equal for equal sets, in whatever order and parts they came.

It is a sum, so each rank and worker digests what it served, and the parts are added: see Bellare
and Micciancio, "A new paradigm for collision-free hashing" (1997). It finds mistakes, and gives no
protection against forgery.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from lightning_shards.plan.draws import mix
from lightning_shards.plan.order import Order
from lightning_shards.plan.place import Place

_AT_ONCE = 2**16
"""Positions digested together; 1 MiB of ids."""

_MODULUS = 2**64


def digest_ids(ids: NDArray[np.int64]) -> int:
    """The digest of sample ids, int64 of shape (n, 2): below 2**64, 0 for none.

    An id that occurs twice counts twice.

    >>> digest_ids(np.array([[0, 1], [3, 2]])) == digest_ids(np.array([[3, 2], [0, 1]]))
    True
    """
    return int(id_digests(ids).sum(dtype=np.uint64))


def id_digests(ids: NDArray[np.int64]) -> NDArray[np.uint64]:
    """The digest of each id by itself, shape (n,)."""
    shards, samples = ids.astype(np.uint64).T
    return mix(mix(shards + np.uint64(1)) + samples)


def add_digests(*digests: int) -> int:
    """The digest of the union of sets of ids, from the digests of the sets."""
    return sum(digests) % _MODULUS


def digest_share(order: Order, epoch: int, start: int, stop: int, place: Place) -> int:
    """A rank's share of the digest of the samples at positions start to stop of an epoch.

    Each rank digests an equal part of the positions; `add_digests` of all shares is the digest.
    """
    sets = order.as_sets(start, stop)
    return add_digests(*(_share_of_set(part, epoch, span, place) for part, *span in sets))


def _share_of_set(order: Order, epoch: int, span: Sequence[int], place: Place) -> int:
    start, stop = span
    begin = start + (stop - start) * place.rank // place.world_size
    end = start + (stop - start) * (place.rank + 1) // place.world_size
    starts = range(begin, end, _AT_ONCE)
    return add_digests(
        *(digest_ids(order.at(epoch, first, min(first + _AT_ONCE, end))) for first in starts)
    )
