"""Objects whose bytes are known without being stored, and caches of them, for tests."""

from contextlib import suppress
from pathlib import Path

from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.remote.cache.limits import CacheNeed
from lightning_shards.shards.remote.cache.piece_cache import PieceCache
from lightning_shards.shards.remote.cache.piece_files import Piece, groups_of

SIZE = 1000  # of each piece
FILE = SIZE + 64


def piece_number(
    number: int, version: str = '"v"', size: int = SIZE, bucket: str = "bucket"
) -> Piece:
    """A piece; 16 of them are in one object."""
    shard, part = divmod(number, 16)
    return Piece(f"s3://{bucket}/{shard}.tar", version, part * SIZE, part * SIZE + size)


def bytes_of(piece: Piece) -> bytes:
    """What such an object holds there."""
    pattern = f"{piece.url} {piece.version} {piece.begin} ".encode()
    return (pattern * (piece.size // len(pattern) + 1))[: piece.size]


def make_need(pieces: int, **others: int) -> CacheNeed:
    """A need with a limit of so many pieces."""
    given = {"limit_bytes": pieces * FILE, "reads_bytes": 10 * pieces * FILE}
    return CacheNeed(**{"data": "data", "working_set_bytes": 2 * FILE} | given | others)


def reading(need: CacheNeed, bucket: str, begun_ns: int = 0) -> CacheNeed:
    """The same need of a run that reads the objects of this bucket, and began then."""
    groups = groups_of([piece_number(0, bucket=bucket).url])
    return need._replace(data=bucket, groups=groups, begun_ns=begun_ns)


def make_cache(folder: Path, need: CacheNeed, run: str = "run") -> PieceCache:
    """A cache as one process of a run sees it."""
    return PieceCache(CacheFolder(folder), folder / "pieces", run, need)


def load(cache: PieceCache, piece: Piece) -> bytes:
    """The bytes of a piece by way of the cache."""
    loaded = cache.load(piece, lambda: bytes_of(piece))
    assert loaded is not None
    try:
        return loaded.read(piece.begin, piece.end)
    finally:
        loaded.close()


def disk_bytes(folder: Path) -> int:
    """What pieces take on the disk, those that are being written, too."""
    total = 0
    for path in folder.glob("pieces/*/*[0-9]-*"):
        with suppress(FileNotFoundError):  # another process has dropped or renamed it
            total += path.stat().st_size
    return total
