"""The files that samples are read from, which must stay as they were listed."""

import os
import stat
from pathlib import Path
from typing import Final, NamedTuple, Self

from lightning_shards.errors import (
    DamagedShardError,
    FileAccessError,
    ShardError,
    ShardNotFoundError,
)
from lightning_shards.shards.checksums import crc32
from lightning_shards.shards.files import absent, irregular, open_regular, stamp_of
from lightning_shards.shards.storage.local import read_at

UNKNOWN: Final = -1
"""The crc32 of a member that no earlier index knows."""

INDEXED_ANEW: Final = (
    "fetch it again, or, if it was written anew, `touch` it and run `lightning-shards index "
    "--checksums --format wids,members` on it"
)
"""The remedy where a tar differs from what was indexed, by a table in the cache or beside it."""


class InputFile(NamedTuple):
    """A file with its size and time of change when it was listed."""

    path: str
    size_bytes: int
    mtime_ns: int


class InputExtent(NamedTuple):
    """The bytes of one member: a stretch of a file, or `inline` if it is in no file.

    `crc32` is what an earlier index says of them, or `UNKNOWN`.
    """

    field: str
    source: InputFile | None
    offset: int
    size: int
    inline: bytes
    crc32: int = UNKNOWN


class InputFiles:
    """Reads the bytes of extents, and keeps the most recently used files open.

    When a block ends, it has checked that all bytes were those of the files that were listed.
    """

    def __init__(self, max_open: int = 64) -> None:
        self._max_open = max_open
        self._open: dict[InputFile, int] = {}
        self._is_checked = True

    def read(self, extent: InputExtent) -> bytes:
        """The bytes of a member, which `require_unchanged` has yet to confirm.

        Raises:
            ShardNotFoundError: Its file does not exist any more.
            FileAccessError: The bytes cannot be read, or do not fit in the memory.
            DamagedShardError: The file was changed after it was listed, or these bytes are not
                those that were indexed.
        """
        if extent.source is None:
            return extent.inline
        self._is_checked = False
        file = self._file(extent.source)
        try:
            data = read_at(file, extent.offset, extent.size)
        except (OSError, MemoryError) as error:
            raise _unread(extent, error) from error
        if len(data) < extent.size:
            raise _changed(extent.source)
        if extent.crc32 != UNKNOWN and crc32(data) != extent.crc32:
            raise DamagedShardError(
                f"{extent.source.path} has other bytes than when it was indexed in a member "
                f"{extent.field!r}, at byte {extent.offset}; {INDEXED_ANEW}"
            )
        return data

    def require_unchanged(self) -> None:
        """Check that all bytes given so far are of the files as they were listed.

        It is called after reading, because a write changes the time of a file before its bytes.

        Raises:
            DamagedShardError: A file was changed after it was listed.
        """
        if not self._is_checked:
            for source, file in self._open.items():
                _require_listed(source, file)
        self._is_checked = True

    def close(self) -> None:
        """Close all files."""
        while self._open:
            os.close(self._open.popitem()[1])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_error: object) -> None:
        try:
            # An error of our own may be one of changed bytes.
            if kind is None or issubclass(kind, ShardError):
                self.require_unchanged()
        finally:
            self.close()

    def _file(self, source: InputFile) -> int:
        file = self._open.pop(source, None)
        if file is None:
            if len(self._open) >= self._max_open:
                oldest = next(iter(self._open))
                _require_listed(oldest, self._open[oldest])
                os.close(self._open.pop(oldest))
            file = _opened(source)
        self._open[source] = file  # the dict is in order of use, the latest last
        return file


def input_file_at(path: str) -> InputFile:
    """A file with its current size and time of change.

    Raises:
        ShardNotFoundError: There is no such file.
        FileAccessError: It is not a regular file, this user has no access to it, or the text can be
            no path.
    """
    try:
        status = Path(path).stat()
    except FileNotFoundError as error:
        raise absent(path) from error
    except OSError as error:
        raise FileAccessError(
            f"{path} cannot be looked at: {error.strerror}; look at the rights of its folder"
        ) from error
    except ValueError as error:  # a NUL, or half of a pair of UTF-16
        raise FileAccessError(f"{path!r} cannot be the path of a file: {error}") from error
    if not stat.S_ISREG(status.st_mode):
        raise irregular(path, status.st_mode)
    return InputFile(os.path.abspath(path), status.st_size, status.st_mtime_ns)  # noqa: PTH100 - "..", links stay


def _opened(source: InputFile) -> int:
    try:
        file = open_regular(source.path)
    except ShardNotFoundError as error:
        raise ShardNotFoundError(f"{source.path} was deleted since it was listed") from error
    try:
        _require_listed(source, file)
    except DamagedShardError:
        os.close(file)
        raise
    return file


def _require_listed(source: InputFile, file: int) -> None:
    if stamp_of(file) != source[1:]:
        raise _changed(source)


def _changed(source: InputFile) -> DamagedShardError:
    return DamagedShardError(
        f"{source.path} was changed since it was listed; run the command again into a new folder"
    )


def _unread(extent: InputExtent, error: OSError | MemoryError) -> FileAccessError:
    path = extent.source.path if extent.source else ""
    why = "they do not fit in the memory; take fewer --processes, or a machine with more of it"
    if isinstance(error, OSError):
        why = f"{error.strerror}; look at the disk that it is on"
    return FileAccessError(
        f"{path}: the {extent.size:,} bytes of a member {extent.field!r} at byte {extent.offset} "
        f"cannot be read: {why}"
    )
