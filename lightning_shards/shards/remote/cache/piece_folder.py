"""The folder of the pieces of one node, which all its processes read and write.

It belongs to no process::

    pieces/lock                   locked while its content, the number of used bytes, is changed
    pieces/runs/RUN               what an open run needs; its processes have it locked, shared
    pieces/parts/HASH-0-6553600   a piece that is being fetched; its process has it locked
    pieces/HASH/0-6553600         a piece; see `piece_files` for the hash

The locks of a process that is killed are free, and others remove the files that it left. What has
another name is not of the cache: it is neither counted nor removed.
"""

import fcntl
import logging
import os
import re
import socket
import stat
import struct
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import perf_counter, sleep
from typing import Final, NamedTuple

from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.remote.cache.limits import CachedPiece
from lightning_shards.shards.remote.cache.piece_files import Piece, group_of, share_of

_FIRST_PAUSE_S: Final = 0.0005
_LONGEST_PAUSE_S: Final = 0.02
_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


def is_locked(file: int, *, shared: bool = False, wait_s: float = 0.0) -> bool:
    """Lock an open file; whether that was possible in time.

    Args:
        file: Its descriptor.
        shared: Whether others may hold the lock at the same time, shared, too.
        wait_s: How long to wait for it. The wait ends by itself, even if the process that holds the
            lock is stopped.

    Raises:
        OSError: The file system has no locks.
    """
    end, pause = perf_counter() + wait_s, _FIRST_PAUSE_S
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    while True:
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if perf_counter() >= end:
                return False
        else:
            return True
        sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_S)


@contextmanager
def locked_within(path: Path, wait_s: float = 0.0) -> Generator[int | None, None, None]:
    """An open file with its lock for as long as the block runs; None if the lock is not free.

    Raises:
        OSError: The file cannot be opened, or its file system has no locks.
    """
    file = os.open(path, _FLAGS, 0o600)
    try:
        if not is_locked(file, wait_s=wait_s):
            yield None
            return
        try:
            yield file
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)  # also where a forked process has a copy of it
    finally:
        os.close(file)


_OBJECT = re.compile("[0-9a-f]{64}")  # the folder of one version of an object
_PART = re.compile("[0-9a-f]{64}-[0-9]{1,18}-[0-9]{1,18}")
_COUNTER: Final = struct.Struct("<8sQ")
_MAGIC: Final = b"lsUSED1\n"

_WAIT_S: Final = 2.0  # the counter is held for moments, except by a process that is stopped

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
    return root / f"pieces-{socket.gethostname()}"


class PieceFolder:
    """The folder, and what is in it.

    Args:
        root: The cache folder of the user.
        path: The folder of pieces in it; see `folder_of_pieces`.

    Attributes:
        path: See above.
        parts: The folder of pieces that are being fetched.
        runs: The folder of what open runs need.
    """

    def __init__(self, root: CacheFolder, path: Path) -> None:
        self._root, self.path = root, path
        self.parts, self.runs = path / "parts", path / "runs"

    def make(self) -> None:
        """Make what is missing of the folders.

        Raises:
            FileAccessError: One belongs to another user, or others may write to it.
            OSError: It cannot be made or read.
        """
        for folder in (self.path, self.parts, self.runs):
            self._root.make_folder(folder)

    def require_private(self) -> None:
        """Refuse a folder that others could have written to.

        Raises:
            FileAccessError: It belongs to another user, or others may write to it.
        """
        self._root.make_folder(self.path)

    def path_of(self, piece: Piece) -> str:
        """Where a piece is kept."""
        return f"{self.path}/{piece.folder}/{piece.name}"

    def part_of(self, piece: Piece) -> str:
        """Where a piece is written while it is fetched."""
        return f"{self.parts}/{piece.folder}-{piece.name}"

    def begin_part(self, piece: Piece) -> int | None:
        """An empty file for a piece, which nobody else fetches until it is closed.

        Returns:
            Its descriptor; None if another process or thread fetches the piece.

        Raises:
            OSError: It cannot be made or locked.
        """
        path = self.part_of(piece)
        while True:
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                is_ours = is_locked(file)
                if is_ours and _is_named(path, file):
                    os.ftruncate(file, 0)  # of a process that was killed
                    return file
            except BaseException:
                os.close(file)
                raise
            os.close(file)
            if not is_ours:
                return None

    def pieces(self) -> Iterator[CachedPiece]:
        """The pieces that are there.

        Raises:
            OSError: A folder cannot be read.
        """
        with os.scandir(self.path) as folders:
            for folder in folders:
                if _OBJECT.fullmatch(folder.name) and folder.is_dir(follow_symlinks=False):
                    yield from _pieces_in(folder.path, folder.name)

    def bytes_in_parts(self) -> int:
        """Bytes of pieces that are being written; what killed processes left is removed.

        Raises:
            OSError: The folder cannot be read.
        """
        total = 0
        with suppress(FileNotFoundError), os.scandir(self.parts) as parts:
            for part in parts:
                if _PART.fullmatch(part.name):
                    with suppress(FileNotFoundError):  # it is a whole piece by now
                        total += _bytes_or_removed(part.path)
        return total

    @contextmanager
    def counter(self) -> Generator[int | None, None, None]:
        """The file of the counter, locked; None if that takes too long.

        Raises:
            OSError: It cannot be opened, or its file system has no locks.
        """
        with locked_within(self.path / "lock", _WAIT_S) as file:
            yield file

    def read_used(self, file: int) -> int:
        """Bytes that all pieces take, by the counter; counted if it was never written.

        Args:
            file: The locked file of the counter.

        Raises:
            OSError: They cannot be read.
        """
        data = os.pread(file, _COUNTER.size, 0)
        if len(data) == _COUNTER.size and data.startswith(_MAGIC):
            return int(_COUNTER.unpack(data)[1])
        return self.used_now()

    def used_now(self) -> int:
        """Bytes that all pieces take, counted; errors as of `read_used`."""
        return self.bytes_in_parts() + sum(piece.size for piece in self.pieces())

    def write_used(self, file: int, used_bytes: int) -> None:
        """Set the counter.

        Raises:
            OSError: It cannot be written.
        """
        os.pwrite(file, _COUNTER.pack(_MAGIC, max(0, used_bytes)), 0)

    def clean(self, file: int) -> None:
        """Remove what killed processes left, and count; with the counter, and where no run is open.

        Raises:
            OSError: The folder cannot be read, or the counter not written.
        """
        with os.scandir(self.path) as folders:
            for folder in folders:
                if _OBJECT.fullmatch(folder.name):
                    with suppress(OSError):  # it is not empty
                        os.rmdir(folder.path)  # noqa: PTH106 a path of scandir
        self.write_used(file, self.used_now())


