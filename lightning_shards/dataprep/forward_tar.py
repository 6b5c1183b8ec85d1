"""The bytes of a remote tar, read once from its start to its end in bounded memory.

If checksums are wanted, all bytes are read, as one stream. Otherwise headers are enough: more than
4 MiB between two of them are skipped, and what has less is read through, because a request costs as
much as a few MiB (at 30 ms and 80 MB/s 2.4 MB).
"""

from collections.abc import Callable
from typing import Any, Final, Protocol

from lightning_shards.errors import IndexMismatchError
from lightning_shards.shards.checksums import crc32
from lightning_shards.shards.storage.protocol import ShardReads, ShardStat, Storage
from lightning_shards.shards.tar.blocks import BLOCK
from lightning_shards.shards.tar.walk import Buffer, damaged
from lightning_shards.shards.urls import redact

_AT_ONCE: Final = 1 << 18
"""Bytes that are taken out of a stream at once, and of which a checksum is made at once."""

_LEAST_SKIPPED: Final = 4 << 20
"""Bytes that are skipped if nobody asks for more; fewer are read."""

_LEAST_WINDOW: Final = 1 << 14
"""Bytes read at a header behind skipped ones: the small members beside a large one, mostly."""

_MOST_WINDOW: Final = 32 << 20
"""Bytes read at once where nothing is skipped: four requests at the same time."""

ReadOn = Callable[[int, int], bytes]
"""Reads at least so many bytes from an offset on; the offset never falls."""


class Digest(Protocol):
    """A checksum of `hashlib`."""

    def update(self, data: bytes, /) -> None:
        """Go on with these bytes."""
        ...


class ForwardTar(Buffer):
    """The bytes of a tar; no part may begin before the part that was asked for last.

    Args:
        url: The tar, for messages.
        size: Its bytes.
        read_on: Reads them.

    Raises:
        DamagedShardError: It is empty.
    """

    def __init__(self, url: str, size: int, read_on: ReadOn) -> None:
        if not size:
            raise damaged("is empty", url, 0)
        self._url, self._size, self._read_on = url, size, read_on
        self._data, self._start = b"", 0
        self._first = b""  # by its first bytes a compressed file is known, also at the end

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, part: slice, /) -> bytes:
        """The bytes of this part, which has a start and a stop.

        Raises:
            DamagedShardError: They are not there.
        """
        start, stop = part.start, min(part.stop, self._size)
        if start >= stop:
            return b""
        if start < self._start:
            return self._first[start:stop]
        if stop > self._start + len(self._data):
            self._read(start, stop)
        return self._data[start - self._start : stop - self._start]

    def crc32(self, start: int, size: int) -> int:
        """The CRC-32 of a part of any size."""
        checksum = 0
        for begin in range(start, start + size, _AT_ONCE):
            checksum = crc32(self[begin : min(begin + _AT_ONCE, start + size)], checksum)
        return checksum

    def _read(self, start: int, stop: int) -> None:
        kept = self._data[start - self._start :]
        begin = start + len(kept)
        self._data, self._start = kept + self._read_on(begin, stop - begin), start
        self._first = self._first or self._data[:BLOCK]
        if len(self._data) < stop - start:
            raise damaged("was cut short while it was read", self._url, start + len(self._data))


class CountedReads:
    """Passes reads on, and tells after each how far they have come.

    Args:
        read_on: Reads.
        note: Takes the offset behind the last byte that was read.
    """

    def __init__(self, read_on: ReadOn, note: Callable[[int], object]) -> None:
        self._read_on, self._note = read_on, note

    def __call__(self, offset: int, least: int) -> bytes:
        """At least so many bytes from an offset on, fewer if there are no more."""
        data = self._read_on(offset, least)
        self._note(offset + len(data))
        return data


class WholeStream:
    """Reads a stream to its end, also what is not asked for.

    Args:
        stream: A file at the start of the tar.
        digest: Of all bytes that were read.
    """

    def __init__(self, stream: Any, digest: Digest) -> None:
        self._stream, self._digest, self._at = stream, digest, 0

    def __call__(self, offset: int, least: int) -> bytes:
        """At least so many bytes from an offset on, fewer if the stream ends."""
        while self._at < offset:
            if not self._take(min(_AT_ONCE, offset - self._at)):
                return b""
        return self._take(max(_AT_ONCE, least))

    def _take(self, size: int) -> bytes:
        data: bytes = self._stream.read(size)
        self._digest.update(data)
        self._at += len(data)
        return data


class HeaderWindows:
    """Reads windows of a tar, and skips what is long and not asked for.

    Args:
        storage: What reads them.
        url: The tar.
        stat: What it must be.
    """

    def __init__(self, storage: Storage, url: str, stat: ShardStat) -> None:
        self._storage, self._url, self._stat = storage, url, stat
        self._at, self._window = 0, _LEAST_WINDOW

    def __call__(self, offset: int, least: int) -> bytes:
        """At least so many bytes from an offset on."""
        start = self._at
        if offset - start > _LEAST_SKIPPED:
            start, self._window = offset, _LEAST_WINDOW
        stop = min(max(start + self._window, offset + least), self._stat.size)
        self._at, self._window = stop, min(2 * self._window, _MOST_WINDOW)
        data = bytearray(stop - start)
        reads = ShardReads(self._url, [start], [stop], self._stat, memoryview(data))
        ((size,),) = self._storage.read_ranges([reads])
        if size < 0:
            raise IndexMismatchError(
                f"{redact(self._url)} changed while it was read; give the command again when it "
                "is whole"
            )
        return bytes(memoryview(data)[offset - start : size])
