"""Reading the members of many samples ahead of their batches, in the order of the disk.

Members that lie close together are read in one call (such reads are coalesced), small ones of
several batches into one buffer that is used again and again. Of large ones a batch is read at once.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lightning_shards.readers.open_shards import OpenShards
from lightning_shards.samples.member_bytes import (
    ABSENT,
    ColumnError,
    Ints,
    MemberBytes,
    SampleKeys,
)
from lightning_shards.shards.members import ShardReader
from lightning_shards.shards.storage.protocol import ShardReads, Storage

if TYPE_CHECKING:
    from lightning_shards.remote.ahead import FetchAhead

MOST_BYTES = 64 * 2**20
"""Bytes of members that are read ahead together. A default block of token sequences: what
neighbours in it share is then read once."""

_MOST_ON_THE_WAY = 4 * 2**20
"""So many at most while pieces are fetched ahead. Of 64 MiB a process would read most of its share
of a block before the pieces are there."""


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


class _Reads(NamedTuple):
    """What is read together, in the order of the disk, and the calls that read it.

    Attributes:
        order: The number that each member has by fields and samples, int64 of shape (n,).
        offsets: Where each member lies in its shard, shape (n,).
        sizes: Its bytes, ABSENT for none, shape (n,).
        firsts: The first member of each call, int64 of shape (calls,).
        shards: What each call reads from, shape (calls,).
        lengths: The bytes of each call, with the gaps between its members, shape (calls,).
    """

    order: Ints
    offsets: Ints
    sizes: Ints
    firsts: Ints
    shards: Ints
    lengths: Ints


class ReadBuffer:
    """Memory for what is read ahead, used again and again: fresh memory costs more than to fill it.

    Args:
        ahead: What fetches ahead of the batches; None if nothing does.
        most: Bytes that are read together.
    """

    def __init__(self, ahead: "FetchAhead | None" = None, most: int = MOST_BYTES) -> None:
        self._ahead, self._most = ahead, most
        self._memory = np.empty(0, np.uint8)

    @property
    def limit(self) -> int:
        """Bytes that are read ahead together next, or one batch if that has more.

        The first batch is not to wait for others: it is read alone.
        """
        if not len(self._memory):
            return 1
        is_fetched = self._ahead is None or self._ahead.are_there
        return self._most if is_fetched else _MOST_ON_THE_WAY

    @property
    def most_batches(self) -> int | None:
        """Batches that are read together at most; None: as many as have no more than `limit`."""
        return self._ahead and self._ahead.most_batches()

    def take(self, size: int) -> NDArray[np.uint8]:
        """Memory for so many bytes, until the next call.

        Returns:
            uint8 of shape (at least `size`,).
        """
        if len(self._memory) < size:
            self._memory = np.empty(size, np.uint8)
        return self._memory


class ReadAhead:
    """The members of some batches; of as many as the limit allows they are read together.

    Args:
        shards: The open shards.
        buffer: Where the members are read to.
        suffixes_of: Gives the suffixes of each field of a shard, as many fields of each shard. A
            field that its samples do not have has none.
        ids: Of the samples, in the order of the batches, int64 of shape (samples, 2).
        stops: Samples up to the end of each batch, int64.

    Attributes:
        keys: Of the samples.
        samples: The numbers of those whose members lie in the buffer.
    """

    def __init__(
        self,
        shards: OpenShards,
        buffer: ReadBuffer,
        suffixes_of: Callable[[int], Sequence[tuple[str, ...]]],
        ids: Ints,
        stops: Ints,
    ) -> None:
        self._shards, self._buffer, self._stops = shards, buffer, stops
        self._stamps, self.keys, self._extents = _look_up_members(shards, suffixes_of, ids)
        sizes = self._extents.sizes
        self._storage = shards.storages.of(shards.urls[int(ids[0, 0])])  # that of all, as a rule
        self._are_large = bool((sizes.mean(axis=1) >= self._storage.largest_ahead).any())
        self._members: list[MemberBytes] = []
        self._are_read = False
        self.samples = range(0)

    def members(self, start: int, stop: int) -> list[MemberBytes]:
        """Those of each field in the samples start to stop, which are one batch.

        They hold until the next call.

        Raises:
            ColumnError: A member cannot be read. That the bytes of one are damaged is found when
                they are asked for.
        """
        if len(self._extents.sizes) and stop > self.samples.stop:
            self._read(start)
        first = self.samples.start
        members = [each.at(slice(start - first, stop - first)) for each in self._members]
        if not (self._are_read or all(each.are_read for each in members)):
            raise ColumnError("a member of this batch cannot be read")
        return members

    def _read(self, start: int) -> None:
        """Read the members of the batches that begin with this sample; one not read is absent."""
        self._members = []  # they keep the buffer, and a larger one may take its place
        end, reads = self._planned(start)
        buffer = self._buffer.take(int(reads.lengths.sum()))
        sizes, checksums = self._extents.part(start, end)[2:]
        starts = np.empty(sizes.size, np.int64)
        starts[reads.order] = _fill(self._shards, self._stamps, reads, buffer)
        rows = zip(starts.reshape(sizes.shape), sizes, checksums, strict=True)
        self._members = [MemberBytes(buffer, *row) for row in rows]
        self._are_read = all(members.are_read for members in self._members)
        self.samples = range(start, end)

    def _planned(self, start: int) -> tuple[int, _Reads]:
        """The number of the sample behind those read together from this one on, and the reads."""
        limit, extents = self._buffer.limit, self._extents
        most = 1 if self._are_large else self._buffer.most_batches
        stops = self._stops[self._stops > start][:most]
        sizes = np.cumsum(extents.sizes[:, start:].sum(axis=0))
        end = _last_stop(stops, start + int(np.searchsorted(sizes, limit, side="right")))
        while True:
            reads = _coalesced(extents.part(start, end), self._storage)
            if end <= stops[0] or reads.lengths.sum() <= 2 * limit:
                return end, reads
            end = _last_stop(stops, (start + end) // 2)  # they are few among many others


def _look_up_members(
    shards: OpenShards, suffixes_of: Callable[[int], Sequence[tuple[str, ...]]], ids: Ints
) -> tuple[Stamps, SampleKeys, Extents]:
    """What the tables say of these samples, shard by shard."""
    order = _by_offset(ids[:, 0], ids[:, 1])
    shard_numbers, samples = ids[order].T
    stamps: Stamps = {}
    keys: list[NDArray[np.uint8]] = []
    lengths: list[Ints] = []
    extents: list[Extents] = []
    shards.fetch_tables(shard_numbers)
    for start, stop in _pieces(shard_numbers[1:] != shard_numbers[:-1]):
        shard, samples_of_shard = int(shard_numbers[start]), samples[start:stop]
        reader = shards.reader(shard)
        stamps[shard] = reader.expected
        begins = reader.table.offsets[reader.table.sample_starts[samples_of_shard]]
        keys_of_shard, lengths_of_shard = reader.table.keys_of(samples_of_shard)
        keys.append(keys_of_shard)
        lengths.append(lengths_of_shard)
        begun = (shard_numbers[start:stop], samples_of_shard, begins)
        extents.append(_extents(reader, suffixes_of(shard), *begun))
    back, key_lengths = np.empty_like(order), np.concatenate(lengths)
    back[order] = np.arange(len(order))
    key_starts = np.cumsum(key_lengths) - key_lengths
    joined = (np.concatenate(values, -1) for values in zip(*extents, strict=True))
    return (
        stamps,
        SampleKeys(np.concatenate(keys), key_starts[back], key_lengths[back]),
        Extents(*(values[..., back] for values in joined)),
    )


def _extents(
    reader: ShardReader,
    suffixes: Sequence[tuple[str, ...]],
    shards: Ints,
    samples: Ints,
    begins: Ints,
) -> Extents:
    table = reader.table
    members = np.array([reader.members_with(of_field)[samples] for of_field in suffixes])
    is_absent = members < 0
    sizes = np.where(is_absent, ABSENT, table.sizes[members])
    # where nothing is to be read, the read of what is near is not cut
    offsets = np.where(is_absent, begins, table.offsets[members])
    sums = np.full_like(sizes, ABSENT) if table.crc32 is None else table.crc32[members]
    return Extents(shards, offsets, sizes, sums.astype(np.int64))


def _pieces(cuts: NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    """Starts and stops of the pieces of a sequence that is cut behind item i where cuts[i]."""
    ends = [0, *(np.flatnonzero(cuts) + 1).tolist(), len(cuts) + 1]
    return pairwise(ends)


def _last_stop(stops: Ints, most: int) -> int:
    """The last of these ends of batches up to `most`; the first in any case."""
    return int(max(stops[0], stops[stops <= most].max(initial=0)))


def _by_offset(shards: Ints, offsets: Ints) -> Ints:
    """The order of the disk: by shard, then by offset or by number of the sample (none below 0)."""
    # one key sorts seven times as fast as two; 2**63 are 8 million shards of a TB
    return np.argsort(shards * (int(offsets.max(initial=0)) + 1) + offsets)


def _coalesced(extents: Extents, storage: Storage) -> _Reads:
    """The reads that give these members, and the gaps between neighbours with them."""
    shards, offsets = np.tile(extents.shards, len(extents.sizes)), extents.offsets.ravel()
    order = _by_offset(shards, offsets)
    shards, offsets, sizes = shards[order], offsets[order], extents.sizes.ravel()[order]
    stops = offsets + np.maximum(sizes, 0)
    cuts = (
        (shards[1:] != shards[:-1])
        | (offsets[1:] > stops[:-1] + storage.coalesced_gap)
        | (stops[1:] // storage.largest_read != stops[:-1] // storage.largest_read)
    )
    firsts = np.concatenate([[0], np.flatnonzero(cuts) + 1])
    lengths = np.maximum.reduceat(stops, firsts) - offsets[firsts]
    return _Reads(order, offsets, sizes, firsts, shards[firsts], lengths)


def _fill(shards: OpenShards, stamps: Stamps, reads: _Reads, buffer: NDArray[np.uint8]) -> Ints:
    """Where each member begins in the buffer, once it is filled; ABSENT for one that is not."""
    begins, stops = reads.offsets[reads.firsts], np.cumsum(reads.lengths)  # in shards, in buffer
    requests: list[tuple[int, ShardReads]] = []
    for first, last in _pieces(reads.shards[1:] != reads.shards[:-1]):
        shard, lengths = int(reads.shards[first]), reads.lengths[first:last]
        starts = begins[first:last]
        into = buffer.data[int(stops[first] - lengths[0]) : int(stops[last - 1])]
        ranges = starts.tolist(), (starts + lengths).tolist()
        requests.append((shard, ShardReads(shards.urls[shard], *ranges, stamps[shard], into)))
    read = np.array(shards.read_ranges(requests))
    counts = np.diff(reads.firsts, append=len(reads.offsets))  # members of each read
    within = reads.offsets - np.repeat(begins, counts)
    starts = within + np.repeat(stops - reads.lengths, counts)
    is_read = within + reads.sizes <= np.repeat(read, counts)
    starts[(reads.sizes < 0) | ~is_read] = ABSENT
    return starts
