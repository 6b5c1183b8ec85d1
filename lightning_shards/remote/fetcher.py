"""The fetcher: exactly the bytes that a batch lacks, and pieces that are needed soon.

Pieces that were announced are fetched by threads, in the order given, and go to the cache of the
node, where every process finds them. A batch reads from pieces what is there. It waits for those
that are on their way, but not for long: what it still lacks then is fetched by requests for these
bytes alone, so a process that lags or ends delays no other one by more than that.
"""

import logging
import threading
from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from functools import lru_cache, partial
from itertools import pairwise
from queue import SimpleQueue
from time import perf_counter
from typing import Final, NamedTuple, TypeGuard

import numpy as np

from lightning_shards.errors import IndexMismatchError, ShardError
from lightning_shards.remote.backend import Chunk
from lightning_shards.remote.byte_ranges import joined, parts_of
from lightning_shards.remote.cache import PieceCache
from lightning_shards.remote.pieces import OpenPiece, Piece
from lightning_shards.remote.request_threads import RequestThreads
from lightning_shards.remote.transport import Body, RemoteTransport, version_of_stamp
from lightning_shards.shards.storage.protocol import ShardReads
from lightning_shards.shards.urls import redact
from lightning_shards.system.process import Fetching, raise_if_cancelled, share_of_files, take_from

WAIT_S: Final = 2.0
"""A batch waits so long for pieces that are on their way, and then fetches what it lacks exactly.
Where the network is what everything waits for, exact requests would take it from the pieces."""

_REMEMBERED: Final = 3
"""Announcements whose pieces are looked for: batches are read a little behind the last one."""

_MOST_AHEAD: Final = 48 << 20
"""Bytes of pieces that a process has under way, in memory, at most. That keeps a link of 1 GB/s
busy, which carries 30 MB in 30 ms."""

_LOOK_S: Final = 0.03
"""How often a batch that waits for pieces looks which of them are there."""

_LEFT_FOR_BATCHES: Final = 4
"""One thread in so many fetches nothing ahead, so that a batch finds a connection at once."""

_GAP: Final = 1 << 16
"""Bytes between two ranges that are fetched with them: little, since many requests begin at once
and share a link. To read a gap too many costs bytes that all others wait for."""

_MOST_OPEN: Final = 400
"""A block has pieces in some 256 runs. Each takes a file descriptor, of which a process has 1,024
by default."""

_log = logging.getLogger(__name__)

_Object = tuple[str, str | None]
"""The URL of an object, and its version; None: any one."""


class _Segment(NamedTuple):
    """Bytes of an object that a batch wants, the memory for them, and the piece that has them."""

    of_object: _Object
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


_Pieces = tuple[list[int], list[Piece]]
"""The first byte of each piece of one object, ascending, and the pieces."""


def pieces_of(reads: Iterable[ShardReads]) -> list[Piece]:
    """The pieces of these ranges, those of many bytes cut into parts.

    A part is a piece of its own: it is fetched by one request, together with the other parts, and
    every process cuts the same range in the same way.
    """
    return [
        Piece(each.url, version_of_stamp(each.stat), *part)
        for each in reads
        if each.stat is not None
        for start, stop in zip(each.starts, each.stops, strict=True)
        for part in parts_of(start, stop)
    ]


def chunks_of(transport: RemoteTransport, piece: Piece) -> list[Chunk]:
    """The bytes of a piece from its store; errors as of `RemoteTransport.read`."""
    return transport.read(piece.url, piece.begin, piece.end, piece.version).chunks


