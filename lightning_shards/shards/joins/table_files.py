"""The files of a table, by their contents: the crc32 of a table decides what is kept of it.

A remote file is fetched whole, once: its checksum is taken meanwhile, and the join is made of the
copy, which lies in the cache until then. Its name is a hash, as a URL may hold what is secret.
"""

import json
import os
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, cast

from lightning_shards.errors import (
    ConfigError,
    FileAccessError,
    IndexMismatchError,
    ShardError,
    ShardNotFoundError,
)
from lightning_shards.shards.checksums import crc32
from lightning_shards.shards.files import locked_file, new_file, not_written, open_regular, stamp_of
from lightning_shards.shards.joins.settings import JoinSettings
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.progress_line import bytes_bar
from lightning_shards.shards.remote.proxies import file_name, require_hosts
from lightning_shards.shards.storage.protocol import ShardStat
from lightning_shards.shards.storage.schemes import Storages, has_ranges
from lightning_shards.shards.urls import (
    expand_urls,
    is_local,
    redact,
    require_local_shards,
    without_credentials,
)

_MOST_BYTES: Final = 1 << 16  # of a kept crc32


@dataclass(frozen=True, slots=True)
class TableFile:
    """One file of a table as it was when its checksum was taken.

    Attributes:
        path: Where it lies: a path, or a URL with what may be secret in it.
        size: bytes of it.
        crc32: Of all its bytes.
    """

    path: str = field(repr=False)
    size: int
    crc32: int

    @property
    def name(self) -> str:
        """Its path or URL, for messages."""
        return redact(self.path)

    @property
    def is_remote(self) -> bool:
        """Whether it is no file of this machine."""
        return not is_local(self.path)


def find_table_files(
    settings: JoinSettings, storages: Storages, cache: CacheFolder
) -> tuple[TableFile, ...]:
    """The files of a table; one that has not changed since an earlier run is not read again.

    A remote one is fetched to be read, and its copy stays until the join is made.

    Raises:
        ShardNotFoundError: A file does not exist.
        FileAccessError: One cannot be read, or changed while it was read.
        IndexMismatchError: A remote one was replaced while it was fetched.
        StorageError: A remote one could not be had, after all retries.
        ConfigError: A remote one can only be streamed, or a folder is named.
        UrlError: A pattern cannot be read.
    """
    for pattern in settings.table:
        if is_local(pattern) and Path(pattern).is_dir():
            files = Path(pattern) / f"*{Path(pattern).suffix}"
            raise ConfigError(
                f"the table of join {settings.name!r} is the folder {pattern}; name the files in "
                f"it, as in table: {files}"
            )
    try:
        paths = expand_urls(settings.table)
        require_local_shards(paths)
        remote = [path for path in paths if not is_local(path)]
        _require_stores(settings, remote)
        stats = _stats(remote, storages)
    except ShardNotFoundError as error:
        raise ShardNotFoundError(f"the table of join {settings.name!r}: {error}") from error
    return tuple(
        _remote_file(path, stats[path], storages, cache)
        if path in stats
        else _table_file(path, cache)
        for path in paths
    )


def content_digest(files: Iterable[TableFile]) -> str:
    """16 hex digits over sizes and checksums of files in their order; their names do not count."""
    texts = (f"{file.size} {file.crc32:08x}\n" for file in files)
    return sha256("".join(texts).encode()).hexdigest()[:16]


def have_changed(files: Iterable[TableFile], cache: CacheFolder) -> bool:
    """Whether some of those of this machine are others now; errors as of `find_table_files`."""
    return any(_table_file(file.path, cache) != file for file in files if not file.is_remote)


def _require_stores(settings: JoinSettings, urls: list[str]) -> None:
    for url in urls:
        if not has_ranges(url):
            raise ConfigError(
                f"the table of join {settings.name!r}: {redact(url)} can only be streamed; copy it "
                "here, or to a store"
            )
    require_hosts(urls)


