"""Files of the cache folder, which must be private to this user to be believed.

The cache says how many samples a shard holds and where they are, and is checked only against the
size and time of the shard. So no other user may have written it: the cache folder belongs to this
user (or to root), and no one else may write into it. A process looks at that once. Folders above
it are the system's business and are not checked, and in it there is only what this user has made.

Joins, and what filters have left, stay in it until they are cleared, as another run may need them.
"""

import hashlib
import logging
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from lightning_shards.errors import FileAccessError, ShardNotFoundError
from lightning_shards.plan.kept_order import Numbers
from lightning_shards.shards.files import (
    locked_file,
    new_file,
    not_written,
    open_regular,
    remove_parts,
)
from lightning_shards.shards.urls import is_local, split_url, without_credentials

_Made = TypeVar("_Made")

_log = logging.getLogger(__name__)

_DEFAULT: Final = "~/.cache/lightning_shards"
_FOLDER_MODE: Final = 0o700
_FILE_MODE: Final = 0o600
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH


@dataclass(frozen=True, slots=True)
class CacheFolder:
    """The folder where counts and tables of members are kept between runs.

    It is made where users say which one they want, and need not exist.

    Attributes:
        given: The folder, which may be a link of this user and may begin with `~`. Default:
            `~/.cache/lightning_shards`.
    """

    given: str | os.PathLike[str] | None = None

    @property
    def root(self) -> Path:
        """The folder by its path.

        Raises:
            FileAccessError: This user has no home folder, and the path begins with `~`.
        """
        root = Path(self.given or _DEFAULT)
        try:
            return root.expanduser()
        except RuntimeError as error:
            raise FileAccessError(f"no cache in {root}: {error} Name another cache_dir") from error

    def sidecar_of(self, shard: str | os.PathLike[str]) -> Path:
        """The path of a shard's table of members; its folder is named by a hash.

        Of a URL all but user and password count: what differs in its query may be another shard.
        """
        return self.root / "members" / sidecar_name(shard)

    def open(self, path: Path) -> int | None:
        """A file of the cache, open for reading, which the caller closes; None if there is none.

        Args:
            path: Below the folder; it may not be a link.

        Raises:
            FileAccessError: The folder is another user's or could have been written by one; or the
                file is not a regular one or cannot be opened.
        """
        if not _is_there(self.root):
            return None
        try:
            return open_regular(path, os.O_RDONLY | os.O_NOFOLLOW)
        except ShardNotFoundError:
            return None

    def write(self, path: Path, data: bytes | bytearray, *, outlives_power: bool = True) -> None:
        """Put a file into the cache in one step; missing folders are made.

        `outlives_power` is as of `new_file`.

        Raises:
            FileAccessError: The cache folder is another user's or open to others, or the file is
                not written.
            OSError: A folder cannot be made.
        """
        self.make_folder(path.parent)
        with new_file(path, mode=_FILE_MODE, outlives_power=outlives_power) as file:
            file.write(data)

    def make_folder(self, folder: Path) -> None:
        """Make the cache folder, or a folder below it, if it is missing.

        Raises:
            FileAccessError: The cache folder is another user's or open to others.
            OSError: It cannot be made.
        """
        _make(self.root)
        _is_there(self.root)
        _make(folder)


def made_once(
    path: Path,
    cache: CacheFolder,
    read: Callable[[Path], _Made],
    write: Callable[[BinaryIO], object],
) -> _Made:
    """What is in a file of the cache, which one process or thread of a node makes.

    Args:
        path: The file. Its name has all that its content depends on.
        cache: The folder that it is below.
        read: Gives what is in the file, or raises an error if it is damaged: it is made again then.
        write: Writes its content.

    Raises:
        FileAccessError: The cache folder is another user's, or the file cannot be written.
    """
    try:
        cache.make_folder(path.parent)
        with locked_file(path.with_suffix(".lock")):
            opened = cache.open(path)
            if opened is not None:
                os.close(opened)
                try:
                    return read(path)
                except (OSError, EOFError, LookupError, TypeError, ValueError) as error:
                    _log.warning("%s is made again: %s", path, error)
            with new_file(path, mode=_FILE_MODE) as file:
                write(file)
            return read(path)
    except OSError as error:
        raise not_written(path, error) from error


