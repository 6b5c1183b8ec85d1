"""The folder of the pieces of one node, which all its processes enter and leave.

It belongs to no process::

    pieces/lock              locks, one byte each; its content is the number of used bytes
    pieces/runs/RUN          what an open run needs; its processes hold the lock of its number
    pieces/runs/RUN.used     bytes that it holds, where another run has a larger limit
    pieces/parts/NUMBER-X    what is being written; its writer holds the lock of the number
    pieces/HASH/0-6553600    a piece; see `piece_names` for the hash

A process that is killed leaves files behind whose lock is free, and the next one that enters
removes them. In `/dev/shm` the whole folder is removed by the last process that leaves it, with
the tables, indexes and signed locations beside it, or, if that was killed, by the next one that
enters. What has another name is not of the cache: it is neither counted nor removed.

Where the file system has no locks, or does not answer, nobody knows who is there: then only what
has not changed for an hour is removed of others.
"""

import hashlib
import logging
import os
import re
import secrets
import shutil
import socket
import stat
import struct
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Final

from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.remote.cache.file_systems import is_in_memory, is_shared_by_machines
from lightning_shards.shards.remote.cache.limits import GIB, CachedPiece
from lightning_shards.shards.remote.cache.piece_names import group_of, share_of
from lightning_shards.system.file_locks import FileLocks, TakenLock, kept_if

COUNTER_LOCK: Final = 0
PRESENCE_LOCK: Final = 1
_FIRST_FREE_LOCK: Final = 2

_OBJECT = re.compile("[0-9a-f]{64}")  # the folder of one version of an object
_PART = re.compile("([0-9]{1,15})-[0-9a-f]{16}")
_COUNTER: Final = struct.Struct("<8sQ")
_MAGIC: Final = b"lsUSED1\n"
_BESIDE: Final = {
    "members": re.compile(r"[0-9a-f]{24}/[^/]+\.members"),
    "indexes": re.compile(r"[0-9a-f]{16}\.json"),
    "locations": re.compile(r"[0-9a-f]{64}\.json"),
}
"""What else is fetched to a cache folder: whoever misses it fetches it again."""

_TRIES: Final = 100
_MOST_MACHINES: Final = 1000  # of which the counters are read where a run is set up
_WAIT_S: Final = 60.0  # while another process removes what was left
_LEFT_S: Final = 3600.0
"""Without locks a file is taken for what a killed process left when it is older. Bytes are written
within seconds, and a run that is at work touches its file every few minutes."""

_log = logging.getLogger(__name__)


def folder_of_pieces(cache: CacheFolder) -> Path:
    """Where this machine keeps its pieces.

    It is asked once, where a run is set up, because it warns: several machines may share a network
    file system, and then each has a folder of its own.
    """
    root = cache.root
    if not is_shared_by_machines(root):
        return root / "pieces"
    _log.warning(
        "the cache folder %s is on a network file system, which pieces of shards would be fetched "
        "to through the network once more; name a folder on a disk of this machine as cache_dir",
        root,
    )
    own = root / f"pieces-{socket.gethostname()}"
    others_bytes = _bytes_of_others(cache, own)
    if others_bytes:
        _log.info(
            "folders of other machines in %s hold %.3g GiB, which no limit of this machine counts; "
            "if these do not come back, remove them by `lightning-shards cache clear --all-hosts`",
            root,
            others_bytes / GIB,
        )
    return own


def _bytes_of_others(cache: CacheFolder, own: Path) -> int:
    """Bytes that the folders of other machines hold by their counters, as far as can be read."""
    total = 0
    for folder in islice(cache.root.glob("pieces*"), _MOST_MACHINES):
        with suppress(OSError):
            file = None if folder == own else cache.open(folder / "lock")
            if file is not None:
                with os.fdopen(file, "rb") as opened:
                    total += _counted(opened.read(_COUNTER.size)) or 0
    return total


def _counted(data: bytes) -> int | None:
    """The bytes that a counter says; None if it was never written."""
    if len(data) == _COUNTER.size and data.startswith(_MAGIC):
        return int(_COUNTER.unpack(data)[1])
    return None


