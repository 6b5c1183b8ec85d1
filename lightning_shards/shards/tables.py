"""The store of member tables: one memory-mapped file (sidecar) per shard, in the cache folder.

All processes of a machine share the pages of a sidecar. It only saves time: it holds while the
shard has the size and time of change that it was made from, and a damaged one, or one that cannot
be written, is made again. Any number of processes may write a sidecar; readers see a whole file or
none. `members` describes the format.

Remote shards are never scanned. Their tables are fetched from beside them and kept with size and
version of the shard, which are compared with every answer of the store: that costs nothing. Next to
a shard a table lies as `<shard>.members`, compressed with zlib. The time of change in its stamp is
0 there, because another machine would give its copy of the shard another one.
"""

import errno
import logging
import mmap
import os
import shlex
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from lightning_shards.errors import ConfigError, FileAccessError, IndexMismatchError, ShardError
from lightning_shards.shards.files import CacheFolder, not_opened
from lightning_shards.shards.members import MemberTable, packed, scan_members, split_error, unpacked
from lightning_shards.shards.progress_line import progress_bar
from lightning_shards.shards.storage.protocol import ShardStat, Storage, shard_stat
from lightning_shards.shards.storage.schemes import Storages
from lightning_shards.shards.urls import BEFORE_QUERY, is_local, plain_path, redact, redact_pattern

MAX_PUBLISHED_BYTES: Final = 1 << 30
"""Bytes of a published table at most; of 10^7 small members it has about 200 MB."""

_COMMAND: Final = "`lightning-shards index --format wids,members`"
"""What makes published tables."""


def published_url(url: str) -> str:
    """Where the published table of a shard lies; the query of a remote shard's URL is kept.

    A `#` or `?` in a path, or in the name of a file, belongs to that name.

    >>> published_url("https://host/000.tar?sig=1"), published_url("s3://bucket/000.tar")
    ('https://host/000.tar.members?sig=1', 's3://bucket/000.tar.members')
    >>> published_url("data/a#1.tar"), published_url("a:b?.tar")
    ('data/a#1.tar.members', 'a:b?.tar.members')
    """
    if is_local(url) or "://" not in url:  # a name with a colon in it is no URL
        return f"{url}.members"
    return BEFORE_QUERY.sub(".members", url, count=1)


def published(table: MemberTable) -> bytes:
    """The table as it lies beside a shard."""
    return zlib.compress(packed(replace(table, mtime_ns=0)))


def fetched_tables(urls: Sequence[str], storage: Storage) -> Iterator[MemberTable]:
    """The tables beside these remote shards, with size and version of the shards now.

    All are asked for at once, and unpacked one by one: unpacked they take eight times the memory.

    Raises:
        ConfigError: A shard has none.
        FileAccessError: One cannot be used.
        IndexMismatchError: One is of a shard of another size.
        ShardError: The store does not answer.
    """
    tables = list(map(published_url, urls))
    contents, stats = storage.read_beside(tables, MAX_PUBLISHED_BYTES, urls)
    return map(_published_table, urls, contents, stats)


def opened_table(url: str, data: bytes) -> MemberTable:
    """The table that lies beside this shard.

    Raises:
        FileAccessError: It cannot be used.
    """
    try:
        return unpacked(zlib.decompress(data))
    except (ValueError, zlib.error) as error:
        raise FileAccessError(
            f"{redact(published_url(url))} cannot be used: it is not whole, or no table ({error}); "
            f"make it again by {_COMMAND}"
        ) from error


def index_command(patterns: str) -> str:
    """The command that makes the tables of these remote shards."""
    return (
        f"`lightning-shards index {shlex.quote(redact_pattern(patterns))} --format wids,members "
        "--output DIR`, with DIR as `index` of the split or its files beside the shards (--upload "
        "puts them into a bucket)"
    )


def absence(url: str, patterns: str) -> str:
    """The message for a remote shard without a table; users name it and others by `patterns`."""
    return (
        f"the indexed reader needs the member table {redact(published_url(url))}, which is not "
        f"there or may not be read; make it once by {index_command(patterns)}"
    )


