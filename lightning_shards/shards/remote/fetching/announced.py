"""The pieces that were announced: which of them hold the bytes that a batch wants."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import chain, islice

from lightning_shards.shards.remote.byte_ranges import MOST_IN_ONE_REQUEST, parts_of
from lightning_shards.shards.remote.cache.piece_names import Piece
from lightning_shards.shards.remote.fetching.segments import Segment

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
