"""Looking up where the members of many samples lie, shard by shard with numpy."""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from lightning_shards.readers.open_shards import OpenShards
from lightning_shards.readers.read_ahead import Extents, Stamps, by_offset, inverse
from lightning_shards.samples.member_bytes import ABSENT, Ints, SampleKeys
from lightning_shards.shards.members import ShardReader
from lightning_shards.shards.storage.protocol import ShardReads
from lightning_shards.shards.tables import release_pages

_NEAR = 2**19
"""Bytes between the starts of two samples that are announced together: as a rule, other workers
want what lies between."""

_KEPT_BYTES = 2**24
"""Bytes of the tables of open shards, up to which their pages stay mapped: to map them again for
each stretch costs 4 % of a batch of small samples."""


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
    reader.storage.prefetch([ShardReads(reader.url, [start for start, _ in pieces], stops)])


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
