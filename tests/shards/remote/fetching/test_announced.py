"""Which announced pieces hold the bytes that a batch wants."""

from lightning_shards.shards.remote.pieces import Piece
from lightning_shards.shards.storage.open_pieces import AnnouncedPieces, Segment

SIZE = 60


def test_pieces_of_another_version_or_object_hold_nothing():
    announced = AnnouncedPieces([Piece("u", "v", 0, 9), Piece("w", "v", 0, 9)])
    memory = memoryview(bytearray(4))
    for url, version in (("u", "other"), ("x", "v"), ("u", None)):
        (part,) = announced.cut(Segment(url, version, 2, 6, memory))
        assert part.piece is None
