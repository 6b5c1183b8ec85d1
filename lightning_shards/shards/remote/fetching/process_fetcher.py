"""How one process fetches: its threads, the pieces under way, and what each batch lacks."""

import logging
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Final

from lightning_shards.errors import ShardError
from lightning_shards.shards.remote.byte_ranges import parts_of
from lightning_shards.shards.remote.cache.piece_cache import PieceCache
from lightning_shards.shards.remote.cache.piece_files import OpenPiece
from lightning_shards.shards.remote.cache.piece_names import Piece
from lightning_shards.shards.remote.fetching.announced import AnnouncedPieces
from lightning_shards.shards.remote.fetching.fetch_threads import FetchThreads
from lightning_shards.shards.remote.fetching.link_speed import LinkSpeed
from lightning_shards.shards.remote.fetching.open_pieces import OpenPieces
from lightning_shards.shards.remote.fetching.patience import LONGEST_S, Patience
from lightning_shards.shards.remote.fetching.segments import (
    BatchMemory,
    ObjectReads,
    Segment,
    bytes_of_segments,
    joined_segments,
    lengths_read,
)
from lightning_shards.shards.remote.fetching.under_way import Coming, UnderWay
from lightning_shards.shards.remote.transport import Body, Transport
from lightning_shards.shards.urls import redact
from lightning_shards.system.cancellation import raise_if_cancelled, wait_for_event
from lightning_shards.system.stage_byte import Fetching

_REMEMBERED: Final = 3
"""Announcements whose pieces are looked for: batches are read a little behind the last one."""

_LOOK_AGAIN_S: Final = 0.1
"""How long one thread that has nothing else to do waits before all pieces are looked for again
that other processes fetched at the last look."""

_MOST_AHEAD: Final = 48 << 20
"""Bytes of pieces that a process has under way, in memory, at most; spare memory comes on top, so
that all of it is 64 MiB. That keeps a link of 1 GB/s busy, which carries 30 MB in 30 ms."""

_LOOK_S: Final = 0.03
"""How often a batch that waits for pieces looks which of them are there."""

_PIECE_S: Final = 0.15
_LATENCIES: Final = 3
"""So few pieces are fetched at once that each takes about this time, and so many latencies more.
Of more pieces each would come later, and all together no sooner: those of a block would end at
one moment, with nothing on the way that was to follow them."""

_FIRST_AHEAD, _LEAST_AHEAD = 4, 2
_END_S: Final = 1.0

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class FetchCounts:
    """What the batches of one process read, and what it fetched for them and for others.

    Attributes:
        read_bytes: Bytes that batches asked for.
        cached_bytes: Those of them that came from the cache.
        exact_bytes: Bytes that were fetched because a batch lacked them, with the gaps.
        exact_requests: Ranges that they were fetched by.
        ahead_requests: Pieces that were fetched ahead.
        waited_s: Seconds that batches waited for bytes that they lacked.
    """

    read_bytes: int = 0
    cached_bytes: int = 0
    exact_bytes: int = 0
    exact_requests: int = 0
    ahead_requests: int = 0
    waited_s: float = 0.0


