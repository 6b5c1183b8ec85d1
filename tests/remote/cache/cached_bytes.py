"""Objects whose bytes are known without being stored, and caches of them, for tests."""

from contextlib import suppress
from pathlib import Path

from lightning_shards.remote.cache import CacheNeed, PieceCache
from lightning_shards.remote.pieces import Piece
from lightning_shards.shards.files import CacheFolder

SIZE = 1000  # of each piece
FILE = SIZE + 64


def piece_number(number: int) -> Piece:
    """A piece; 16 of them are in one object."""
    shard, part = divmod(number, 16)
    return Piece(f"s3://bucket/{shard}.tar", part * SIZE, (part + 1) * SIZE, (16 * SIZE, 7))


def bytes_of(piece: Piece) -> bytes:
    """What such an object holds there."""
    pattern = f"{piece.url} {piece.begin} ".encode()
    return (pattern * (piece.size // len(pattern) + 1))[: piece.size]


def make_need(pieces: int, **others: int) -> CacheNeed:
    """A need with a limit of so many pieces."""
    given = {"limit_bytes": pieces * FILE, "reads_bytes": 10 * pieces * FILE}
    return CacheNeed(**{"data": "data", "working_set_bytes": 2 * FILE} | given | others)


def make_cache(folder: Path, need: CacheNeed, run: str = "run") -> PieceCache:
    """A cache as one process of a run sees it."""
    return PieceCache(CacheFolder(folder), run, need)


def is_there(cache: PieceCache, piece: Piece) -> bool:
    """Whether a piece is in the cache, with the right bytes."""
    data = bytearray(piece.size)
    has_piece = cache.read(piece, [(piece.begin, memoryview(data))])
    assert not has_piece or data == bytes_of(piece)
    return has_piece


def is_kept(cache: PieceCache, piece: Piece) -> bool:
    """Load a piece; whether it is in the cache, with the right bytes."""
    return bool(cache.load(piece, [bytes_of(piece)])) and is_there(cache, piece)


def disk_bytes(folder: Path) -> int:
    """What pieces take on the disk, those that are being written, too."""
    total = 0
    for path in folder.glob("pieces/*/*[0-9]-*"):
        with suppress(FileNotFoundError):  # another process has dropped or renamed it
            total += path.stat().st_size
    return total
