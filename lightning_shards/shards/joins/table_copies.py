"""Copies of the files of remote tables, which lie in the cache until their join is made.

A file is fetched whole, once: its checksum is taken meanwhile, and the join is made of the copy.
Its name is a hash, as a URL may hold what is secret.
"""

import os
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Final

from lightning_shards.errors import FileAccessError, IndexMismatchError, ShardError
from lightning_shards.shards.atomic import new_file, not_written
from lightning_shards.shards.checksums import crc32
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.progress_line import bytes_bar
from lightning_shards.shards.regular_files import open_regular
from lightning_shards.shards.storage.local_copies import file_name
from lightning_shards.shards.storage.protocol import ShardStat
from lightning_shards.shards.storage.schemes import Storages
from lightning_shards.shards.urls import redact, without_credentials

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
