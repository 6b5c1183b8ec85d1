"""The bytes of a tar, read on demand and never through a memory map.

A mapped file that is cut short ends the process (SIGBUS). Here the read comes back short, which is
an error that names the shard. Small parts that follow each other are cut out of a buffered window,
which grows as long as the reading is sequential; large parts are read by themselves.
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
from lightning_shards.shards.storage.protocol import ShardStat, Storage
from lightning_shards.shards.tar.walk import (
    BLOCK,
    Member,
    damaged,
    group_members,
    split_name,
    walk_members,
)

_DIRECT: Final = 16_384
"""Parts of at least this many bytes do not go through the window."""

_LEAST_WINDOW: Final = 4096
"""Bytes read with a header that stands alone: the small members beside a large one, mostly."""

_MOST_WINDOW: Final = 1 << 18

_PIECE: Final = 1 << 18
"""Bytes of a member that are held at once to take its crc32."""


class TarBytes:
    """The bytes of an open tar as they were when it was opened; anything else is an error.

    Args:
        storage: What reads them; the caller closes the tar there.
        url: The tar.

    Raises:
        ShardNotFoundError: There is no such tar.
        FileAccessError: It cannot be opened.
        DamagedShardError: It is empty.
    """

    def __init__(self, storage: Storage, url: str) -> None:
        self._storage, self._url = storage, url
        self._stat = storage.stat(url)
        self._size = self._stat.size
        self.rewind()
        self._window_bytes = _LEAST_WINDOW
        self._is_checked = True
        if not self._size:
            raise damaged("is empty", url, 0)

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, part: slice, /) -> bytes:
        """The bytes of this part, which has a start and a stop.

        Raises:
            DamagedShardError: The file has become shorter, or cannot be read.
        """
        start, stop = part.start, part.stop
        if self._start <= start and stop <= self._stop:
            return self._window[start - self._start : stop - self._start]
        window, begin, end = self._before
        if begin <= start and stop <= end:
            return window[start - begin : stop - begin]
        stop = min(stop, self._size)
        if start >= stop:
            return b""
        if stop - start >= _DIRECT or start < self._start:
            return self._read(start, stop - start)
        self._move_window(start, stop)
        return self._window[: stop - start]

    @property
    def stat(self) -> ShardStat:
        """What the tar was when it was opened."""
        return self._stat

    def rewind(self) -> None:
        """Forget the window, so that the tar can be read from its start again."""
        self._window, self._start, self._stop = b"", 0, 0
        self._before = self._window, self._start, self._stop

    def crc32(self, start: int, size: int) -> int:
        """The CRC-32 of a part of any size."""
        if size <= _PIECE:
            return crc32(self[start : start + size])
        checksum = 0
        for begin in range(start, start + size, _PIECE):
            checksum = crc32(self[begin : min(begin + _PIECE, start + size)], checksum)
        return checksum

    def require_unchanged(self) -> None:
        """Check that all bytes given so far are of one and the same file.

        It is called after reading, because a write changes the time of a file before its bytes.

        Raises:
            DamagedShardError: The file was written to since it was opened.
        """
        if self._is_checked:
            return
        stat = self._storage.stat(self._url)
        if stat.size < self._size:
            raise self._cut_short(stat.size)
        if stat != self._stat:
            what = "changed while it was read: a program still writes it"
            raise damaged(what, self._url, 0)
        self._is_checked = True

    def _move_window(self, start: int, stop: int) -> None:
        follows = start <= self._stop + _LEAST_WINDOW
        grown = min(2 * self._window_bytes, _MOST_WINDOW)
        self._window_bytes = grown if follows else _LEAST_WINDOW
        size = min(max(stop - start, self._window_bytes), self._size - start)
        window = self._read(start, size)
        # The window before is kept: a member is read only after the header behind it has shown
        # where its sample ends.
        self._before = self._window, self._start, self._stop
        self._window, self._start, self._stop = window, start, start + size

    def _read(self, start: int, size: int) -> bytes:
        self._is_checked = False
        try:
            data = self._storage.read(self._url, start, start + size)
        except ShardError:
            raise
        except (OSError, MemoryError) as error:
            reason = getattr(error, "strerror", None) or f"no memory for {size} bytes"
            raise damaged(f"could not be read: {reason}", self._url, start) from error
        if len(data) < size:
            raise self._cut_short(start + len(data))
        return data

    def _cut_short(self, size: int) -> DamagedShardError:
        what = f"was cut short while it was read: {size} of {self._size} bytes are there"
        return damaged(what, self._url, size)


@contextmanager
def open_tar(path: str | PathLike[str], storage: Storage | None = None) -> Generator[TarBytes]:
    """The bytes of a tar, for as long as the block lasts.

    Args:
        path: Path of a local tar, or a URL of the storage.
        storage: What reads it and does not hold it open already; None for local files.

    Raises:
        ShardNotFoundError: There is no such file.
        FileAccessError: It is not a regular file, or cannot be opened.
        DamagedShardError: It is empty, or was written to before the block ended.
    """
    url, storage = fspath(path), LocalStorage() if storage is None else storage
    try:
        data = TarBytes(storage, url)
        try:
            yield data
        except DamagedShardError:
            data.require_unchanged()  # if it changed, say so: that is why it looks damaged
            raise
        data.require_unchanged()
    finally:
        storage.close(url)


def read_samples(
    url: str, skip: int = 0, storage: Storage | None = None
) -> Generator[dict[str, bytes | str]]:
    """The samples of a tar in file order from number `skip` on; arguments as of `open_tar`.

    Only the headers of skipped samples are read. A sample is a dict as webdataset makes it: bytes
    by suffix, and `__key__` and `__url__`.

    Raises:
        ShardNotFoundError: There is no such file.
        FileAccessError: It is not a regular file, or cannot be opened.
        DamagedShardError: The file is not one whole tar archive, or was written to while it was
            read.
    """
    with open_tar(url, storage) as data:
        for key, members in islice(group_members(walk_members(data, url), url), skip, None):
            sample: dict[str, bytes | str] = {"__key__": key, "__url__": url}
            for suffix, member in members.items():
                sample[suffix] = data[member.offset : member.offset + member.size]
            data.require_unchanged()
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
        self._require_whole(offset, size, len(data))
        return data

    def pass_over(self, offset: int, size: int) -> None:
        """Read the bytes of a member without keeping them; errors as of `data`."""
        begin = offset
        while part := self[begin : min(offset + size, begin + _PASSED_OVER)]:
            begin += len(part)
        self._require_whole(offset, size, begin - offset)

    def _require_whole(self, offset: int, size: int, there: int) -> None:
        if there < size:
            what = f"is cut short or damaged: {size} bytes should follow, {there} do"
            raise damaged(what, self._url, offset - BLOCK)

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
    tar = TarStream(stream, url)
    data: dict[int, bytes] = {}  # of members whose sample may go on, by their offsets
    for number, (key, members) in enumerate(group_members(_reading(tar, url, data), url)):
        if number >= skip:
            sample: dict[str, bytes | str] = {"__key__": key, "__url__": url}
            for suffix, member in members.items():
                sample[suffix] = data[member.offset]
            yield sample
        last = max(member.offset for member in members.values())
        for offset in [offset for offset in data if offset <= last]:
            del data[offset]


def _reading(tar: TarStream, url: str, data: dict[int, bytes]) -> Iterator[Member]:
    """The members that are in samples, whose bytes are read when they come by."""
    for member in walk_members(tar, url):
        if split_name(member.name) is None:
            tar.pass_over(member.offset, member.size)
        else:
            data[member.offset] = tar.data(member.offset, member.size)
            yield member
