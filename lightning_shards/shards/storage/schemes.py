"""Which storage reads the shards of which URL, as the table of schemes says how each is read.

What only some schemes need is imported with the first of their shards: the storage of remote ones,
and webdataset, whose openers start the programs of those that are only streamed, such as `pipe:`.
webdataset imports torch; nothing but its openers is used here.
"""

import re
from collections import defaultdict
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import reduce
from subprocess import TimeoutExpired
from typing import Any, Final, cast

from lightning_shards.errors import ConfigError, DamagedShardError, ShardError
from lightning_shards.shards.scheme_table import ANY_FURTHER, SCHEMES, is_further, row_of
from lightning_shards.shards.storage.local import LocalStorage
from lightning_shards.shards.storage.protocol import (
    NO_FETCHES,
    FetchTotals,
    MakeStorage,
    MakeTunedStorage,
    ShardReads,
    ShardStat,
    Storage,
)
from lightning_shards.shards.urls import redact, scheme_of

_EXIT_STATUS = re.compile(r"exit (-?\d+) \(read\)")
"""The text by which webdataset's `Pipe` says that its program failed; the command is before it."""

_ENDED: Final = "the program that fetches it ended with status"
_END_S: Final = 0.5
"""A program that has closed its output ends within so many seconds."""


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


def shared_out(
    storages: Mapping[str, MakeStorage] | None, ranks: int
) -> Mapping[str, MakeStorage] | None:
    """The same for one rank of a node with so many: each has its part of the connections."""
    if storages is None or ranks == 1:
        return storages
    return {
        scheme: make.of_one_rank(ranks) if isinstance(make, MakeTunedStorage) else make
        for scheme, make in storages.items()
    }


def without_cache(storages: Mapping[str, MakeStorage] | None) -> Mapping[str, MakeStorage] | None:
    """The same, so that what is read is fetched exactly and nothing ahead."""
    if storages is None:
        return None
    return {
        scheme: make.without_cache() if isinstance(make, MakeTunedStorage) else make
        for scheme, make in storages.items()
    }


def has_ranges(url: str) -> bool:
    """Whether any range of this shard can be read; if not, it can only be streamed."""
    scheme = row_of(scheme_of(url))
    return scheme is not None and scheme.reading != "opener"


class StreamOnlyStorage(Storage):
    """Remote shards that a program gives from their start to their end."""

    has_ranges = False

    def stat(self, url: str) -> ShardStat:
        """Refuse.

        Raises:
            ConfigError: Always.
        """
        raise _only_streamed(url)

    def read(self, url: str, start: int, stop: int, stat: tuple[int, int] | None = None) -> bytes:
        """Refuse.

        Raises:
            ConfigError: Always.
        """
        raise _only_streamed(url)

    def open_stream(self, url: str) -> AbstractContextManager[Any]:
        """The program's output. Its exit status is checked; it is killed if it is left early."""
        return _opened(url)


@contextmanager
def _opened(url: str) -> Generator[Any, None, None]:
    from webdataset.gopen import Pipe, gopen

    stream = cast("Any", gopen(url))
    try:
        yield stream
    except BaseException as error:
        if not isinstance(stream, Pipe):
            stream.close()
            raise
        is_of_others = isinstance(error, ShardError) and not isinstance(error, DamagedShardError)
        is_of_reading = isinstance(error, Exception) and not is_of_others
        status = _failed_with(stream) if is_of_reading else 0
        _kill(stream)
        if not status:
            raise
    else:
        while stream.read(1 << 16):
            pass  # bytes after the archive are read too, so that the program can end by itself
        stream.close()  # a Pipe raises here when its program failed
        return
    # What it gave until then, such as no byte at all, says less than this
    raise OSError(f"{_ENDED} {status}")


def _only_streamed(url: str) -> ConfigError:
    return ConfigError(
        f"{redact(url)} can only be read from its start to its end; take reader='stream', copy it "
        "here, or mount the bucket"
    )


def program_problem(error: Exception) -> str:
    """The message without streams, URLs and commands, which may hold secrets."""
    text = str(error.args[0]) if error.args else ""
    status = _EXIT_STATUS.search(text)
    if status:
        return f"{_ENDED} {status[1]}"
    return text.partition(" @ ")[0]


def _failed_with(stream: Any) -> int:
    """The status of the Pipe's program if it has failed; 0 if it is still running."""
    with suppress(TimeoutExpired):
        return stream.proc.wait(_END_S)
    return 0


def _kill(stream: Any) -> None:
    """End the program of a Pipe; closing it would wait for a program that waits for its server."""
    stream.proc.kill()
    stream.proc.wait()
    stream.stream.close()


def _remote_storage() -> Storage:
    """What reads remote shards without settings; imported with the first of them."""
    from lightning_shards.shards.storage.remote import DEFAULT_REMOTE

    return DEFAULT_REMOTE()


_BY_READING: Final[Mapping[str, MakeStorage]] = {
    "file": LocalStorage,
    "ranges": _remote_storage,
    "opener": StreamOnlyStorage,
}

_MAKERS: Final[Mapping[str, MakeStorage]] = {
    name: _BY_READING[scheme.reading] for name, scheme in SCHEMES.items()
} | {ANY_FURTHER: _BY_READING["ranges"]}
"""What makes the storage of each scheme where none is given."""
