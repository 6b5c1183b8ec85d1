"""The bytes of a tar, read on demand and never through a memory map.

A mapped file that is cut short ends the process (SIGBUS). Here the read comes back short, which is
an error that names the shard. Small parts that follow each other are cut out of one window.
"""

import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from itertools import islice
from os import PathLike, fspath
from typing import BinaryIO, Final

from lightning_shards.errors import DamagedShardError, ShardError
from lightning_shards.shards.checksums import crc32
from lightning_shards.shards.storage.local import LocalStorage
from lightning_shards.shards.storage.protocol import Storage
from lightning_shards.shards.tar.walk import (
    BLOCK,
    Member,
    damaged,
    group_members,
    split_name,
    walk_members,
)

_LEAST_WINDOW: Final = 4096
"""Bytes read with a header that stands alone: the small members beside a large one, mostly."""

_MOST_WINDOW: Final = 1 << 18
"""Bytes of a window, which grows as long as the reading is sequential."""

_PIECE: Final = 1 << 18
"""Bytes of a member that are held at once to take its crc32."""


class TarBytes:
    """The bytes of an open tar as they were when it was opened; anything else is an error.

    Args:
        storage: What reads them; the caller closes the tar there.
        url: The tar.

    Attributes:
        stat: What the tar was when it was opened.

    Raises:
        ShardNotFoundError: There is no such tar.
        FileAccessError: It cannot be opened.
        DamagedShardError: It is empty.
    """

    def __init__(self, storage: Storage, url: str) -> None:
        self._storage, self._url = storage, url
        self.stat = storage.stat(url)
        self._size, self._windows = self.stat.size, [(0, 0, b"")]
        if not self._size:
            raise damaged("is empty", url, 0)

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, part: slice, /) -> bytes:
        """The bytes of this part, which has a start and a stop.

        Raises:
            DamagedShardError: The file was written to, or cannot be read.
        """
        start, stop = part.start, part.stop
        for begin, end, window in self._windows:
            if begin <= start and stop <= end:
                return window[start - begin : stop - begin]
        stop = min(stop, self._size)
        if start >= stop:
            return b""
        begin, end, window = self._windows[0]
        follows = start <= end + _LEAST_WINDOW
        ahead = start + min(max(2 * len(window) * follows, _LEAST_WINDOW), _MOST_WINDOW)
        if stop >= ahead or begin - _MOST_WINDOW < start < begin:
            return self._read(start, stop)
        window = self._read(start, min(ahead, self._size))
        # The window before is kept: a member is read only after the header behind it has shown
        # where its sample ends.
        self._windows = [(start, start + len(window), window), *self._windows[:1]]
        return window[: stop - start]

    def crc32(self, start: int, size: int) -> int:
        """The CRC-32 of a part of any size."""
        checksum = 0
        for begin in range(start, start + size, _PIECE):
            checksum = crc32(self[begin : min(begin + _PIECE, start + size)], checksum)
        return checksum

    def _read(self, start: int, stop: int) -> bytes:
        try:
            data = self._storage.read(self._url, start, stop, self.stat)
        except ShardError:
            raise
        except (OSError, MemoryError) as error:
            reason = getattr(error, "strerror", None) or f"no memory for {stop - start} bytes"
            raise damaged(f"could not be read: {reason}", self._url, start) from error
        if len(data) < stop - start:
            raise self._changed()
        return data

    def _changed(self) -> DamagedShardError:
        size = self._storage.stat(self._url).size
        what = "changed while it was read: a program still writes it"
        if size < self._size:
            what = f"was cut short while it was read: {size} of {self._size} bytes are there"
        return damaged(what, self._url, min(size, self._size))


@contextmanager
def open_tar(path: str | PathLike[str], storage: Storage | None = None) -> Generator[TarBytes]:
    """The bytes of a tar, for as long as the block lasts.

    Args:
        path: Path of a local tar, or a URL of the storage.
        storage: What reads it and does not hold it open already; None for local files.

    Raises:
        ShardNotFoundError: There is no such file.
        FileAccessError: It is not a regular file, or cannot be opened.
        DamagedShardError: It is empty.
    """
    url, storage = fspath(path), storage or LocalStorage()
    try:
        yield TarBytes(storage, url)
    finally:
        storage.close(url)


