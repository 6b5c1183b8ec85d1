"""The order of what is left of a data set when some of its samples are left out.

The kept samples are numbered anew, without gaps, and any order of such numbers gives the sequence.
What is left is one bit for each sample, in words of 64 bits, and each shard begins a word. Next to
each word is how many samples are kept before it, so that the n-th kept sample is found by a binary
search for its word and another one in the word: 0.4 us a sample, if half of ten million are kept.
With words of 4 bits, a shard a of 5 samples, of which a1 and a2 are left out, and b of 3 without
b0::

    samples                   a0 a1 a2 a3   a4 -- -- --   b0 b1 b2 --
    bits                       1  0  0  1    1  0  0  0    0  1  1  0
    kept before the word            0             2             3          5: all
    number among kept          0        1    2                3  4
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from lightning_shards.plan.order import Order

_Ints = NDArray[np.int64]

_GAP = 4
"""Samples left out between two kept ones that are still read with them: one request for both costs
less than two."""

_WORD: Final = 64
_BYTE: Final = 8
_IDENTITY_LENGTH: Final = 16


class Numbers(Protocol):
    """An array of numbers, which may be in a file that each process maps for itself."""

    def values(self) -> NDArray[Any]:
        """The numbers."""
        ...


@dataclass(frozen=True)
class HeldNumbers(Numbers):
    """Numbers in memory, which travel with what holds them."""

    held: NDArray[Any]

    def values(self) -> NDArray[Any]:
        """The numbers themselves."""
        return self.held


def pack_masks(masks: Iterable[NDArray[np.bool_]]) -> _Ints:
    """What is left of shards with these masks, as `KeptSamples` has it in `words`."""
    shards = (np.packbits(mask).tobytes() for mask in masks)
    padded = (bits.ljust(-(-len(bits) // _BYTE) * _BYTE, b"\0") for bits in shards)
    return _with_counts(np.frombuffer(b"".join(padded) + bytes(_BYTE), np.int64))


def _with_counts(bits: _Ints) -> _Ints:
    kept = np.bitwise_count(bits.view(np.uint64)).astype(np.int64)
    return np.stack((np.cumsum(kept) - kept, bits))


def kept_samples(totals: _Ints, words: Numbers) -> "KeptSamples":
    """Which samples of shards with so many are left.

    Raises:
        ValueError: The words are not those of such shards, or damaged.
    """
    given = words.values()
    starts = _word_starts(totals)
    if given.shape != (2, starts[-1] + 1) or not np.array_equal(given, _with_counts(given[1])):
        raise ValueError("its bits are not as many as it says")
    digest, data = hashlib.sha256(), given[1].tobytes()
    for total, start in zip(totals.tolist(), starts.tolist(), strict=False):
        begin = _BYTE * start
        digest.update(total.to_bytes(8, "big") + data[begin : begin - (-total // _BYTE)])
    return KeptSamples(totals, words, digest.hexdigest()[:_IDENTITY_LENGTH])


def _word_starts(totals: _Ints) -> _Ints:
    """Where the words of each shard begin, and the end of the last: shape (num_shards + 1,)."""
    return np.append(0, np.cumsum(-(-totals // _WORD)))


@dataclass(frozen=True)
class KeptSamples:
    """Which samples of a data set are left.

    Attributes:
        totals: Samples that each shard holds, int64, shape (num_shards,).
        words: int64, shape (2, num_words + 1): how many samples are kept before each word of bits,
            and the words, of which the last has no sample.
        identity: 16 hex digits that other kept samples do not have.
    """

    totals: _Ints = field(compare=False)
    words: Numbers = field(compare=False)
    identity: str

    @cached_property
    def counts(self) -> _Ints:
        """Samples of each shard that are left, int64, shape (num_shards,)."""
        return np.diff(self.words.values()[0, self._starts])

    @property
    def samples(self) -> int:
        """How many samples are left."""
        return int(self.words.values()[0, -1])

    def own_ids(self, ids: _Ints) -> _Ints:
        """The sample ids of kept samples: their own numbers in the shard.

        `ids` are shard and number among the kept samples of the shard, int64 of shape (n, 2).
        """
        before, bits = cast("tuple[_Ints, _Ints]", self.words.values())
        starts = self._starts[ids[:, 0]]
        # numbers: of these samples among the kept ones of all shards, shape (n,).
        numbers = before[starts] + ids[:, 1]
        words = np.searchsorted(before, numbers, side="right") - 1
        places = _place_of_bit(bits[words], numbers - before[words])
        return np.stack((ids[:, 0], _WORD * (words - starts) + places), axis=1)

    def of_shard(self, shard: int) -> _Ints:
        """The own numbers of all kept samples of a shard, ascending: int64, shape (counts[i],)."""
        start, stop = self._starts[shard : shard + 2]
        return np.flatnonzero(np.unpackbits(self.words.values()[1, start:stop].view(np.uint8)))

    @cached_property
    def _starts(self) -> _Ints:
        return _word_starts(self.totals)


def _place_of_bit(bits: _Ints, numbers: _Ints) -> _Ints:
    """Where in each of these words the bit with this number is among those that are set."""
    are_set = np.unpackbits(bits.view(np.uint8).reshape(-1, _BYTE), axis=1)  # shape (n, 64)
    return (np.cumsum(are_set, axis=1, dtype=np.uint8) > numbers[:, None]).argmax(axis=1)


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