def _bytes_or_removed(path: str) -> int:
    """Bytes of a piece that is being written; 0 if its process was killed, and it is removed."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if not is_locked(file):
            return os.fstat(file).st_size
        if _is_named(path, file):
            os.unlink(path)  # noqa: PTH108 a path of scandir
        return 0
    finally:
        os.close(file)


def _is_named(path: str, file: int) -> bool:
    """Whether an open file still has this name."""
    try:
        return os.path.samestat(os.lstat(path), os.fstat(file))
    except FileNotFoundError:
        return False


def _pieces_in(path: str, folder: str) -> Iterator[CachedPiece]:
    with suppress(FileNotFoundError), os.scandir(path) as files:
        for file in files:
            with suppress(FileNotFoundError):  # another process has dropped it
                status = file.stat(follow_symlinks=False)
                if stat.S_ISREG(status.st_mode):
                    share = share_of(folder, file.name)
                    made_ns = status.st_ctime_ns
                    yield CachedPiece(file.path, status.st_size, made_ns, share, group_of(folder))


_MOUNTS: Final = Path("/proc/self/mountinfo")
_NETWORK: Final = re.compile(
    r"nfs\d?|cifs|smb\w*|ncpfs|afs|9p|virtiofs|ceph|lustre|beegfs\w*|gpfs|glusterfs|orangefs|pvfs2"
    r"|gfs2|ocfs2|wekafs|panfs|fuse\.(?!fuseblk|ntfs|ext|encfs|gocryptfs|overlay|fuse-overlay).*"
)
"""Names of file systems that several machines may share. Of those in user space the ones that are
known to be of this machine are left out."""

_ESCAPED: Final = re.compile(r"\\([0-7]{3})")


class Mount(NamedTuple):
    """A mounted file system.

    Attributes:
        folder: Where it is mounted.
        kind: Its name, such as `ext4` or `nfs4`.
    """

    folder: str
    kind: str


def mount_of(path: str | os.PathLike[str], mounts: Path = _MOUNTS) -> Mount | None:
    """The file system that a path is on, or would be on; None if the system does not say."""
    wanted = os.path.realpath(path)
    try:
        lines = mounts.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return None
    best = None
    for line in lines:
        before, _, after = line.partition(" - ")
        folder = _ESCAPED.sub(lambda match: chr(int(match[1], 8)), before.split(" ")[4])
        is_above = wanted == folder or wanted.startswith(folder.rstrip("/") + "/")
        # of two at one folder the later one hides the earlier one
        if is_above and (best is None or len(folder) >= len(best.folder)):
            best = Mount(folder, after.split(" ")[0])
    return best


def is_shared_by_machines(path: str | os.PathLike[str], mounts: Path = _MOUNTS) -> bool:
    """Whether the path is on a network file system."""
    mount = mount_of(path, mounts)
    return mount is not None and _NETWORK.fullmatch(mount.kind) is not None