def _stats(urls: Iterable[str], storages: Storages) -> dict[str, ShardStat]:
    """What each of these is, asked at once."""
    return {
        url: stat
        for storage, group in storages.grouped(dict.fromkeys(urls))
        for url, stat in zip(group, storage.stats(group), strict=True)
    }


def _table_file(path: str, cache: CacheFolder) -> TableFile:
    absolute = os.fsencode(Path(path).absolute())
    kept = cache.root / "joins" / f"{sha256(absolute).hexdigest()[:24]}.json"
    stamp = stamp_of(path)
    checksum = _kept_crc32(kept, stamp, cache)
    if checksum is None:
        checksum = crc32_of(path)
        if stamp_of(path) != stamp:
            raise FileAccessError(
                f"{path} changed while it was read; wait until it is written, and start again"
            )
        _keep_crc32(kept, stamp, checksum, cache)
    return TableFile(path, stamp[0], checksum)


def _remote_file(url: str, stat: ShardStat, storages: Storages, cache: CacheFolder) -> TableFile:
    kept = copy_path(url, cache).with_suffix(".json")
    checksum = _kept_crc32(kept, stat, cache)
    if checksum is None:
        try:
            cache.make_folder(kept.parent)
        except OSError as error:
            raise not_written(kept.parent, error) from error
        with locked_file(kept.with_suffix(".lock")):
            checksum = _kept_crc32(kept, stat, cache)  # another process may have been first
            if checksum is None:
                checksum = fetch_copy(url, stat, storages, cache)
                _keep_crc32(kept, stat, checksum, cache)
    return TableFile(url, stat.size, checksum)


def _keep_crc32(path: Path, stamp: tuple[int, int], checksum: int, cache: CacheFolder) -> None:
    facts = {"size": stamp[0], "mtime_ns": stamp[1], "crc32": checksum}
    try:
        cache.write(path, json.dumps(facts).encode(), outlives_power=False)
    except OSError as error:
        raise not_written(path, error) from error


