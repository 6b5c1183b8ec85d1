"""Files that hold one piece each: written once, checked when they are opened, never changed.

A file holds the bytes of the piece and a trailer of 64 bytes: magic, version, length and crc32. It
is not synced to the disk. After a power cut it may be torn, so each process checks length and crc32
of a piece before it uses a byte of it for the first time.
"""

import errno
import hashlib
import os
import stat
import struct
import weakref
from collections.abc import Iterable
from functools import lru_cache
from typing import Final, NamedTuple

from lightning_shards.remote.backend import Chunk
from lightning_shards.shards.checksums import crc32
from lightning_shards.shards.urls import without_credentials

TRAILER_BYTES: Final = 64
_TRAILER: Final = struct.Struct("<8sIQI40x")
_MAGIC: Final = b"lsPIECE\n"
_VERSION: Final = 2
"""Pieces of version 1 may hold what was still encrypted: they are fetched again."""

_checked: Final[set[tuple[int, int]]] = set()
"""The pieces that this process wrote or checked: inode and time of change, which a write moves."""

_MOST_CHECKED: Final = 1 << 16


class Piece(NamedTuple):
    """One range of bytes of one version of an object.

    Attributes:
        url: The object.
        version: Its version, as its store names it.
        begin: Offset of the first byte.
        end: Offset behind the last one.
    """

    url: str
    version: str
    begin: int
    end: int

    @property
    def size(self) -> int:
        """Bytes of the piece."""
        return self.end - self.begin

    @property
    def folder(self) -> str:
        """The name of the folder of all pieces of this version: a hash without any credential."""
        return _folder_of(self.url, self.version)

    @property
    def name(self) -> str:
        """The name of the file in that folder."""
        return f"{self.begin}-{self.end}"


@lru_cache(maxsize=1024)  # a block has pieces of a few hundred shards, and is announced three times
def _folder_of(url: str, version: str) -> str:
    named = f"{without_credentials(url)}\n{version}"
    return hashlib.sha256(named.encode(errors="surrogateescape")).hexdigest()


def share_of(folder: str, name: str) -> float:
    """A number from 0 to 1 that a piece has for ever, each number equally likely."""
    return int.from_bytes(hashlib.sha256(f"{folder}/{name}".encode()).digest()[:6]) / 2**48


class OpenPiece:
    """The bytes of one piece in its open file; they cannot change any more.

    Threads may share it. Its file stays readable when the cache drops it, and is closed with this.

    Args:
        begin: Offset in the object of the first byte, which is that of the file, too.
        file: The descriptor of its file.
    """

    def __init__(self, begin: int, file: int) -> None:
        self._begin, self.file = begin, file
        weakref.finalize(self, os.close, file).atexit = False  # daemon threads may still write

    def read_into(self, start: int, into: memoryview) -> None:
        """Fill this memory with the bytes from this offset of the object on.

        Raises:
            OSError: The file cannot be read, or ends before.
        """
        if os.preadv(self.file, [into], start - self._begin) < len(into):
            raise OSError(errno.EIO, "a file of it was cut short")


def write_piece(file: int, chunks: Iterable[Chunk]) -> None:
    """Write the bytes of a piece and its trailer to a new file.

    Raises:
        OSError: It cannot be written.
    """
    with open(file, "wb", closefd=False) as out:
        out.seek(0)
        checksum = 0
        for chunk in chunks:  # each is still in the processor's cache when it is written
            checksum = crc32(chunk, checksum)
            out.write(chunk)
        out.write(_TRAILER.pack(_MAGIC, _VERSION, out.tell(), checksum))


def open_piece(path: str, begin: int, end: int) -> OpenPiece | None:
    """The piece in this file; None if there is no such file, or it is not whole.

    What is not whole is removed.

    Raises:
        OSError: The file cannot be opened or read.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        opened = OpenPiece(begin, file)
        if _is_whole(file, end - begin):
            return opened
        os.unlink(path)  # noqa: PTH108 a hot path of strings
    except FileNotFoundError:
        pass
    return None


def is_there(path: str, size: int) -> bool:
    """Whether there is a piece of so many bytes, which is not opened."""
    try:
        status = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_size == size + TRAILER_BYTES


def _is_whole(file: int, size: int) -> bool:
    status = os.fstat(file)
    if not stat.S_ISREG(status.st_mode) or status.st_size != size + TRAILER_BYTES:
        return False
    if (status.st_ino, status.st_ctime_ns) in _checked:
        return True
    data = os.pread(file, status.st_size, 0)
    if data[size:] != _TRAILER.pack(_MAGIC, _VERSION, size, crc32(memoryview(data)[:size])):
        return False
    believe(file)
    return True


def believe(file: int) -> None:
    """Take this file for a whole piece from now on, as this process has written or checked it."""
    if len(_checked) >= _MOST_CHECKED:
        _checked.clear()
    status = os.fstat(file)
    _checked.add((status.st_ino, status.st_ctime_ns))
