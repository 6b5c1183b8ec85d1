"""The samples that one worker takes from a stretch of an epoch, looked up at once, read together.

In a shuffled block neighbours lie in different shards. Sample by sample, the lookups would cost
more than all the rest of a small sample. So the members of a whole stretch are found shard by
shard with numpy, and read in windows of several batches, in the order of the disk, what lies close
together in one call.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from lightning_shards.errors import SampleError
from lightning_shards.pipeline.fields import Field
from lightning_shards.pipeline.open_shards import OpenShards

WINDOW_BYTES = 16 * 2**20
"""Bytes of members that are read ahead together, at least one batch."""

_LARGE = 8192
"""Bytes from which on a member is read by itself: cutting it out would copy it once more."""

_GAP = 16_384
"""Bytes between two members that cost less to read with them than a call of its own."""

_NEAR = 2**19
"""Bytes between the starts of two samples that the system is told of together: as a rule, other
workers want what lies between."""

_PIECE = 2**20
"""Bytes that are read in one call at most: small members may lie among others that nobody wants."""

_NONE = -1


class NotInChunkError(SampleError):
    """A sample lacks a member, or its bytes are not what they were; read alone, it says more."""


class _Extents(NamedTuple):
    """Where the members of some samples lie; each int64 of shape (fields, samples)."""

    offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]  # _NONE where a sample has no such member
    crc32: NDArray[np.int64]  # _NONE where the table has none


class Chunk:
    """The members of some samples, batch by batch.

    Args:
        shards: the open shards.
        fields: what is read of each sample.
        ids: int64 of shape (n, 2), in the order of the batches.
        stops: the number of samples up to the end of each batch, the last is n.

    Attributes:
        keys: the key of each sample.

    Raises:
        ShardNotFoundError: a shard does not exist.
        IndexMismatchError: a shard changed since it was counted.
    """

    def __init__(
        self,
        shards: OpenShards,
        fields: Sequence[Field],
        ids: NDArray[np.int64],
        stops: Sequence[int],
    ) -> None:
        self._shards, self._fields, self._ids = shards, fields, ids
        self._stops = np.array(stops)
        self._window = range(0)
        self._data: list[list[bytes | None]] = []
        self._stamps: dict[int, tuple[int, int]] = {}
        by_place: NDArray[np.int64] = np.lexsort((ids[:, 1], ids[:, 0]))
        keys, extents = self._find(by_place)
        back = np.argsort(by_place)
        self.keys: list[str] = [keys[row] for row in back.tolist()]
        self._extents = _Extents(*(values[:, back] for values in extents))

    def members(self, start: int, stop: int) -> list[list[bytes]]:
        """The members of the samples start to stop, which are one batch: a list for each field.

        Raises:
            NotInChunkError: a sample has no member for a field, or its bytes are damaged.
        """
        if stop > self._window.stop:
            self._data = []  # or two windows were in memory
            self._window = range(start, self._end_of_window(start))
            self._data = self._read(start, self._window.stop)
        rows = slice(start - self._window.start, stop - self._window.start)
        columns: list[list[bytes]] = []
        for column in self._data:
            columns.append([data for data in column[rows] if data is not None])
            if len(columns[-1]) < stop - start:
                raise NotInChunkError("a member of this batch is missing or damaged")
        return columns

    def _find(self, by_place: NDArray[np.int64]) -> tuple[list[str], _Extents]:
        """Keys and extents in the order of the disk; the system is told what will be read."""
        shards, samples = self._ids[by_place].T
        keys: list[str] = []
        found: list[_Extents] = []
        for start, stop in _pieces(shards[1:] != shards[:-1]):
            reader, own = self._shards.reader(int(shards[start])), samples[start:stop]
            table = reader.table
            begins = table.offsets[table.sample_starts[own]]
            for first, last in _pieces(np.diff(begins) > _NEAR):
                reader.will_need(int(own[first]), int(own[last - 1]) + 1)
            self._stamps[int(shards[start])] = table.stamp
            keys += table.keys_of(own)
            members = np.array([reader.members_with(each.suffixes)[own] for each in self._fields])
            sizes = np.where(members < 0, _NONE, table.sizes[members])
            checksums = np.full_like(sizes, _NONE) if table.crc32 is None else table.crc32[members]
            found.append(_Extents(table.offsets[members], sizes, checksums.astype(np.int64)))
        return keys, _Extents(*(np.concatenate(each, axis=1) for each in zip(*found, strict=True)))

    def _end_of_window(self, start: int) -> int:
        """Where the last batch ends that fits with the first; the first in any case."""
        read = np.cumsum(self._extents.sizes[:, start:].sum(axis=0))
        fits = start + np.searchsorted(read, WINDOW_BYTES, side="right")
        batches = self._stops[self._stops > start]
        return int(max(batches[0], batches[batches <= fits].max(initial=0)))

    def _read(self, start: int, stop: int) -> list[list[bytes | None]]:
        """The members of these samples by field; None for one that is not there or damaged."""
        extents = _Extents(*(values[:, start:stop].ravel() for values in self._extents))
        shards = np.tile(self._ids[start:stop, 0], len(self._fields))
        order = np.lexsort((extents.offsets, shards))
        read = self._read_in_order(shards[order], extents.offsets[order], extents.sizes[order])
        back: list[int] = np.argsort(order).tolist()
        members: list[bytes | None] = [read[row] for row in back]
        _drop_damaged(members, extents.crc32)
        count = stop - start
        return [members[first : first + count] for first in range(0, len(members), count)]

    def _read_in_order(
        self, shards: NDArray[np.int64], offsets: NDArray[np.int64], sizes: NDArray[np.int64]
    ) -> list[bytes | None]:
        """The data of members that are sorted by their place; None where it is not there."""
        stops = offsets + sizes
        is_alone = sizes >= _LARGE
        cuts = (
            (shards[1:] != shards[:-1])
            | (offsets[1:] > stops[:-1] + _GAP)
            | (stops[1:] // _PIECE != stops[:-1] // _PIECE)
            | is_alone[1:]
            | is_alone[:-1]
        )
        pieces = list(_pieces(cuts))
        firsts = [first for first, _ in pieces]
        begins = offsets[firsts]
        lengths = (np.maximum.reduceat(stops, firsts) - begins).tolist()
        places = zip(shards[firsts].tolist(), begins.tolist(), lengths, strict=True)
        within = offsets - np.repeat(begins, np.diff([*firsts, len(offsets)]))
        slices = list(zip(within.tolist(), (within + sizes).tolist(), strict=True))
        read: list[bytes | None] = []
        for (first, last), (shard, begin, length) in zip(pieces, places, strict=True):
            data = self._span(shard, begin, max(length, 0))
            whole = len(data)
            read += [data[a:b] if a <= b <= whole else None for a, b in slices[first:last]]
        return read

    def _span(self, shard: int, begin: int, length: int) -> bytes:
        """Bytes of a shard; none if it cannot be read, or was written anew since the lookup."""
        reader = self._shards.reader(shard)
        if reader.table.stamp != self._stamps[shard]:
            return b""
        try:
            return reader.read_span(begin, length)
        except OSError:
            return b""


def _drop_damaged(members: list[bytes | None], checks: NDArray[np.int64]) -> None:
    """Put None for the members that are not what their crc32 says."""
    if not len(checks) or checks.max() < 0:
        return
    sums = np.array([_NONE if data is None else crc32(data) for data in members])
    for row in np.flatnonzero((checks >= 0) & (sums != checks)).tolist():
        members[row] = None


def _pieces(cuts: NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    """Starts and stops of the pieces of a sequence that is cut behind item i where cuts[i]."""
    ends = [0, *(np.flatnonzero(cuts) + 1).tolist(), len(cuts) + 1]
    return pairwise(ends)
