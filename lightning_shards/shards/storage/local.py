"""The storage of local files."""

import io
import os
from contextlib import suppress
from typing import BinaryIO

from lightning_shards.shards.files import open_regular
from lightning_shards.shards.storage.protocol import ShardReads, ShardStat, Storage


class LocalStorage(Storage):
    """Reads local files, and keeps those open that it was asked for.

    A file is opened when it is first asked for. Until `close` it is the one that is read, even if
    another file takes its name. Processes may inherit the open files, and threads may read files
    that are open.
    """

    coalesced_gap: int = 16_384
    largest_read: int = 1 << 20  # small members may lie among many others
    largest_ahead: int = 8192  # of larger ones a batch is much to hold, and cheap to read alone

    def __init__(self) -> None:
        self._files: dict[str, io.FileIO] = {}

    def stat(self, url: str) -> ShardStat:
        """Size of the file and its time of change in ns.

        Raises:
            ShardNotFoundError: There is no such file.
            FileAccessError: It is not a regular file, or cannot be opened.
        """
        return _stat_of(self._file(url))

    def read(self, url: str, start: int, stop: int, stat: tuple[int, int] | None = None) -> bytes:
        """One range; fewer bytes if the file ends, none if it is not what `stat` says.

        Raises:
            OSError: The bytes cannot be read.
        """
        file = self._file(url)
        data = read_at(file, start, stop - start)
        return data if _is_unchanged(file, stat) else b""

    def open_stream(self, url: str) -> BinaryIO:
        """The file, open for reading; errors as of `stat`."""
        return os.fdopen(open_regular(url), "rb")

    def close(self, url: str) -> None:
        """Close the file."""
        file = self._files.pop(url, None)
        if file is not None:
            file.close()

    def _file(self, url: str) -> int:
        file = self._files.get(url)
        if file is None:
            file = self._files[url] = io.FileIO(open_regular(url))
        return file.fileno()

    def _read_ranges(self, reads: ShardReads) -> list[int]:
        file, begin, sizes = self._file(reads.url), 0, list[int]()
        for start, stop in zip(reads.starts, reads.stops, strict=True):
            end = begin + stop - start
            sizes.append(_read_into(file, start, reads.into[begin:end]))
            begin = end
        return sizes if _is_unchanged(file, reads.stat) else [-1] * len(sizes)


def _stat_of(file: int) -> ShardStat:
    status = os.fstat(file)
    return ShardStat(status.st_size, status.st_mtime_ns)


def _is_unchanged(file: int, stat: tuple[int, int] | None) -> bool:
    """Whether the file is what it should be.

    This is asked after reading, because a write changes the time of a file before its bytes.
    """
    return stat is None or _stat_of(file) == stat


def _read_into(file: int, offset: int, into: memoryview) -> int:
    """Fill `into` with the bytes at this offset, and return how many could be read."""
    read = 0
    with suppress(OSError):
        while read < len(into):
            more = os.preadv(file, [into[read:]], offset + read)
            if not more:
                break
            read += more
    return read


def read_at(file: int, offset: int, size: int) -> bytes:
    """The bytes of an open file at this offset, fewer if the file ends.

    Raises:
        OSError: They could not be read.
    """
    data = os.pread(file, size, offset)
    while len(data) < size:  # one call gives at most 2 GiB
        more = os.pread(file, size - len(data), offset + len(data))
        if not more:
            break
        data += more
    return data
