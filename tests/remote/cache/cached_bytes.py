"""Objects whose bytes are known without being stored, and caches of them, for tests."""

from contextlib import suppress
from pathlib import Path

from lightning_shards.remote.cache import CacheNeed, PieceCache
from lightning_shards.remote.pieces import OpenPiece, Piece
from lightning_shards.shards.private_files import CacheFolder

SIZE = 1000  # of each piece
FILE = SIZE + 64


def piece_number(number: int, version: str = '"v"', bucket: str = "bucket") -> Piece:
    """A piece; 16 of them are in one object."""
    shard, part = divmod(number, 16)
    return Piece(f"s3://{bucket}/{shard}.tar", version, part * SIZE, (part + 1) * SIZE)


def bytes_of(piece: Piece) -> bytes:
    """What such an object holds there."""
    pattern = f"{piece.url} {piece.version} {piece.begin} ".encode()
    return (pattern * (piece.size // len(pattern) + 1))[: piece.size]


def make_need(pieces: int, **others: int) -> CacheNeed:
    """A need with a limit of so many pieces."""
    given = {"limit_bytes": pieces * FILE, "reads_bytes": 10 * pieces * FILE}
    return CacheNeed(**{"data": "data", "working_set_bytes": 2 * FILE} | given | others)


def make_cache(folder: Path, need: CacheNeed, run: str = "run") -> PieceCache:
    """A cache as one process of a run sees it."""
    return PieceCache(CacheFolder(folder), run, need)


def bytes_in(opened: OpenPiece, start: int, stop: int) -> bytes:
    """The bytes at these offsets of the object."""
    data = bytearray(stop - start)
    opened.read_into(start, memoryview(data))
    return bytes(data)


def is_kept(cache: PieceCache, piece: Piece) -> bool:
    """Load a piece; whether it is in the cache, with the right bytes."""
    if not cache.load(piece, lambda: [bytes_of(piece)]):
        return False
    opened = cache.open(piece)
    assert opened is None or bytes_in(opened, *piece[2:]) == bytes_of(piece)
    return opened is not None


def disk_bytes(folder: Path) -> int:
    """What pieces take on the disk, those that are being written, too."""
    total = 0
    for path in folder.glob("pieces/*/*[0-9]-*"):
        with suppress(FileNotFoundError):  # another process has dropped or renamed it
            total += path.stat().st_size
    return total