class ProcessFetcher:
    """What a `Fetcher` has in one process; its methods are those of the fetcher."""

    def __init__(
        self,
        transport: Transport,
        cache: PieceCache,
        threads: int,
        now: Callable[[], float],
    ) -> None:
        self.counts = FetchCounts()
        self._transport, self._cache, self._now = transport, cache, now
        self._threads = FetchThreads(threads)
        self._threads.limit_soon(_FIRST_AHEAD)
        self._link, self._requests = LinkSpeed(), 0
        self._patience = Patience(self._link)
        self._open, self._coming = OpenPieces(cache), set[Piece]()
        self._announced: deque[AnnouncedPieces] = deque(maxlen=_REMEMBERED)
        self._there: set[Piece] = set()  # of the pieces announced last
        self._lacking: AnnouncedPieces | None = None  # what a batch that lacked something knew
        self._under_way: dict[Piece, UnderWay] = {}
        self._bytes_under_way = 0
        self._left_to_others: list[Piece] = []
        self._lock = threading.RLock()  # it may be dropped while it is held
        self._has_read, self._closed = threading.Event(), threading.Event()
        self._ended = threading.Condition(self._lock)

    def fetch_ahead(self, pieces: Sequence[Piece]) -> None:
        """See `Fetcher.fetch_ahead`."""
        announced = AnnouncedPieces(pieces)
        named, before = set(announced.pieces), frozenset(self._there)
        kept = self._kept(named - before, named & before)
        with self._lock:
            self._announced.append(announced)
            self._there = self._there.difference(before) & named | set(kept)
            begun = self._under_way.keys() | set(self._left_to_others)
            self._coming = (named | self._coming & begun) - self._there
        if self._has_read.is_set():
            self._begin(announced)

    def _kept(self, others: Iterable[Piece], known: Iterable[Piece]) -> list[Piece]:
        """The pieces that are in the cache: left by others, or known and not dropped meanwhile."""
        try:
            return [*self._cache.kept(others), *self._cache.not_dropped(known)]
        except ShardError:  # whoever reads a batch gets it
            return []

    def has_all(self) -> bool:
        """See `Fetcher.has_all`."""
        with self._lock:
            pieces = self._announced[-1].pieces if self._announced else []
            return bool(pieces) and self._there.issuperset(pieces)

    def has_lacked(self) -> bool:
        """See `Fetcher.has_lacked`."""
        with self._lock:
            return bool(self._announced) and self._announced[-1] is self._lacking

    def has(self, pieces: Sequence[Piece]) -> bool:
        """See `Fetcher.has`."""
        parts = AnnouncedPieces(pieces).pieces
        return len(self._kept(parts, ())) == len(parts)

    def _begin(self, announced: AnnouncedPieces) -> None:
        with self._lock:
            known = self._there | self._under_way.keys()
            missing = [piece for piece in announced.pieces if piece not in known]
            self._left_to_others.clear()  # those that are still wanted are missing
            self._threads.replace_soon(partial(self._fetch_piece, piece) for piece in missing)

    def read(self, reads: Sequence[ObjectReads]) -> list[list[int]]:
        """See `Fetcher.read`."""
        wanted = sum(sum(each.stops) - sum(each.starts) for each in reads)
        self._patience.asked(wanted, self._now())
        try:
            return self._read(reads, wanted)
        finally:
            self._patience.read(self._now())
            self._begin_announced()

    def drop_unlike(self, fetched: Segment) -> None:
        """See `Fetcher.drop_unlike`."""
        self._open.drop_unlike(fetched, tuple(self._announced))

    def _begin_announced(self) -> None:
        """Begin what was announced before the first batch, behind the requests of that batch."""
        if not self._has_read.is_set():
            self._has_read.set()
            for announced in tuple(self._announced)[-1:]:
                self._begin(announced)

    def _read(self, reads: Sequence[ObjectReads], wanted: int) -> list[list[int]]:
        known = tuple(self._announced)
        segments = self._open.fill(reads, known)
        for announced in known:
            segments = [
                part
                for segment in segments
                for part in (announced.cut(segment) if segment.piece is None else [segment])
            ]
        missing = [segment for segment in segments if not self._open.has_filled(segment)]
        began, sizes, lacked = self._now(), dict[str, int](), 0
        if missing:
            self._lacking = known[-1] if known else None
            with Fetching():
                lacked = self._fill(missing, sizes)
        waited_s = self._now() - began if missing else 0.0
        self._count(read_bytes=wanted, cached_bytes=wanted - lacked, waited_s=waited_s)
        return [lengths_read(each, sizes.get(each.url)) for each in reads]

    def _fill(self, missing: list[Segment], sizes: dict[str, int]) -> int:
        """Wait for what is missing or fetch it; how many of its bytes were fetched exactly."""
        if self._patience.is_worth_it(missing):
            missing = self._waited_for(missing)
        coming, at_once = self._shared_out(missing)
        self._fetch_exactly(at_once, sizes)
        late = [segment for piece in coming for segment in self._late(piece)]
        self._fetch_exactly(late, sizes)
        return bytes_of_segments(at_once) + bytes_of_segments(late)

    def stop(self) -> None:
        """Begin nothing new."""
        self._closed.set()
        with self._ended:
            self._ended.notify_all()
        self._threads.stop()

    def close(self) -> None:
        """See `Fetcher.close`."""
        self.stop()
        until = perf_counter() + _END_S
        while True:
            self._transport.close()  # again, as a thread may just have opened a connection
            if self._threads.join(_END_S / 10) or perf_counter() >= until:
                break
        self._open.close()
        self._cache.close()

    def _fetch_piece(self, piece: Piece) -> None:
        with self._ended:  # of the lock
            self._ended.wait_for(lambda: self._has_room_for(piece))
            if piece in self._under_way or piece in self._there or self._closed.is_set():
                return  # it was begun while it was announced once more
            under_way = self._under_way[piece] = UnderWay(self._now())
            self._bytes_under_way += piece.size
        try:
            opened = under_way.opened = self._loaded(piece)
        except Exception as error:  # noqa: BLE001 who reads these bytes gets an error of its own
            _log.debug("a piece of %s is not fetched ahead: %s", redact(piece.url), error)
            with self._lock:
                self._coming.discard(piece)
            return
        finally:
            with self._ended:
                del self._under_way[piece]
                self._bytes_under_way -= piece.size
                self._ended.notify_all()
                if under_way.opened is not None and under_way.opened.file is not None:
                    self._there.add(piece)
                    self._coming.discard(piece)
            under_way.ended.set()
        if opened is None:
            self._leave_to_others(piece)
        elif opened.file is None:
            # There is no room, and what is fetched now would be fetched again by who needs it.
            with self._lock:
                self._coming = set[Piece]()
            self._threads.replace_soon(())

    def _loaded(self, piece: Piece) -> OpenPiece | None:
        """The piece from the cache, or fetched; None if another process fetches it."""
        fetched: list[bytearray] = []

        def fetch() -> bytearray:
            fetched.append(self._piece(piece))
            return fetched[0]

        opened = self._cache.load(piece, fetch)
        if opened is not None and opened.file is not None:
            for data in fetched:  # it is in the file now
                self._transport.take_back(data)
        return opened

    def _has_room_for(self, piece: Piece) -> bool:
        """Whether so many more bytes may be under way; called with the lock."""
        under_way = self._bytes_under_way
        return not under_way or under_way + piece.size <= _MOST_AHEAD or self._closed.is_set()

    def _leave_to_others(self, piece: Piece) -> None:
        """Look for the piece again behind all others, as the process that fetches it may end."""
        with self._lock:
            self._left_to_others.append(piece)
            if len(self._left_to_others) == 1:  # one thread looks for all that are left until then
                self._threads.add_soon(self._look_again)

    def _look_again(self) -> None:
        self._closed.wait(_LOOK_AGAIN_S)
        with self._lock:
            pieces, self._left_to_others = self._left_to_others, []
        for piece in pieces:
            self._threads.add_soon(partial(self._fetch_piece, piece))

    def _piece(self, piece: Piece) -> bytearray:
        body = self._body(piece.url, piece.version, piece.begin, piece.end, is_piece=True)
        seconds = _PIECE_S + _LATENCIES * self._link.latency_s
        at_once = int(seconds * self._link.pieces_bytes_per_s / piece.size)
        self._threads.limit_soon(max(_LEAST_AHEAD, min(at_once, _MOST_AHEAD // piece.size)))
        self._count(ahead_requests=1)
        return body.data

    def _waited_for(self, missing: list[Segment]) -> list[Segment]:
        """What is still missing when no more pieces of it come."""
        began = last = perf_counter()
        of_pieces: dict[Piece, UnderWay] = {}
        while coming := {each.piece for each in missing if each.piece in self._coming}:
            here = ((piece, self._under_way.get(piece)) for piece in coming if piece is not None)
            of_pieces |= {piece: under_way for piece, under_way in here if under_way is not None}
            is_late = perf_counter() - last > self._patience.seconds_for(missing)
            if is_late or last - began > LONGEST_S or self._closed.wait(_LOOK_S):
                break
            raise_if_cancelled()
            left = [each for each in missing if not self._is_filled(each, of_pieces)]
            last = perf_counter() if len(left) < len(missing) else last
            missing = left
        return [each for each in missing if not self._is_filled(each, of_pieces)]

    def _is_filled(self, segment: Segment, of_pieces: dict[Piece, UnderWay]) -> bool:
        """Whether its piece is there now; one that cannot be kept is with who fetched it."""
        under_way = of_pieces.get(segment.piece) if segment.piece is not None else None
        opened = None if under_way is None else under_way.opened
        if opened is not None:
            return self._open.has_filled_from(opened, segment)
        return self._open.has_filled(segment)

    def _shared_out(self, missing: Iterable[Segment]) -> tuple[list[Coming], list[Segment]]:
        """What comes with its piece in time, and what is better fetched exactly."""
        coming: list[Coming] = []
        at_once: list[Segment] = []
        of_pieces: defaultdict[Piece | None, list[Segment]] = defaultdict(list)
        for segment in missing:
            of_pieces[segment.piece].append(segment)
        for piece, segments in of_pieces.items():
            under_way = None if piece is None else self._under_way.get(piece)
            if piece is None or under_way is None:
                at_once += segments
                continue
            exact_s = self._link.seconds_of(bytes_of_segments(segments))
            if under_way.began + self._link.seconds_of(piece.size) <= self._now() + exact_s:
                coming.append(Coming(under_way, segments, perf_counter() + exact_s))
            else:
                at_once += segments
        return coming, at_once

    def _late(self, coming: Coming) -> list[Segment]:
        """What did not come in time after all."""
        under_way, segments, until = coming
        wait_for_event(under_way.ended, until - perf_counter())
        opened = under_way.opened
        if opened is None:
            return segments
        return [each for each in segments if not self._open.has_filled_from(opened, each)]

    def _fetch_exactly(self, segments: Iterable[Segment], sizes: dict[str, int]) -> None:
        """Fetch these bytes, with gaps that cost less than requests; sizes of objects are noted."""
        of_objects: defaultdict[tuple[str, str | None], list[Segment]] = defaultdict(list)
        for segment in segments:
            of_objects[segment.url, segment.version].append(segment)
        memory = BatchMemory()
        tasks = [
            partial(self._fetch_range, part, group, memory, sizes)
            for wanted in of_objects.values()
            for begin, end, group in joined_segments(wanted, self._link.gap)
            for part in parts_of(begin, end)
        ]
        try:
            self._threads.run(tasks, self._begin_announced)
        finally:
            memory.take_back()

    def _fetch_range(
        self,
        span: tuple[int, int],
        segments: Sequence[Segment],
        memory: "BatchMemory",
        sizes: dict[str, int],
    ) -> None:
        url, version = segments[0].url, segments[0].version
        body = self._body(url, version, *span)
        sizes[url] = body.size
        memory.fill(segments, span[0], body.data)
        self._count(exact_bytes=len(body.data), exact_requests=1)
        self._transport.take_back(body.data)

    def _body(
        self, url: str, version: str | None, begin: int, end: int, *, is_piece: bool = False
    ) -> Body:
        with self._lock:
            self._requests += 1
        began = self._now()
        try:
            body = self._transport.read(url, begin, end, version)
        finally:
            with self._lock:
                at_once, self._requests = self._requests, self._requests - 1
        self._link.count(len(body.data), self._now() - began, at_once, is_piece=is_piece)
        return body

    def _count(self, **more: float) -> None:
        with self._lock:
            for name, number in more.items():
                setattr(self.counts, name, getattr(self.counts, name) + number)
