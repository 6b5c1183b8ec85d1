"""Opening and reading of regular files; everything else in a data set is refused.

A fifo would make the reader wait for ever, a device could give bytes without end, and the system's
error for a folder names neither the shard nor a remedy.
"""

import errno
import os
import stat
from os import PathLike
from pathlib import Path
from typing import Final

from lightning_shards.errors import FileAccessError, ShardNotFoundError

_KINDS: Final = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a fifo",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFLNK: "a link",
}
REMEDIES: Final = {
    errno.EACCES: "give this user the right to read it",
    errno.EPERM: "give this user the right to read it",
    errno.ELOOP: "mend the link",
    errno.EMFILE: "raise the limit of open files (ulimit -n), or use fewer workers or threads",
    errno.ENFILE: "close other programs, or raise the system's limit of open files",
}


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
        file = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK, 0o644)
    except FileNotFoundError as error:
        raise absent(path) from error
    except OSError as error:
        raise _not_opened(path, flags, error) from error
    mode = os.fstat(file).st_mode
    if not stat.S_ISREG(mode):
        os.close(file)
        raise irregular(path, mode)
    return file


def read_regular(path: str | PathLike[str], max_bytes: int) -> bytes:
    """The contents of a small regular file.

    Raises:
        ShardNotFoundError: There is no such file.
        FileAccessError: It is no regular file, has more than `max_bytes`, or cannot be read.
    """
    with os.fdopen(open_regular(path), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > max_bytes:
            raise FileAccessError(
                f"{path} has {size:,} bytes, more than the {max_bytes:,} that such a file may "
                "have; remake it, or move it away"
            )
        try:
            return file.read(max_bytes)
        except OSError as error:
            raise FileAccessError(f"{path} cannot be read: {error.strerror}") from error


def stamp_of(file: int | str | PathLike[str]) -> tuple[int, int]:
    """Size in bytes and time of change in ns, by which an unchanged shard is recognised."""
    status = os.stat(file)  # noqa: PTH116 - a descriptor has no path
    return status.st_size, status.st_mtime_ns


def absent(path: str | PathLike[str]) -> ShardNotFoundError:
    """The error for a file that does not exist."""
    return ShardNotFoundError(f"{path} does not exist; check the path and the mount")


def irregular(path: str | PathLike[str], mode: int) -> FileAccessError:
    """The error for a path that is not a regular file, by the mode that `stat` gives."""
    kind = _KINDS.get(stat.S_IFMT(mode), "no regular file")
    return FileAccessError(f"{path} is {kind}; put a regular file there, or name another path")


def _not_opened(path: str | PathLike[str], flags: int, error: OSError) -> FileAccessError:
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        mode = stat.S_IFREG
    is_followed = stat.S_ISLNK(mode) and not flags & os.O_NOFOLLOW
    # A socket cannot be opened at all, and a folder cannot be opened for writing.
    if stat.S_IFMT(mode) in _KINDS and not is_followed:
        return irregular(path, mode)
    remedy = REMEDIES.get(error.errno or 0, "look at the path and at the file system")
    return FileAccessError(f"{path} cannot be opened: {error.strerror}; {remedy}")


def is_newer(path: Path, shard: Path) -> bool:
    """Whether a file was written after the shard that it counts; False if either is unreadable."""
    try:
        return path.stat().st_mtime_ns >= shard.stat().st_mtime_ns
    except OSError:  # a link to nowhere
        return False