def _published_table(url: str, data: bytes | None, stat: ShardStat) -> MemberTable:
    if data is None:
        raise ConfigError(absence(url, url))
    table = opened_table(url, data)
    if table.file_size != stat.size:
        raise IndexMismatchError(
            f"{redact(url)} has {stat.size:,} bytes (version {stat.version:x}), and its member "
            f"table {redact(published_url(url))} is of a version of "
            f"{table.file_size:,} bytes; make the table again by {_COMMAND}, or put the old shard "
            "back"
        )
    return replace(table, mtime_ns=stat.version)


_log = logging.getLogger(__name__)


class TableStore:
    """The member tables of shards that can be read by ranges, made or fetched on first use.

    The store holds no file open: callers keep the tables that they use, each with one memory map
    (and its file descriptor).

    Args:
        cache: The sidecars lie in its folder `members`.
        with_crc32: Whether every byte is read now, whatever is kept, and the crc32s are replaced.
            Only the tools that index or write shards set it: a run checks a shard against the
            existing checksums.
        storages: What reads the shards; None for the package's own.
        takes_split: Whether samples may have members that are not adjacent, as for tools that tell
            of them.
    """

    def __init__(
        self,
        cache: CacheFolder,
        *,
        with_crc32: bool = False,
        storages: Storages | None = None,
        takes_split: bool = False,
    ) -> None:
        self._cache, self._takes_split = cache, takes_split
        self._with_crc32, self._storages = with_crc32, storages or Storages()
        self._is_writable = True

    def table_of(
        self, path: str | os.PathLike[str], *, expected_samples: int | None = None
    ) -> MemberTable:
        """The table of a shard as it is now; `expected_samples` is its count in the run's index.

        A shard that was written again is scanned again.

        Raises:
            ShardNotFoundError: There is no such file.
            FileAccessError: The kept table, or a folder of the cache, could be another user's work;
                or the table beside a remote shard is damaged.
            ConfigError: There is no table beside a remote shard.
            StorageError: It could not be had, after all retries.
            DamagedShardError: The shard had to be scanned and is not one whole tar archive.
            IndexMismatchError: The shard holds another number of samples than expected, or a remote
                one has another size than its table says.
            SampleError: The members of a sample are not adjacent.
        """
        url = _url_of(path)
        table = self.kept_table(url)
        if table is None or not self._is_current(table, url, expected_samples):
            table = self._renew(url, table)
        if expected_samples is not None and table.num_samples != expected_samples:
            raise IndexMismatchError(
                f"{redact(url)} changed since it was indexed: it holds {table.num_samples} "
                f"samples, {expected_samples} by the index; put the old shard back, or start the "
                "run anew (where a file beside it counts it, such as wids.json, remake that first)"
            )
        split = table.split_sample
        if split is not None and not self._takes_split:
            raise split_error(url, table.key(split), table.suffixes_of(split))
        return table

    def is_remote(self, url: str) -> bool:
        """Whether the table of this shard is fetched; if not, it is made by a scan."""
        return self._storages.of(url).is_remote

    def kept_table(self, path: str | os.PathLike[str]) -> MemberTable | None:
        """The stored table of this shard, even if the shard has changed since.

        Raises:
            FileAccessError: The table, or a folder of the cache, could be another user's work.
        """
        return open_table(self._cache.sidecar_of(_url_of(path)), self._cache)

    def missing(self, urls: Iterable[str]) -> list[str]:
        """Those of these shards that are remote and whose tables are not kept yet, each once."""
        kept_at = self._cache.sidecar_of
        remote = dict.fromkeys(url for url in urls if not is_local(url))
        return [url for url in remote if not kept_at(url).exists() and self.is_remote(url)]

    def fetch(self, urls: Sequence[str]) -> list[str]:
        """Fetch the tables of remote shards that are not kept yet, all at once.

        Returns:
            The shards whose tables were fetched, with size and version of the shards now.

        Raises:
            ShardError: As of `table_of`.
        """
        missing = self.missing(urls)
        for _ in self._fetched(missing) if missing else ():
            pass  # it is kept
        return missing

    def refresh(self, urls: Sequence[str]) -> None:
        """Let the next run read a remote data set of which a shard was replaced.

        The kept tables of all its shards are removed, because the others were replaced, too, as a
        rule. One without crc32s stays: nothing else than its version shows that bytes are others.
        What goes wrong is not worth an error beside that at hand.
        """
        with suppress(ShardError, OSError):
            for url in dict.fromkeys(urls):
                table = self.kept_table(url) if self.is_remote(url) else None
                if table is not None and table.crc32 is not None:
                    self._cache.sidecar_of(url).unlink(missing_ok=True)

    def _is_current(self, table: MemberTable, url: str, expected: int | None = None) -> bool:
        """Whether the table is of the shard as it is now, and no byte is to be read for it."""
        if self.is_remote(url):
            # Each read compares what the shard is. Another count shows that it was made anew.
            return expected in (None, table.num_samples)
        # An empty table is never believed: scanning such a shard takes no time.
        is_believed = table.num_samples > 0 and not self._with_crc32
        return is_believed and table.stamp == shard_stat(url, self._storages.of(url))

    def _fetched(self, urls: Sequence[str]) -> Iterator[MemberTable]:
        """The tables of these remote shards, asked for at once and kept one by one."""
        for storage, group in self._storages.grouped(urls):
            yield from map(self._keep, group, fetched_tables(group, storage))

    def _renew(self, url: str, old: MemberTable | None) -> MemberTable:
        if self.is_remote(url):
            return next(self._fetched([url]))
        table = scan_members(url, with_crc32=self._with_crc32, storage=self._storages.of(url))
        if old is not None and old.has_same_members(table):
            table = replace(table, crc32=old.crc32 if table.crc32 is None else table.crc32)
        elif old is not None:
            _log.warning(
                "%s changed since its members were listed: it held %d samples, and holds %d now",
                *(url, old.num_samples, table.num_samples),
            )
        return self._keep(url, table)

    def _keep(self, url: str, table: MemberTable) -> MemberTable:
        """The table, mapped from the sidecar that is written, if it can be."""
        sidecar = self._cache.sidecar_of(url)
        try:
            write_table(sidecar, table, self._cache)
        except OSError as error:
            if self._is_writable:
                _log.warning(
                    "member tables are made again each time they are needed, because they cannot "
                    "be kept: %s; name another cache_dir",
                    error,
                )
            self._is_writable = False
            return table
        return open_table(sidecar, self._cache) or table


