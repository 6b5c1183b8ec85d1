"""The pieces that one process has open, and what its batches read from them or have fetched."""

import logging
import threading
from bisect import bisect_right
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice, pairwise
from typing import Final, NamedTuple
from weakref import WeakSet

import numpy as np

from lightning_shards.shards.remote.byte_ranges import MOST_IN_ONE_REQUEST, joined, parts_of
from lightning_shards.shards.remote.cache import PieceCache
from lightning_shards.shards.remote.pieces import OpenPiece, Piece
from lightning_shards.system.process import share_of_files


class ObjectReads(NamedTuple):
    """Ranges of bytes of one version of an object.

    Attributes:
        url: The object.
        version: Its version, as its store names it; None: any one, which is never in the cache.
        starts: Offset of the first byte of each range.
        stops: Offset behind its last byte.
        into: Writable memory for the ranges, one after the other.
    """

    url: str
    version: str | None
    starts: Sequence[int]
    stops: Sequence[int]
    into: memoryview


class Segment(NamedTuple):
    """Bytes of an object that a batch wants, and the memory for them.

    Attributes:
        url: The object.
        version: Its version; None: any one.
        begin: Offset of the first byte.
        end: Offset behind the last one.
        into: The memory, of the same length.
        piece: The announced piece that holds them, if there is one.
    """

    url: str
    version: str | None
    begin: int
    end: int
    into: memoryview
    piece: Piece | None = None

    def part(self, begin: int, end: int, piece: Piece | None) -> "Segment":
        """What lies between two offsets of the object."""
        into = self.into[begin - self.begin : end - self.begin]
        return Segment(self.url, self.version, begin, end, into, piece)

    def fill(self, offset: int, data: memoryview) -> None:
        """Take what it wants from the bytes at this offset of the object."""
        begin, end = max(self.begin, offset), min(self.end, offset + len(data))
        if begin < end:
            self.into[begin - self.begin : end - self.begin] = data[begin - offset : end - offset]


class BatchMemory:
    """The memory of a batch, which threads write to until it is taken back."""

    def __init__(self) -> None:
        self._lock, self._is_given = threading.Lock(), True

    def fill(self, segments: Sequence[Segment], offset: int, data: bytearray) -> None:
        """Give each segment what it wants from the bytes at this offset of the object."""
        with self._lock:
            if self._is_given:
                for segment in segments:
                    segment.fill(offset, memoryview(data))

    def take_back(self) -> None:
        """Let nothing be written any more."""
        with self._lock:
            self._is_given = False


def joined_segments(
    segments: list[Segment], gap: int
) -> Iterable[tuple[int, int, Sequence[Segment]]]:
    """Begin and end of what is fetched together of one object, and what is wanted of it."""
    ordered = sorted(segments, key=lambda segment: segment.begin)
    begins = np.array([segment.begin for segment in ordered], np.int64)
    ends = np.array([segment.end for segment in ordered], np.int64)
    ranges = joined(begins, ends, gap)
    cuts = [*ranges.firsts.tolist(), len(ordered)]
    groups = (ordered[first:stop] for first, stop in pairwise(cuts))
    return zip(ranges.begins.tolist(), ranges.ends.tolist(), groups, strict=True)


def lengths_read(reads: ObjectReads, size: int | None) -> list[int]:
    """The bytes of each range that are there; the size is known where an object was asked for."""
    spans = zip(reads.starts, reads.stops, strict=True)
    if size is None:
        return [stop - start for start, stop in spans]
    return [max(0, min(stop, size) - start) for start, stop in spans]


def bytes_of_segments(segments: Iterable[Segment]) -> int:
    """How many bytes they want together."""
    return sum(len(segment.into) for segment in segments)


PiecesOfObject = tuple[list[int], list[Piece]]
"""The first byte of each piece of one object, ascending, and the pieces."""


class AnnouncedPieces:
    """Pieces in the order in which they were announced, those of many bytes cut into parts.

    A part is a piece of its own: it is fetched by one request, together with the other parts, and
    every process cuts the same piece in the same way.

    Args:
        pieces: Pieces of any objects; those of one version of an object are disjoint.

    Attributes:
        pieces: Pieces of 8 MiB at most.
    """

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self.pieces: list[Piece] = []
        by_object: defaultdict[tuple[str, str], dict[int, Piece]] = defaultdict(dict)
        for piece in chain.from_iterable(map(_parts_of_piece, pieces)):
            self.pieces.append(piece)
            in_object = by_object[piece.url, piece.version]
            if in_object.get(piece.begin, piece).end <= piece.end:  # drawn runs may overlap
                in_object[piece.begin] = piece
        self._by_object: dict[tuple[str, str], PiecesOfObject] = {}
        for name, by_begin in by_object.items():
            begins = sorted(by_begin)
            self._by_object[name] = begins, [by_begin[begin] for begin in begins]

    def of_object(self, url: str, version: str | None) -> PiecesOfObject | None:
        """The pieces of one version of an object; None if there are none."""
        return None if version is None else self._by_object.get((url, version))

    def cut(self, segment: Segment) -> Iterator[Segment]:
        """The parts of a segment that lie in one piece each, and those that lie in none."""
        begin, end = segment.begin, segment.end
        begins, pieces = self.of_object(segment.url, segment.version) or ([], [])
        first = max(0, bisect_right(begins, begin) - 1)
        for piece in islice(pieces, first, None):
            if piece.begin >= end or begin >= end:
                break
            if begin < piece.begin:
                yield segment.part(begin, piece.begin, None)
                begin = piece.begin
            if begin < piece.end:
                yield segment.part(begin, min(end, piece.end), piece)
                begin = min(end, piece.end)
        if begin < end:
            yield segment.part(begin, end, None)


def _parts_of_piece(piece: Piece) -> list[Piece]:
    url, version, begin, end = piece
    if 0 < end - begin <= MOST_IN_ONE_REQUEST:
        return [piece]
    return [Piece(url, version, *part) for part in parts_of(begin, end)]


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
