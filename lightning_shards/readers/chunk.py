"""The samples that one worker takes from a stretch of an epoch, looked up at once, read together.

In a shuffled block neighbours lie in different shards. Sample by sample, the lookups would cost
more than all the rest of a small sample. So the members of a whole stretch are found shard by
shard with numpy, and read in windows of several batches, in the order of the disk, what lies close
together in one call.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from lightning_shards.readers.open_shards import OpenShards
from lightning_shards.readers.read_ahead import (
    Extents,
    LargeMembers,
    ReadAhead,
    Stamps,
    by_place,
    inverse,
)
from lightning_shards.samples.fields import Field
from lightning_shards.samples.member_bytes import ABSENT, ColumnError, Ints, MemberBytes
from lightning_shards.shards.checksums import joined_crc32
from lightning_shards.shards.members import ENCODING, ShardReader

WINDOW_BYTES = 64 * 2**20
"""Bytes of small members that are read ahead together, at least one batch. A default block of token
sequences: what neighbours in it share is then read once."""

_FIRST_WINDOW_BYTES = 4 * 2**20
_GROWTH = 4
"""The first batch is not to wait for so many: the first window is small, each other one larger."""

_NEAR = 2**19
"""Bytes between the starts of two samples that the system is told of together: as a rule, other
workers want what lies between."""


class _Keys:
    """The keys of some samples, cut out of one text when they are asked for.

    Args:
        data: the text, uint8.
        starts: where each key begins in it.
        lengths: bytes of each.
    """

    def __init__(self, data: NDArray[np.uint8], starts: Ints, lengths: Ints) -> None:
        self._starts, self._stops = starts, starts + lengths
        text = data.tobytes()
        self._text = text.decode("ascii") if text.isascii() else text
        self._alike: NDArray[np.str_] | None = None
        length = int(lengths[0])
        is_plain = text.isascii() and b"\0" not in text  # with which numpy fills an item
        if length and is_plain and (lengths == length).all():
            # an item of so many letters, of four bytes each, begins at each of them
            shape, letters = (len(data) - length + 1,), data.astype(np.uint32)
            self._alike = np.ndarray(shape, f"U{length}", letters, strides=(4,))

    def part(self, start: int, stop: int) -> list[str]:
        if self._alike is not None:
            return self._alike[self._starts[start:stop]].tolist()
        text, starts, stops = self._text, self._starts[start:stop], self._stops[start:stop]
        pairs = zip(starts.tolist(), stops.tolist(), strict=True)
        if isinstance(text, str):
            return [text[a:b] for a, b in pairs]
        return [str(text[a:b], *ENCODING) for a, b in pairs]


class MemberBatches:
    """The members of some samples, batch by batch.

    Args:
        shards: the open shards.
        fields: what is read of each sample.
        ids: int64 of shape (n, 2), in the order of the batches.
        stops: the number of samples up to the end of each batch, the last is n.

    Raises:
        ShardNotFoundError: a shard does not exist.
        IndexMismatchError: a shard changed since it was counted.
    """

    def __init__(
        self,
        shards: OpenShards,
        fields: Sequence[Field],
        ids: Ints,
        stops: Sequence[int],
    ) -> None:
        self._shards, self._fields, self._ids = shards, fields, ids
        self._stops = np.array(stops)
        self._window = range(0)
        self._members: list[MemberBytes] = []
        self._are_there = False
        self._stamps: Stamps = {}
        order = by_place(ids[:, 0], ids[:, 1])
        keys, lengths, extents = self._find(order)
        back = inverse(order)
        self._extents = Extents(*(values[..., back] for values in extents))
        self._large = extents.large()
        self._small = [field for field, is_large in enumerate(self._large) if not is_large]
        self._joined = [self._joined_of(field) for field in self._small]
        self._keys = _Keys(keys, (np.cumsum(lengths) - lengths)[back], lengths[back])

    def keys(self, start: int, stop: int) -> list[str]:
        """The keys of the samples start to stop."""
        return self._keys.part(start, stop)

    def members(self, start: int, stop: int) -> list[MemberBytes | LargeMembers]:
        """The members of the samples start to stop, which are one batch: those of each field.

        They hold until the next call.

        Raises:
            ColumnError: a sample has no member for a field. That the bytes of one are damaged
                is found when they are asked for.
        """
        if self._small and stop > self._window.stop:
            self._read(start)
        first = self._window.start
        small = [
            members.part(start - first, stop - first, joined.get((start, stop)))
            for members, joined in zip(self._members, self._joined, strict=True)
        ]
        if not (self._are_there or all(column.are_there for column in small)):
            raise ColumnError("a member of this batch is missing")
        following = iter(small)
        return [
            self._large_members(field, start, stop) if is_large else next(following)
            for field, is_large in enumerate(self._large)
        ]

    def _joined_of(self, field: int) -> dict[tuple[int, int], int]:
        """By batch, the crc32 of a field's members together; empty if their sizes differ."""
        sizes, checksums = self._extents.sizes[field], self._extents.crc32[field]
        if (sizes != sizes[0]).any() or sizes[0] <= 0 or (checksums == ABSENT).any():
            return {}
        starts = np.concatenate([[0], self._stops[:-1]])
        joined = joined_crc32(checksums.astype(np.uint32), self._stops - starts, int(sizes[0]))
        batches = zip(starts.tolist(), self._stops.tolist(), strict=True)
        return dict(zip(batches, joined.tolist(), strict=True))

    def _large_members(self, field: int, start: int, stop: int) -> LargeMembers:
        extents = self._extents.part(start, stop).of([field])
        return LargeMembers(self._shards, self._stamps, extents)

    def _find(self, order: Ints) -> tuple[NDArray[np.uint8], Ints, Extents]:
        """Keys, their lengths and extents, by place; the system is told what will be read."""
        shards, samples = self._ids[order].T
        keys: list[NDArray[np.uint8]] = []
        lengths: list[Ints] = []
        found: list[Extents] = []
        for start, stop in _pieces(shards[1:] != shards[:-1]):
            shard, own = int(shards[start]), samples[start:stop]
            reader = self._shards.reader(shard)
            self._stamps[shard] = reader.table.stamp
            self._announce(reader, own)
            own_keys, own_lengths = reader.table.keys_of(own)
            keys.append(own_keys)
            lengths.append(own_lengths)
            found.append(self._extents_of(reader, shards[start:stop], own))
        extents = Extents(*(np.concatenate(each, -1) for each in zip(*found, strict=True)))
        return np.concatenate(keys), np.concatenate(lengths), extents

    def _announce(self, reader: ShardReader, samples: Ints) -> None:
        """Let the system fetch what will be read."""
        table = reader.table
        begins = table.offsets[table.sample_starts[samples]]
        for first, last in _pieces(np.diff(begins) > _NEAR):
            reader.will_need(int(samples[first]), int(samples[last - 1]) + 1)

    def _extents_of(self, reader: ShardReader, shards: Ints, samples: Ints) -> Extents:
        table = reader.table
        members = np.array([reader.members_with(each.suffixes)[samples] for each in self._fields])
        sizes = np.where(members < 0, ABSENT, table.sizes[members])
        sums = np.full_like(sizes, ABSENT) if table.crc32 is None else table.crc32[members]
        return Extents(shards, table.offsets[members], sizes, sums.astype(np.int64))

    def _read(self, start: int) -> None:
        """Read the small members of as many batches as fit a window."""
        self._members = []  # or two windows were in memory
        read = self._shards.buffered
        limit = min(WINDOW_BYTES, max(_FIRST_WINDOW_BYTES, _GROWTH * read))
        small = self._extents.of(self._small)
        sizes = np.cumsum(small.sizes[:, start:].sum(axis=0))
        end = self._end_of_batch(start, int(np.searchsorted(sizes, limit, side="right")))
        window = ReadAhead(small.part(start, end))
        while window.buffered > 2 * limit and end > self._end_of_batch(start, 0):
            end = self._end_of_batch(start, (end - start) // 2)  # few among many
            window = ReadAhead(small.part(start, end))
        self._members = window.read(self._shards, self._stamps)
        self._are_there = all(members.are_there for members in self._members)
        self._window = range(start, end)

    def _end_of_batch(self, start: int, samples: int) -> int:
        """Where the last batch ends that is within so many samples; the first in any case."""
        batches = self._stops[self._stops > start]
        return int(max(batches[0], batches[batches <= start + samples].max(initial=0)))


def _pieces(cuts: NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    """Starts and stops of the pieces of a sequence that is cut behind item i where cuts[i]."""
    ends = [0, *(np.flatnonzero(cuts) + 1).tolist(), len(cuts) + 1]
    return pairwise(ends)
