"""The member tables of remote shards, which the processes of a node fetch for each other."""

from collections.abc import Mapping, Sequence
from functools import partial
from threading import Event
from time import perf_counter
from typing import Final

from lightning_shards.shards.index import ShardIndex
from lightning_shards.shards.members import MemberTable, ShardReader
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.storage.protocol import FetchTotals
from lightning_shards.shards.storage.schemes import MakeStorage, Storages
from lightning_shards.shards.table_bytes import UnwrittenTables
from lightning_shards.shards.tables import TableStore

_OTHERS_S: Final = 0.2
"""Seconds without a table after which those of other processes are fetched by this one, too."""

_LOOK_S: Final = 0.01

_MOST_HELD: Final = 64
"""So few tables stay open for the next blocks. To open one takes longer than to look up its pieces,
but more of them would take too much memory, and too many file descriptors."""


class ShardTables:
    """The member tables of shards by their numbers, for one thread.

    Each process of a node fetches its share of the tables that all of them need, shard number
    modulo processes, and finds the others in the cache folder as soon as they are there. What does
    not come, since its process lags or has ended, it fetches, too.

    Args:
        index: The shards and their counts, which are known.
        cache: Where tables are kept.
        storages: Make what reads the shards, for the tables alone.
        share: The number of this process among those of the node that fetch, and how many these
            are.

    Attributes:
        unwritten: Tables that could not be written, for all who read by them in this process.
    """

    def __init__(
        self,
        index: ShardIndex,
        cache: CacheFolder,
        storages: Mapping[str, MakeStorage] | None,
        share: tuple[int, int] = (0, 1),
    ) -> None:
        self._index, self._storages, self._share = index, Storages(storages), share
        self.unwritten = UnwrittenTables()
        self._tables = TableStore(cache, storages=self._storages, unwritten=self.unwritten)
        self._closed = Event()
        self._just_fetched, self._are_others_there = set[str](), True
        self._held: dict[int, MemberTable] = {}

    def tables_of(self, shards: Sequence[int]) -> list[MemberTable]:
        """The tables of these shards, fetched at once where they are not kept.

        Raises:
            ShardError: As of `TableStore.table_of`.
        """
        held = self._held
        held |= self._opened([shard for shard in shards if shard not in held])
        tables = [held[shard] for shard in shards]
        if len(held) > _MOST_HELD:
            held.clear()
        return tables

    def require_same(self, shards: Sequence[int]) -> None:
        """Ask the stores whether remote ones of these shards are what their tables say.

        Those are not asked about whose tables were fetched here, because size and version of a
        shard are asked for with its table.

        Raises:
            IndexMismatchError: One is another version; its run is the last with the old tables.
            ShardError: A store does not answer.
        """
        numbers = {self._index.urls[shard]: shard for shard in shards}
        not_asked = [url for url in numbers if url not in self._just_fetched]
        for storage, urls in self._storages.grouped(not_asked):
            if not storage.is_remote:
                continue  # it is compared when it is opened
            tables = self.tables_of([numbers[url] for url in urls])
            _, stats = storage.read_beside((), 0, urls)
            for url, table, stat in zip(urls, tables, stats, strict=True):
                refresh = partial(self._tables.refresh, url, self._index.urls)
                ShardReader(url, table, storage, on_change=refresh).require_same(stat)

    def fetch_totals(self) -> FetchTotals:
        """What was fetched for the tables; nobody waits for it."""
        return self._storages.fetch_totals()._replace(table_wait_s=0.0, member_wait_s=0.0)

    def close(self) -> None:
        """End the threads and connections of the storages."""
        self._closed.set()
        self._storages.close()

    def _opened(self, shards: Sequence[int]) -> dict[int, MemberTable]:
        counts = self._index.counts
        assert counts is not None  # the indexed reader has them
        number, processes = self._share
        urls = {shard: self._index.urls[shard] for shard in shards}
        of_others = [url for shard, url in urls.items() if shard % processes != number]
        own = [url for shard, url in urls.items() if shard % processes == number]
        self._just_fetched.update(self._tables.fetch(own))
        self._wait_for_others(of_others)
        self._just_fetched.update(self._tables.fetch(of_others))
        return {  # which fetches those that were dropped from the cache meanwhile
            shard: self._tables.table_of(url, expected_samples=int(counts[shard]))
            for shard, url in urls.items()
        }

    def _wait_for_others(self, urls: Sequence[str]) -> None:
        """Wait as long as other processes bring some of these tables.

        If none comes, there may be no other process: then nobody is waited for until one comes.
        """
        missing, came = self._tables.missing(urls), perf_counter()
        self._are_others_there |= len(missing) < len(urls)
        while missing and self._are_others_there and not self._closed.wait(_LOOK_S):
            left = self._tables.missing(missing)
            came = perf_counter() if len(left) < len(missing) else came
            missing, self._are_others_there = left, perf_counter() - came < _OTHERS_S
