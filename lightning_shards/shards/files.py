"""Files are read if they are regular ones, and appear under their names whole or not at all.

A fifo would make the reader wait for ever, a device could give bytes without end, and the system's
error for a folder names neither the shard nor a remedy.

What is written goes to `.NAME.RANDOM.part` in the same folder, which is renamed once it is on the
disk, so that a program that is killed leaves the old file. The name is random and must be new, so
that nothing is written through a link that somebody left in a shared folder. The writer holds a
lock on the `.part` file. One without a lock was left by a run that was killed, and the next program
that writes into the folder removes it. If two programs write the same file, each writes all of it,
and the last one stays.

The cache says how many samples a shard holds and where they are, and is checked only against the
size and time of the shard. So no other user may have written it: the cache folder belongs to this
user (or to root), and no one else may write into it. A process looks at that once. Folders above
it are the system's business and are not checked, and in it there is only what this user has made.
"""

import errno
import fcntl
import hashlib
import logging
import os
import secrets
import stat
import zlib
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeGuard

from lightning_shards.errors import FileAccessError, ShardError, ShardNotFoundError
from lightning_shards.shards.urls import is_local, split_url, without_credentials

try:
    _library: Any = import_module("zlib_ng.zlib_ng")  # extra `checksum`
except ImportError:
    _library = zlib

crc32: Final[Callable[..., int]] = _library.crc32
"""CRC-32 by the fastest library that is installed; every library gives the same number."""


MAX_INDEX_BYTES: Final = 256 << 20
"""Largest small file that is read: a wids JSON of a million shards has about 150 MB."""

_MAX_SAMPLES: Final = 1 << 40  # of one shard; a larger number is a damaged file

_log = logging.getLogger(__name__)

_FULL: Final = "make room there, or name another folder"
_RIGHT: Final = "give this user the right to read it"
_NO_FOLDER: Final = "a file stands where a folder should be: name another folder"
REMEDIES: Final = {
    errno.EACCES: _RIGHT,
    errno.EPERM: _RIGHT,
    errno.EROFS: "name another folder",
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EFBIG: "name a folder of a file system that takes such files",
    errno.EEXIST: _NO_FOLDER,
    errno.ENOTDIR: _NO_FOLDER,
    errno.EISDIR: "a folder stands where a file should be: name another file",
    errno.ELOOP: "put a file in the place of the link",
    errno.EMFILE: "raise the limit of open files (ulimit -n), or use fewer workers or threads",
    errno.ENFILE: "close other programs, or raise the system's limit of open files",
}
"""What to do about the system's errors."""
_WRITE_REMEDIES: Final = REMEDIES | dict.fromkeys(
    (errno.EACCES, errno.EPERM), "give this user the right to write there"
)


def open_regular(path: str | PathLike[str], flags: int = os.O_RDONLY) -> int:
    """A file descriptor of a regular file, which the caller closes.

    Args:
        path: Path of the file; links are followed unless `flags` has `O_NOFOLLOW`.
        flags: Flags of `os.open`.

    Raises:
        ShardNotFoundError: There is no such file.
        FileAccessError: It is not a regular file, or this process may not or cannot open it.
    """
    try:
        # Without O_NONBLOCK this would wait for the other end of a fifo.
        file = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError as error:
        raise ShardNotFoundError(f"{path} does not exist; check the path and the mount") from error
    except OSError as error:
        raise not_opened(path, error) from error
    mode = os.fstat(file).st_mode
    if not stat.S_ISREG(mode):
        os.close(file)
        raise irregular(path, mode)
    return file


def read_regular(path: str | PathLike[str], most: int) -> bytes:
    """The first bytes of a regular file, at most so many; errors as of `open_regular`."""
    with os.fdopen(open_regular(path), "rb") as file:
        return file.read(most)


def read_beside(path: Path, most: int = MAX_INDEX_BYTES) -> bytes | None:
    """The first bytes of a small file beside shards; None if it is absent.

    One that cannot be read, or is no regular file, is passed over with a warning.
    """
    try:
        return read_regular(path, most)
    except ShardNotFoundError:
        return None
    except OSError as error:  # its message names the path
        _log.warning("passed over: %s", error)
        return None


def is_count(value: object) -> TypeGuard[int]:
    """Whether a value from a JSON file can be a number of samples, which `true` is not."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MAX_SAMPLES


def stamp_of(file: int | str | PathLike[str]) -> tuple[int, int]:
    """Size in bytes and time of change in ns, by which an unchanged shard is recognised."""
    status = os.stat(file)  # noqa: PTH116 - a descriptor has no path
    return status.st_size, status.st_mtime_ns


def irregular(path: str | PathLike[str], mode: int) -> FileAccessError:
    """The error for a path that is not a regular file, by the mode that `stat` gives."""
    kind = "a folder" if stat.S_ISDIR(mode) else "a fifo, a socket or a device"
    return FileAccessError(f"{path} is {kind}; put a regular file there, or name another path")


def not_opened(path: str | PathLike[str], error: OSError) -> FileAccessError:
    """The system's error about a file that is there, in our words."""
    remedy = REMEDIES.get(error.errno or 0, "look at the path and at the file system")
    return FileAccessError(f"{path} cannot be opened: {error.strerror}; {remedy}")


