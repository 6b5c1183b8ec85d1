"""Files of the cache folder, which must be private to this user to be believed.

The cache says how many samples a shard holds and where they are, and is checked only against the
size and time of the shard. So no other user may have written it: the cache folder, all folders
below it and each file belong to this user (or to root), and no one else may write them. Folders
above the cache folder are the system's business and are not checked.
"""

import hashlib
import os
import stat
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

from lightning_shards.errors import FileAccessError, ShardNotFoundError
from lightning_shards.shards.atomic import new_file
from lightning_shards.shards.regular_files import open_regular
from lightning_shards.shards.urls import is_local, split_url, without_credentials

_DEFAULT: Final = "~/.cache/lightning_shards"
_FOLDER_MODE: Final = 0o700
_FILE_MODE: Final = 0o600
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH


@dataclass(frozen=True, slots=True)
class CacheFolder:
    """The folder where counts and tables of members are kept between runs.

    It is made where users say which one they want, and need not exist. A user without a home folder
    has no default one: nothing is found in it, and writing fails.

    Attributes:
        given: The folder, which may be a link of this user and may begin with `~`. Default:
            `~/.cache/lightning_shards`.
    """

    given: str | os.PathLike[str] | None = None

    @property
    def root(self) -> Path:
        """The folder by its path; a `~` stays in it if this user has no home folder."""
        root = Path(self.given or _DEFAULT)
        try:
            return root.expanduser()
        except RuntimeError:
            return root

    def counts_of(self, folder: str | os.PathLike[str]) -> Path:
        """The path of the file with the counts of a folder of shards, named by a hash."""
        return self.root / f"counts-{_digest(Path(folder).absolute())}.json"

    def sidecar_of(self, shard: str | os.PathLike[str]) -> Path:
        """The path of a shard's table of members; its folder is named by a hash.

        Of a URL all but user and password count: what differs in its query may be another shard.
        """
        return self.root / "members" / sidecar_name(shard)

    def open(self, path: Path) -> int | None:
        """A file of the cache, open for reading, which the caller closes; None if there is none.

        Args:
            path: Below the folder; no part of it below the folder may be a link.

        Raises:
            FileAccessError: The file, or a folder that it is in, is another user's or could have
                been written by one; or it is not a regular file or cannot be opened.
        """
        root = self.root
        if _lacks_home(root) or not all(_is_there(folder, root) for folder in _folders(root, path)):
            return None
        try:
            file = open_regular(path, os.O_RDONLY | os.O_NOFOLLOW)
        except ShardNotFoundError:
            return None
        try:
            _require_private(path, os.fstat(file))
        except BaseException:
            os.close(file)
            raise
        return file

    def write(self, path: Path, data: bytes | bytearray, *, outlives_power: bool = True) -> None:
        """Put a file into the cache in one step; missing folders are made.

        `outlives_power` is as of `new_file`.

        Raises:
            FileAccessError: A folder is another user's or open to others, there is no home folder,
                or the file is not written.
            OSError: A folder cannot be made.
        """
        self.make_folder(path.parent)
        with new_file(path, mode=_FILE_MODE, outlives_power=outlives_power) as file:
            file.write(data)

    def make_folder(self, folder: Path) -> None:
        """Make the cache folder, or a folder below it, if it is missing.

        Raises:
            FileAccessError: It, or a folder that it is in, is another user's or open to others, or
                there is no home folder.
            OSError: It cannot be made.
        """
        root = self.root
        if _lacks_home(root):
            raise FileAccessError("Could not determine home directory.")
        for above in reversed(root.parents):
            above.mkdir(mode=_FOLDER_MODE, exist_ok=True)
        for part in _folders(root, folder / "file"):
            if not _is_there(part, root):
                part.mkdir(mode=_FOLDER_MODE, exist_ok=True)  # another process may have made it
                _is_there(part, root)


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


def _lacks_home(root: Path) -> bool:
    return str(root).startswith("~")


def _folders(root: Path, path: Path) -> list[Path]:
    """The cache folder and the folders below it that lead to a file."""
    depth = len(path.parts) - len(root.parts)
    return list(reversed(path.parents[:depth]))


def _is_there(folder: Path, root: Path) -> bool:
    """Whether the folder exists; it must then be private to this user."""
    try:
        name = target = folder.lstat()
        if stat.S_ISLNK(name.st_mode):
            target = folder.stat()
    except OSError:
        return False
    if target is not name and folder != root:
        raise FileAccessError(f"{folder} is a link, and the cache has none; remove it")
    if not stat.S_ISDIR(target.st_mode):
        return False
    _require_owner(folder, name)
    _require_private(folder, target)
    return True


def _require_private(path: Path, status: os.stat_result) -> None:
    _require_owner(path, status)
    if status.st_mode & _OTHERS_WRITE:
        raise FileAccessError(
            f"{path} may be written by other users, and what is in the cache is believed; remove "
            "what is not yours and take that right away (chmod go-w), or name another cache_dir"
        )


def _require_owner(path: Path, status: os.stat_result) -> None:
    if status.st_uid not in (0, os.geteuid()):
        raise FileAccessError(
            f"{path} belongs to another user (uid {status.st_uid}), and what is in the cache is "
            "believed; make it yours (chown) or remove it, or name another cache_dir"
        )
