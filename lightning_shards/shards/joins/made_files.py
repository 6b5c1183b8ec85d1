"""What runs have made in the cache of tables and shards: joins, and what filters have left.

Runs remove nothing of it, as another run may need it, so it stays until it is cleared.
"""

import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from lightning_shards.shards.atomic import left_part
from lightning_shards.shards.private_files import CacheFolder

FOLDERS: Final = {"joins": "joins", "kept": "filters"}
"""The folders of the cache that hold such files, and what they are of."""


class MadeFile(NamedTuple):
    """A file, or the folder of a build."""

    path: Path
    size_bytes: int


def list_made(cache: CacheFolder) -> dict[str, list[MadeFile]]:
    """The files by what they are of, largest first; a folder that holds none is left out."""
    listed: dict[str, list[MadeFile]] = {}
    for name, of in FOLDERS.items():
        files = [MadeFile(path, _size_of(path)) for path in _paths(cache.root / name)]
        if files:
            listed[of] = sorted(files, key=lambda file: (-file.size_bytes, file.path))
    return listed


def clear_made(cache: CacheFolder) -> tuple[int, int]:
    """Remove all of it but what is being written.

    A process that has such a file mapped goes on reading it, and one that needs a join makes it
    again.

    Returns:
        How many files were removed, and their bytes.
    """
    files = [file for of in list_made(cache).values() for file in of if _is_removed(file.path)]
    return len(files), sum(file.size_bytes for file in files)


def _is_removed(path: Path) -> bool:
    """Remove a file or folder; False if it is being written."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    elif path.suffix != ".part":
        path.unlink(missing_ok=True)
    else:
        try:
            with left_part(path):
                path.unlink()
        except OSError:
            return False
    return True


def _paths(folder: Path) -> Iterator[Path]:
    if folder.is_dir():  # a lock may be held
        yield from (path for path in folder.iterdir() if path.suffix != ".lock")


def _size_of(path: Path) -> int:
    size = 0
    for file in [*path.rglob("*")] if path.is_dir() else [path]:
        with suppress(FileNotFoundError):  # it was removed meanwhile
            size += file.stat().st_size
    return size
