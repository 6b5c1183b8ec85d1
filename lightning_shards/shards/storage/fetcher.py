"""The fetcher: pieces that are needed soon, and exactly the bytes that a batch lacks.

Pieces that were announced are fetched by a few threads, in the order given, and go to the cache of
the node, where every process finds them. A batch reads from pieces what is there. It waits for
those that are on their way, but not for long: what it still lacks then is fetched by requests for
these bytes alone, so a process that lags or ends delays no other one by more than that.
"""

import logging
import os
import threading
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Final

from lightning_shards.errors import ShardError, StorageError
from lightning_shards.shards.remote.byte_ranges import parts_of
from lightning_shards.shards.remote.cache import PieceCache
from lightning_shards.shards.remote.pieces import Piece
from lightning_shards.shards.remote.request_threads import RequestThreads
from lightning_shards.shards.remote.transport import Transport
from lightning_shards.shards.storage.open_pieces import (
    AnnouncedPieces,
    BatchMemory,
    ObjectReads,
    OpenPieces,
    Segment,
    bytes_of_segments,
    joined_segments,
    lengths_read,
)
from lightning_shards.shards.urls import redact
from lightning_shards.system.process import Fetching, raise_if_cancelled, result_of

WAIT_S: Final = 2.0
"""A batch waits so long for pieces that are on their way, and then fetches what it lacks exactly.
Where the network is what everything waits for, exact requests would take it from the pieces."""

_REMEMBERED: Final = 3
"""Announcements whose pieces are looked for: batches are read a little behind the last one."""

