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
