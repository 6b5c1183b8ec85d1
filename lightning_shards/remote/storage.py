"""The storage of remote shards: ranges of objects, many at once, each of one version.

Pieces that are needed soon are announced, and fetched by threads in the order given. They go to the
cache of the node, where every process finds them. A batch reads from pieces what is there. It waits
for those that are on their way, but not for long: what it still lacks then is fetched by requests
for these bytes alone, so a process that lags or ends delays no other one by more than that.

A stream is parallel ranges of one object, given in order as a file that is read forward. The first
range is small, so that the first bytes are soon there and tell the version and the size. The ranges
behind it grow, and a bounded number of them is under way or waits to be read. A server without
ranges is asked for all of the object at once.
"""

import io
import logging
from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from threading import Condition
from time import perf_counter
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeVar

from lightning_shards.errors import FileAccessError, IndexMismatchError, ShardNotFoundError
from lightning_shards.remote.backend import Chunk, TransportSettings
from lightning_shards.remote.cache import PieceCache, warn_once
from lightning_shards.remote.pieces import MOST_IN_ONE_REQUEST, Piece, parts_of
from lightning_shards.remote.transport import Body, RemoteTransport, RequestThreads
from lightning_shards.shards.files import read_beside
from lightning_shards.shards.storage.protocol import (
    FetchTotals,
    MakeStorage,
    ShardReads,
    ShardStat,
    Storage,
)
from lightning_shards.shards.storage.schemes import ANY_REMOTE
from lightning_shards.shards.urls import redact, split_url, unescaped
from lightning_shards.system.process import Fetching, raise_if_cancelled, result_of

_WAIT_S: Final = 3.0
"""A batch waits so long for pieces that are on their way, and then fetches what it lacks exactly.
Where the network is what everything waits for, exact requests would take it from the pieces."""

_REMEMBERED: Final = 3
"""Announcements whose pieces are looked for: batches are read a little behind the last one."""

_MOST_AHEAD: Final = 48 << 20
"""Bytes of pieces that a process has under way at most. That keeps a link of 1 GB/s busy, which
carries 30 MB in 30 ms."""

_LOOK_S: Final = 0.03
"""How often a batch that waits for pieces looks which of them are there."""

_LEFT_FOR_BATCHES: Final = 4
"""One connection in so many fetches nothing ahead, so that a batch finds one at once."""

_GAP: Final = 1 << 16
"""Bytes between two ranges that are fetched with them: little, since many requests begin at once
and share a link. To read a gap too many costs bytes that all others wait for."""

_CACHED_GAP: Final = 1 << 14
"""With a cache, ranges are joined by what costs less only where they are not in the cache."""

_RANGES: Final = 4
"""Ranges of a stream that are under way, or there and not yet read."""

_FIRST_BYTES: Final = 1 << 18
"""Bytes of the first range of a stream; each further one has twice those of the one before."""

_RANGE_BYTES: Final = MOST_IN_ONE_REQUEST

_T = TypeVar("_T")
_Stat = tuple[int, int] | None
_log = logging.getLogger(__name__)


class _Segment(NamedTuple):
    """Bytes of an object that a batch wants, the memory for them, and the piece that has them."""

    url: str
    stat: _Stat
    begin: int
    end: int
    into: memoryview
    piece: Piece | None = None

    def fill(self, offset: int, data: bytes) -> None:
        """Take what it wants from the bytes at this offset of the object."""
        begin, end = max(self.begin, offset), min(self.end, offset + len(data))
        if begin < end:
            wanted = memoryview(data)[begin - offset : end - offset]
            self.into[begin - self.begin : end - self.begin] = wanted


