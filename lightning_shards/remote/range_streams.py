"""Streams of remote objects: parallel ranges, given in order as one file that is read forward.

The first range is small, so that the first bytes are soon there and tell the version and the size.
The ranges behind it grow, and a bounded number of them is under way or waits to be read. A store
that knows no ranges is read by one request.
"""

import io
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future
from contextlib import suppress
from copy import copy
from functools import partial
from time import perf_counter
from typing import Any, Final

from lightning_shards.remote.backend import Chunk
from lightning_shards.remote.byte_ranges import MOST_IN_ONE_REQUEST
from lightning_shards.remote.request_threads import RequestThreads
from lightning_shards.remote.transport import Body, RemoteTransport
from lightning_shards.system.process import Fetching, result_of

_BUFFER: Final = 1 << 18

_RANGES: Final = 4
"""How many ranges are under way, or there and not yet read, beside the one that is being read."""

_FIRST_BYTES: Final = 1 << 18
"""Bytes of the first range; each further one has twice those of the one before."""

_RANGE_BYTES: Final = MOST_IN_ONE_REQUEST

_Line = tuple[RemoteTransport, RequestThreads]
"""The connections and the threads of one stream."""

_Begun = deque[Future[Any]]
"""Its requests, in the order of their bytes."""


class RangeStreams:
    """Opens streams over the connections of one process; any thread may open one.

    A stream has connections of its own while it is open, so that leaving it early ends its requests
    and no others. The next stream takes them over.

    Args:
        transport: Whose copies make the requests.
        connections: Requests of one stream at most, at least 1.

    Attributes:
        read_bytes: Bytes that the readers of all streams were given.
        waited_s: Seconds for which they waited.
    """

    def __init__(self, transport: RemoteTransport, connections: int) -> None:
        self.read_bytes, self.waited_s = 0, 0.0
        self._transport, self._ranges = transport, max(1, min(_RANGES, connections))
        self._all: list[_Line] = []
        self._free: list[_Line] = []

    def open(self, url: str) -> io.BufferedReader:
        """The object as a file that is read forward; closing it early ends its requests.

        Raises:
            ShardError: As of `RemoteTransport.read`; reading raises the same.
        """
        chunks = self._chunks(url)
        return io.BufferedReader(_ForwardFile(next(chunks), chunks), _BUFFER)

    def close(self) -> None:
        """End all streams, also those that wait for a server in another thread."""
        for line in tuple(self._all):
            _close(line)

    def _chunks(self, url: str) -> Generator[Chunk]:
        """The bytes of an object, one range after the other."""
        try:
            line = self._free.pop()
        except IndexError:
            line = copy(self._transport), RequestThreads(self._ranges)
            self._all.append(line)
        begun = _Begun()
        try:
            first = self._asked(line, begun, partial(line[0].read, url, 0, _FIRST_BYTES))
            is_whole = not first.has_ranges and len(first.data) < first.size
            inner = self._whole if is_whole else self._of_ranges
            for chunk in inner(url, first, line, begun):
                self.read_bytes += len(chunk)
                yield chunk
        finally:
            are_left = [not future.cancel() and not future.done() for future in begun]
            if any(are_left):
                _close(line)
            self._free.append(line)

    def _of_ranges(self, url: str, first: Body, line: _Line, begun: _Begun) -> Generator[Chunk]:
        transport, threads = line
        chunk, at, size = first.data, len(first.data), _FIRST_BYTES
        while True:
            while at < first.size and len(begun) < self._ranges:
                size = min(2 * size, _RANGE_BYTES)
                stop = min(at + size, first.size)
                begun.append(threads.begin(partial(transport.read, url, at, stop, first.version)))
                at = stop
            yield chunk
            if not begun:
                return
            chunk = self._result(begun).data

    def _whole(self, url: str, first: Body, line: _Line, begun: _Begun) -> Generator[Chunk]:
        """By one request; what waits for its bytes is a thread, which can be left."""
        chunks = line[0].read_forward(url, first)
        try:
            while chunk := self._asked(line, begun, partial(next, chunks, b"")):
                yield chunk
        finally:
            with suppress(ValueError):  # it ends in its thread
                chunks.close()

    def _asked(self, line: _Line, begun: _Begun, call: Callable[[], Any]) -> Any:
        begun.append(line[1].begin(call))
        return self._result(begun)

    def _result(self, begun: _Begun) -> Any:
        """Wait for the request that was begun first; errors as of `result_of`."""
        began = perf_counter()
        try:
            with Fetching():
                result = result_of(begun[0])
        finally:
            self.waited_s += perf_counter() - began
        begun.popleft()
        return result


def _close(line: _Line) -> None:
    line[1].close()
    line[0].close()


class _ForwardFile(io.RawIOBase):
    """Chunks of bytes as a raw file; closing it closes what gives them."""

    def __init__(self, beginning: Chunk, chunks: Generator[Chunk]) -> None:
        super().__init__()
        self._data, self._chunks = memoryview(beginning), chunks

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        if not self._data:
            self._data = memoryview(next(self._chunks, b""))
        size = min(len(buffer), len(self._data))
        buffer[:size] = self._data[:size]
        self._data = self._data[size:]
        return size

    def close(self) -> None:
        super().close()
        self._data = memoryview(b"")
        self._chunks.close()
