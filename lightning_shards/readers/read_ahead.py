"""Reading the members of many samples ahead of their batches, in the order of the disk.

Small members that lie close together are read in one call (such reads are coalesced), those of
several batches into one buffer that is used again and again. Large ones are read one by one, just
before they are decoded: they are still in the processor's caches then.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
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
from lightning_shards.shards.checksums import crc32, joined_crc32
from lightning_shards.shards.storage.protocol import ShardReads, Storage

MOST_BYTES = 64 * 2**20
"""Bytes of small members that are read ahead together. A default block of token sequences: what
neighbours in it share is then read once."""

_FIRST_BYTES = 4 * 2**20
_GROWTH = 4

Stamps = dict[int, tuple[int, int] | None]
"""What shards must be when members are read that were looked up; None if they have crc32s."""


class Extents(NamedTuple):
    """Where the members of some samples lie, of all fields.

    Attributes:
        shards: Of each sample, int64 of shape (samples,).
        offsets: int64 of shape (fields, samples).
        sizes: int64 of shape (fields, samples), ABSENT where a sample has no such member.
        crc32: int64 of shape (fields, samples), ABSENT where it is not known.
    """

    shards: Ints
    offsets: Ints
    sizes: Ints
    crc32: Ints

    def part(self, start: int, stop: int) -> "Extents":
        """Those of some samples."""
        return Extents(*(values[..., start:stop] for values in self))

    def of(self, fields: list[int] | int) -> "Extents":
        """Those of some fields, or of a single one: then each is of shape (samples,)."""
        return Extents(self.shards, *(values[fields] for values in self[1:]))

    def large(self, largest_ahead: int) -> list[bool]:
        """Whether the members of each field are read one by one, by `Storage.largest_ahead`."""
        return (self.sizes.mean(axis=1) >= largest_ahead).tolist()


class _SortedMembers(NamedTuple):
    """Some members in the order of the disk; all int64 of one shape (n,).

    Attributes:
        order: The number of each before they were sorted.
    """

    order: Ints
    shards: Ints
    offsets: Ints
    sizes: Ints


class _Reads(NamedTuple):
    """What is read in one call each; all int64 of one shape (reads,).

    Attributes:
        counts: Members of each.
        shards: Of each.
        begins: Where it begins in its shard.
        buffer_starts: Where it begins in the buffer.
        lengths: Its bytes.
    """

    counts: Ints
    shards: Ints
    begins: Ints
    buffer_starts: Ints
    lengths: Ints


class ReadBuffer:
    """Memory for what is read ahead, used again and again: fresh memory costs more than to fill it.

    Args:
        limit: bytes that are read ahead together at first.
        most_bytes: What the limit grows up to; asked each time.
        most_batches: Batches that are read together at most, at least 1; asked each time.
    """

    def __init__(
        self,
        limit: int = _FIRST_BYTES,
        most_bytes: Callable[[], int] = lambda: MOST_BYTES,
        most_batches: Callable[[], int] = lambda: sys.maxsize,
    ) -> None:
        self._grown, self._most_bytes, self.most_batches = limit, most_bytes, most_batches
        self._memory = np.empty(0, np.uint8)

    @property
    def limit(self) -> int:
        """Bytes that are read ahead together next, or one batch if that has more.

        The first batch is not to wait for many: it begins small and grows with what was read.
        """
        return min(self._grown, self._most_bytes())

    def take(self, size: int) -> NDArray[np.uint8]:
        """Memory for so many bytes, until the next call; the limit grows.

        Returns:
            uint8 of shape (at least `size`,).
        """
        if len(self._memory) < size:
            self._memory = np.empty(size, np.uint8)
        self._grown = max(self._grown, _GROWTH * len(self._memory))
        return self._memory


class LargeMembers:
    """The members of one large field in a batch, each read when it is asked for.

    Args:
        shards: The open shards.
        stamps: Of these shards, when the members were looked up.
        extents: Of this field alone, each of shape (samples,).
    """

    def __init__(self, shards: OpenShards, stamps: Stamps, extents: Extents) -> None:
        self._shards, self._stamps, self._extents = shards, stamps, extents

    def loaded(self) -> ListedBytes:
        """All of them; raises what the iteration does."""
        return ListedBytes(list(self))

    @property
    def has_gaps(self) -> bool:
        """Whether some samples have no such member."""
        return bool((self._extents.sizes < 0).any())

    def at(self, rows: Ints) -> "LargeMembers":
        """The members of these samples."""
        extents = Extents(*(values[rows] for values in self._extents))
        return LargeMembers(self._shards, self._stamps, extents)

    def with_gaps(self) -> Iterator[bytes | None]:
        """Each member's bytes, None for a sample without one; raises what the iteration does."""
        has_member = self._extents.sizes >= 0
        members = iter(self.at(np.flatnonzero(has_member)))
        return (next(members) if has else None for has in has_member.tolist())

    def __iter__(self) -> Iterator[bytes]:
        """Each member's bytes.

        Raises:
            ColumnError: One is missing or damaged.
        """
        rows = zip(*(values.tolist() for values in self._extents), strict=True)
        for shard, offset, size, checksum in rows:
            data = b""
            if size > 0:
                with suppress(OSError, MemoryError):
                    data = self._shards.read(shard, offset, offset + size, self._stamps[shard])
            if len(data) != size or (checksum != ABSENT and crc32(data) != checksum):
                raise ColumnError("a member of this batch is missing or damaged")
            yield data


