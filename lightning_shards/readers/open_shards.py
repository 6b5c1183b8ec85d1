"""The shards that a process has open, and the fields of one sample read from them."""

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Self

import numpy as np

from lightning_shards.samples.collate import Sample
from lightning_shards.samples.fields import Field
from lightning_shards.samples.member_bytes import Ints
from lightning_shards.samples.stage_clock import StageClock
from lightning_shards.shards.files import CacheFolder
from lightning_shards.shards.index import ShardIndex
from lightning_shards.shards.members import MemberTable, ShardReader
from lightning_shards.shards.storage.protocol import ShardReads
from lightning_shards.shards.storage.schemes import MakeStorage, Storages
from lightning_shards.shards.tables import TableStore
from lightning_shards.system.process import FETCH_THREAD, allow_open_files, files_allowed

if TYPE_CHECKING:
    from lightning_shards.shards.joins.kept import Joined, JoinedValues

MAX_OPEN_SHARDS = 400
"""A block of 16,384 samples in runs of 64 touches 256 shards or a few more. Each costs two file
descriptors, of which a process has 1,024 by default."""

_FILES_PER_SHARD = 2

FILES_PER_SOURCE = _FILES_PER_SHARD * MAX_OPEN_SHARDS
"""File descriptors that one iteration over batches may have open."""


class OpenShards:
    """Open shards of one process, the least recently used one closed when there are too many.

    Attributes:
        urls: Of all shards, by their numbers.
        storages: Their storages.
    """

    def __init__(
        self,
        index: ShardIndex,
        cache: CacheFolder,
        limit: int = MAX_OPEN_SHARDS,
        storages: Mapping[str, MakeStorage] | None = None,
        joined: "Sequence[Joined]" = (),
    ) -> None:
        allow_open_files(2 * FILES_PER_SOURCE)  # training and evaluation
        # the threads of a pool share what the process may open, and others may begin later
        readers = sum(thread.name != FETCH_THREAD for thread in threading.enumerate())
        allowed = files_allowed() // (2 * _FILES_PER_SHARD * readers)
        self._limit = min(limit, max(1, allowed))
        self.urls, self._counts = index.urls, index.counts
        self.storages, self._may_fetch = Storages(storages), storages is not None
        self._store = TableStore(cache, storages=self.storages)
        self._joined = [each.opened(cache, self._store) for each in joined]
        # by URL: a shard that is listed twice is open once
        self._readers: OrderedDict[str, ShardReader] = OrderedDict()

    def reader(self, shard: int) -> ShardReader:
        """The open shard with this number; it holds until the next call.

        Raises:
            ShardNotFoundError: It does not exist.
            IndexMismatchError: It changed since it was counted.
            ShardError: A join of it cannot be made.
        """
        url = self.urls[shard]
        reader = self._readers.get(url)
        if reader is None:
            reader = self._readers[url] = self._open(shard)
            if len(self._readers) > self._limit:
                self._close_one()
        else:
            self._readers.move_to_end(url)
            self._require_same(shard, reader.table)  # another component may have opened it
        return reader

    def fetch_tables(self, shards: Ints) -> None:
        """Fetch the tables of remote shards at once, before they are opened one after the other.

        Args:
            shards: Their numbers, of any shape, repeats included.

        Raises:
            ShardError: As of `reader`.
        """
        if self._may_fetch:
            numbers: list[int] = np.unique(shards).tolist()
            urls = [self.urls[shard] for shard in numbers]
            self._store.fetch([url for url in urls if url not in self._readers])

    def read_ranges(self, reads: Sequence[tuple[int, ShardReads]]) -> list[int]:
        """Read ranges of any number of shards, in one call as far as all of these may be open.

        Args:
            reads: Shard number, and what is read of this shard.

        Returns:
            How many bytes of each range were read, as `Storage.read_ranges` counts them.

        Raises:
            ShardError: As of `reader`.
        """
        if len(reads) > self._limit:
            half = len(reads) // 2
            return self.read_ranges(reads[:half]) + self.read_ranges(reads[half:])
        for shard, _ in reads:
            self.reader(shard)  # not kept, as each holds a table: they may be too many
        sizes: list[int] = []
        readers = self._readers
        for storage, group in groupby(reads, lambda read: readers[self.urls[read[0]]].storage):
            for sizes_of_shard in storage.read_ranges([shard_reads for _, shard_reads in group]):
                sizes += sizes_of_shard
        return sizes

    def joined(self, shard: int) -> "JoinedValues | None":
        """The values of the samples of a shard that come from joins; None if it has none."""
        return next((joined for joined in self._joined if shard in joined.shards), None)

    def _require_same(self, shard: int, table: MemberTable) -> None:
        if (joined := self.joined(shard)) is not None:
            joined.require_same(shard, table)

    def _open(self, shard: int) -> ShardReader:
        assert self._counts is not None  # the data module sees to it
        url, expected = self.urls[shard], int(self._counts[shard])
        table = self._store.table_of(url, expected_samples=expected)
        self._require_same(shard, table)
        storage = self.storages.of(url)
        refresh = partial(self._store.refresh, self.urls) if storage.is_remote else None
        return ShardReader(url, table, storage, on_change=refresh)

    def _close_one(self) -> None:
        """Close the least recently used one."""
        _, reader = self._readers.popitem(last=False)
        reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        while self._readers:
            self._close_one()
        self.storages.close()


def read_sample(
    shards: OpenShards,
    fields: Sequence[Field],
    shard: int,
    sample: int,
    clock: StageClock | None = None,
) -> Sample:
    """The decoded fields of one sample, with its `__key__`, `__url__` and `__id__`.

    Raises:
        ShardError: The shard changed or is damaged, or the sample has not what a field asks for.
    """
    clock, reader, joined = clock or StageClock(), shards.reader(shard), shards.joined(shard)
    suffixes = reader.table.suffixes_of(sample)
    identity: Sample = {"__key__": reader.table.key(sample), "__url__": shards.urls[shard]}
    decoded: Sample = {}
    for field in fields:
        with clock.on("read"):
            if field.is_joined and joined is not None:
                data, (start,), (size,) = joined.extents(np.array([[shard, sample]]))[field.name]
                value = data[start : start + size].tobytes()
                members: Sample = {field.suffixes[0]: value} if size >= 0 else {}
            else:
                members = dict.fromkeys(suffixes) | {
                    suffix: reader.read(sample, suffix) for suffix in field.suffixes_in(suffixes)
                }
        with clock.on("decode"):
            decoded[field.name] = field.decode(members | identity)
    return decoded | identity | {"__id__": (shard, sample)}
