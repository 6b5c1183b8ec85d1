"""Pieces: stretches of remote shards, each kept in a file that is written once and never changed.

A file holds the bytes of the piece and a trailer of 64 bytes: magic, version, length and crc32. It
is not synced to the disk. After a power cut it may be torn, so each process checks length and crc32
of a piece before it uses a byte of it for the first time.
"""

import errno
import hashlib
import os
import stat as status_of
import struct
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import pairwise
from typing import BinaryIO, Final, NamedTuple

from lightning_shards.remote.backend import Chunk
from lightning_shards.shards.files import crc32
from lightning_shards.shards.urls import without_credentials

MOST_IN_ONE_REQUEST: Final = 8 << 20
"""Bytes that are asked for in one request; of what has more, the parts are fetched at once."""

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
        begin: Offset of the first byte.
        end: Offset behind the last one.
        stat: Size and number of the version of the object.
    """

    url: str
    begin: int
    end: int
    stat: tuple[int, int]

    @property
    def size(self) -> int:
        """Bytes of the piece."""
        return self.end - self.begin

    @property
    def folder(self) -> str:
        """The name of the folder of all pieces of this version: a hash without any credential."""
        return _folder_of(self.url, self.stat)

    @property
    def name(self) -> str:
        """The name of the file in that folder."""
        return f"{self.begin}-{self.end}"


@lru_cache(maxsize=1024)  # a block has pieces of a few hundred shards, and is announced three times
def _folder_of(url: str, stat: tuple[int, int]) -> str:
    named = f"{without_credentials(url)}\n{stat[0]}-{stat[1]}"
    return hashlib.sha256(named.encode(errors="surrogateescape")).hexdigest()


def share_of(folder: str, name: str) -> float:
    """A number from 0 to 1 that a piece has for ever, each number equally likely."""
    return int.from_bytes(hashlib.sha256(f"{folder}/{name}".encode()).digest()[:6]) / 2**48


def parts_of(begin: int, end: int, most: int = MOST_IN_ONE_REQUEST) -> list[tuple[int, int]]:
    """A range in as few parts as have at most so many bytes; they differ by one byte at most.

    >>> parts_of(10, 31, most=8)
    [(10, 17), (17, 24), (24, 31)]
    >>> parts_of(5, 5)
    []
    """
    number = -(-(end - begin) // most)
    cuts = [begin + (end - begin) * part // number for part in range(number + 1)] if number else []
    return list(pairwise(cuts))


def write_piece(file: BinaryIO, chunks: Iterable[Chunk]) -> int:
    """Write the bytes of a piece and its trailer to a new file; how many bytes these are.

    Raises:
        OSError: It cannot be written.
    """
    checksum = size = 0
    for chunk in chunks:  # each is still in the processor's cache when it is written
        checksum, size = crc32(chunk, checksum), size + len(chunk)
        file.write(chunk)
    file.write(_TRAILER.pack(_MAGIC, _VERSION, size, checksum))
    file.flush()
    return size


def read_piece(path: str, piece: Piece, wanted: Sequence[tuple[int, memoryview]]) -> bool:
    """Read bytes of a piece from its file, at these offsets of the object into this memory.

    Returns:
        Whether there is such a file, and it is whole; one that is not is removed.

    Raises:
        OSError: The file cannot be opened or read.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return False
    try:
        if not _is_whole(file, piece.size):
            with suppress(FileNotFoundError):  # another process was faster
                os.unlink(path)  # noqa: PTH108 a hot path of strings
            return False
        for start, into in wanted:
            if os.preadv(file, [into], start - piece.begin) < len(into):
                raise OSError(errno.EIO, "a file of it was cut short")
    finally:
        os.close(file)
    return True


def _is_whole(file: int, size: int) -> bool:
    status = os.fstat(file)
    if not status_of.S_ISREG(status.st_mode) or status.st_size != size + TRAILER_BYTES:
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