def _kept_crc32(path: Path, stamp: tuple[int, int], cache: CacheFolder) -> int | None:
    """The checksum that is kept of a file with this stamp; None if there is none."""
    file = cache.open(path)
    if file is None:
        return None
    try:
        with os.fdopen(file, "rb") as kept:
            content: object = json.loads(kept.read(_MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    facts = cast("dict[str, Any]", content) if isinstance(content, dict) else {}
    if (facts.get("size"), facts.get("mtime_ns")) != stamp or type(facts.get("crc32")) is not int:
        return None
    return facts["crc32"]


_READ_BYTES: Final = 1 << 22
_FILE_MODE: Final = 0o600
_MAGIC: Final = b"PAR1"
_TAIL_BYTES: Final = 1 << 16
_LENGTH_BYTES: Final = 8  # of the footer's length and the magic behind it


def copy_path(url: str, cache: CacheFolder) -> Path:
    """Where the copy of a remote file lies, if there is one."""
    digest = sha256(without_credentials(url).encode("utf-8", "surrogateescape"))
    return cache.root / "joins" / f"{digest.hexdigest()[:24]}.copy"


def fetch_copy(url: str, stat: ShardStat, storages: Storages, cache: CacheFolder) -> int:
    """Put a copy of a remote file into the cache, and give its crc32.

    Raises:
        IndexMismatchError: It is not what `stat` says, or was replaced while it was fetched.
        FileAccessError: The copy cannot be written.
        StorageError: The file could not be had to its end, after all retries.
    """
    path, storage = copy_path(url, cache), storages.of(url)
    checksum = size = 0
    try:
        cache.make_folder(path.parent)
        with (
            new_file(path, mode=_FILE_MODE, outlives_power=False) as file,
            storage.open_stream(url) as stream,
            bytes_bar(f"fetched {file_name(url)}", stat.size) as step,
        ):
            while data := stream.read(_READ_BYTES):
                file.write(data)
                checksum, size = crc32(data, checksum), size + len(data)
                step(len(data))
            if size != stat.size or storage.stat(url) != stat:
                raise changed(url)
    except OSError as error:
        raise not_written(path, error) from error
    return checksum


def changed(url: str) -> IndexMismatchError:
    """The error for a remote file that is not what it was."""
    return IndexMismatchError(
        f"{redact(url)} was replaced while the run looked at it; start again when it is written"
    )


def remove_copies(urls: Iterable[str], cache: CacheFolder) -> None:
    """Remove the copies of these files; others that are making a join have links of their own."""
    for url in urls:
        with suppress(OSError):
            copy_path(url, cache).unlink(missing_ok=True)


@contextmanager
def linked_copies(
    files: Sequence[tuple[str, int, int]], storages: Storages, cache: CacheFolder, folder: Path
) -> Generator[list[str], None, None]:
    """Copies of remote files as files below a folder of the cache, fetched where there are none.

    Errors that the block raises name the URLs and not the copies.

    Args:
        files: URL, size and crc32 of each.
        storages: What reads them.
        cache: Where copies are kept.
        folder: Where each copy gets a link, so that nobody takes it away.

    Raises:
        IndexMismatchError: A file is another one than its checksum says.
        ShardError: As of `fetch_copy`.
    """
    paths: list[str] = []
    for number, (url, size, checksum) in enumerate(files):
        path = folder / f"{number}" / file_name(url)
        path.parent.mkdir()
        if not _is_linked(copy_path(url, cache), path) or crc32_of(path) != checksum:
            stat = storages.of(url).stat(url)
            if stat.size != size or fetch_copy(url, stat, storages, cache) != checksum:
                raise changed(url)
            path.unlink(missing_ok=True)
            if not _is_linked(copy_path(url, cache), path):
                raise FileAccessError(
                    f"the copy of {redact(url)} in {path.parent} was removed a moment ago; start "
                    "again"
                )
        paths.append(str(path))
    try:
        yield paths
    except ShardError as error:
        message = str(error)
        for path, (url, _, _) in zip(paths, files, strict=True):
            message = message.replace(path, redact(url))
        raise type(error)(message) from None


def crc32_of(path: str | Path) -> int:
    """The crc32 of a whole file of this machine.

    Raises:
        FileAccessError: It cannot be read.
    """
    checksum = 0
    with os.fdopen(open_regular(path), "rb", buffering=0) as file:
        try:
            while data := file.read(_READ_BYTES):
                checksum = crc32(data, checksum)
        except OSError as error:
            raise FileAccessError(f"{path} cannot be read: {error.strerror}") from error
    return checksum


def parquet_footer(url: str, size: int, storages: Storages) -> bytes:
    """The footer of a remote Parquet file of this size, as a file that holds a schema and no rows.

    Raises:
        FileAccessError: It has none.
        IndexMismatchError: The file has another size, or is replaced.
        ShardError: As of `Storage.read`.
    """
    storage = storages.of(url)
    stat = storage.stat(url)
    if stat.size != size:
        raise changed(url)

    def last(length: int) -> bytes:
        data = storage.read(url, size - length, size, stat)
        if len(data) < length:
            raise changed(url)
        return data

    tail = last(min(size, _TAIL_BYTES))
    length = int.from_bytes(tail[-_LENGTH_BYTES : -len(_MAGIC)], "little") + _LENGTH_BYTES
    if tail[-len(_MAGIC) :] != _MAGIC or length + len(_MAGIC) > size:
        raise FileAccessError(
            f"{redact(url)} cannot be read as Parquet: it ends in no footer; write it again, or "
            "name another table"
        )
    return _MAGIC + (tail[-length:] if length <= len(tail) else last(length))


def _is_linked(copy: Path, path: Path) -> bool:
    """Whether there is a copy, which then has this path, too."""
    try:
        os.link(copy, path)
    except FileNotFoundError:
        return False
    except OSError:  # a file system without links
        copy.replace(path)
    return True
