"""Which storage reads the shards of which URL, as the table of schemes says how each is read.

The storage of remote shards is imported with the first of them. What is only streamed is what the
program of a `pipe:` gives.
"""

from collections import defaultdict
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import reduce
from signal import SIGPIPE
from subprocess import PIPE, Popen, TimeoutExpired
from typing import IO, Final

from lightning_shards.errors import ConfigError, DamagedShardError, ShardError
from lightning_shards.shards.scheme_table import ANY_FURTHER, SCHEMES, is_further, row_of
from lightning_shards.shards.storage.local import LocalStorage
from lightning_shards.shards.storage.protocol import (
    NO_FETCHES,
    FetchTotals,
    MakeStorage,
    ShardReads,
    ShardStat,
    Storage,
)
from lightning_shards.shards.urls import redact, scheme_of

_END_S: Final = 0.5
"""A program that has closed its output ends within so many seconds."""

_WELL: Final = (0, 128 + SIGPIPE)


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

    def prefetch(self, reads: Sequence[ShardReads]) -> bool:
        """Tell each storage that has a cache what to bring there, as `Storage.prefetch` says."""
        are_there = True
        for storage, urls in self.grouped({read.url for read in reads}):
            of_storage = set(urls)
            if storage.fetches_ahead:
                of_urls = [read for read in reads if read.url in of_storage]
                are_there = bool(storage.prefetch(of_urls)) and are_there
        return are_there

    def fetch_totals(self) -> FetchTotals:
        """What all storages together have fetched from afar in this process."""
        totals = [storage.fetch_totals() for storage in tuple(self._made.values())]
        return reduce(FetchTotals.plus, totals) if totals else NO_FETCHES

    def close(self) -> None:
        """Let all storages go of their connections and threads."""
        for storage in tuple(self._made.values()):  # another thread may just need one
            storage.close_all()

    def __reduce__(self) -> tuple[type["Storages"], tuple[Mapping[str, MakeStorage]]]:
        """Pickle what makes them."""
        return Storages, (self._makers,)

    def _known_scheme(self, url: str) -> str:
        """The scheme of a URL, or what stands for all that fsspec reads."""
        scheme = scheme_of(url)
        return ANY_FURTHER if scheme not in self._makers and is_further(scheme) else scheme


def has_ranges(url: str) -> bool:
    """Whether any range of this shard can be read; if not, it can only be streamed."""
    scheme = row_of(scheme_of(url))
    return scheme is not None and scheme.reading != "pipe"


class StreamOnlyStorage(Storage):
    """Remote shards that a program gives from their start to their end."""

    def stat(self, url: str) -> ShardStat:
        """Refuse.

        Raises:
            ConfigError: Always.
        """
        raise ConfigError(
            f"{redact(url)} can only be read from its start to its end; take reader='stream', copy "
            "it here, or mount the bucket"
        )

    def read(self, url: str, start: int, stop: int, stat: tuple[int, int] | None = None) -> bytes:
        """Refuse, as `stat` does."""
        return bytes(self.stat(url).size)

    @contextmanager
    def open_stream(self, url: str) -> Generator[IO[bytes]]:
        """The program's output. Its exit status is checked; it is killed if it is left early."""
        command = url.strip().partition(":")[2]
        with Popen(command, stdout=PIPE, shell=True) as program:  # noqa: S602 switched on
            stream, status = program.stdout, 0
            assert stream is not None
            try:
                yield stream
                while stream.read(1 << 16):
                    pass  # bytes after the archive are read too, so that the program can end
                status = program.wait()
            except Exception as error:
                is_of_others = isinstance(error, ShardError)
                if not is_of_others or isinstance(error, DamagedShardError):
                    with suppress(TimeoutExpired):  # its failure says more than what it gave
                        status = program.wait(_END_S)
                if not status:
                    raise
            finally:
                program.kill()
        if status not in _WELL:
            raise OSError(f"the program that fetches it ended with status {status}")


def program_problem(error: Exception) -> str:
    """The message without streams, URLs and commands, which may hold secrets."""
    return str(error.args[0] if error.args else "").partition(" @ ")[0]


def _remote_storage() -> Storage:
    """What reads remote shards without settings; imported with the first of them."""
    from lightning_shards.remote.storage import DEFAULT_REMOTE

    return DEFAULT_REMOTE()


_BY_READING: Final[Mapping[str, MakeStorage]] = {
    "file": LocalStorage,
    "ranges": _remote_storage,
    "pipe": StreamOnlyStorage,
}

_MAKERS: Final[Mapping[str, MakeStorage]] = {
    name: _BY_READING[scheme.reading] for name, scheme in SCHEMES.items()
} | {ANY_FURTHER: _BY_READING["ranges"]}
"""What makes the storage of each scheme where none is given."""
