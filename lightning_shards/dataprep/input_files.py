"""The samples to be written, and where the bytes of their members are.

A member is a stretch of a file: of a tar, or of a file with nothing else in it; a label or a
caption is in no file. So one plan and one writer serve every kind of input. Files must stay as they
were listed.
"""

import os
import stat
from pathlib import Path
from typing import NamedTuple, Self

from lightning_shards.errors import DamagedShardError, FileAccessError
from lightning_shards.shards.files import absent, irregular, open_regular, stamp_of
from lightning_shards.shards.storage.local import read_at


class InputFile(NamedTuple):
    """A file with its size and time of change when it was listed."""

    path: str
    size_bytes: int
    mtime_ns: int


class InputExtent(NamedTuple):
    """The bytes of one member: a stretch of a file, or `inline` if it is in no file."""

    field: str
    source: InputFile | None
    offset: int
    size: int
    inline: bytes


class InputSample(NamedTuple):
    """A sample: its key, its members in file order, and its split; "" if it has none."""

    key: str
    members: tuple[InputExtent, ...]
    split: str = ""


class InputFiles:
    """Reads the bytes of extents, and keeps the file of the last one open."""

    def __init__(self) -> None:
        self._source: InputFile | None = None
        self._file = -1

    def read(self, extent: InputExtent) -> bytes:
        """The bytes of a member.

        Raises:
            ShardNotFoundError: Its file does not exist any more.
            FileAccessError: It cannot be opened or read.
            DamagedShardError: The file was changed after it was listed.
        """
        source = extent.source
        if source is None:
            return extent.inline
        if source != self._source:
            self.close()
            self._file = open_regular(source.path)
            self._source = source
        try:
            data = read_at(self._file, extent.offset, extent.size)
        except OSError as error:
            raise FileAccessError(
                f"{source.path}: {extent.size:,} bytes at byte {extent.offset} cannot be read: "
                f"{error.strerror}; look at the disk that it is on"
            ) from error
        # It is compared after reading, because a write changes the time of a file before its bytes.
        if stamp_of(self._file) != source[1:]:
            raise DamagedShardError(
                f"{source.path} was changed since it was listed; run the command again into a new "
                "folder"
            )
        return data

    def close(self) -> None:
        """Close the file that is open."""
        if self._source is not None:
            os.close(self._file)
            self._source = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


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
    except (OSError, ValueError) as error:  # ValueError: a NUL, or half of a pair of UTF-16
        raise FileAccessError(
            f"{path!r} cannot be looked at: {error}; look at the name, and at the rights"
        ) from error
    if not stat.S_ISREG(status.st_mode):
        raise irregular(path, status.st_mode)
    return InputFile(os.path.abspath(path), status.st_size, status.st_mtime_ns)  # noqa: PTH100 - "..", links stay


def whole_file(field: str, path: str) -> InputExtent:
    """A member that is a whole file; errors as of `input_file_at`."""
    file = input_file_at(path)
    return InputExtent(field, file, 0, file.size_bytes, b"")


def inline(field: str, data: bytes) -> InputExtent:
    """A member with this content."""
    return InputExtent(field, None, 0, len(data), data)
