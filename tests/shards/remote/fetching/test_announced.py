"""Which announced pieces hold the bytes that a batch wants."""

from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_shards.shards.remote.cache.piece_files import Piece
from lightning_shards.shards.remote.open_pieces import AnnouncedPieces, Segment

SIZE = 60
CUTS = st.lists(st.integers(0, SIZE), unique=True, max_size=12).map(sorted)
SPANS = st.tuples(st.integers(0, SIZE), st.integers(0, SIZE)).map(sorted)


@settings(max_examples=50)
@given(CUTS, SPANS, st.randoms())
def test_a_segment_is_cut_where_pieces_begin_and_end(cuts, span, random):
    pieces = [Piece("u", "v", *cuts[i : i + 2]) for i in range(0, len(cuts) - 1, 2)]
    held = {offset: piece for piece in pieces for offset in range(piece.begin, piece.end)}
    random.shuffle(pieces)
    memory = memoryview(bytearray(SIZE))[span[0] : span[1]]
    parts = list(AnnouncedPieces(pieces).cut(Segment("u", "v", *span, memory)))
    seen = {offset: part.piece for part in parts for offset in range(part.begin, part.end)}
    assert seen == {offset: held.get(offset) for offset in range(*span)}
    for part in parts:
        part.into[:] = bytes(range(part.begin, part.end))
    assert bytes(memory) == bytes(range(*span))


def test_pieces_of_another_version_or_object_hold_nothing():
    announced = AnnouncedPieces([Piece("u", "v", 0, 9), Piece("w", "v", 0, 9)])
    memory = memoryview(bytearray(4))
    for url, version in (("u", "other"), ("x", "v"), ("u", None)):
        (part,) = announced.cut(Segment(url, version, 2, 6, memory))
        assert part.piece is None


def test_large_pieces_are_cut_into_parts_of_at_most_8_mib():
    whole = Piece("u", "v", 5, 5 + 20 * 2**20)
    parts = AnnouncedPieces([whole, Piece("w", "v", 0, 3)]).pieces
    assert [part.begin for part in parts[1:3]] == [part.end for part in parts[:2]]
    assert (parts[0].begin, parts[2].end) == (whole.begin, whole.end)
    assert max(part.size for part in parts) <= 8 * 2**20
    assert parts[3] == Piece("w", "v", 0, 3)
