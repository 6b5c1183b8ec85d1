"""The pieces that one process has open, and what it reads from them."""

import logging
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Final
from weakref import WeakSet

from lightning_shards.shards.remote.cache.piece_cache import PieceCache
from lightning_shards.shards.remote.cache.piece_files import OpenPiece, Piece
from lightning_shards.shards.remote.fetching.segments import (
    AnnouncedPieces,
    ObjectReads,
    PiecesOfObject,
    Segment,
)
from lightning_shards.system.open_files import share_of_files

_MOST_OPEN: Final = 400
"""A block has pieces in some 256 runs. Each takes a file descriptor, of which a process has 1,024
by default."""

_IN_USE: Final = WeakSet["OpenPieces"]()
"""Those of this process, which share its descriptors: each worker that is a thread has its own."""

_log = logging.getLogger(__name__)


class OpenPieces:
    """Opens pieces of the cache when they are first read, and closes the least recently used ones.

    Args:
        cache: Where they are.
    """

    def __init__(self, cache: PieceCache) -> None:
        self._cache = cache
        self._open: OrderedDict[Piece, OpenPiece] = OrderedDict()
        self._lock = threading.Lock()

    def fill(
        self, reads: Sequence[ObjectReads], announced: Sequence[AnnouncedPieces]
    ) -> list[Segment]:
        """Read all ranges that lie in one piece of the cache each.

        Returns:
            The other ranges that have a byte.

        Raises:
            FileAccessError: The cache folder is another user's, or others may write to it.
        """
        left: list[Segment] = []
        for ranges in reads:
            found = (pieces.of_object(ranges.url, ranges.version) for pieces in announced)
            left += self._left_of(ranges, list(filter(None, found)))
        return left

    def has_filled(self, segment: Segment) -> bool:
        """Read the bytes of a segment from its piece, if that is in the cache.

        Raises:
            FileAccessError: The cache folder is another user's, or others may write to it.
        """
        piece = segment.piece
        opened = None if piece is None else self._opened(piece)
        if piece is None or opened is None:
            return False
        return self._is_read(opened, segment.begin, segment.into, piece)

    def close(self) -> None:
        """Close all; those that are being read are closed when that is done."""
        with self._lock:
            self._open.clear()
            _IN_USE.discard(self)

    def _left_of(self, ranges: ObjectReads, known: Sequence[PiecesOfObject]) -> Iterator[Segment]:
        """The ranges that are not read, as there is no piece for them."""
        url, version, starts, stops, into = ranges
        place, piece, opened = 0, None, None
        for start, stop in zip(starts, stops, strict=True):
            memory = into[place : place + max(0, stop - start)]
            place += len(memory)
            is_read = not memory
            for begins, pieces in known if memory else ():
                holder = pieces[bisect_right(begins, start) - 1]
                if holder.begin <= start and stop <= holder.end:
                    if holder is not piece:
                        piece, opened = holder, self._opened(holder)
                    is_read = opened is not None and self._is_read(opened, start, memory, holder)
                    break
            if not is_read:
                yield Segment(url, version, start, stop, memory)

    def _is_read(self, opened: OpenPiece, start: int, memory: memoryview, piece: Piece) -> bool:
        try:
            opened.read_into(start, memory)
        except OSError as error:
            _log.warning(
                "the disk of the cache does not give %s: %s; these bytes are fetched again: check "
                "that disk, or name another cache_dir",
                error.filename,
                error.strerror,
            )
            with self._lock:
                self._open.pop(piece, None)
            return False
        return True

    def _opened(self, piece: Piece) -> OpenPiece | None:
        with self._lock:
            opened = self._open.get(piece)
            if opened is not None:
                self._open.move_to_end(piece)
                return opened
        opened = self._cache.open(piece)
        if opened is not None:
            with self._lock:
                self._open[piece] = opened
                _IN_USE.add(self)
                most = min(_MOST_OPEN, share_of_files(len(_IN_USE)))
                while len(self._open) > max(1, most):
                    self._open.popitem(last=False)  # its file is closed with its last reader
        return opened
