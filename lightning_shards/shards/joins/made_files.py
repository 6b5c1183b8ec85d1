"""What runs have made in the cache of tables and shards: joins, and what filters have left.

Runs remove nothing of it, as another run may need it, so it stays until it is cleared.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from lightning_shards.shards.atomic import left_part
from lightning_shards.shards.joins.table_files import LOCKS
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.system.file_locks import FileLocks

FOLDERS: Final = {"joins": "joins", "kept": "filters"}
"""The folders of the cache that hold such files, and what they are of."""

_DIGITS: Final = 12  # of the name of a join, which number its lock
_PART: Final = ".part"
"""The end of the name of a file that is not whole yet, whose writer holds its lock."""


class MadeFile(NamedTuple):
    """A file, or the folder of a build.

    Attributes:
        path: Where it is.
        size_bytes: Its bytes.
        is_used: Whether a process of this machine has it mapped or is making it, as far as this
            user may see. A file that is being written counts as used if its lock cannot be taken.
    """

    path: Path
    size_bytes: int
    is_used: bool


def list_made(cache: CacheFolder) -> dict[str, list[MadeFile]]:
    """The files by what they are of, largest first; nothing is said of what holds none."""
    mapped = _mapped_paths()
    listed: dict[str, list[MadeFile]] = {}
    for name, of in FOLDERS.items():
        files = [_made_file(path, mapped) for path in _paths(cache.root / name)]
        if files:
            listed[of] = sorted(files, key=lambda file: (-file.size_bytes, file.path))
    return listed


def clear_made(cache: CacheFolder, *, force: bool = False) -> tuple[int, int]:
    """Remove what no process uses; with `force` all: who needs a join then makes it again.

    Returns:
        How many files were removed, and their bytes.
    """
    files = [file for of in list_made(cache).values() for file in of if force or not file.is_used]
    removed = [file for file in files if _is_removed(file.path, force=force)]
    return len(removed), sum(file.size_bytes for file in removed)


def _is_removed(path: Path, *, force: bool) -> bool:
    """Remove a file or folder; False if it is a file that somebody has begun to write meanwhile."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    elif force or path.suffix != _PART:
        path.unlink(missing_ok=True)
    else:
        try:
            with left_part(path):  # a writer that comes now makes another file
                path.unlink()
        except OSError as error:
            return isinstance(error, FileNotFoundError)
    return True


def _paths(folder: Path) -> Iterator[Path]:
    if folder.is_dir():
        yield from (path for path in folder.iterdir() if not path.name.startswith(LOCKS))


def _made_file(path: Path, mapped: set[str]) -> MadeFile:
    if path.is_dir():
        size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        return MadeFile(path, size, _is_being_made(path))
    with suppress(FileNotFoundError):  # it was removed meanwhile
        return MadeFile(path, path.stat().st_size, _is_file_used(path, mapped))
    return MadeFile(path, 0, is_used=False)


def _is_file_used(path: Path, mapped: set[str]) -> bool:
    if path.suffix == _PART:
        try:
            with left_part(path):
                return False
        except OSError as error:
            return not isinstance(error, FileNotFoundError)
    return os.path.realpath(path) in mapped  # the cache folder may be reached by a link


def _is_being_made(folder: Path) -> bool:
    digits = folder.name[:_DIGITS]
    locks = FileLocks(folder.parent / LOCKS)
    return locks.path.exists() and not locks.is_free(int(digits, 16))


def _mapped_paths() -> set[str]:
    """The files that processes have mapped; none on systems without /proc."""
    mapped: set[str] = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with suppress(OSError), maps.open(errors="surrogateescape") as lines:
            # address, rights, offset, device, inode, and the path, which may hold blanks
            fields = (line.rstrip("\n").split(None, 5) for line in lines)
            mapped.update(each[5] for each in fields if len(each) > 5)  # noqa: PLR2004 six fields
    return {os.path.normpath(path) for path in mapped if path.startswith("/")}
