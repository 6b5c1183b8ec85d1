"""Files of the cache folder, which must be private to this user to be believed.

The cache says how many samples a shard holds and where they are, and is checked only against the
size and time of the shard. So no other user may have written it: the cache folder belongs to this
user (or to root), and no one else may write into it. A process looks at that once. Folders above
it are the system's business and are not checked, and in it there is only what this user has made.
"""

import hashlib
import os
import stat
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

from lightning_shards.errors import FileAccessError, ShardNotFoundError
from lightning_shards.shards.files import new_file, open_regular
from lightning_shards.shards.urls import is_local, split_url, without_credentials

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
        if not os.path.isdir(self.root):  # noqa: PTH112 a folder that may not be looked at is none
            return None
        _require_private(self.root)
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
        _require_private(self.root)
        _make(folder)


def sidecar_name(shard: str | os.PathLike[str]) -> str:
    """The path of a shard's table of members below the folder `members` of any cache."""
    url = os.fspath(shard)
    if not is_local(url):
        return f"{_digest(without_credentials(url))}/{split_url(url)[1]}.members"
    folder, name = os.path.split(url)
    # a Path for each of 10^6 shards takes seconds
    return f"{_digest_of_folder(os.path.join(os.getcwd(), folder))}/{name}.members"  # noqa: PTH109, PTH118


@lru_cache(maxsize=1024)
def _digest_of_folder(folder: str) -> str:
    return _digest(str(Path(folder)))


def _digest(place: str) -> str:
    return hashlib.sha256(os.fsencode(place)).hexdigest()[:24]


def _make(folder: Path) -> None:
    """Make a folder and those above it; another process may do the same."""
    if not folder.is_dir():
        for part in (*reversed(folder.parents), folder):
            part.mkdir(mode=_FOLDER_MODE, exist_ok=True)


@lru_cache
def _require_private(root: Path) -> None:
    """Check that the cache folder, which exists, is private to this user."""
    target = root.stat()
    what = "may be written by other users" if target.st_mode & _OTHERS_WRITE else ""
    for status in (root.lstat(), target):
        if status.st_uid not in (0, os.geteuid()):
            what = f"belongs to another user (uid {status.st_uid})"
    if what:
        raise FileAccessError(
            f"{root} {what}, and what is in the cache is believed; make it yours alone (chown, "
            "chmod go-w) without what is not yours, or name another cache_dir"
        )