_LOOK_AGAIN_S: Final = 0.1
"""How long one thread that has nothing else to do waits before all pieces are looked for again
that other processes fetched at the last look."""

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
        self, transport: Transport, cache: PieceCache, threads: int, wait_s: float
    ) -> None:
        self.counts = FetchCounts()
        self._transport, self._cache, self._wait_s = transport, cache, wait_s
        self._most_ahead = max(1, threads - threads // _LEFT_FOR_BATCHES)
        self._exact, self._ahead = RequestThreads(threads + 1), RequestThreads(self._most_ahead)
        self._open = OpenPieces(cache)
        self._announced: deque[AnnouncedPieces] = deque(maxlen=_REMEMBERED)
        self._there, self._coming = set[Piece](), set[Piece]()  # of those announced last
        self._soon, self._left_to_others = deque[Piece](), deque[Piece]()
        self._under_way, self._bytes_under_way, self._num_ahead = set[Piece](), 0, 0
        self._has_read = self._is_closed = self._is_looking = False
        self._changed = threading.Condition()

    def fetch_ahead(self, pieces: Sequence[Piece]) -> None:
        """See `Fetcher.fetch_ahead`."""
        announced = AnnouncedPieces(pieces)
        there = set(self._kept(announced.pieces))
        with self._changed:
            self._announced.append(announced)
            self._coming = (set(announced.pieces) | self._coming & self._under_way) - there
            self._there = there
            self._left_to_others.clear()
            self._soon = deque(piece for piece in announced.pieces if piece in self._coming)
        if self._has_read:
            self._begin()

    def has_all(self) -> bool:
        """See `Fetcher.has_all`."""
        with self._changed:
            pieces = self._announced[-1].pieces if self._announced else []
            return bool(pieces) and self._there.issuperset(pieces)

    def read(self, reads: Sequence[ObjectReads]) -> list[list[int]]:
        """See `Fetcher.read`."""
        known = tuple(self._announced)
        segments = self._open.fill(reads, known)
        for announced in known:
            segments = [
                part
                for segment in segments
                for part in (announced.cut(segment) if segment.piece is None else [segment])
            ]
        missing = [segment for segment in segments if not self._open.has_filled(segment)]
        began, sizes, lacked = perf_counter(), dict[str, int](), 0
        try:
            if missing:
                with Fetching():
                    missing = self._waited_for(missing) if self._has_read else missing
                    self._fetch_exactly(missing, sizes)
                lacked = bytes_of_segments(missing)
        finally:
            self._begin()
        wanted = sum(sum(each.stops) - sum(each.starts) for each in reads)
        waited_s = perf_counter() - began if sizes or lacked else 0.0
        self._count(read_bytes=wanted, cached_bytes=wanted - lacked, waited_s=waited_s)
        return [lengths_read(each, sizes.get(each.url)) for each in reads]

    def stop(self) -> None:
        """Begin nothing new."""
        with self._changed:
            self._is_closed = True
            self._soon.clear()
            self._left_to_others.clear()
            self._coming = set[Piece]()
            self._changed.notify_all()
        self._ahead.close()
        self._exact.close()

    def close(self) -> None:
        """See `Fetcher.close`."""
        self.stop()
        self._transport.close()
        self._open.close()
        self._cache.close()

    def _kept(self, pieces: Iterable[Piece]) -> list[Piece]:
        """Those that are in the cache."""
        try:
            return [piece for piece in pieces if self._cache.has(piece)]
        except ShardError:  # whoever reads a batch gets it
            return []

    def _begin(self) -> None:
        """Begin what was announced, behind the requests of the first batch."""
        with self._changed:
            self._has_read = True
            missing = min(len(self._soon), self._most_ahead - self._num_ahead)
            self._num_ahead += missing
        for _ in range(missing):
            self._ahead.begin(self._work).add_done_callback(self._end_work)

    def _end_work(self, _: "Future[None]") -> None:
        with self._changed:
            self._num_ahead -= 1

    def _work(self) -> None:
        while (piece := self._next()) is not None:
            self._fetch_piece(piece)

    def _look_again(self) -> None:
        """Let one thread look for what was left to other processes, which may have ended."""
        with self._changed:
            if self._soon or not self._left_to_others or self._is_looking:
                return
            self._is_looking = True
            self._changed.wait_for(lambda: self._is_closed, _LOOK_AGAIN_S)
            self._is_looking = False
            self._soon.extend(self._left_to_others)
            self._left_to_others.clear()
        self._begin()

    def _next(self) -> Piece | None:
        """The next piece that this process is to fetch; None if there is nothing to do."""
        self._look_again()
        with self._changed:
            while self._soon:
                if not self._has_room_for(self._soon[0]):
                    self._changed.wait()
                    continue
                piece = self._soon.popleft()
                if piece not in self._under_way and piece not in self._there:
                    self._under_way.add(piece)
                    self._bytes_under_way += piece.size
                    return piece
        return None

    def _has_room_for(self, piece: Piece) -> bool:
        """Whether so many more bytes may be under way; called with the lock."""
        under_way = self._bytes_under_way
        return not under_way or under_way + piece.size <= _MOST_AHEAD

    def _fetch_piece(self, piece: Piece) -> None:
        is_kept, is_failed = None, True
        try:
            is_kept = self._cache.load(piece, partial(self._piece, piece))
            is_failed = False
        except Exception as error:  # noqa: BLE001 who reads these bytes gets an error of its own
            _log.debug("a piece of %s is not fetched ahead: %s", redact(piece.url), error)
        with self._changed:
            self._under_way.discard(piece)
            self._bytes_under_way -= piece.size
            self._note(piece, is_kept, is_failed=is_failed)
            self._changed.notify_all()

    def _note(self, piece: Piece, is_kept: bool | None, *, is_failed: bool) -> None:
        """Learn what became of a piece; called with the lock."""
        if is_failed:
            self._coming.discard(piece)
        elif is_kept is None:
            if piece in self._coming:
                self._left_to_others.append(piece)
        elif not is_kept:
            # There is no room, and what is fetched now would be fetched again by who needs it.
            self._coming = set[Piece]()
            self._soon.clear()
        else:
            self._there.add(piece)
            self._coming.discard(piece)

    def _piece(self, piece: Piece) -> bytearray:
        body = self._transport.read(piece.url, piece.begin, piece.end, piece.version)
        self._count(ahead_requests=1)
        return body.data

    def _waited_for(self, missing: list[Segment]) -> list[Segment]:
        """What is still missing when none of it is on its way, or it was waited for long enough."""
        until = perf_counter() + self._wait_s
        while any(each.piece in self._coming for each in missing) and perf_counter() < until:
            with self._changed:
                self._changed.wait(_LOOK_S)
            raise_if_cancelled()
            missing = [each for each in missing if not self._open.has_filled(each)]
        return [each for each in missing if not self._open.has_filled(each)]

    def _fetch_exactly(self, segments: Iterable[Segment], sizes: dict[str, int]) -> None:
        """Fetch these bytes, with gaps that cost less than requests; sizes of objects are noted."""
        of_objects: defaultdict[tuple[str, str | None], list[Segment]] = defaultdict(list)
        for segment in segments:
            of_objects[segment.url, segment.version].append(segment)
        if self._is_closed:
            raise StorageError(
                "the storage was closed while a batch was read; close a stream only after its last "
                "batch"
            )
        memory = BatchMemory()
        begun = [
            self._exact.begin(partial(self._fetch_range, part, group, memory, sizes))
            for wanted in of_objects.values()
            for begin, end, group in joined_segments(wanted, _GAP)
            for part in parts_of(begin, end)
        ]
        self._begin()
        try:
            for future in begun:
                result_of(future)
        finally:
            memory.take_back()
            for future in begun:
                future.cancel()

    def _fetch_range(
        self,
        span: tuple[int, int],
        segments: Sequence[Segment],
        memory: "BatchMemory",
        sizes: dict[str, int],
    ) -> None:
        url, version = segments[0].url, segments[0].version
        body = self._transport.read(url, *span, version)
        sizes[url] = body.size
        memory.fill(segments, span[0], body.data)
        self._count(exact_bytes=len(body.data), exact_requests=1)

    def _count(self, **more: float) -> None:
        with self._changed:
            for name, number in more.items():
                setattr(self.counts, name, getattr(self.counts, name) + number)


class Fetcher:
    """Reads remote objects by way of the cache; any thread may call any method.

    Threads are started when there is something to fetch, once more in a process that is forked, and
    a pickled fetcher is what it was made of. Transport and cache are closed with it, so no other
    one may have the same transport.

    Args:
        transport: What fetches; at least `threads` + 1 of its requests may be under way.
        cache: Where pieces are kept.
        threads: Requests at once, each of 8 MiB at most, beside that of a thread that reads.
        wait_s: Seconds for which a batch waits for pieces that are on their way.
    """

    def __init__(
        self,
        transport: Transport,
        cache: PieceCache,
        *,
        threads: int,
        wait_s: float = WAIT_S,
    ) -> None:
        self._transport, self._cache = transport, cache
        self._threads, self._wait_s = threads, wait_s
        self._made: dict[int, ProcessFetcher] = {}

    def __reduce__(self) -> tuple[Callable[..., "Fetcher"], tuple[object, ...]]:
        """Pickle what it was made of."""
        settings = {"threads": self._threads, "wait_s": self._wait_s}
        return partial(Fetcher, **settings), (self._transport, self._cache)

    @property
    def counts(self) -> FetchCounts:
        """What this process read and fetched since the fetcher was first used or last closed."""
        return self._here().counts

    def fetch_ahead(self, pieces: Sequence[Piece]) -> None:
        """Fetch these pieces ahead, in this order, and no others that were announced before.

        It begins when all requests of the first batch have been made. Pieces that are there cost
        next to nothing, and one that another process fetches at the moment is left to it as long
        as it runs. Errors are not raised: whoever reads the bytes gets them.

        Args:
            pieces: What the node needs of this block and the next, with what this process is to
                fetch before what others are to fetch.
        """
        self._here().fetch_ahead(pieces)

    def has_all(self) -> bool:
        """Whether pieces were announced, and all that were announced last are in the cache."""
        return self._here().has_all()

    def read(self, reads: Sequence[ObjectReads]) -> list[list[int]]:
        """Read all ranges of a batch at once; nothing is written to their memory after the call.

        Returns:
            For each object and each of its ranges, how many bytes there are: fewer than asked for
            where the object ends.

        Raises:
            ShardError: As of `Transport.read`.
            FileAccessError: The cache folder is another user's, or others may write to it.
        """
        return self._here().read(reads)

    def close(self) -> None:
        """End what this process fetches. Reads in other threads end with a StorageError.

        A later call begins again.
        """
        here = self._made.pop(os.getpid(), None)
        if here is not None:
            here.close()

    def _here(self) -> "ProcessFetcher":
        """What this process has; `setdefault` needs no lock, which a fork could inherit held."""
        pid = os.getpid()
        here = self._made.get(pid)
        if here is None:
            made = ProcessFetcher(self._transport, self._cache, self._threads, self._wait_s)
            here = self._made.setdefault(pid, made)
            if here is made:
                weakref.finalize(self, _stop_in, pid, here).atexit = False
        return here


def _stop_in(pid: int, here: "ProcessFetcher") -> None:
    """Stop it where it was made: in a fork, its locks may be held for ever."""
    if os.getpid() == pid:
        here.stop()