def read_samples(url: str, skip: int = 0) -> Generator[dict[str, bytes | str]]:
    """The samples of a local tar in file order from number `skip` on.

    Only the headers of skipped samples are read. A sample is a dict as webdataset makes it: bytes
    by suffix, and `__key__` and `__url__`.

    Raises:
        ShardNotFoundError: There is no such file.
        FileAccessError: It is not a regular file, or cannot be opened.
        DamagedShardError: The file is not one whole tar archive, or was written to while it was
            read.
    """
    with open_tar(url) as data:
        for key, members in islice(group_members(walk_members(data, url), url), skip, None):
            sample: dict[str, bytes | str] = {"__key__": key, "__url__": url}
            for suffix, member in members.items():
                sample[suffix] = data[member.offset : member.offset + member.size]
            yield sample


_AT_ONCE: Final = 64 << 20
_PASSED_OVER: Final = 1 << 20


class TarStream:
    """The bytes of a tar, asked for in order; only its first block may be asked for again.

    Its length is unknown until its end was read. It is taken for very large before.

    Args:
        stream: What is read, from its first byte on.
        url: The tar, for messages.
    """

    def __init__(self, stream: BinaryIO, url: str) -> None:
        self._stream, self._url = stream, url
        self._position = 0
        self._length = sys.maxsize
        self._first_block = self._read(BLOCK)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, part: slice, /) -> bytes:
        """The bytes of this part, which has a start and a stop; fewer if the tar ends before."""
        start, stop = part.start, part.stop
        if start < self._position and stop <= BLOCK:
            return self._first_block[start:stop]
        while start > self._position:
            if not self._read(min(start - self._position, _PASSED_OVER)):
                return b""
        assert start == self._position  # the walk goes forward
        return self._read(stop - start)

    def data(self, offset: int, size: int) -> bytes:
        """The bytes of a member.

        Raises:
            DamagedShardError: The tar ends within it.
        """
        data = self[offset : offset + size]
        if len(data) < size:
            what = f"is cut short or damaged: {size} bytes should follow, {len(data)} do"
            raise damaged(what, self._url, offset - BLOCK)
        return data

    def _read(self, size: int) -> bytes:
        pieces: list[bytes] = []
        while size > 0:  # a damaged size must not take all memory at once
            pieces.append(self._stream.read(min(size, _AT_ONCE)))
            if not pieces[-1]:
                self._length = self._position
                break
            size -= len(pieces[-1])
            self._position += len(pieces[-1])
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def stream_samples(stream: BinaryIO, url: str, skip: int = 0) -> Generator[dict[str, bytes | str]]:
    """The samples of a tar in file order from number `skip` on, as of `read_samples`.

    Args:
        stream: The tar from its first byte on; what it raises is passed on.
        url: Its URL.
        skip: Samples to pass over; their bytes are read.

    Raises:
        DamagedShardError: The stream is not one whole tar archive.
    """
    data: dict[int, bytes] = {}  # of members whose sample may go on, by their offsets
    members_read = _reading(TarStream(stream, url), url, data)
    for number, (key, members) in enumerate(group_members(members_read, url)):
        if number >= skip:
            read = {suffix: data[member.offset] for suffix, member in members.items()}
            yield {"__key__": key, "__url__": url, **read}
        last = max(member.offset for member in members.values())
        for offset in [offset for offset in data if offset <= last]:
            del data[offset]


def _reading(tar: TarStream, url: str, data: dict[int, bytes]) -> Iterator[Member]:
    """The members that are in samples, whose bytes are read when they come by."""
    for member in walk_members(tar, url):
        if split_name(member.name) is not None:
            data[member.offset] = tar.data(member.offset, member.size)
            yield member
