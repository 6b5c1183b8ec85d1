"""Streams of remote objects: parallel ranges, given in order as one file that is read forward.

The first range is small, so that the first bytes are soon there and tell the version and the size.
The ranges behind it grow, and a bounded number of them is under way or waits to be read. A store
that knows no ranges is read by one request.
"""

import io
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any, Final, NamedTuple, TypeVar

from lightning_shards.remote.byte_ranges import MOST_IN_ONE_REQUEST
from lightning_shards.remote.request_threads import RequestThreads
from lightning_shards.remote.transport import Body, Transport
from lightning_shards.system.process import Fetching, result_of

_BUFFER: Final = 1 << 18

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class StreamAhead:
    """How far a stream is fetched ahead of its reader.

    Attributes:
        ranges: How many ranges are under way, or there and not yet read, beside the one that is
            being read.
        range_bytes: Bytes of a range at most.
        first_bytes: Bytes of the first range; each further one has twice those of the one before.
    """

    ranges: int = 4
    range_bytes: int = MOST_IN_ONE_REQUEST
    first_bytes: int = 1 << 18


@dataclass(slots=True)
class StreamCounts:
    """What was read of the streams of a process.

    Attributes:
        read_bytes: Bytes that their readers were given.
        waited_s: Seconds for which their readers waited.
    """

    read_bytes: int = 0
    waited_s: float = 0.0

    def result_of(self, future: "Future[_T]") -> _T:
        """Wait for the result of a future; errors as of `cancellation.result_of`."""
        began = perf_counter()
        try:
            with Fetching():
                return result_of(future)
        finally:
            self.waited_s += perf_counter() - began


class RangeStreams:
    """Opens streams over the connections of one process; any thread may open one.

    A stream has connections of its own while it is open, so that leaving it early ends its requests
    and no others. The next stream takes them over.

    Args:
        transport: Whose copies make the requests.
        connections: Requests of one stream at most, at least 1.
        ahead: How far a stream is fetched ahead.

    Attributes:
        counts: What was read of all of them.
    """

    def __init__(
        self, transport: Transport, connections: int, ahead: StreamAhead | None = None
    ) -> None:
        self.counts = StreamCounts()
        self._transport, self._ahead = transport, ahead or StreamAhead()
        self._ranges = max(1, min(self._ahead.ranges, connections))
        self._all: list[_Line] = []
        self._free: list[_Line] = []

    def open(self, url: str) -> io.BufferedReader:
        """The object as a file that is read forward; closing it early ends its requests.

        Raises:
            ShardError: As of `Transport.read`; reading raises the same.
        """
        try:
            line = self._free.pop()
        except IndexError:
            line = _Line(copy(self._transport), RequestThreads(self._ranges))
            self._all.append(line)
        give_back = partial(self._free.append, line)
        beginning = line.threads.begin(
            partial(line.transport.read, url, 0, self._ahead.first_bytes)
        )
        try:
            first = self.counts.result_of(beginning)
        except BaseException:
            line.leave([beginning])
            give_back()
            raise
        file = _ForwardFile(url, first, line, self._ranges, self._ahead, self.counts, give_back)
        return io.BufferedReader(file, _BUFFER)

    def close(self) -> None:
        """End all streams, also those that wait for a server in another thread."""
        for line in tuple(self._all):
            line.close()


class _Line(NamedTuple):
    """The connections and the threads of one stream."""

    transport: Transport
    threads: RequestThreads

    def close(self) -> None:
        self.threads.close()
        self.transport.close()

    def leave(self, begun: "Iterable[Future[Any]]") -> bool:
        """End these requests; whether one of them was under way."""
        is_under_way = [not future.cancel() and not future.done() for future in begun]
        if any(is_under_way):
            self.close()
        return any(is_under_way)


class _ForwardFile(io.RawIOBase):
    """An object as a raw file.

    Args:
        url: The object.
        first: Its beginning.
        line: Makes the requests for what follows.
        most: Ranges that are under way, or there and not yet read.
        ahead: Their sizes.
        counts: Of all streams.
        give_back: Called once, when the line is free.
    """

    def __init__(
        self,
        url: str,
        first: Body,
        line: _Line,
        most: int,
        ahead: StreamAhead,
        counts: StreamCounts,
        give_back: Callable[[], None],
    ) -> None:
        super().__init__()
        self._url, self._first, self._line, self._give_back = url, first, line, give_back
        self._most, self._ahead, self._next_bytes = most, ahead, ahead.first_bytes
        self._counts = counts
        self._begun: deque[Future[bytes | bytearray]] = deque()
        self._position = len(first.data)
        self._data = memoryview(b"")
        self._whole: Generator[bytes] | None = None
        if not first.has_ranges and self._position < first.size:
            self._whole = line.transport.read_forward(url, first)
            self._position = first.size
        else:
            self._take(first.data)
        self._begin()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        if not self._data and self._begun:
            self._take(self._counts.result_of(self._begun[0]))
            self._begun.popleft()
            if not self._data:
                self._whole = None  # it has come to its end
            self._begin()
        size = min(len(buffer), len(self._data))
        buffer[:size] = self._data[:size]
        self._data = self._data[size:]
        return size

    def close(self) -> None:
        if self.closed:
            return
        super().close()
        self._data = memoryview(b"")
        is_under_way = self._line.leave(self._begun)
        self._begun.clear()
        if self._whole is not None and not is_under_way:  # else it ends in its thread
            with suppress(ValueError):  # as it does where the storage was closed before
                self._whole.close()
        self._give_back()

    def _take(self, data: bytes | bytearray) -> None:
        """These bytes are read next."""
        self._counts.read_bytes += len(data)
        self._data = memoryview(data)

    def _begin(self) -> None:
        """Begin to fetch what follows, as far ahead as may be."""
        if self._whole is not None and not self._begun:
            following = partial(next, self._whole, b"")
            self._begun.append(self._line.threads.begin(following))
        while self._position < self._first.size and len(self._begun) < self._most:
            self._next_bytes = min(2 * self._next_bytes, self._ahead.range_bytes)
            stop = min(self._position + self._next_bytes, self._first.size)
            read = partial(_read, self._line.transport, self._url, self._position, stop)
            self._begun.append(self._line.threads.begin(partial(read, self._first.version)))
            self._position = stop


def _read(transport: Transport, url: str, begin: int, stop: int, version: str) -> bytearray:
    return transport.read(url, begin, stop, version).data
