"""The order of what is left of a data set when some of its samples are left out.

The kept samples are numbered anew, without gaps, and any order of such numbers gives the sequence.
One vectorised step then turns them into the samples' own numbers. Shard a holds 5 samples and b 3;
a1, a2 and b0 are left out::

    file order           a0 a1 a2 a3 a4 b0 b1 b2
    number               0  1  2  3  4  5  6  7
    number among kept    0        1  2     3  4
    numbers left out     1 2 5      each less those left out before it ("shifts")   1 1 3
    number of kept 3     3 + (shifts up to 3: three) = 6, which is b1
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from lightning_shards.plan.draws import FileOrder
from lightning_shards.plan.order import Order

_Ints = NDArray[np.int64]

_GAP = 4
"""Samples left out between two kept ones that are still read with them: one request for both costs
less than two."""


class Numbers(Protocol):
    """Sorted numbers of samples, which may be in a file that each process maps for itself."""

    def values(self) -> NDArray[Any]:
        """The numbers, int64 or uint32, of one dimension."""
        ...


@dataclass(frozen=True)
class HeldNumbers(Numbers):
    """Numbers in memory, which travel with what holds them."""

    held: NDArray[Any]

    def values(self) -> NDArray[Any]:
        """The numbers themselves."""
        return self.held


@dataclass(frozen=True)
class KeptSamples:
    """Which samples of a data set are left.

    Attributes:
        totals: Samples that each shard holds, int64, shape (num_shards,).
        counts: Samples of each shard that are left, int64, shape (num_shards,).
        numbers: Where samples are numbered through all shards in file order: the number of each
            kept sample, or of each one left out less those left out before it. The shorter list.
        are_kept: Whether the numbers are those of kept samples.
        identity: 16 hex digits that other kept samples do not have.
    """

    totals: _Ints = field(compare=False)
    counts: _Ints = field(compare=False)
    numbers: Numbers = field(compare=False)
    are_kept: bool = field(compare=False)
    identity: str

    @property
    def samples(self) -> int:
        """How many samples are left."""
        return self._kept.samples

    def own_ids(self, ids: _Ints) -> _Ints:
        """The sample ids of kept samples: their own numbers in the shard.

        `ids` are shard and number among the kept samples of the shard, int64 of shape (n, 2).
        """
        shards = ids[:, 0]
        numbers = self._kept.begins[shards] + ids[:, 1]
        own = self._own_numbers(numbers) - self._all.begins[shards]
        return np.stack((shards, own), axis=1)

    def of_shard(self, shard: int) -> _Ints:
        """The own numbers of all kept samples of a shard, ascending: int64, shape (counts[i],)."""
        ids = np.empty((int(self.counts[shard]), 2), np.int64)
        ids[:, 0], ids[:, 1] = shard, np.arange(len(ids))
        return self.own_ids(ids)[:, 1]

    def _own_numbers(self, numbers: _Ints) -> _Ints:
        """Of the n-th kept samples of the whole data set, their numbers in it."""
        listed = self.numbers.values()
        if self.are_kept:
            return listed[numbers].astype(np.int64)
        # Of one type with `listed`, all of which numpy would copy otherwise; and ascending, as each
        # search then reads what the one before it has brought into the processor's cache.
        wanted = numbers.astype(listed.dtype)
        ascending = np.argsort(wanted)
        shifts = np.empty_like(numbers)
        shifts[ascending] = np.searchsorted(listed, wanted[ascending], side="right")
        return numbers + shifts

    @cached_property
    def _all(self) -> FileOrder:
        return FileOrder(self.totals)

    @cached_property
    def _kept(self) -> FileOrder:
        return FileOrder(self.counts)


@dataclass(frozen=True)
class KeptOrder(Order):
    """The samples that are left, in the order that their numbers among the kept ones have.

    Attributes:
        inner: An order of as many samples in each shard as are left there.
        kept: Which samples these are.
    """

    inner: Order
    kept: KeptSamples

    @property
    def samples(self) -> int:
        """Samples that are left."""
        return self.inner.samples

    def at(self, epoch: int, start: int, stop: int) -> _Ints:
        """What the inner order gives, with the samples' own numbers; errors are its, too."""
        return self.kept.own_ids(self.inner.at(epoch, start, stop))

    def at_spans(self, epoch: int, spans: Sequence[tuple[int, int]]) -> _Ints:
        """What the inner order gives, with the samples' own numbers."""
        return self.kept.own_ids(self.inner.at_spans(epoch, spans))

    def footing(self, epoch: int, start: int, stop: int) -> _Ints:
        """The blocks of the inner order, with the few samples left out between neighbours.

        What is worth reading together is then one piece in spite of small gaps.
        """
        inner = self.inner.footing(epoch, start, stop)
        return _without_small_gaps(inner, self.kept.own_ids(inner))

    def with_gaps(self, samples: int) -> int:
        """How many samples `footing` gives, on average at most, for blocks of this many."""
        return min((1 + _GAP) * samples, samples * int(self.kept.totals.sum()) // self.samples)

    def identity(self) -> dict[str, int | str]:
        """That of the inner order, and which samples are left."""
        return self.inner.identity() | {"kept": self.kept.identity}


def _without_small_gaps(inner: _Ints, own: _Ints) -> _Ints:
    """The ids `own`, with those between samples that are neighbours in `inner`."""
    # steps: how many samples of the shard each one is before the next in the list, where they are
    # neighbours among the kept ones and the gap is small; 1 elsewhere. Shape (n,).
    steps = np.ones(len(own), np.int64)
    between = np.diff(own[:, 1])
    are_neighbours = (np.diff(inner[:, 0]) == 0) & (np.diff(inner[:, 1]) == 1)
    steps[:-1] = np.where(are_neighbours & (between <= 1 + _GAP), between, 1)
    filled = np.repeat(own, steps, axis=0)
    # The k-th repeat of a sample is the k-th sample after it.
    firsts = np.cumsum(steps) - steps
    filled[:, 1] += np.arange(len(filled)) - np.repeat(firsts, steps)
    return filled