class PieceFolder:
    """The folder, and how it is entered and left.

    Args:
        root: The cache folder of the user.
        path: The folder of pieces in it; see `folder_of_pieces`.

    Attributes:
        path: See above.
        locks: The locks of the folder.
        parts: The folder of pieces that are being written.
        runs: The folder of what open runs need.
    """

    def __init__(self, root: CacheFolder, path: Path) -> None:
        self._root, self.path = root, path
        self.locks = FileLocks(path / "lock")
        self.parts, self.runs = path / "parts", path / "runs"

    def enter(self) -> int:
        """Make the folder if it is missing, and remove what killed processes left.

        Returns:
            An open file. The process is in the folder until it, and each copy of it that a forked
            process has, is closed.

        Raises:
            FileAccessError: The folder belongs to another user, or others may write to it.
            OSError: It cannot be made or read.
        """
        for _ in range(_TRIES):
            self.make()
            with suppress(FileNotFoundError):  # it is removed right now by who left it last
                lock = self._present()
                if lock is not None:
                    return lock.file
        raise OSError(f"{self.path} is removed again and again; name another cache_dir")

    def make(self) -> None:
        """Make what is missing of the folders; errors as of `enter`."""
        for folder in (self.path, self.parts, self.runs):
            self._root.make_folder(folder)

    def require_private(self) -> None:
        """Refuse a folder that others could have written to.

        Raises:
            FileAccessError: It belongs to another user, or others may write to it.
        """
        self._root.make_folder(self.path)

    def leave(self, file: int) -> None:
        """Leave the folder; the last one removes what is in memory."""
        os.close(file)
        self.remove_if_left(with_tables=True)

    def remove_if_left(self, *, with_tables: bool = False) -> None:
        """Remove the folder if it is in memory and no process is in it, however these ended.

        `with_tables` removes tables, indexes and locations, too; a run that is being set up has
        just fetched some.
        """
        if is_in_memory(self.path) and self.locks.path.exists():
            with suppress(OSError), self.locks.held(PRESENCE_LOCK) as alone:
                if alone is not None and alone.is_sure and self._is_current(alone.file):
                    if with_tables:
                        _remove_beside(self._root.root)
                    self._remove_all()

    def pieces(self) -> Iterator[CachedPiece]:
        """The pieces that are there.

        Raises:
            OSError: A folder cannot be read.
        """
        with os.scandir(self.path) as folders:
            for folder in folders:
                if _OBJECT.fullmatch(folder.name) and folder.is_dir(follow_symlinks=False):
                    yield from _pieces_in(folder.path, folder.name)

    def part_of(self, number: int) -> Path:
        """A new name for a file of the piece with this number, while it is written."""
        return self.parts / f"{number}-{secrets.token_hex(8)}"

    def bytes_in_parts(self) -> int:
        """Bytes of pieces that are being written; what killed processes left is removed.

        Raises:
            OSError: The folder cannot be read.
        """
        total = 0
        with os.scandir(self.parts) as parts:
            for part in parts:
                match = _PART.fullmatch(part.name)
                with suppress(FileNotFoundError):  # it is a whole piece by now
                    if match is None:
                        continue
                    is_free = self.locks.is_free(lock_of(int(match[1])))
                    status = part.stat()
                    if is_free or (is_free is None and is_left_behind(status)):
                        os.unlink(part.path)  # noqa: PTH108 a path of scandir
                    else:
                        total += status.st_size
        return total

    def read_used(self, file: int) -> int:
        """Bytes that all pieces take, by the counter; counted anew if it was never written.

        Args:
            file: The open file with the lock of the counter.

        Raises:
            OSError: They cannot be read.
        """
        used_bytes = _counted(os.pread(file, _COUNTER.size, 0))
        if used_bytes is not None:
            return used_bytes
        return self.bytes_in_parts() + sum(piece.size for piece in self.pieces())

    def write_used(self, file: int, used_bytes: int) -> None:
        """Set the counter.

        Raises:
            OSError: It cannot be written.
        """
        os.pwrite(file, _COUNTER.pack(_MAGIC, max(0, used_bytes)), 0)

    def read_count(self, path: Path) -> int | None:
        """A number of bytes that `write_count` has kept; None if there is none."""
        with suppress(FileNotFoundError):
            return _counted(path.read_bytes())
        return None

    def write_count(self, path: Path, used_bytes: int) -> None:
        """Keep a number of bytes, with the lock of the counter; errors as of `write_used`."""
        path.write_bytes(_COUNTER.pack(_MAGIC, used_bytes))

    def _present(self) -> TakenLock | None:
        """The lock of a process that is in the folder; None if this was removed meanwhile."""
        lock, is_alone = self.locks.take_first(PRESENCE_LOCK, wait_s=_WAIT_S)
        if lock is None:
            raise OSError(f"a process that removes files of {self.path} does not end; kill it")
        return kept_if(lock, lambda: self._entered(lock.file, is_alone=is_alone))

    def _entered(self, file: int, *, is_alone: bool) -> bool:
        """Whether the folder is still there, which is then clean, and shared with others."""
        is_current = self._is_current(file)
        if is_current:
            self._clean(file, is_alone=is_alone)
            self.locks.share(file, PRESENCE_LOCK)
        return is_current

    def _clean(self, file: int, *, is_alone: bool) -> None:
        if not is_alone:
            self.bytes_in_parts()
            return
        if is_in_memory(self.path):
            self._remove_all(but_lock=True)
            for folder in (self.parts, self.runs):
                self._root.make_folder(folder)
        for run in self.runs.iterdir():
            with suppress(IsADirectoryError):
                run.unlink()
        used_bytes = self.bytes_in_parts()
        with os.scandir(self.path) as folders:
            for folder in folders:
                if _OBJECT.fullmatch(folder.name):
                    with suppress(OSError):  # it is not empty
                        os.rmdir(folder.path)  # noqa: PTH106 a path of scandir
        # Alone, so that the lock of the counter is not needed.
        self.write_used(file, used_bytes + sum(piece.size for piece in self.pieces()))

    def _is_current(self, file: int) -> bool:
        """Whether the open file is still that of this folder."""
        try:
            return os.path.samestat(self.locks.path.lstat(), os.fstat(file))
        except FileNotFoundError:
            return False

    def _remove_all(self, *, but_lock: bool = False) -> None:
        """Remove what the cache has in the folder, the file of locks last."""
        for path in self.path.iterdir():
            is_folder = path.is_dir() and not path.is_symlink()
            if is_folder and (path in (self.parts, self.runs) or _OBJECT.fullmatch(path.name)):
                shutil.rmtree(path, ignore_errors=True)
            elif not is_folder and path.name.startswith(f"{self.locks.path.name}-"):
                path.unlink()  # a lock of its own, where one file cannot have many
        if not but_lock:
            self.locks.path.unlink()
            with suppress(OSError):  # the next process is here already, or something else is
                self.path.rmdir()
                self._root.root.rmdir()


