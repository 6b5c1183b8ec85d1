"""Looking up where the members of many samples lie, shard by shard with numpy."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from lightning_shards.errors import ConfigError
from lightning_shards.readers.open_shards import OpenShards
from lightning_shards.readers.read_ahead import Extents, Stamps, by_offset, inverse
from lightning_shards.samples.fields import Field
from lightning_shards.samples.member_bytes import ABSENT, Ints, SampleKeys
from lightning_shards.shards.index import ShardIndex
from lightning_shards.shards.members import ShardReader
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.storage.protocol import ShardReads
from lightning_shards.shards.storage.schemes import MakeStorage, Storages
from lightning_shards.shards.table_bytes import UnwrittenTables
from lightning_shards.shards.tables import TableStore, release_pages

_NEAR = 2**19
"""Bytes between the starts of two samples that are announced together: as a rule, other workers
want what lies between."""

_FETCHED_TOGETHER = 16
"""Tables of remote shards that one process fetches at once before it looks for those of others."""

_KEPT_BYTES = 2**24
"""Bytes of the tables of open shards, up to which their pages stay mapped: to map them again for
each stretch costs 4 % of a batch of small samples."""


def suffixes_compared(name: str, fields: Sequence[Field]) -> tuple[str, ...]:
    """The suffixes of the field by whose members `batch_alike` compares samples.

    Raises:
        ConfigError: There is no such field, or it has no member, as that of a join, or a list.
    """
    are_single = [field for field in fields if not (field.is_joined or field.is_list)]
    suffixes = {field.name: field.suffixes for field in are_single}
    if name not in suffixes:
        raise ConfigError(
            f"batch_alike compares the members of the field {name!r}, and the fields that have one "
            f"member are {sorted(suffixes)}; name one of these"
        )
    return suffixes[name]


@dataclass(frozen=True)
class MemberSizes:
    """The size of one member of each sample, as the member tables say; 0 where there is none.

    Tables are opened when they are asked for, and fetched before where shards are remote.

    Attributes:
        suffixes: Of the member: the first of these that a sample has.
        index: The shards and their counts.
        cache: Folder of the tables.
        storages: By scheme, what makes the storages of remote shards; None: all are local.
        unwritten: Tables for which the folder has no room.
    """

    suffixes: tuple[str, ...]
    index: ShardIndex
    cache: CacheFolder
    storages: Mapping[str, MakeStorage] | None
    unwritten: UnwrittenTables = field(default_factory=UnwrittenTables, repr=False, compare=False)

    def __call__(self, ids: Ints) -> Ints:
        """The sizes in bytes of these samples, int64 of shape (n,), by ids of shape (n, 2).

        Raises:
            ShardError: A table cannot be had, or is of another shard than was counted.
        """
        sizes, counts = np.zeros(len(ids), np.int64), self.index.counts
        assert counts is not None  # the indexed reader has them
        by_shard = np.argsort(ids[:, 0], kind="stable")
        shards, firsts = np.unique(ids[by_shard, 0], return_index=True)
        rows = dict(zip(shards.tolist(), np.split(by_shard, firsts)[1:], strict=True))
        # Processes that need the same tables begin with others, and find those of each other.
        numbers: list[int] = np.roll(shards, os.getpid() * _FETCHED_TOGETHER).tolist()
        with closing(Storages(self.storages)) as storages:
            store = TableStore(self.cache, storages=storages, unwritten=self.unwritten)
            for first in range(0, len(numbers), _FETCHED_TOGETHER):
                near = numbers[first : first + _FETCHED_TOGETHER]
                store.fetch([self.index.urls[shard] for shard in near])
                for shard in near:
                    url, count = self.index.urls[shard], int(counts[shard])
                    table, chosen = store.table_of(url, expected_samples=count), rows[shard]
                    members = table.members_with(self.suffixes)[ids[chosen, 1]]
                    sizes[chosen] = np.where(members >= 0, table.sizes[members], 0)
        return sizes


def find_members(
    shards: OpenShards, suffixes_of: Callable[[int], Sequence[tuple[str, ...]]], ids: Ints
) -> tuple[Stamps, SampleKeys, Extents]:
    """What the tables say of these samples; the storage is told what will be read.

    `suffixes_of` gives the suffixes of each field of a shard, as many fields of each shard. A field
    that its samples do not have has none.
    """
    order = by_offset(ids[:, 0], ids[:, 1])
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
        _announce(reader, samples_of_shard, begins)
        keys_of_shard, lengths_of_shard = reader.table.keys_of(samples_of_shard)
        keys.append(keys_of_shard)
        lengths.append(lengths_of_shard)
        begun = (shard_numbers[start:stop], samples_of_shard, begins)
        extents.append(_extents(reader, suffixes_of(shard), *begun))
        if shards.mapped_bytes > _KEPT_BYTES:
            release_pages(reader.table)
    back, key_lengths = inverse(order), np.concatenate(lengths)
    key_starts = np.cumsum(key_lengths) - key_lengths
    joined = (np.concatenate(values, -1) for values in zip(*extents, strict=True))
    return (
        stamps,
        SampleKeys(np.concatenate(keys), key_starts[back], key_lengths[back]),
        Extents(*(values[..., back] for values in joined)),
    )


def _announce(reader: ShardReader, samples: Ints, begins: Ints) -> None:
    """Tell the storage what will be read."""
    pieces = [
        reader.table.extent_of(int(samples[first]), int(samples[last - 1]) + 1)
        for first, last in _pieces(begins[1:] - begins[:-1] > _NEAR)
    ]
    stops = [start + length for start, length in pieces]
    reader.storage.announce([ShardReads(reader.url, [start for start, _ in pieces], stops)])


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
