"""The bytes of a tar, read on demand and never through a memory map.

A mapped file that is cut short ends the process (SIGBUS). Here the read comes back short, which is
an error that names the shard. Small parts that follow each other are cut out of one window.
"""

from collections.abc import Generator
from contextlib import contextmanager
from os import PathLike, fspath
from typing import Final

from lightning_shards.errors import ShardError
from lightning_shards.shards.files import crc32
from lightning_shards.shards.storage.local import LocalStorage
from lightning_shards.shards.storage.protocol import Storage
from lightning_shards.shards.tar.walk import damaged

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
            size = self._storage.stat(self._url).size
            what = f"changed while it was read: it had {self._size} bytes and has {size} now"
            raise damaged(what, self._url, min(size, self._size))
        return data


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