def _url_of(path: str | os.PathLike[str]) -> str:
    return plain_path(os.fspath(path)) if isinstance(path, os.PathLike) else path


def build_tables(paths: Iterable[str], store: TableStore) -> dict[str, int]:
    """Make the tables that the store lacks; finished ones stay if a later shard is damaged.

    Those of remote shards are fetched when they are needed: there may be 10^6 of them.

    Returns:
        How many samples each of the other shards holds.

    Raises:
        ShardError: As of `TableStore.table_of`.
    """
    scanned = [path for path in dict.fromkeys(paths) if not store.is_remote(path)]
    where = os.path.dirname(next(iter(scanned), ""))  # noqa: PTH120 - a leading ./ stays
    counts: dict[str, int] = {}
    with progress_bar(f"listed shards in {where or '.'}", len(scanned), " shards") as step:
        for path in scanned:
            counts[path] = store.table_of(path).num_samples
            step()
    return counts


def write_table(path: Path, table: MemberTable, cache: CacheFolder) -> None:
    """Put the table at `path` in one step; a reader sees the old file, the new one or none."""
    cache.write(path, packed(table))


def open_table(path: Path, cache: CacheFolder) -> MemberTable | None:
    """The table in a sidecar, mapped and not copied; None if it is absent or damaged.

    Raises:
        FileAccessError: It is not a regular file, or could be another user's work.
    """
    sidecar = cache.open(path)
    if sidecar is None:
        return None
    try:
        with os.fdopen(sidecar, "rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            table = unpacked(mapped)
            # All was read once, of which little is used. The system keeps it, but a process has
            # hundreds open, and none of them counts as its memory.
            mapped.madvise(mmap.MADV_DONTNEED)
            return table
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
            raise not_opened(path, error) from error
        _log.warning("the member table %s is made again: %s", path, error)
        return None