def is_left_behind(status: os.stat_result) -> bool:
    """Whether a file is so old that no process can be at work on it."""
    return time.time() - status.st_mtime > _LEFT_S  # noqa: TID251 a time of a file


def lock_of(number: int) -> int:
    """The lock of a piece with this number."""
    return _FIRST_FREE_LOCK + number


def number_of_run(run: str) -> int:
    """The number of a run with this name, which is that of no piece."""
    return 2**48 + int.from_bytes(hashlib.sha256(run.encode()).digest()[:6])


def _remove_beside(root: Path) -> None:
    """Remove the tables, indexes and locations of a cache folder, and no file of another name."""
    for name, pattern in _BESIDE.items():
        folder = root / name
        if folder.is_symlink():
            continue
        paths = sorted(folder.rglob("*"), reverse=True)  # what is in a folder comes before it
        for path in paths:
            if pattern.fullmatch(path.relative_to(folder).as_posix()) and not path.is_dir():
                path.unlink(missing_ok=True)
        for path in (*paths, folder):
            with suppress(OSError):  # it is a file, or not empty
                path.rmdir()


def _pieces_in(path: str, folder: str) -> Iterator[CachedPiece]:
    with suppress(FileNotFoundError), os.scandir(path) as files:
        for file in files:
            with suppress(FileNotFoundError):  # another process has dropped it
                status = file.stat(follow_symlinks=False)
                if stat.S_ISREG(status.st_mode):
                    share = share_of(folder, file.name)
                    made_ns = status.st_ctime_ns
                    yield CachedPiece(file.path, status.st_size, made_ns, share, group_of(folder))
