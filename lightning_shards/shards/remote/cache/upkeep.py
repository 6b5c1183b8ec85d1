"""Looking after the pieces that a node keeps: what there is, and clearing it."""

import os
from collections.abc import Iterable
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from lightning_shards.errors import ConfigError
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.remote.cache.limits import CachedPiece, CacheNeed
from lightning_shards.shards.remote.cache.piece_folder import PieceFolder
from lightning_shards.shards.remote.cache.piece_room import OpenRuns


class CachedObject(NamedTuple):
    """The pieces of one version of a remote shard.

    Attributes:
        name: The hash by which its folder is named; it holds no credential.
        pieces: How many.
        size_bytes: Their bytes on the disk.
    """

    name: str
    pieces: int
    size_bytes: int


class FolderListing(NamedTuple):
    """What is in one folder of pieces.

    Attributes:
        path: The folder.
        objects: The shards of which there are pieces, by name.
        writing_bytes: Bytes of pieces that are being written.
        runs: What the runs need that have the folder open.
    """

    path: Path
    objects: list[CachedObject]
    writing_bytes: int
    runs: list[CacheNeed]

    @property
    def size_bytes(self) -> int:
        """Bytes of all pieces on the disk."""
        return sum(each.size_bytes for each in self.objects)

    @property
    def pieces(self) -> int:
        """The number of pieces."""
        return sum(each.pieces for each in self.objects)


class Freed(NamedTuple):
    """What was removed.

    Attributes:
        pieces: Files.
        size_bytes: Their bytes.
    """

    pieces: int
    size_bytes: int


def piece_folders(cache: CacheFolder) -> list[PieceFolder]:
    """The folders of pieces in a cache folder: of this machine, and of others that share the disk.

    Raises:
        FileAccessError: One belongs to another user, or others may write to it.
    """
    paths = [cache.root / "pieces", *sorted(cache.root.glob("pieces-*"))]
    return [_own(PieceFolder(cache, path)) for path in paths if path.is_dir()]


def list_pieces(folder: PieceFolder) -> FolderListing:
    """What is in a folder, which other processes may be using.

    Raises:
        OSError: It cannot be read.
    """
    runs = OpenRuns(folder)
    needs: list[CacheNeed] = []
    if folder.runs.is_dir():
        runs.remove_ended()
        needs = runs.needs()
    writing = folder.bytes_in_parts()
    by_object = groupby(sorted(folder.pieces()), lambda piece: os.path.dirname(piece.path))  # noqa: PTH120 a string
    objects = [_object(Path(path).name, pieces) for path, pieces in by_object]
    return FolderListing(folder.path, objects, writing, needs)


def clear_pieces(folder: PieceFolder, *, force: bool = False) -> Freed:
    """Remove all pieces.

    Args:
        folder: The folder.
        force: Also where runs have it open: they fetch again what they need again.

    Raises:
        ConfigError: Runs have it open.
        OSError: A piece cannot be removed.
    """
    if not force and list_pieces(folder).runs:
        raise ConfigError(
            f"{folder.path} is open: some run, or another tool, reads from it; wait for the end of "
            "its runs, or give --force: they then fetch again what they need"
        )
    number = size_bytes = 0
    for piece in list(folder.pieces()):
        with suppress(FileNotFoundError):
            os.unlink(piece.path)  # noqa: PTH108 a path of scandir
            number, size_bytes = number + 1, size_bytes + piece.size
    _recount(folder)
    return Freed(number, size_bytes)


def _own(folder: PieceFolder) -> PieceFolder:
    folder.require_private()
    return folder


def _object(name: str, pieces: Iterable[CachedPiece]) -> CachedObject:
    sizes = [piece.size for piece in pieces]
    return CachedObject(name, len(sizes), sum(sizes))


def _recount(folder: PieceFolder) -> None:
    """Set the counter of used bytes."""
    with folder.counter() as counter:
        if counter is not None:
            folder.write_used(counter, folder.used_now())