class RemoteStorage(Storage):
    """Reads objects by ranges, over as many connections as it may use.

    Any thread may call any method.

    Args:
        transport: Makes the requests, and those of no other storage.
        connections: Requests that a process has under way at most, at least 1; with a cache, one
            more.
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
        self._transport, self._cache, self._indexes = transport, cache, indexes
        self._threads = RequestThreads(connections + (cache is not None))
        self._ranges = max(1, min(_RANGES, connections))
        self._most_ahead = max(1, connections - connections // _LEFT_FOR_BATCHES)
        self._has_read, self._changed = False, Condition()
        self._known: deque[_Pieces] = deque(maxlen=_REMEMBERED)
        self._queue = deque[Piece]()
        self._coming, self._under_way = set[Piece](), set[Piece]()
        self._streamed = dict[str, ShardStat]()  # what objects were when they were streamed last
        self._read_bytes, self._waits = 0, {"table_wait_s": 0.0, "member_wait_s": 0.0}
        if cache is not None:
            self.fetches_ahead, self.coalesced_gap = True, _CACHED_GAP
            self.largest_ahead = 8192  # as of local files, which pieces are

    def stat(self, url: str) -> ShardStat:
        """Size of the object and a hash of its version, asked anew by one request."""
        return self._waited(self._begun(url, 0, 0, None)).stat

    def read(self, url: str, start: int, stop: int, stat: _Stat = None) -> bytes:
        """One range; fewer bytes if the object ends, none if it is not what `stat` says.

        Raises:
            ShardNotFoundError: There is no such object.
            FileAccessError: The store refuses to give it.
            StorageError: The bytes could not be had, after all retries.
        """
        try:
            data = self._waited(self._begun(url, start, stop, stat)).data
        except IndexMismatchError:
            if stat is None:
                raise
            return b""
        self._read_bytes += len(data)
        return data

    def prefetch(self, reads: Sequence[ShardReads]) -> bool:
        """Fetch these pieces to the cache, in this order, and nothing that was named before.

        It begins when all requests of the first batch have been made. Pieces that are there cost
        next to nothing, and one that another process fetches at the moment is left to it. Without a
        stat they are hints to a system that reads files, and change nothing here.

        Raises:
            FileAccessError: The cache folder is another user's, or others may write to it.
        """
        pieces, cache = pieces_of(reads), self._cache
        if cache is None or not pieces:
            return False
        lacking = [piece for piece in pieces if not cache.has(piece)]
        with self._changed:
            self._known.append(_by_object(pieces))
            self._coming = set(lacking) | self._coming & self._under_way
            self._queue = deque(dict.fromkeys(lacking))
        if self._has_read:
            self._fetch_ahead()
        return not lacking

    def read_ranges(self, reads: Sequence[ShardReads]) -> list[list[int]]:
        """Read all ranges at once, and return how many bytes of each were read.

        Raises:
            ShardError: As of `read`, but for another version, which is -1.
            FileAccessError: The cache folder is another user's, or others may write to it.
        """
        missing, sizes = self._unread(self._wanted(reads)), dict[tuple[str, _Stat], int]()
        if missing:
            sizes = self._fetched(self._waited_for(missing) if self._has_read else missing)
        self._fetch_ahead()
        self._read_bytes += sum(sum(each.stops) - sum(each.starts) for each in reads)
        return [_lengths(each, sizes.get((each.url, each.stat))) for each in reads]

    def fetch_totals(self) -> FetchTotals:
        """What this process has fetched so far, and how long it waited."""
        return self._transport.counts.plus(FetchTotals(read_bytes=self._read_bytes, **self._waits))

    def read_beside(
        self, urls: Sequence[str], max_bytes: int, shards: Sequence[str] = ()
    ) -> tuple[list[bytes | None], list[ShardStat]]:
        """Small objects, and what shards are of which ranges can be read: one round trip for all.

        Raises:
            ShardError: As of `read` for the shards; a StorageError where there are no ranges.
        """
        calls: list[Callable[[], Any]] = [partial(self._whole, url, max_bytes) for url in urls]
        calls += [partial(self._stat_of_ranges, url) for url in shards]
        begun = list(map(self._threads.begin, calls))
        with self._waiting(begun, "table_wait_s"):
            answers = list(map(result_of, begun))
        return answers[: len(urls)], answers[len(urls) :]

    def open_stream(self, url: str) -> io.RawIOBase:
        """The object as a file that is read forward, a few ranges ahead; errors as of `read`.

        To close it early calls off what is not under way yet.
        """
        return _ForwardFile(self._chunks(url))

    def close_all(self) -> None:
        """Close all connections, and end all threads with what they have under way."""
        with self._changed:
            self._queue.clear()
        self._threads.close()
        self._transport.close()
        if self._cache is not None:
            self._cache.close()

    # --- what is fetched ahead

    def _fetch_ahead(self) -> None:
        """Begin what was announced, behind the requests of the first batch."""
        self._has_read = True
        with self._changed:
            under_way = self._under_way
            while len(under_way) < self._most_ahead:
                # One that is under way is tried again, if its process or thread does not bring it
                piece = next((piece for piece in self._queue if piece not in under_way), None)
                size = sum(piece.size for piece in under_way)
                if piece is None or (under_way and size + piece.size > _MOST_AHEAD):
                    break
                self._queue.remove(piece)
                under_way.add(piece)
                self._threads.begin(partial(self._fetch_piece, piece))

    def _fetch_piece(self, piece: Piece) -> None:
        assert self._cache is not None
        is_there, has_failed = None, False
        try:
            is_there = self._cache.load(piece, self._transport.chunks(*piece))
        except Exception as error:  # noqa: BLE001 who reads these bytes gets an error of its own
            _log.debug("a piece of %s is not fetched ahead: %s", redact(piece.url), error)
            has_failed = True
        with self._changed:
            self._under_way.discard(piece)
            if is_there is False:  # what is fetched now would be fetched again by who needs it
                self._coming.clear()
                self._queue.clear()
            elif is_there or has_failed:
                self._coming.discard(piece)
            self._changed.notify_all()
        self._fetch_ahead()

    # --- what batches read

    def _wanted(self, reads: Sequence[ShardReads]) -> Iterator[_Segment]:
        """What is wanted, cut where one piece ends and another begins."""
        known = tuple(self._known)
        for url, starts, stops, stat, memory in reads:
            place, is_empty = 0, bool(starts)
            found = [pieces for announced in known if (pieces := announced.get((url, stat)))]
            for start, stop in zip(starts, stops, strict=True):
                while start < stop:
                    piece, end = _holder(found, start, stop)
                    into = memory[place : place + end - start]
                    yield _Segment(url, stat, start, end, into, piece)
                    place, start, is_empty = place + end - start, end, False  # noqa: PLW2901
            if is_empty and stat:  # nothing but a request shows a change
                yield _Segment(url, stat, starts[0], starts[0], memory[:0])

    def _unread(self, segments: Iterable[_Segment]) -> list[_Segment]:
        """Read what is in pieces of the cache; the rest."""
        missing, cache = list[_Segment](), self._cache
        for piece, group in groupby(segments, lambda segment: segment.piece):
            of_piece = list(group)
            wanted = [(segment.begin, segment.into) for segment in of_piece]
            if piece is None or cache is None or not cache.read(piece, wanted):
                missing += of_piece
        return missing

    def _waited_for(self, missing: list[_Segment]) -> list[_Segment]:
        """What is still missing when none of it is on its way, or it was waited for long enough."""
        until = perf_counter() + _WAIT_S
        with self._waiting():
            while late := self._coming.intersection(segment.piece for segment in missing):
                if perf_counter() >= until:
                    break
                with self._changed:
                    self._changed.wait(_LOOK_S)
                raise_if_cancelled()
                missing = self._unread(missing)
        with self._changed:  # their process may have ended: nobody waits for them once more
            self._coming -= late
            self._queue.extendleft(late)
        return missing

    def _fetched(self, missing: list[_Segment]) -> dict[tuple[str, _Stat], int]:
        """Fetch these bytes; the size of each object, or -1 if it is another version."""
        parts, begun = list[tuple[list[_Segment], int]](), deque[Future[Body]]()
        for group, stop in _joined(missing):
            url, stat, begin, *_ = group[0]
            for part in parts_of(begin, stop) or [(begin, stop)]:
                parts.append((group, part[0]))
                begun.append(self._begun(url, *part, stat))
        self._fetch_ahead()
        sizes: dict[tuple[str, _Stat], int] = {}
        with self._waiting(begun):
            for group, start in parts:
                try:
                    body = result_of(begun.popleft())
                except IndexMismatchError:
                    sizes[group[0][:2]] = -1
                    continue
                sizes.setdefault(group[0][:2], body.stat.size)
                data = body.data
                for segment in group:  # nothing else writes there, so nothing does after an error
                    segment.fill(start, data)
        return sizes

    # --- the same for single ranges, files and streams

    def _whole(self, url: str, max_bytes: int) -> bytes | None:
        folder, name = split_url(url)
        if folder in self._indexes:
            return read_beside(Path(self._indexes[folder], unescaped(name, url)), max_bytes)
        try:
            return self._transport.read(url, 0, max_bytes).data
        except (ShardNotFoundError, FileAccessError):  # stores refuse what may not be listed
            return None

    def _stat_of_ranges(self, url: str) -> ShardStat:
        body = self._transport.read(url, 0, 0)
        if not body.has_ranges:  # some servers send all of an object for its beginning alone
            body = self._transport.read(url, 1, 2)
        return body.stat

    def _chunks(self, url: str) -> Generator[Chunk]:
        """The bytes of an object, one range after the other."""
        begun = deque([self._begun(url, 0, _FIRST_BYTES, None)])
        at = size = _FIRST_BYTES
        try:
            while begun:
                chunks, stat, has_ranges = self._waited(begun.popleft())
                if self._streamed.get(url, stat) != stat:
                    what = "is another one than when it was streamed last: this run has read both"
                    warn_once(f"{redact(url)} {what}; start it again to read the new one alone")
                self._streamed[url] = stat
                while has_ranges and at < stat.size and len(begun) < self._ranges:
                    size = min(2 * size, _RANGE_BYTES)
                    begun.append(self._begun(url, at, min(at + size, stat.size), stat))
                    at += size
                for chunk in chunks if has_ranges else self._all_chunks(url, stat):
                    self._read_bytes += len(chunk)
                    yield chunk
        finally:
            _call_off(begun)

    def _all_chunks(self, url: str, stat: ShardStat) -> Iterator[Chunk]:
        """The bytes of an object whose server gives no ranges, as fast as they are taken."""
        chunks = self._transport.chunks(url, 0, stat.size, stat, has_ranges=False)
        while chunk := self._waited(self._threads.begin(partial(next, chunks, b""))):
            yield chunk

    def _begun(self, url: str, start: int, stop: int, stat: _Stat) -> "Future[Body]":
        return self._threads.begin(partial(self._transport.read, url, start, stop, stat))

    def _waited(self, begun: "Future[_T]") -> _T:
        with self._waiting([begun]):
            return result_of(begun)

    @contextmanager
    def _waiting(
        self, begun: Iterable[Future[Any]] = (), what: str = "member_wait_s"
    ) -> Generator[None]:
        """A wait for these, which can be called off, as a request cannot."""
        began = perf_counter()
        try:
            with Fetching():
                yield
        finally:
            _call_off(begun)
            self._waits[what] += perf_counter() - began


class _ForwardFile(io.RawIOBase):
    """Chunks of bytes, none empty, as a file; closing it closes what gives them."""

    def __init__(self, chunks: Generator[Chunk]) -> None:
        super().__init__()
        self._chunks, self._at = chunks, 0  # closed with the file, also where it is not opened
        self._data: Chunk = next(chunks, b"")

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        """So many bytes, or fewer, as of raw files."""
        if size < 0:
            return self.readall()
        if self._at == len(self._data):
            self._data, self._at = next(self._chunks, b""), 0
        data = bytes(self._data[self._at : self._at + size])
        self._at += len(data)
        return data

    def close(self) -> None:
        super().close()
        self._chunks.close()


def _call_off(begun: Iterable[Future[Any]]) -> None:
    for future in begun:
        future.cancel()


def pieces_of(reads: Iterable[ShardReads]) -> list[Piece]:
    """The pieces of these ranges, those of many bytes cut into parts.

    A part is a piece of its own: it is fetched by one request, together with the other parts, and
    every process cuts the same range in the same way.
    """
    return [
        Piece(each.url, *part, each.stat)
        for each in reads
        if each.stat is not None
        for start, stop in zip(each.starts, each.stops, strict=True)
        for part in parts_of(start, stop)
    ]


_Pieces = Mapping[tuple[str, _Stat], Sequence[Piece]]
"""The pieces of each object by their first bytes, and of those with the same one the longest last:
drawn runs may overlap."""


def _by_object(pieces: Iterable[Piece]) -> _Pieces:
    by_object: defaultdict[tuple[str, _Stat], list[Piece]] = defaultdict(list)
    for piece in sorted(set(pieces)):
        by_object[piece.url, piece.stat].append(piece)
    return by_object


def _holder(found: Sequence[Sequence[Piece]], start: int, stop: int) -> tuple[Piece | None, int]:
    """The piece that has the byte at `start`, and the end of what it has up to `stop`."""
    for pieces in found:
        place = bisect_right(pieces, start, key=attrgetter("begin"))
        if place and start < pieces[place - 1].end:
            return pieces[place - 1], min(stop, pieces[place - 1].end)
        if place < len(pieces):
            stop = min(stop, pieces[place].begin)
    return None, stop


def _joined(segments: Iterable[_Segment]) -> Iterator[tuple[list[_Segment], int]]:
    """What is fetched together, from the first segment of each list to the end beside it.

    Gaps are fetched, too, that cost less than requests.
    """
    group, end = list[_Segment](), 0
    for segment in sorted(segments, key=lambda segment: (segment.url, segment.begin)):
        if group and (
            segment[:2] != group[0][:2]
            or segment.begin > end + _GAP
            or segment.begin >= group[0].begin + MOST_IN_ONE_REQUEST
        ):
            yield group, end
            group, end = [], 0
        group.append(segment)
        end = max(end, segment.end)
    if group:
        yield group, end


def _lengths(reads: ShardReads, size: int | None) -> list[int]:
    """The bytes of each range that are there; the size is known where an object was asked for."""
    spans = zip(reads.starts, reads.stops, strict=True)
    if size is None:
        return [stop - start for start, stop in spans]
    return [max(0, min(stop, size) - start) if size >= 0 else -1 for start, stop in spans]


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
        transport = RemoteTransport(self.settings)
        return RemoteStorage(transport, connections, copy(self.cache), indexes)


DEFAULT_REMOTE: Final = MakeRemoteStorage(TransportSettings())
"""Of schemes for which no storage is given."""


def remote_storages(
    settings: TransportSettings, cache: PieceCache | None = None
) -> dict[str, MakeStorage]:
    """By scheme, what makes the storages that read ranges of remote shards, with this cache."""
    return {ANY_REMOTE: MakeRemoteStorage(settings, cache)}
