"""The bytes of a tar, read on demand and never through a memory map.

A mapped file that is cut short ends the process (SIGBUS). Here the read comes back short, which is
an error that names the shard. Small parts that follow each other are cut out of a buffered window,
which grows as long as the reading is sequential; large parts are read by themselves.
"""

from collections.abc import Generator
from contextlib import contextmanager
from itertools import islice
from os import PathLike, fspath
from typing import Final

from lightning_shards.errors import DamagedShardError, ShardError
from lightning_shards.shards.checksums import crc32
from lightning_shards.shards.storage.local import LocalStorage
from lightning_shards.shards.storage.protocol import ShardStat, Storage
from lightning_shards.shards.tar.walk import damaged, group_members, walk_members

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
