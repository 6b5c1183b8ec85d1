"""Reading the members of many samples at once, in the order of the disk.

Small members that lie close together are read in one call, into a buffer that is used again and
again: fresh memory costs as much as the copy into it. Large ones are read one by one, just before
they are decoded: they are still in the processor's caches then.
"""

from collections.abc import Iterator
from contextlib import suppress
from itertools import groupby
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lightning_shards.readers.open_shards import OpenShards
from lightning_shards.samples.member_bytes import (
    ABSENT,
    ColumnError,
    Ints,
    ListedBytes,
    MemberBytes,
)
from lightning_shards.shards.checksums import crc32
from lightning_shards.shards.members import ShardReader

_LARGE = 8192
"""Mean bytes of a field's members from which on they are read one by one."""

_GAP = 16_384
"""Bytes between two members that cost less to read with them than a call of its own."""

_PIECE = 2**20
"""Bytes that are read in one call at most: small members may lie among others that nobody wants."""

Stamps = dict[int, tuple[int, int]]
"""Size and time of change of shards when their members were looked up."""


class Extents(NamedTuple):
    """Where the members of some samples lie.

    Attributes:
        shards: of each sample, int64 of shape (samples,).
        offsets: int64 of shape (fields, samples).
        sizes: likewise, ABSENT where a sample has no such member.
        crc32: likewise, ABSENT where it is not known.
    """

    shards: Ints
    offsets: Ints
    sizes: Ints
    crc32: Ints

    def part(self, start: int, stop: int) -> "Extents":
        """Those of some samples."""
        return Extents(*(values[..., start:stop] for values in self))

    def of(self, fields: list[int]) -> "Extents":
        """Those of some fields."""
        return Extents(self.shards, *(values[fields] for values in self[1:]))

    def large(self) -> list[bool]:
        """Whether the members of each field are read one by one."""
        return (self.sizes.mean(axis=1) >= _LARGE).tolist()


class _SortedMembers(NamedTuple):
    """Some members in the order of the disk; all int64 of one shape (n,).

    Attributes:
        order: the number of each before they were sorted.
    """

    order: Ints
    shards: Ints
    offsets: Ints
    sizes: Ints


class _Reads(NamedTuple):
    """What is read in one call each; all int64 of one shape (pieces,).

    Attributes:
        counts: members of each.
        shards: of each.
        begins: where it begins in its shard.
        places: where it begins in the buffer.
        lengths: its bytes.
    """

    counts: Ints
    shards: Ints
    begins: Ints
    places: Ints
    lengths: Ints


class ReadAhead:
    """What is to be read of small fields for some samples, and the reading of it.

    Attributes:
        buffered: bytes that go through the buffer, gaps between members included.
    """

    def __init__(self, extents: Extents) -> None:
        self._sizes, self._checksums = extents.sizes, extents.crc32
        self._members = _sorted(extents)
        self._pieces = _cut(self._members)
        self.buffered = int(self._pieces.lengths.sum())

    def read(self, shards: OpenShards, stamps: Stamps) -> list[MemberBytes]:
        """The members of each field; they hold until the next window is read.

        A member that cannot be read is absent.
        """
        buffer = shards.buffer(self.buffered)
        starts = np.empty(self._sizes.size, np.int64)
        starts[self._members.order] = _fill(shards, stamps, self._members, self._pieces, buffer)
        starts = starts.reshape(self._sizes.shape)
        rows = zip(starts, self._sizes, self._checksums, strict=True)
        return [MemberBytes(buffer, *row) for row in rows]


