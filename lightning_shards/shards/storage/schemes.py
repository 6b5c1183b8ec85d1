"""Which storage reads the shards of which URL, as the table of schemes says how each is read."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any, Final

from lightning_shards.errors import ConfigError
from lightning_shards.shards.remote.cache.piece_cache import PieceCache
from lightning_shards.shards.remote.hub_commits import pinned_commits, take_over_commits
from lightning_shards.shards.remote.transport import RemoteTransport, TransportSettings
from lightning_shards.shards.scheme_table import (
    ANY_FURTHER,
    RANGED_SCHEMES,
    SCHEMES,
    is_further,
    row_of,
)
from lightning_shards.shards.storage.local import LocalStorage
from lightning_shards.shards.storage.protocol import NO_FETCHES, FetchTotals, ShardReads, Storage
from lightning_shards.shards.storage.remote import RemoteStorage
from lightning_shards.shards.storage.streaming import StreamOnlyStorage
from lightning_shards.shards.urls import redact, scheme_of

MakeStorage = Callable[[], Storage]


class Storages:
    """The storages of one reader, each made with the first URL of its scheme.

    Args:
        given: Storages of schemes that the package does not know or that are read in another way:
            scheme, without a colon, to a picklable callable that makes one.
    """

    def __init__(self, given: Mapping[str, MakeStorage] | None = None) -> None:
        self._makers: dict[str, MakeStorage] = {**_MAKERS, **(given or {})}
        self._made: dict[str, Storage] = {}

    def of(self, url: str) -> Storage:
        """The storage that reads this URL.

        Raises:
            ConfigError: There is none for its scheme.
        """
        scheme = self._known_scheme(url)
        if scheme not in self._made:
            if scheme not in self._makers:
                known = ", ".join(name for name in self._makers if name not in ("", ANY_FURTHER))
                raise ConfigError(
                    f"no storage reads {redact(url)!r}; known schemes are {known}, and what fsspec "
                    f"reads; name one for {scheme!r} in storages"
                )
            self._made[scheme] = self._makers[scheme]()
        return self._made[scheme]

    def grouped(self, urls: Iterable[str]) -> list[tuple[Storage, list[str]]]:
        """Each storage that reads some of these URLs, and its URLs in their order."""
        groups: defaultdict[str, list[str]] = defaultdict(list)
        for url in urls:
            groups[self._known_scheme(url)].append(url)
        return [(self.of(group[0]), group) for group in groups.values()]

    def fetch_ahead(self, reads: Sequence[ShardReads]) -> None:
        """Tell each storage what it is to fetch, as `Storage.fetch_ahead` says; by any thread."""
        for storage, urls in self.grouped({read.url for read in reads}):
            of_storage = set(urls)
            storage.fetch_ahead([read for read in reads if read.url in of_storage])

    def has_fetched_ahead(self) -> bool:
        """Whether none of them is still fetching what it was told to fetch ahead."""
        return all(storage.has_fetched_ahead() for storage in tuple(self._made.values()))

    def fetch_totals(self) -> FetchTotals:
        """What all storages together have fetched from afar in this process."""
        totals = [storage.fetch_totals() for storage in tuple(self._made.values())]
        return reduce(FetchTotals.plus, totals) if totals else NO_FETCHES

    def close(self) -> None:
        """Let all storages go of their connections and threads."""
        for storage in tuple(self._made.values()):  # another thread may just need one
            storage.close_all()

    def _known_scheme(self, url: str) -> str:
        """The scheme of a URL, or what stands for all that fsspec reads."""
        scheme = scheme_of(url)
        return ANY_FURTHER if scheme not in self._makers and is_further(scheme) else scheme


@dataclass(frozen=True, slots=True)
class MakeRemoteStorage:
    """Makes the storage of remote shards in the process that reads; it is pickled and compared.

    With it goes what revisions of the hub are pinned to, so that all processes of a run read the
    same commits.

    Attributes:
        settings: Of its transport.
        cache: The cache of the run, if it has one. It follows from the folder and the shards, so
            it is not compared.
    """

    settings: TransportSettings
    cache: PieceCache | None = field(default=None, compare=False, repr=False)

    def __call__(self) -> Storage:
        """A storage that has opened nothing yet."""
        connections = self.settings.connections
        if self.cache is None:
            return RemoteStorage(RemoteTransport(self.settings), connections)
        # the thread that reads makes requests of its own, beside those that fetch
        settings = replace(self.settings, connections=connections + 1)
        return RemoteStorage(RemoteTransport(settings), connections, copy(self.cache))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the commits of the hub that are pinned now, too."""
        return _unpickled, (self.settings, self.cache, pinned_commits())

    def of_one_rank(self, ranks: int) -> "MakeRemoteStorage":
        """What makes the storage of a worker of one rank, where a node has so many ranks."""
        connections = max(1, self.settings.connections // ranks)
        return replace(self, settings=replace(self.settings, connections=connections))


def _unpickled(
    settings: TransportSettings, cache: PieceCache | None, commits: Mapping[str, str]
) -> MakeRemoteStorage:
    take_over_commits(commits)
    return MakeRemoteStorage(settings, cache)


def shared_out(
    storages: Mapping[str, MakeStorage] | None, ranks: int
) -> Mapping[str, MakeStorage] | None:
    """The same for one rank of a node with so many: each has its part of the connections."""
    if storages is None or ranks == 1:
        return storages
    return {
        scheme: make.of_one_rank(ranks) if isinstance(make, MakeRemoteStorage) else make
        for scheme, make in storages.items()
    }


def without_cache(storages: Mapping[str, MakeStorage] | None) -> Mapping[str, MakeStorage] | None:
    """The same, so that what is read is fetched exactly and nothing ahead."""
    if storages is None:
        return None
    return {
        scheme: replace(make, cache=None) if isinstance(make, MakeRemoteStorage) else make
        for scheme, make in storages.items()
    }


def remote_storages(
    settings: TransportSettings, cache: PieceCache | None = None
) -> dict[str, MakeStorage]:
    """By scheme, what makes the storages that read ranges of remote shards, with this cache."""
    return dict.fromkeys((*RANGED_SCHEMES, ANY_FURTHER), MakeRemoteStorage(settings, cache))


def has_ranges(url: str) -> bool:
    """Whether any range of this shard can be read; if not, it can only be streamed."""
    scheme = row_of(scheme_of(url))
    return scheme is not None and scheme.reading != "opener"


_BY_READING: Final[Mapping[str, MakeStorage]] = {
    "file": LocalStorage,
    "ranges": MakeRemoteStorage(TransportSettings()),
    "opener": StreamOnlyStorage,
}

_MAKERS: Final[Mapping[str, MakeStorage]] = {
    name: _BY_READING[scheme.reading] for name, scheme in SCHEMES.items()
} | {ANY_FURTHER: _BY_READING["ranges"]}
"""What makes the storage of each scheme where none is given."""
