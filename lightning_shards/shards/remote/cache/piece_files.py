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

from lightning_shards.shards.checksums import crc32
from lightning_shards.shards.urls import without_credentials

TRAILER_BYTES: Final = 64
_TRAILER: Final = struct.Struct("<8sIQI40x")
_MAGIC: Final = b"lsPIECE\n"
_VERSION: Final = 2
"""Pieces of version 1 may hold what was still encrypted: they are fetched again."""

_CHUNK: Final = 1 << 20

_checked: Final[set[tuple[int, int]]] = set()
"""The pieces that this process wrote or checked: inode and time of change, which a write moves."""

_MOST_CHECKED: Final = 1 << 16


class OpenPiece:
    """The bytes of one piece, from its file or from memory; they cannot change any more.

    Threads may share it. Its file stays readable when the cache drops it.

    Args:
        begin: Offset in the object of the first byte.
        end: Offset behind the last byte.
        file: The descriptor of its file, which is closed with this; None for a piece in memory.
        data: The bytes of a piece in memory.
        path: Where its file was, for errors.

    Attributes:
        begin: See above.
        end: See above.
        file: The descriptor; the byte at offset `begin` of the object is its first one.
    """

    def __init__(
        self,
        begin: int,
        end: int,
        file: int | None,
        data: memoryview | None = None,
        *,
        path: str = "",
    ) -> None:
        self.begin, self.end, self.file, self._data = begin, end, file, data
        self._path = path
        self._closing = None if file is None else weakref.finalize(self, os.close, file)

    def read(self, start: int, stop: int) -> bytes:
        """The bytes at these offsets of the object, which must be in the piece.

        Raises:
            OSError: The file cannot be read.
        """
        data = bytearray(stop - start)
        self.read_into(start, memoryview(data))
        return bytes(data)

    def read_into(self, start: int, into: memoryview) -> None:
        """Fill this memory with the bytes from this offset of the object on.

        Raises:
            OSError: The file cannot be read, or the piece ends before; it names the file.
        """
        assert self.begin <= start <= start + len(into) <= self.end
        first, done = start - self.begin, 0
        if self.file is None:
            assert self._data is not None
            into[:] = self._data[first : first + len(into)]
            return
        while done < len(into):
            try:
                more = os.preadv(self.file, [into[done:]], first + done)
            except OSError as error:
                raise OSError(error.errno, error.strerror, self._path) from error
            if not more:
                raise OSError(errno.EIO, f"the file ends after {first + done:,} bytes", self._path)
            done += more

    def close(self) -> None:
        """Let go of the file."""
        if self._closing is not None:
            self._closing()


def write_piece(file: int, data: memoryview) -> None:
    """Write the bytes of a piece and its trailer to a new file.

    Raises:
        OSError: It cannot be written.
    """
    os.lseek(file, 0, os.SEEK_SET)
    trailer = _TRAILER.pack(_MAGIC, _VERSION, len(data), crc32(data))
    for part in (data, memoryview(trailer)):
        while part:
            part = part[os.write(file, part) :]  # noqa: PLW2901 what is left of it


def believe(file: int) -> None:
    """Take this file for a whole piece from now on, as this process has written or checked it."""
    if len(_checked) >= _MOST_CHECKED:
        _checked.clear()
    _checked.add(_identity(os.fstat(file)))


def open_piece(path: str, begin: int, end: int) -> OpenPiece | None:
    """The piece in this file; None if there is no such file, or it is not whole.

    What is not whole is removed.

    Raises:
        OSError: The file cannot be opened or read.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    try:
        is_whole = _is_whole(file, end - begin)
        if not is_whole:
            _remove(path, file)
    except BaseException:
        os.close(file)
        raise
    if is_whole:
        return OpenPiece(begin, end, file, path=path)
    os.close(file)
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
    checksum = _expected_crc32(file, size, status)
    if checksum is None:
        return False
    if _identity(status) in _checked:
        return True
    if _crc32_of(file, size) != checksum:
        return False
    believe(file)
    return True


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_ino, status.st_ctime_ns


def _expected_crc32(file: int, size: int, status: os.stat_result) -> int | None:
    """The crc32 in the trailer; None if this is no file of a piece of so many bytes."""
    if not stat.S_ISREG(status.st_mode) or status.st_size != size + TRAILER_BYTES:
        return None
    trailer = os.pread(file, TRAILER_BYTES, size)
    if len(trailer) != TRAILER_BYTES:
        return None
    magic, version, length, checksum = _TRAILER.unpack(trailer)
    is_ours = (magic, version, length) == (_MAGIC, _VERSION, size)
    return checksum if is_ours else None


def _crc32_of(file: int, size: int) -> int:
    """The crc32 of the first bytes; -1 if there are fewer."""
    checksum, done = 0, 0
    while done < size:
        chunk = os.pread(file, min(_CHUNK, size - done), done)
        if not chunk:
            return -1
        checksum, done = crc32(chunk, checksum), done + len(chunk)
    return checksum


def _remove(path: str, file: int) -> None:
    """Remove a file, unless another one has its name by now."""
    try:
        if os.path.samestat(os.lstat(path), os.fstat(file)):
            os.unlink(path)  # noqa: PTH108 a hot path of strings
    except FileNotFoundError:
        return


_GROUP_DIGITS: Final = 16  # of the name of a folder
_NO_DIGITS: Final = str.maketrans("", "", "0123456789")


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
        """The name of the folder of all pieces of this version: hashes, without any credential.

        The first digits are the group.
        """
        return _folder_of(self.url, self.version)

    @property
    def name(self) -> str:
        """The name of the file in that folder."""
        return f"{self.begin}-{self.end}"


@lru_cache(maxsize=1024)  # a block has pieces of a few hundred shards, and is announced three times
def _folder_of(url: str, version: str) -> str:
    named = f"{without_credentials(url)}\n{version}"
    return _group(_stem_of(url)) + _hash(named)[_GROUP_DIGITS:]


def groups_of(urls: Iterable[str]) -> tuple[str, ...]:
    """The groups of the pieces of these shards: those are alike that differ in digits alone.

    A data set has one, as a rule: its shards lie in one folder and are numbered.

    >>> groups_of(f"s3://b/train-{number}.tar" for number in (0, 1, 23))
    ('02fdc9fe66627a79',)
    """
    return tuple(sorted(_group(stem) for stem in {_stem_of(url) for url in urls}))


def group_of(folder: str) -> str:
    """The group of the pieces in this folder."""
    return folder[:_GROUP_DIGITS]


def _stem_of(url: str) -> str:
    """The URL without credentials, and without the digits in the name of its file."""
    folder, slash, name = without_credentials(url).rpartition("/")
    return folder + slash + name.translate(_NO_DIGITS)


def _group(stem: str) -> str:
    return _hash(stem)[:_GROUP_DIGITS]


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()


def share_of(folder: str, name: str) -> float:
    """A number from 0 to 1 that a piece has for ever, each number equally likely."""
    return int.from_bytes(hashlib.sha256(f"{folder}/{name}".encode()).digest()[:6]) / 2**48