class LargeMembers:
    """The members of one large field in a batch, each read when it is asked for.

    Args:
        shards: the open shards.
        stamps: of these shards, when the members were looked up.
        extents: of this field alone.
    """

    def __init__(self, shards: OpenShards, stamps: Stamps, extents: Extents) -> None:
        self._shards, self._stamps, self._extents = shards, stamps, extents

    def loaded(self) -> ListedBytes:
        """All of them; raises what the iteration does."""
        return ListedBytes(list(self))

    def __iter__(self) -> Iterator[bytes]:
        """Each member's bytes.

        Raises:
            ColumnError: one is missing or damaged.
        """
        rows = zip(*(values.ravel().tolist() for values in self._extents), strict=True)
        for shard, offset, size, checksum in rows:
            data = b""
            reader = _reader(self._shards, self._stamps, shard)
            if reader is not None and size > 0:
                with suppress(OSError, MemoryError):
                    data = reader.read_span(offset, size)
                if not reader.is_unchanged:
                    data = b""
            if len(data) != size or (checksum != ABSENT and crc32(data) != checksum):
                raise ColumnError("a member of this batch is missing or damaged")
            yield data


def by_place(shards: Ints, places: Ints) -> Ints:
    """The order of the disk: by shard, and by place in it; all are at least 0."""
    width = int(places.max(initial=0)) + 1
    if int(shards.max(initial=0)) >= 2**62 // width:
        return np.lexsort((places, shards))
    return np.argsort(shards * width + places)  # one key sorts seven times as fast as two


def inverse(order: Ints) -> Ints:
    """The permutation that undoes this one."""
    back = np.empty_like(order)
    back[order] = np.arange(len(order))
    return back


def _sorted(extents: Extents) -> _SortedMembers:
    shards = np.tile(extents.shards, len(extents.sizes))
    offsets, sizes = extents.offsets.ravel(), extents.sizes.ravel()
    order = by_place(shards, offsets)
    return _SortedMembers(order, shards[order], offsets[order], sizes[order])


def _cut(members: _SortedMembers) -> _Reads:
    """The pieces that hold these members."""
    shards, offsets = members.shards, members.offsets
    stops = offsets + np.maximum(members.sizes, 0)
    cuts = (
        (shards[1:] != shards[:-1])
        | (offsets[1:] > stops[:-1] + _GAP)
        | (stops[1:] // _PIECE != stops[:-1] // _PIECE)
    )
    firsts = np.concatenate([[0], np.flatnonzero(cuts) + 1])
    lengths = np.maximum.reduceat(stops, firsts) - offsets[firsts]
    counts = np.diff(firsts, append=len(offsets))
    places = np.cumsum(lengths) - lengths
    return _Reads(counts, shards[firsts], offsets[firsts], places, lengths)


def _fill(
    shards: OpenShards,
    stamps: Stamps,
    members: _SortedMembers,
    pieces: _Reads,
    buffer: NDArray[np.uint8],
) -> Ints:
    """Where each member begins in the buffer, once it is filled; ABSENT for one that is not."""
    view = buffer.data
    read: list[int] = []
    rows = zip(*(values.tolist() for values in pieces[1:]), strict=True)
    for shard, own in groupby(rows, lambda row: row[0]):
        reader = _reader(shards, stamps, shard)
        reads = [(begin, view[place : place + length]) for _, begin, place, length in own]
        lengths = [_read_into(reader, begin, into) for begin, into in reads]
        if reader is None or not reader.is_unchanged:  # asked behind the reading, see there
            lengths = [0] * len(lengths)
        read += lengths
    within = members.offsets - np.repeat(pieces.begins, pieces.counts)
    starts = within + np.repeat(pieces.places, pieces.counts)
    is_read = within + members.sizes <= np.repeat(np.array(read), pieces.counts)
    starts[(members.sizes < 0) | ~is_read] = ABSENT
    return starts


def _reader(shards: OpenShards, stamps: Stamps, shard: int) -> ShardReader | None:
    """The open shard; None if it was opened again since the lookup, and is another one."""
    reader = shards.reader(shard)
    return reader if reader.table.stamp == stamps[shard] else None


def _read_into(reader: ShardReader | None, begin: int, into: memoryview) -> int:
    """Bytes that were read."""
    if reader is not None:
        with suppress(OSError, MemoryError):
            return reader.read_into(begin, into)
    return 0
