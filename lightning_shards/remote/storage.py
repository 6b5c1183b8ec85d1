"""The storage of remote shards: ranges of objects, many at once, each of one version.

A stream is parallel ranges of one object, given in order as a file that is read forward. The first
range is small, so that the first bytes are soon there and tell the version and the size. The ranges
behind it grow, and a bounded number of them is under way or waits to be read. A store that knows no
ranges is read by one request.
"""

import io
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from types import MappingProxyType
from typing import Any, Final, TypeVar

from lightning_shards.errors import FileAccessError, IndexMismatchError, ShardNotFoundError
from lightning_shards.remote.backend import Chunk
from lightning_shards.remote.byte_ranges import MOST_IN_ONE_REQUEST
from lightning_shards.remote.cache import PieceCache
from lightning_shards.remote.fetcher import Fetcher, pieces_of
from lightning_shards.remote.request_threads import RequestThreads
from lightning_shards.remote.transport import (
    Body,
    RemoteTransport,
    TransportSettings,
    version_of_stamp,
)
from lightning_shards.shards.beside import read_beside
from lightning_shards.shards.scheme_table import ANY_FURTHER, RANGED_SCHEMES
from lightning_shards.shards.storage.protocol import (
    FetchTotals,
    MakeStorage,
    ShardReads,
    ShardStat,
    Storage,
)
from lightning_shards.shards.urls import split_url, unescaped
from lightning_shards.system.process import Fetching, result_of

_CACHED_GAP: Final = 1 << 14
"""With a cache, ranges are joined by what costs less only where they are not in the cache."""

_STREAM_BUFFER: Final = 1 << 18

_RANGES: Final = 4
"""Ranges of a stream that are under way, or there and not yet read."""

_FIRST_BYTES: Final = 1 << 18
"""Bytes of the first range of a stream; each further one has twice those of the one before."""

_RANGE_BYTES: Final = MOST_IN_ONE_REQUEST

_T = TypeVar("_T")