_RANDOM_BYTES: Final = 8
_PARTS: Final = f".*.{'[0-9a-f]' * 2 * _RANDOM_BYTES}.part"
_NAME_IN_PART: Final = 50  # characters: the part's name may have 255 bytes
_PUBLIC: Final = 0o644


@contextmanager
def new_file(
    path: Path, *, mode: int = _PUBLIC, outlives_power: bool = True
) -> Generator[BinaryIO, None, None]:
    """A file to write, put at `path` when the block ends; after an error `path` is as before.

    Args:
        path: Where the file goes. A link there is replaced; the file it points to is not touched.
        mode: Permissions of the file.
        outlives_power: Whether the file must be whole after a power cut, too, which takes the disk
            some ms. It need not where a reader sees that it is not whole, and makes it again.

    Raises:
        FileAccessError: `path` is a folder, or cannot be written.
    """
    try:
        part, file = _new_part(path, mode)
    except OSError as error:
        raise not_written(path, error) from error
    with file:
        try:
            yield file
            file.flush()
            if outlives_power:
                os.fsync(file.fileno())  # a power cut could leave a name without contents
            part.replace(path)
        except BaseException as error:
            part.unlink(missing_ok=True)
            if isinstance(error, OSError) and error.errno in _WRITE_REMEDIES:
                raise not_written(path, error) from error
            raise


def replace_file(path: Path, data: bytes | str) -> None:
    """Put these contents at `path` in one step; errors as of `new_file`."""
    with new_file(path) as file:
        file.write(data.encode() if isinstance(data, str) else data)


def make_folder(folder: Path, below: str = "") -> Path:
    """The folder `below` a folder that the user named; missing folders are made.

    Raises:
        FileAccessError: It cannot be made.
    """
    try:
        (folder / below).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise not_written(folder / below, error) from error
    return folder / below


def not_written(path: Path, error: OSError) -> OSError:
    """The system's error in our words; one of our own errors is returned as it is."""
    if isinstance(error, ShardError):
        return error
    remedy = _WRITE_REMEDIES.get(error.errno or 0, "look at the path and at the file system")
    return FileAccessError(f"{path} cannot be written: {error.strerror or error}; {remedy}")


def _new_part(path: Path, mode: int) -> tuple[Path, BinaryIO]:
    """A new file beside `path` that no other program has open; locked for as long as it is open."""
    remove_parts(path.parent)
    while True:
        token = secrets.token_hex(_RANDOM_BYTES)
        part = path.with_name(f".{path.name[:_NAME_IN_PART]}.{token}.part")
        # O_EXCL: no link of this name is followed
        file = os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        if take_lock(file) and part.exists():
            return part, os.fdopen(file, "wb")
        os.close(file)  # before it was locked, another rank took it for a leftover file


@lru_cache(maxsize=1024)
def remove_parts(folder: Path) -> None:
    """Remove files that killed runs left; a process looks into each folder once."""
    for part in list(folder.glob(_PARTS)):
        # It was removed or renamed meanwhile, or is another user's, or a program is writing it.
        with suppress(OSError), part.open("rb+", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            part.unlink()


def take_lock(file: BinaryIO | int) -> bool:
    """Lock a file or folder that is open; False if another program holds its lock."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:  # a file system without locks: no program finds it unlocked either
        return not isinstance(error, BlockingIOError)
    return True


_DEFAULT_CACHE: Final = "~/.cache/lightning_shards"
_PRIVATE_FOLDER: Final = 0o700
_PRIVATE_FILE: Final = 0o600
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
        root = Path(self.given or _DEFAULT_CACHE)
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

    def write(self, path: Path, data: bytes | bytearray) -> None:
        """Put a file into the cache in one step; missing folders are made.

        After a power cut it may not be whole, which its readers see.

        Raises:
            FileAccessError: The cache folder is another user's or open to others, or the file is
                not written.
            OSError: A folder cannot be made.
        """
        self.make_folder(path.parent)
        with new_file(path, mode=_PRIVATE_FILE, outlives_power=False) as file:
            file.write(data)

    def make_folder(self, folder: Path) -> None:
        """Make the cache folder, or a folder below it, if it is missing.

        Raises:
            FileAccessError: The cache folder is another user's or open to others.
            OSError: It cannot be made.
        """
        _make_private(self.root)
        _require_private(self.root)
        _make_private(folder)


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


def _make_private(folder: Path) -> None:
    """Make a folder and those above it; another process may do the same."""
    if not folder.is_dir():
        for part in (*reversed(folder.parents), folder):
            part.mkdir(mode=_PRIVATE_FOLDER, exist_ok=True)


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