def sidecar_name(shard: str | os.PathLike[str]) -> str:
    """The path of a shard's table of members below the folder `members` of any cache."""
    url = os.fspath(shard)
    if not is_local(url):
        return f"{_digest(without_credentials(url))}/{split_url(url)[1]}.members"
    folder, name = os.path.split(url)
    if not os.path.isabs(folder):  # noqa: PTH117 a Path for each of 10^6 shards takes seconds
        folder = f"{Path.cwd()}/{folder}"
    return f"{_digest_of_folder(folder)}/{name}.members"


@lru_cache(maxsize=1024)
def _digest_of_folder(folder: str) -> str:
    return _digest(Path(folder))


def _digest(folder: str | Path) -> str:
    return hashlib.sha256(os.fsencode(folder)).hexdigest()[:24]


def _make(folder: Path) -> None:
    """Make a folder and those above it; another process may do the same."""
    if not folder.is_dir():
        for part in (*reversed(folder.parents), folder):
            part.mkdir(mode=_FOLDER_MODE, exist_ok=True)


_looked_at: set[Path] = set()
"""The cache folders that are private, as this process has seen."""


def _is_there(root: Path) -> bool:
    """Whether the cache folder exists; it must then be private to this user."""
    if root in _looked_at:
        return True
    try:
        name, target = root.lstat(), root.stat()
    except OSError:
        return False
    if not stat.S_ISDIR(target.st_mode):
        return False
    what = "may be written by other users" if target.st_mode & _OTHERS_WRITE else ""
    for status in (name, target):
        if status.st_uid not in (0, os.geteuid()):
            what = f"belongs to another user (uid {status.st_uid})"
    if what:
        raise FileAccessError(
            f"{root} {what}, and what is in the cache is believed; make it yours alone (chown, "
            "chmod go-w) without what is not yours, or name another cache_dir"
        )
    _looked_at.add(root)
    return True


@dataclass(frozen=True)
class MappedNumbers(Numbers):
    """Numbers in a file of the cache, which each process maps when it first needs them."""

    path: Path

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the place, not the map."""
        return MappedNumbers, (self.path,)

    def values(self) -> NDArray[Any]:
        """The numbers.

        Raises:
            FileAccessError: The file is no longer there.
        """
        return self._mapped

    @cached_property
    def _mapped(self) -> NDArray[Any]:
        try:
            return np.asarray(np.load(self.path, mmap_mode="r"))
        except FileNotFoundError:
            raise FileAccessError(
                f"{self.path}, which says which samples are drawn, was removed during the run; "
                "start it anew, and leave the cache_dir alone while it runs"
            ) from None


FOLDERS: Final = {"joins": "joins", "kept": "filters", "balance": "balanced classes"}
"""The folders of the cache that hold such files, and what they are of."""


def list_made(cache: CacheFolder) -> dict[Path, tuple[str, int]]:
    """The files that runs have made: what each is of, and its bytes."""
    paths = ((path, of) for name, of in FOLDERS.items() for path in (cache.root / name).glob("*"))
    listed: dict[Path, tuple[str, int]] = {}
    for path, of in sorted(paths):
        if path.suffix not in (".lock", ".part"):  # these may be in use
            with suppress(FileNotFoundError):  # it was removed meanwhile
                listed[path] = of, path.stat().st_size
    return listed


def clear_made(cache: CacheFolder) -> tuple[int, int]:
    """Remove all of it but what is being written.

    A process that has such a file mapped goes on reading it, and one that needs a join makes it
    again.

    Returns:
        How many files were removed, and their bytes.
    """
    made = list_made(cache)
    for name in FOLDERS:
        remove_parts(cache.root / name)
    for path in made:
        path.unlink(missing_ok=True)
    return len(made), sum(size for _, size in made.values())