class RemoteStorage(Storage):
    """Reads objects by ranges, over as many connections as it may use.

    What is asked for without a stat is one version until `close`. Any thread may call any method.

    Args:
        transport: Makes the requests, and those of no other storage.
        connections: Requests that a process has under way at most, at least 1.
        cache: Where pieces are kept that are fetched ahead; no other storage has the same one.
        indexes: As in `TransportSettings`.
    """

    is_remote: bool = True
    # One connection of 80 MB/s at 30 ms would give 2.4 MB. But all of them share the link of the
    # node: a request costs 0.5 ms of CPU, and of 64 connections it holds one for 30 ms. In this
    # half of a millisecond a link of 200 MB/s carries 100 kB.
    coalesced_gap: int = 1 << 17
    largest_read: int = MOST_IN_ONE_REQUEST

    def __init__(
        self,
        transport: RemoteTransport,
        connections: int = 64,
        cache: PieceCache | None = None,
        indexes: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._indexes = indexes
        self._transport = transport
        self._versions: dict[str, str] = {}
        self._threads = RequestThreads(connections + (cache is not None))
        self._ranges = max(1, min(_RANGES, connections))
        self._fetcher = Fetcher(self._transport, self._threads, cache)
        self._read_bytes, self._table_wait_s, self._member_wait_s = 0, 0.0, 0.0
        if cache is not None:
            self.fetches_ahead, self.coalesced_gap = True, _CACHED_GAP

    def stat(self, url: str) -> ShardStat:
        """Size of the object and a hash of its version, asked anew by one request."""
        return self.read_beside((), 0, [url])[1][0]

    def read(self, url: str, start: int, stop: int, stat: tuple[int, int] | None = None) -> bytes:
        """One range; fewer bytes if the object ends, none if it is not what `stat` says.

        Raises:
            ShardNotFoundError: There is no such object.
            FileAccessError: The store refuses to give it.
            IndexMismatchError: The object was replaced since it was read first.
            StorageError: The bytes could not be had, after all retries.
        """
        version = self._versions.get(url) if stat is None else version_of_stamp(stat)
        try:
            body = self._waited(self._begun(url, start, stop, version))
        except IndexMismatchError:
            if stat is None:
                raise
            return b""
        if stat is None:
            self._versions[url] = body.version
        self._read_bytes += len(body.data)
        return body.data

    def prefetch(self, reads: Sequence[ShardReads]) -> bool:
        """Fetch these pieces to the cache, in this order, and nothing that was named before.

        Without a stat they are hints to a system that reads files, and change nothing here.
        """
        pieces = pieces_of(reads)
        return bool(pieces) and self._fetcher.fetch_ahead(pieces)

    def read_ranges(self, reads: Sequence[ShardReads]) -> list[list[int]]:
        """Read all ranges at once, and return how many bytes of each were read.

        Raises:
            ShardError: As of `read`, but for another version, which is -1.
        """
        return self._fetcher.read(reads)

    def fetch_totals(self) -> FetchTotals:
        """What this process has fetched so far, and how long it waited."""
        fetched = self._fetcher
        return FetchTotals(
            *self._transport.counts,
            self._read_bytes + fetched.read_bytes,
            self._table_wait_s,
            self._member_wait_s + fetched.waited_s,
        )

    def read_beside(
        self, urls: Sequence[str], max_bytes: int, shards: Sequence[str] = ()
    ) -> tuple[list[bytes | None], list[ShardStat]]:
        """Small objects, and what shards are: one round trip for all of them."""
        calls: list[Callable[[], Any]] = [partial(self._whole, url, max_bytes) for url in urls]
        calls += [partial(self._stat, url) for url in shards]
        began = perf_counter()
        begun = [self._threads.begin(call) for call in calls]
        try:
            with Fetching():
                answers = list(map(result_of, begun))
        finally:
            self._table_wait_s += perf_counter() - began
            for future in begun:
                future.cancel()
        return answers[: len(urls)], answers[len(urls) :]

    def open_stream(self, url: str) -> io.BufferedReader:
        """The object as a file that is read forward, a few ranges ahead; errors as of `read`.

        To close it early calls off what is not under way yet.
        """
        chunks = self._chunks(url)
        return io.BufferedReader(_ForwardFile(next(chunks), chunks), _STREAM_BUFFER)

    def close(self, url: str) -> None:
        """Forget the version of the object."""
        self._versions.pop(url, None)

    def close_all(self) -> None:
        """Close all connections and end all threads, also those that wait for a server."""
        self._threads.close()
        self._fetcher.close()
        self._transport.close()

    def _stat(self, url: str) -> ShardStat:
        body = self._transport.read(url, 0, 0)
        self._versions[url] = body.version
        return ShardStat(body.size, int(body.version.partition("-")[2]))

    def _whole(self, url: str, max_bytes: int) -> bytes | None:
        folder, name = split_url(url)
        if folder in self._indexes:
            return read_beside(Path(self._indexes[folder], unescaped(name, url)), max_bytes)
        try:
            return self._transport.read(url, 0, max_bytes).data
        except (ShardNotFoundError, FileAccessError):  # stores refuse what may not be listed
            return None

    def _chunks(self, url: str) -> Generator[Chunk]:
        """The bytes of an object, one range after the other."""
        begun = deque([self._begun(url, 0, _FIRST_BYTES, None)])
        try:
            first = self._waited(begun.popleft())
            inner = self._of_ranges if first.has_ranges else self._of_whole
            for chunk in inner(url, first, begun):
                self._read_bytes += len(chunk)
                yield chunk
        finally:
            for future in begun:
                future.cancel()

    def _of_ranges(self, url: str, first: Body, begun: deque[Future[Body]]) -> Generator[Chunk]:
        chunk, at, size = first.data, len(first.data), _FIRST_BYTES
        while True:
            while at < first.size and len(begun) < self._ranges:
                size = min(2 * size, _RANGE_BYTES)
                stop = min(at + size, first.size)
                begun.append(self._begun(url, at, stop, first.version))
                at = stop
            yield chunk
            if not begun:
                return
            chunk = self._waited(begun.popleft()).data

    def _of_whole(self, url: str, first: Body, _: deque[Future[Body]]) -> Generator[Chunk]:
        chunks = self._transport.read_forward(url, first)
        while chunk := self._waited(self._threads.begin(partial(next, chunks, b""))):
            yield chunk

    def _begun(self, url: str, start: int, stop: int, version: str | None) -> "Future[Body]":
        return self._threads.begin(partial(self._transport.read, url, start, stop, version))

    def _waited(self, begun: "Future[_T]") -> _T:
        """What a thread has begun to read; the wait can be called off, as a request cannot."""
        began = perf_counter()
        try:
            with Fetching():
                return result_of(begun)
        finally:
            begun.cancel()
            self._member_wait_s += perf_counter() - began


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


@dataclass(frozen=True, slots=True)
class MakeRemoteStorage:
    """Makes the storage of remote shards in the process that reads; it is pickled and compared.

    Attributes:
        settings: Of its transport.
        cache: The cache of the run, if it has one. It follows from the folder and the shards, so
            it is not compared.
    """

    settings: TransportSettings
    cache: PieceCache | None = field(default=None, compare=False, repr=False)

    def __call__(self) -> Storage:
        """A storage that has opened nothing yet."""
        connections, indexes = self.settings.connections, self.settings.indexes
        # with a cache, the thread that reads makes requests of its own, beside those that fetch
        settings = replace(self.settings, connections=connections + (self.cache is not None))
        return RemoteStorage(RemoteTransport(settings), connections, copy(self.cache), indexes)


DEFAULT_REMOTE: Final = MakeRemoteStorage(TransportSettings())
"""Of schemes for which no storage is given."""


def remote_storages(
    settings: TransportSettings, cache: PieceCache | None = None
) -> dict[str, MakeStorage]:
    """By scheme, what makes the storages that read ranges of remote shards, with this cache."""
    return dict.fromkeys((*RANGED_SCHEMES, ANY_FURTHER), MakeRemoteStorage(settings, cache))