class Fetcher:
    """Reads remote objects, by way of the cache if there is one; any thread may call any method.

    Args:
        transport: What fetches.
        threads: Make the requests; one of them is never used for pieces.
        cache: Where pieces are kept.
        wait_s: Seconds for which a batch waits for pieces that are on their way.

    Attributes:
        read_bytes: Bytes that batches asked for.
        waited_s: Seconds that batches waited for bytes that they lacked.
    """

    def __init__(
        self,
        transport: RemoteTransport,
        threads: RequestThreads,
        cache: PieceCache | None = None,
        *,
        wait_s: float = WAIT_S,
    ) -> None:
        self.read_bytes, self.waited_s = 0, 0.0
        self._transport, self._threads, self._cache = transport, threads, cache
        self._wait_s, most = wait_s, threads.limit - 1
        self._most_ahead = max(1, most - most // _LEFT_FOR_BATCHES)
        self._known: deque[dict[_Object, _Pieces]] = deque(maxlen=_REMEMBERED)
        self._queue = deque[Piece]()
        self._coming, self._under_way = set[Piece](), set[Piece]()
        self._has_read, self._changed = False, threading.Condition()

    def fetch_ahead(self, pieces: Sequence[Piece]) -> bool:
        """Fetch these pieces ahead, in this order, and no others that were announced before.

        It begins when all requests of the first batch have been made. Pieces that are there cost
        next to nothing, and one that another process fetches at the moment is left to it. Errors
        are not raised: whoever reads the bytes gets them.

        Args:
            pieces: What the node needs of this block and the next, with what this process is to
                fetch before what others are to fetch; of 8 MiB at most.

        Returns:
            Whether all of them are there.
        """
        try:
            lacking = [piece for piece in pieces if self._cache and not self._cache.has(piece)]
        except OSError:  # whoever reads a batch gets it
            lacking = list(pieces)
        with self._changed:
            self._known.append(_by_object(pieces))
            self._coming = set(lacking) | self._coming & self._under_way
            self._queue = deque(dict.fromkeys(lacking))
        if self._has_read:
            self._begin()
        return not lacking

    def read(self, reads: Sequence[ShardReads]) -> list[list[int]]:
        """Read all ranges of a batch at once; nothing is written to their memory after the call.

        Returns:
            For each object and each of its ranges, how many bytes there are: fewer than asked for
            where the object ends, and -1 where it is not what its stat says.

        Raises:
            ShardError: As of `RemoteTransport.read`, but for another version.
            FileAccessError: The cache folder is another user's, or others may write to it.
        """
        missing, sizes, began = self._unread(self._wanted(reads)), {}, perf_counter()
        if missing:
            with Fetching():
                if self._has_read:
                    missing = self._waited_for(missing)
                sizes = self._fetched(missing)
            self.waited_s += perf_counter() - began
        self._begin()
        self.read_bytes += sum(sum(each.stops) - sum(each.starts) for each in reads)
        return [_lengths(each, sizes.get(_object_of(each))) for each in reads]

    def close(self) -> None:
        """Begin nothing new, and leave the cache. A later call begins again."""
        with self._changed:
            self._queue.clear()
            self._coming.clear()
            self._changed.notify_all()
        if self._cache is not None:
            _opened.cache_clear()
            self._cache.close()

    def _begin(self) -> None:
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
        is_there, failure = None, None
        try:
            is_there = self._cache.load(piece, partial(chunks_of, self._transport, piece))
        except Exception as error:  # noqa: BLE001 who reads these bytes gets an error of its own
            _log.debug("a piece of %s is not fetched ahead: %s", redact(piece.url), error)
            failure = error
        broken = failure if is_of_folder(failure) else None
        with self._changed:
            self._under_way.discard(piece)
            if is_there is False or broken:
                # What is fetched now would be fetched again by who needs it
                self._cache.warn(broken)
                self._coming.clear()
                self._queue.clear()
            elif is_there or failure:
                self._coming.discard(piece)
            self._changed.notify_all()
        del failure, broken  # so that the bytes are freed, and the file is closed
        self._begin()

    def _wanted(self, reads: Sequence[ShardReads]) -> Iterator[_Segment]:
        """What is wanted, cut where one piece ends and another begins."""
        known = tuple(self._known)
        for each in reads:
            of_object, place, is_empty = _object_of(each), 0, bool(each.starts)
            found = [pieces for announced in known if (pieces := announced.get(of_object))]
            for start, stop in zip(each.starts, each.stops, strict=True):
                while start < stop:
                    piece, end = _holder(found, start, stop)
                    into = each.into[place : place + end - start]
                    yield _Segment(of_object, start, end, into, piece)
                    place, start, is_empty = place + end - start, end, False  # noqa: PLW2901
            if is_empty and each.stat:  # nothing but a request shows a change
                yield _Segment(of_object, each.starts[0], each.starts[0], each.into[:0])

    def _unread(self, segments: Iterable[_Segment]) -> list[_Segment]:
        """Read what is in pieces of the cache; the rest."""
        return [each for each in segments if not self._is_read(each)]

    def _is_read(self, segment: _Segment) -> bool:
        piece, cache = segment.piece, self._cache
        if piece is None or cache is None:
            return False
        try:
            _opened(cache, piece).read_into(segment.begin, segment.into)
        except FileNotFoundError:
            return False
        except OSError as error:
            if not is_of_folder(error):  # it is not private
                raise
            cache.warn(error)
            _opened.cache_clear()
            return False
        return True

    def _waited_for(self, missing: list[_Segment]) -> list[_Segment]:
        """What is still missing when none of it is on its way, or it was waited for long enough."""
        until = perf_counter() + self._wait_s
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

    def _fetched(self, missing: list[_Segment]) -> dict[_Object, int]:
        """Fetch these bytes; the size of each object, or -1 if it is another version."""
        answered: SimpleQueue[Future[Body]] = SimpleQueue()
        begun: dict[Future[Body], tuple[_Object, int, Sequence[_Segment]]] = {}
        for (url, version), begin, end, segments in _joined(missing):
            for start, stop in parts_of(begin, end) or [(begin, end)]:
                read = partial(self._transport.read, url, start, stop, version)
                future = self._threads.begin(read)
                begun[future] = (url, version), start, segments
                future.add_done_callback(answered.put)
        self._begin()
        sizes: dict[_Object, int] = {}
        try:
            # Memory is filled here alone, so that nothing writes to it after an error
            while begun:
                future = take_from(answered)
                of_object, start, segments = begun.pop(future)
                try:
                    body = future.result()
                except IndexMismatchError:
                    sizes[of_object] = -1
                    continue
                sizes.setdefault(of_object, body.size)
                for segment in segments:
                    segment.fill(start, body.data)
                del future, body  # so that the bytes are freed
        finally:
            for future in begun:
                future.cancel()
        return sizes


@lru_cache(maxsize=min(_MOST_OPEN, share_of_files(1)))
def _opened(cache: PieceCache, piece: Piece) -> OpenPiece:
    """A piece that is in the cache, and stays open for all threads; its file may be dropped.

    Raises:
        FileNotFoundError: It is not there.
        OSError: As of `PieceCache`.
    """
    if (opened := cache.open(piece)) is None:
        raise FileNotFoundError
    return opened


def is_of_folder(error: Exception | None) -> TypeGuard[OSError]:
    """Whether the cache folder fails, and not a store or a folder that is not private."""
    return isinstance(error, OSError) and not isinstance(error, ShardError)


def _object_of(reads: ShardReads) -> _Object:
    return reads.url, None if reads.stat is None else version_of_stamp(reads.stat)


def _by_object(pieces: Iterable[Piece]) -> dict[_Object, _Pieces]:
    by_object: defaultdict[_Object, dict[int, Piece]] = defaultdict(dict)
    for piece in pieces:
        of_object = by_object[piece.url, piece.version]
        if of_object.get(piece.begin, piece).end <= piece.end:  # drawn runs may overlap
            of_object[piece.begin] = piece
    return {
        name: (begins := sorted(by_begin), [by_begin[begin] for begin in begins])
        for name, by_begin in by_object.items()
    }


def _holder(found: Sequence[_Pieces], start: int, stop: int) -> tuple[Piece | None, int]:
    """The piece that has the byte at `start`, and the end of what it has up to `stop`."""
    for begins, pieces in found:
        place = bisect_right(begins, start)
        if place and start < pieces[place - 1].end:
            return pieces[place - 1], min(stop, pieces[place - 1].end)
        if place < len(begins):
            stop = min(stop, begins[place])
    return None, stop


def _joined(
    segments: Iterable[_Segment],
) -> Iterator[tuple[_Object, int, int, Sequence[_Segment]]]:
    """The object, begin and end of what is fetched together, and what is wanted of it.

    Gaps are fetched, too, that cost less than requests.
    """
    of_objects: defaultdict[_Object, list[_Segment]] = defaultdict(list)
    for segment in sorted(segments, key=lambda segment: segment.begin):
        of_objects[segment.of_object].append(segment)
    for of_object, ordered in of_objects.items():
        begins = np.array([segment.begin for segment in ordered], np.int64)
        ends = np.array([segment.end for segment in ordered], np.int64)
        ranges = joined(begins, ends, _GAP)
        cuts = pairwise([*ranges.firsts.tolist(), len(ordered)])
        spans = zip(ranges.begins.tolist(), ranges.ends.tolist(), cuts, strict=True)
        for begin, end, (first, stop) in spans:
            yield of_object, begin, end, ordered[first:stop]


def _lengths(reads: ShardReads, size: int | None) -> list[int]:
    """The bytes of each range that are there; the size is known where an object was asked for."""
    spans = zip(reads.starts, reads.stops, strict=True)
    if size is None:
        return [stop - start for start, stop in spans]
    return [max(0, min(stop, size) - start) if size >= 0 else -1 for start, stop in spans]
