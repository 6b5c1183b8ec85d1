"""Reading the members of many samples at once, in the order of the disk.

Small members that lie close together are read in one call, into a buffer that is used again and
again: fresh memory costs as much as the copy into it. Large ones are read as bytes of their own, as
their decoders want them.
"""

from contextlib import suppress
from itertools import groupby
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lightning_shards.pipeline.member_bytes import ABSENT, Ints, ListedBytes, MemberBytes, Members
from lightning_shards.pipeline.open_shards import OpenShards
from lightning_shards.shards.checksums import crc32
from lightning_shards.shards.members import ShardReader

_LARGE = 8192
"""Mean bytes of a field's members from which on each is read by itself."""

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

    def are_large(self) -> NDArray[np.bool_]:
        """Whether the members of each field are better read one by one, shape (fields,)."""
        return self.sizes.mean(axis=1) >= _LARGE


class _Members(NamedTuple):
    """Some members in the order of the disk; all int64 of one shape (n,).

    Attributes:
        order: the number of each before they were sorted.
    """

    order: Ints
    shards: Ints
    offsets: Ints
    sizes: Ints
    crc32: Ints


class _Pieces(NamedTuple):
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


class Window:
    """What is to be read for some samples, and the reading of it.

    Args:
        extents: where their members lie.
        is_large: which fields are read member by member, of shape (fields,).

    Attributes:
        buffered: bytes that go through the buffer, gaps between members included.
    """

    def __init__(self, extents: Extents, is_large: NDArray[np.bool_]) -> None:
        self._sizes = extents.sizes
        self._small: list[int] = np.flatnonzero(~is_large).tolist()
        self._together = _sorted(extents, self._small)
        self._pieces = _cut(self._together)
        self._alone = {
            field: _sorted(extents, [field]) for field in np.flatnonzero(is_large).tolist()
        }
        self.buffered = int(self._pieces.lengths.sum())

    def read(self, shards: OpenShards, stamps: Stamps) -> list[Members]:
        """The members of each field; they hold until the next window is read.

        A member that cannot be read, or whose bytes are not what they were, is absent.
        """
        buffer = shards.buffer(self.buffered)
        starts = np.empty_like(self._together.order)
        starts[self._together.order] = _fill(shards, stamps, self._together, self._pieces, buffer)
        members: dict[int, Members] = {
            field: _read_alone(shards, stamps, alone) for field, alone in self._alone.items()
        }
        for field, own in zip(
            self._small, np.split(starts, max(len(self._small), 1)), strict=False
        ):
            members[field] = MemberBytes(buffer, own, self._sizes[field])
        return [members[field] for field in range(len(self._sizes))]


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


def _sorted(extents: Extents, fields: list[int]) -> _Members:
    shards = np.tile(extents.shards, len(fields))
    offsets, sizes, crcs = (values[fields].ravel() for values in extents[1:])
    order = by_place(shards, offsets)
    return _Members(order, shards[order], offsets[order], sizes[order], crcs[order])


def _cut(members: _Members) -> _Pieces:
    """The pieces that hold these members."""
    shards, offsets = members.shards, members.offsets
    stops = offsets + np.maximum(members.sizes, 0)
    cuts = (
        (shards[1:] != shards[:-1])
        | (offsets[1:] > stops[:-1] + _GAP)
        | (stops[1:] // _PIECE != stops[:-1] // _PIECE)
    )
    firsts = np.concatenate([[0], np.flatnonzero(cuts) + 1])[: len(offsets)]
    lengths = np.maximum.reduceat(stops, firsts) - offsets[firsts]
    counts = np.diff(firsts, append=len(offsets))
    places = np.cumsum(lengths) - lengths
    return _Pieces(counts, shards[firsts], offsets[firsts], places, lengths)


def _fill(
    shards: OpenShards,
    stamps: Stamps,
    members: _Members,
    pieces: _Pieces,
    buffer: NDArray[np.uint8],
) -> Ints:
    """Where each member begins in the buffer, once it is filled; ABSENT for one that is not."""
    view = buffer.data
    read: list[int] = []
    rows = zip(*(values.tolist() for values in pieces[1:]), strict=True)
    for shard, own in groupby(rows, lambda row: row[0]):
        reader = _reader(shards, stamps, shard)
        for _, begin, place, length in own:
            read.append(_read_into(reader, begin, view[place : place + length]))
    within = members.offsets - np.repeat(pieces.begins, pieces.counts)
    starts = within + np.repeat(pieces.places, pieces.counts)
    is_read = within + members.sizes <= np.repeat(np.array(read), pieces.counts)
    starts[(members.sizes < 0) | ~is_read] = ABSENT
    checked = np.flatnonzero((starts >= 0) & (members.crc32 >= 0))
    if len(checked):
        begins = starts[checked]
        ends = (begins + members.sizes[checked]).tolist()
        sums = [crc32(view[a:b]) for a, b in zip(begins.tolist(), ends, strict=True)]
        starts[checked[np.array(sums) != members.crc32[checked]]] = ABSENT
    return starts


def _read_alone(shards: OpenShards, stamps: Stamps, members: _Members) -> ListedBytes:
    found: list[bytes | None] = [None] * len(members.order)
    rows = zip(*(values.tolist() for values in members), strict=True)
    for row, shard, offset, size, checksum in rows:
        data = b""
        reader = _reader(shards, stamps, shard)
        if reader is not None and size > 0:
            with suppress(OSError):
                data = reader.read_span(offset, size)
        if len(data) == size and (checksum == ABSENT or crc32(data) == checksum):
            found[row] = data
    return ListedBytes(found)


def _reader(shards: OpenShards, stamps: Stamps, shard: int) -> ShardReader | None:
    """The open shard; None if it was written anew since the lookup."""
    reader = shards.reader(shard)
    return reader if reader.table.stamp == stamps[shard] else None


def _read_into(reader: ShardReader | None, begin: int, room: memoryview) -> int:
    """Bytes that were read."""
    if reader is not None:
        with suppress(OSError):
            return reader.read_into(begin, room)
    return 0
