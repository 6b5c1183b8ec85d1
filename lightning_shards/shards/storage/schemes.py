"""Which storage reads the shards of which URL: local files, or as the table of schemes says.

What reads other than local files is imported with the first URL of such a scheme.
"""

from collections import defaultdict
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import reduce
from signal import SIGPIPE
from subprocess import PIPE, Popen, TimeoutExpired
from typing import IO, Final

from lightning_shards.errors import ConfigError
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

ANY_REMOTE: Final = "*"
"""What stands for all schemes of remote shards where storages are named by scheme."""


class Storages:
    """The storages of one reader, each made with the first URL of its scheme.

    Args:
        given: Storages of schemes that the package does not know or that are read in another way:
            scheme, without a colon, to a picklable callable that makes one.
    """

    def __init__(self, given: Mapping[str, MakeStorage] | None = None) -> None:
        self._makers: dict[str, MakeStorage] = {
            "": LocalStorage,
            "file": LocalStorage,
            **(given or {}),
        }
        self._made: dict[str, Storage] = {}

    def of(self, url: str) -> Storage:
        """The storage that reads this URL.

        Raises:
            ConfigError: There is none for its scheme.
        """
        scheme = scheme_of(url)
        if scheme not in self._made:
            make = self._makers.get(scheme) or _further(url, self._makers)
            self._made[scheme] = make()
        return self._made[scheme]

    def grouped(self, urls: Iterable[str]) -> list[tuple[Storage, list[str]]]:
        """Each storage that reads some of these URLs, and its URLs in their order."""
        groups: defaultdict[str, list[str]] = defaultdict(list)
        for url in urls:
            groups[scheme_of(url)].append(url)
        return [(self.of(group[0]), group) for group in groups.values()]

    def prefetch(self, reads: Sequence[ShardReads]) -> bool:
        """Tell each storage that has a cache what to bring there, as `Storage.prefetch` says."""
        storages = (storage for storage, _ in self.grouped(read.url for read in reads))
        ahead = [storage for storage in storages if storage.fetches_ahead]
        of_each = [[read for read in reads if self.of(read.url) is each] for each in ahead]
        are_there = [each.prefetch(own) for each, own in zip(ahead, of_each, strict=True)]
        return all(are_there)

    def fetch_totals(self) -> FetchTotals:
        """What all storages together have fetched from afar in this process."""
        totals = (storage.fetch_totals() for storage in tuple(self._made.values()))
        return reduce(FetchTotals.plus, totals, NO_FETCHES)

    def close(self) -> None:
        """Let all storages go of their connections and threads."""
        for storage in tuple(self._made.values()):  # another thread may just need one
            storage.close_all()

    def __reduce__(self) -> tuple[type["Storages"], tuple[Mapping[str, MakeStorage]]]:
        """Pickle what makes them."""
        return Storages, (self._makers,)


def _further(url: str, makers: Mapping[str, MakeStorage]) -> MakeStorage:
    """What makes the storage of a URL whose scheme is none of these makers'."""
    from lightning_shards.shards.scheme_table import SCHEMES, row_of

    row = row_of(scheme_of(url))
    if row is None:
        known = ", ".join(name for name in {**SCHEMES, **makers} if name not in ("", ANY_REMOTE))
        raise ConfigError(
            f"no storage reads {redact(url)!r}; known schemes are {known}, and what fsspec reads; "
            f"name one for {scheme_of(url)!r} in storages"
        )
    if row.client == "pipe":
        return StreamOnlyStorage
    from lightning_shards.remote.storage import DEFAULT_REMOTE

    return makers.get(ANY_REMOTE, DEFAULT_REMOTE)


_END_S: Final = 0.5
"""A program that has closed its output ends within so many seconds."""

_WELL: Final = (0, 128 + SIGPIPE)


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
            assert program.stdout is not None
            try:
                yield program.stdout
                while program.stdout.read(1 << 16):
                    pass  # bytes after the archive are read too, so that the program can end
                program.wait()
            except OSError:
                with suppress(TimeoutExpired):  # its failure says more than what it gave
                    program.wait(_END_S)
                if program.returncode in (None, *_WELL):
                    raise
            finally:
                program.kill()
        if program.returncode not in _WELL:
            raise OSError(f"the program that fetches it ended with status {program.returncode}")
