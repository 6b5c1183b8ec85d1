"""Single samples of shards, to be looked at: a sample of local and remote shards alike.

Where a member table tells where the members lie, no other bytes are read. A remote shard without
one is streamed up to the last sample that is wanted, and one that only a program gives is copied.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import NamedTuple

import numpy as np

from lightning_shards.shards.index import load_index
from lightning_shards.shards.members import ShardReader
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.remote.transport import TransportSettings
from lightning_shards.shards.storage.local_copies import local_copy
from lightning_shards.shards.storage.schemes import Storages, has_ranges
from lightning_shards.shards.tables import TableStore, build_tables
from lightning_shards.shards.tar.tar_stream import stream_samples
from lightning_shards.shards.urls import is_local


class ChosenSample(NamedTuple):
    """One sample.

    Attributes:
        key: Its key.
        sizes: Bytes of its members, by suffix.
        read: Gives the data of a member, by suffix, while the shard is open.
    """

    key: str
    sizes: Mapping[str, int]
    read: Callable[[str], bytes]


class ShardsToShow:
    """Shards of which single samples are read.

    Args:
        cache: Where member tables are kept.
        settings: How remote shards are reached.
        storages: What reads them; they are closed by the caller.
    """

    def __init__(self, cache: CacheFolder, settings: TransportSettings, storages: Storages) -> None:
        self._cache, self._settings, self._storages = cache, settings, storages
        self._tables = TableStore(cache, storages=storages)

    def counts(self, urls: Sequence[str]) -> list[int] | None:
        """Samples of each shard; None if a remote one is counted by no file beside it.

        The tables of local shards are made.

        Raises:
            ShardError: A shard cannot be read.
        """
        build_tables([url for url in urls if is_local(url)], self._tables)
        remote = [url for url in urls if not is_local(url)]
        index = load_index(remote, cache=self._cache, storages=self._storages)
        if index.counts is None:
            return None
        known = dict(zip(remote, index.counts.tolist(), strict=True))
        return [
            known[url] if url in known else self._tables.table_of(url).num_samples for url in urls
        ]

    def samples(self, url: str, numbers: Sequence[int]) -> Iterator[ChosenSample]:
        """The samples of these ascending numbers; fewer if a shard without a table has fewer.

        Raises:
            ShardError: The shard cannot be read.
        """
        if not has_ranges(url):
            with local_copy(url, self._cache, self._settings) as shard:
                reader = ShardReader(shard.path, TableStore(shard.cache).table_of(shard.path))
                yield from _by_table(reader, numbers)
        elif self._has_table(url):
            reader = ShardReader(url, self._tables.table_of(url), self._storages.of(url))
            yield from _by_table(reader, numbers)
        else:
            with self._storages.of(url).open_stream(url) as stream:
                every = islice(stream_samples(stream, url), numbers[-1] + 1)
                wanted = set(numbers)
                for number, sample in enumerate(every):
                    if number in wanted:
                        yield _of_stream(sample)

    def _has_table(self, url: str) -> bool:
        return is_local(url) or self._tables.is_beside(url)


def _by_table(reader: ShardReader, numbers: Sequence[int]) -> Iterator[ChosenSample]:
    with reader:
        table = reader.table
        for number in numbers:
            if number < table.num_samples:
                extents = {
                    suffix: table.find(number, suffix) for suffix in table.suffixes_of(number)
                }
                sizes = {suffix: extent[1] for suffix, extent in extents.items() if extent}
                yield ChosenSample(table.key(number), sizes, partial(reader.read, number))


def _of_stream(sample: dict[str, bytes | str]) -> ChosenSample:
    members = {suffix: data for suffix, data in sample.items() if isinstance(data, bytes)}
    sizes = {suffix: len(data) for suffix, data in members.items()}
    return ChosenSample(str(sample["__key__"]), sizes, members.__getitem__)


def choose_samples(counts: Sequence[int], num: int, seed: int | None) -> dict[int, list[int]]:
    """The numbers of the samples to read, by shard: evenly spaced, or drawn without repeats."""
    total, stops = sum(counts), np.cumsum(counts, dtype=np.int64)
    by_shard: dict[int, list[int]] = {}
    for number in _numbers(total, min(num, total), seed):
        shard = int(np.searchsorted(stops, number, side="right"))
        by_shard.setdefault(shard, []).append(number - int(stops[shard] - counts[shard]))
    return by_shard


def choose_first_samples(num_shards: int, num: int, seed: int | None) -> dict[int, list[int]]:
    """The same where nothing counts the samples: the first ones of shards that are chosen so."""
    shards = _numbers(num_shards, min(num, num_shards), seed)
    least, more = divmod(num, len(shards))
    return {shard: list(range(least + (rank < more))) for rank, shard in enumerate(shards)}


def _numbers(total: int, num: int, seed: int | None) -> list[int]:
    """Numbers below `total`, in order."""
    if seed is None:
        return [number * total // num for number in range(num)]
    drawn = np.random.default_rng(seed)
    chosen: set[int] = set()  # a permutation of all numbers could be too large
    while len(chosen) < num:
        chosen.add(int(drawn.integers(total)))
    return sorted(chosen)