class ReadAhead:
    """The members of some batches; the small ones of as many as the limit allows are read together.

    Args:
        shards: The open shards.
        buffer: Where the members are read to.
        stamps: Of these shards, when the members were looked up.
        extents: Of the samples, in the order of the batches.
        stops: Samples up to the end of each batch, int64.

    Attributes:
        samples: The numbers of those whose small members lie in the buffer.
    """

    def __init__(
        self,
        shards: OpenShards,
        buffer: ReadBuffer,
        stamps: Stamps,
        extents: Extents,
        stops: Ints,
    ) -> None:
        self._shards, self._buffer, self._stamps = shards, buffer, stamps
        self._storage = shards.storage(int(extents.shards[0]))  # that of all, as a rule
        self._stops, is_large = stops, extents.large(self._storage.largest_ahead)
        self._large = {field: extents.of(field) for field, large in enumerate(is_large) if large}
        small = [field for field, large in enumerate(is_large) if not large]
        self._small = extents.of(small)
        self._joined = [_joined(*rows, stops) for rows in zip(*self._small[2:], strict=True)]
        self._members: list[MemberBytes] = []
        self._are_read = False
        self.samples = range(0)

    def members(self, start: int, stop: int) -> list[MemberBytes | LargeMembers]:
        """Those of each field in the samples start to stop, which are one batch.

        Small ones hold until the next call, large ones are read when they are asked for.

        Raises:
            ColumnError: A member cannot be read. That the bytes of one are damaged is found when
                they are asked for.
        """
        if self._joined and stop > self.samples.stop:
            self._read(start)
        first = self.samples.start
        small = [
            members.part(start - first, stop - first, joined.get((start, stop)))
            for members, joined in zip(self._members, self._joined, strict=True)
        ]
        if not (self._are_read or all(members.are_read for members in small)):
            raise ColumnError("a member of this batch cannot be read")
        every: list[MemberBytes | LargeMembers] = [*small]
        for field, extents in self._large.items():  # ascending: each comes to its own number
            large = LargeMembers(self._shards, self._stamps, extents.part(start, stop))
            every.insert(field, large)
        return every

    def _read(self, start: int) -> None:
        """Read the members of the batches that begin with this sample; one not read is absent."""
        self._members = []  # they keep the buffer, and a larger one may take its place
        end, members, reads = self._planned(start)
        buffer = self._buffer.take(int(reads.lengths.sum()))
        sizes, checksums = self._small.part(start, end)[2:]
        starts = np.empty(sizes.size, np.int64)
        starts[members.order] = _fill(self._shards, self._stamps, members, reads, buffer)
        starts = starts.reshape(sizes.shape)
        rows = zip(starts, sizes, checksums, strict=True)
        self._members = [MemberBytes(buffer, *row) for row in rows]
        self._are_read = all(members.are_read for members in self._members)
        self.samples = range(start, end)

    def _planned(self, start: int) -> tuple[int, _SortedMembers, _Reads]:
        """What is read together from this sample on, and the number of the sample behind it."""
        limit, extents = self._buffer.limit, self._small
        stops = self._stops[self._stops > start][: self._buffer.most_batches()]
        sizes = np.cumsum(extents.sizes[:, start:].sum(axis=0))
        end = _last_stop(stops, start + int(np.searchsorted(sizes, limit, side="right")))
        while True:
            members = _sorted(extents.part(start, end))
            reads = _coalesced(members, self._storage)
            if end <= stops[0] or reads.lengths.sum() <= 2 * limit:
                return end, members, reads
            end = _last_stop(stops, (start + end) // 2)  # they are few among many others


def _last_stop(stops: Ints, most: int) -> int:
    """The last of these ends of batches up to `most`; the first in any case."""
    return int(max(stops[0], stops[stops <= most].max(initial=0)))


def _joined(sizes: Ints, checksums: Ints, stops: Ints) -> dict[tuple[int, int], int]:
    """By batch, the crc32 of a field's members together; empty if their sizes differ."""
    if (sizes != sizes[0]).any() or sizes[0] <= 0 or (checksums == ABSENT).any():
        return {}
    starts = np.concatenate([[0], stops[:-1]])
    joined = joined_crc32(checksums.astype(np.uint32), stops - starts, int(sizes[0]))
    batches = zip(starts.tolist(), stops.tolist(), strict=True)
    return dict(zip(batches, joined.tolist(), strict=True))


def by_offset(shards: Ints, offsets: Ints) -> Ints:
    """The order of the disk: by shard, then by offset or by number of the sample (none below 0)."""
    width = int(offsets.max(initial=0)) + 1
    if int(shards.max(initial=0)) >= 2**62 // width:
        return np.lexsort((offsets, shards))
    return np.argsort(shards * width + offsets)  # one key sorts seven times as fast as two


def inverse(order: Ints) -> Ints:
    """The permutation that undoes this one."""
    back = np.empty_like(order)
    back[order] = np.arange(len(order))
    return back


def _sorted(extents: Extents) -> _SortedMembers:
    shards = np.tile(extents.shards, len(extents.sizes))
    offsets, sizes = extents.offsets.ravel(), extents.sizes.ravel()
    order = by_offset(shards, offsets)
    return _SortedMembers(order, shards[order], offsets[order], sizes[order])


def _coalesced(members: _SortedMembers, storage: Storage) -> _Reads:
    """The reads that give these members, and the gaps between neighbours with them."""
    shards, offsets = members.shards, members.offsets
    stops = offsets + np.maximum(members.sizes, 0)
    cuts = (
        (shards[1:] != shards[:-1])
        | (offsets[1:] > stops[:-1] + storage.coalesced_gap)
        | (stops[1:] // storage.largest_read != stops[:-1] // storage.largest_read)
    )
    firsts = np.concatenate([[0], np.flatnonzero(cuts) + 1])
    lengths = np.maximum.reduceat(stops, firsts) - offsets[firsts]
    counts = np.diff(firsts, append=len(offsets))
    buffer_starts = np.cumsum(lengths) - lengths
    return _Reads(counts, shards[firsts], offsets[firsts], buffer_starts, lengths)


def _fill(
    shards: OpenShards,
    stamps: Stamps,
    members: _SortedMembers,
    reads: _Reads,
    buffer: NDArray[np.uint8],
) -> Ints:
    """Where each member begins in the buffer, once it is filled; ABSENT for one that is not."""
    read = shards.read_ranges(list(_requests(shards.urls, stamps, reads, buffer.data)))
    within = members.offsets - np.repeat(reads.begins, reads.counts)
    starts = within + np.repeat(reads.buffer_starts, reads.counts)
    is_read = within + members.sizes <= np.repeat(np.array(read), reads.counts)
    starts[(members.sizes < 0) | ~is_read] = ABSENT
    return starts


def _requests(
    urls: Sequence[str], stamps: Stamps, reads: _Reads, into: memoryview
) -> Iterator[tuple[int, ShardReads]]:
    """What is read of each shard."""
    starts, stops = reads.begins.tolist(), (reads.begins + reads.lengths).tolist()
    buffer_stops = np.cumsum(reads.lengths).tolist()
    cuts = np.flatnonzero(reads.shards[1:] != reads.shards[:-1]) + 1
    begin = 0
    for first, last in pairwise([0, *cuts.tolist(), len(starts)]):
        shard, end = int(reads.shards[first]), buffer_stops[last - 1]
        ranges = starts[first:last], stops[first:last]
        yield shard, ShardReads(urls[shard], *ranges, stamps[shard], into[begin:end])
        begin = end
