"""The cache of pieces that the processes of a node share, without a daemon.

A piece is fetched once per node and kept as one immutable file, from which all ranks and workers
read. Whatever happens to a process, a file or a lock, no reader sees a wrong byte: a piece gets its
name when it is whole, it is checked by each process that opens it, it never changes, and who reads
it keeps its file open when it is dropped. Locks only save downloads. The folder::

    pieces/lock                   locked while bytes are promised or freed; how many are used
    pieces/runs/RUN               what an open run needs; its processes have it locked, shared
    pieces/HASH/0-6553600         a piece; see `pieces` for the hash
    pieces/HASH/0-6553600.part    one that is being fetched; its process has it locked

The kernel frees the locks of a process that is killed, and others remove what it left.

Where a node reads more than the cache holds, a fixed fraction of the pieces is kept for the next
epoch, by a number that each piece has for ever, and the others are dropped, oldest first. Keeping
what was used last would be worse: in random orders a cache for half of the data then gives 16 % of
it, and a cache for a quarter 4 %; the fixed half gives 49 %, the fixed quarter 25 %.
"""

import fcntl
import hashlib
import json
import logging
import os
import re
import shutil
import stat
import threading
from collections.abc import Collection, Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from lightning_shards.errors import (
    ConfigError,
    DamagedShardError,
    FileAccessError,
    ShardError,
    StorageError,
)
from lightning_shards.remote.backend import Chunk
from lightning_shards.remote.pieces import (
    TRAILER_BYTES,
    Piece,
    believe,
    read_piece,
    share_of,
    write_piece,
)
from lightning_shards.shards.files import REMEDIES, CacheFolder, take_lock
from lightning_shards.shards.urls import redact

GIB: Final = 2**30

LEFT_FREE_BYTES: Final = 50 * GIB
"""What the default limit leaves free on the disk."""

_SLACK: Final = 16
"""This part of the limit is not promised to pieces that stay: they are chosen by chance, so their
bytes vary, and an eviction makes more room than is needed at once."""

_EVICTED_AHEAD: Final = 32
"""An eviction makes this part free at once, because it begins by looking at every file."""

_OBJECT: Final = re.compile("[0-9a-f]{64}")  # the folder of one version of an object
_PART: Final = ".part"
_OPEN: Final = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW

_log = logging.getLogger(__name__)


class CacheNeed(NamedTuple):
    """What one run needs of the cache folder, and what it allows.

    Attributes:
        data: By what data is recognised that several runs read; a hash of the shards' URLs.
        reads_bytes: What the node reads in an epoch.
        working_set_bytes: What is worked on at a time, such as this block and the next one.
        limit_bytes: What pieces may take.
    """

    data: str
    reads_bytes: int
    working_set_bytes: int
    limit_bytes: int = 0


class CachedPiece(NamedTuple):
    """One file of the cache: its size, when it came, and its number from 0 to 1."""

    path: str
    size: int
    changed_ns: int
    share: float


def cache_of_run(
    folder: CacheFolder, run: str, need: CacheNeed, cache_gib: float | None = None
) -> "PieceCache | None":
    """The cache that all processes of a run on this node read through; it is given to them.

    Args:
        folder: The cache folder of the user.
        run: What only the ranks of one job have in common that read this split.
        need: What the run needs; its limit is set here.
        cache_gib: The limit in GiB. Default: three quarters of the disk, 50 GiB left.

    Returns:
        None, with a warning, if the default limit is too low or the user has no folder that can be
        written to: batches are then read exactly.

    Raises:
        ConfigError: The limit that was given is too low.
        FileAccessError: The folder belongs to another user, or others may write to it.
    """
    room, wanted = _room_in(folder), need.working_set_bytes
    if room is None:
        return None
    limit = room if cache_gib is None else int(cache_gib * GIB)
    if limit >= wanted:
        name = hashlib.sha256(f"{run} {need.data}".encode(errors="surrogateescape")).hexdigest()
        return PieceCache(folder, name[:32], need._replace(limit_bytes=limit))
    if cache_gib is not None:
        raise ConfigError(
            f"cache_gib={cache_gib:.3g} is too little: the block that is read and the one that "
            f"follows have {wanted / GIB:.3g} GiB; set cache_gib to "
            f"{-(-wanted * 100 // GIB) / 100:.2f} or more, or a smaller shuffle_block, or leave "
            "cache_gib out: batches are then read without a cache where the disk has no room for it"
        )
    warn_once(
        f"nothing is kept of remote shards: {folder.root} has {limit / GIB:.3g} GiB for it, and "
        f"what is worked on has {wanted / GIB:.3g} GiB; name a folder with more room as cache_dir, "
        "or set cache_gib or a smaller shuffle_block"
    )
    return None


def _room_in(folder: CacheFolder) -> int | None:
    """The limit by default; None, with a warning, where the folder cannot be used."""
    path = folder.root / "pieces"
    try:
        folder.make_folder(path)
        with locked(path) as lock:
            return default_limit(shutil.disk_usage(path).free, _used_bytes(path, lock))
    except FileAccessError:
        raise
    except OSError as error:
        what = f"nothing is kept of remote shards: {folder.root} cannot be used: {error}"
        warn_once(f"{what}; name another cache_dir")
    return None


@cache
def warn_once(message: str) -> None:
    """Each loader of a run would say it again."""
    _log.warning("%s", message)


def default_limit(free_bytes: int, used_bytes: int) -> int:
    """The limit where the user sets none: three quarters of the disk that is free, 50 GiB left.

    >>> default_limit(400 * GIB, 0) // GIB, default_limit(100 * GIB, 20 * GIB) // GIB
    (300, 70)

    Args:
        free_bytes: Free on the disk.
        used_bytes: What the cache takes already, which counts as free.
    """
    room = free_bytes + used_bytes
    return max(0, min(room * 3 // 4, room - LEFT_FREE_BYTES))


def limit_of_pieces(needs: Iterable[CacheNeed]) -> int:
    """What pieces may take: the lowest limit of the open runs."""
    return min((need.limit_bytes for need in needs), default=0)


def kept_fraction(needs: Collection[CacheNeed]) -> float:
    """The fraction of all pieces that stay for the next epoch, from 0 to 1.

    >>> kept_fraction([CacheNeed("a", 1050, working_set_bytes=50, limit_bytes=160)])
    0.1
    >>> kept_fraction([CacheNeed("a", 100, working_set_bytes=50, limit_bytes=160)])
    1.0
    """
    limit, reads = limit_of_pieces(needs), _read_bytes(needs)
    if reads <= limit:
        return 1.0
    # Of what they work on, the same fraction stays. So its bytes are looked for in the rest alone.
    works = sum(need.working_set_bytes for need in needs)
    return max(limit - works - limit // _SLACK, 0) / max(reads - works, 1)


def _read_bytes(needs: Iterable[CacheNeed]) -> int:
    """What is read of all data; runs that read the same share it."""
    of_data: dict[str, int] = {}
    for need in needs:
        of_data[need.data] = max(need.reads_bytes, of_data.get(need.data, 0))
    return sum(of_data.values())


def pieces_to_drop(
    pieces: Iterable[CachedPiece], needs: Collection[CacheNeed], lacking_bytes: int
) -> list[CachedPiece]:
    """Which pieces make so many bytes free, the first to go first.

    Those go that do not stay, the oldest first, and of pieces that stay some only if the others are
    not enough. But where more would stay than may, the oldest of these go before all others: they
    belong to another data set, to other settings, or to a version that was replaced.
    """
    fraction = kept_fraction(needs)
    ordered = sorted(pieces, key=lambda piece: (piece.share < fraction, piece.changed_ns))
    staying = [piece for piece in ordered if piece.share < fraction]
    most = fraction * _read_bytes(needs) + limit_of_pieces(needs) // _SLACK
    beyond = _first_bytes(staying, sum(piece.size for piece in staying) - most)
    return _first_bytes(dict.fromkeys([*beyond, *ordered]), lacking_bytes)


def _first_bytes(pieces: Iterable[CachedPiece], size: float) -> list[CachedPiece]:
    """The first ones that have so many bytes together."""
    listed = list(pieces)
    before = accumulate((piece.size for piece in listed), initial=0)
    return [piece for piece, freed in zip(listed, before, strict=False) if freed < size]


class PieceCache:
    """The pieces that a node keeps, as one process and all its threads see them.

    It enters the folder when it is first used, and can be pickled: other processes of the run enter
    it, too. Where the folder cannot be used, a warning says so once, and nothing is in it. Any
    method raises a FileAccessError if it is another user's or others may write to it.

    Args:
        root: The cache folder of the user.
        run: A name that all processes of this run have, and no other run.
        need: What the run needs on this node.

    Attributes:
        need: As given.
    """

    def __init__(self, root: CacheFolder, run: str, need: CacheNeed) -> None:
        self._root, self._run, self.need = root, run, need
        self._path = root.root / "pieces"
        self._entered: int | None = None  # the file of the run, locked
        self._is_closed, self._lock = False, threading.RLock()  # a finalizer may close it

    def __reduce__(self) -> tuple[type["PieceCache"], tuple[CacheFolder, str, CacheNeed]]:
        """Pickle what it was made of."""
        return PieceCache, (self._root, self._run, self.need)

    def read(self, piece: Piece, wanted: Sequence[tuple[int, memoryview]]) -> bool:
        """Read bytes of a piece, at these offsets of the object; whether it is there and whole."""
        with self._or_warning():
            self._enter()
            return read_piece(self._path_of(piece), piece, wanted)
        return False

    def has(self, piece: Piece) -> bool:
        """Whether a piece is in the cache, found without opening its file."""
        with self._or_warning(), suppress(FileNotFoundError):
            self._enter()
            return os.lstat(self._path_of(piece)).st_size == piece.size + TRAILER_BYTES
        return False

    def load(self, piece: Piece, chunks: Iterable[Chunk]) -> bool | None:
        """Write a piece that is not in the cache.

        Its chunks are asked for by one process of the node at a time, and only where there is room
        for them.

        Returns:
            Whether it is there now; None if another process or thread writes it.

        Raises:
            DamagedShardError: It is another number of bytes.
            Exception: What the chunks raise; the next one who asks for the piece fetches it.
        """
        with self._or_warning():
            self._enter()
            path = self._path_of(piece)
            part = self._begun(path)
            if part is None:
                return None
            with part:
                try:
                    return self.has(piece) or self._written(part, path, piece, chunks)
                finally:
                    with suppress(FileNotFoundError):  # it has its name by now
                        os.unlink(path + _PART)  # noqa: PTH108 a string
        return False

    def close(self) -> None:
        """Leave the folder for good: what a thread still does must not open the run again."""
        with self._lock:
            entered, self._entered, self._is_closed = self._entered, None, True
        if entered is not None:
            os.close(entered)

    def _path_of(self, piece: Piece) -> str:
        return f"{self._path}/{piece.folder}/{piece.name}"

    def _enter(self) -> None:
        """Make the need known; that of the first process of a run holds for all of them."""
        with self._lock:
            if self._is_closed:
                raise StorageError(f"the cache in {self._path} was closed; read it again")
            if self._entered is not None:
                return
            self._root.make_folder(self._path / "runs")
            with locked(self._path) as lock:
                if not open_needs(self._path):
                    _write_used(lock, _recount(self._path)[1])
                file = os.open(self._path / "runs" / self._run, _OPEN, 0o600)
                fcntl.flock(file, fcntl.LOCK_SH)  # held alone only with the other lock
                if not os.fstat(file).st_size:
                    os.write(file, json.dumps(self.need._asdict()).encode())
                self._entered = file

    def _begun(self, path: str) -> BinaryIO | None:
        """The file of a piece to be, locked; None if another process or thread has it locked."""
        while True:
            try:
                part = os.fdopen(os.open(path + _PART, _OPEN, 0o600), "rb+")
            except FileNotFoundError:  # there is no folder
                self._root.make_folder(Path(path).parent)
                continue
            if not take_lock(part.fileno()):
                part.close()
                return None
            with suppress(FileNotFoundError):  # else it has its name by now, or was removed
                if os.path.samestat(os.lstat(path + _PART), os.fstat(part.fileno())):
                    return part
            part.close()

    def _written(self, part: BinaryIO, path: str, piece: Piece, chunks: Iterable[Chunk]) -> bool:
        """Write it if there is room; whether it is there."""
        if not self._has_room(part.fileno(), piece.size + TRAILER_BYTES):
            self._warn()
            return False
        size = write_piece(part, chunks)
        if size != piece.size:
            raise DamagedShardError(
                f"{size:,} bytes were fetched of {redact(piece.url)} at byte {piece.begin:,}, not "
                f"{piece.size:,}; check the network, and whether the object is being replaced"
            )
        os.rename(path + _PART, path)  # noqa: PTH104 a string
        believe(part.fileno())
        return True

    def _has_room(self, file: int, size: int) -> bool:
        """Whether there is room for a file, which then has its size, so that a recount sees it."""
        os.ftruncate(file, 0)
        with locked(self._path) as lock:
            used, needs = _used_bytes(self._path, lock), open_needs(self._path) or [self.need]
            limit = limit_of_pieces(needs)
            if used + size > limit:
                pieces, used = _recount(self._path)
                if used + size > limit:
                    lacking = used + size - limit + min(limit, used) // _EVICTED_AHEAD
                    used -= _drop(pieces_to_drop(pieces, needs, lacking))
            has_room = used + size <= limit
            _write_used(lock, used + size * has_room)  # first, as too much is no harm
            os.ftruncate(file, size * has_room)
        return has_room

    @contextmanager
    def _or_warning(self) -> Generator[None]:
        """The caller goes on as if nothing were in a folder that cannot be used."""
        try:
            yield
        except ShardError:  # of the store, or the folder is not private
            raise
        except OSError as error:
            self._warn(error)

    def _warn(self, error: OSError | None = None) -> None:
        """Say once why pieces are not kept; without an error, for lack of room."""
        what = "cache_gib or the disk has no room for more than what is worked on"
        remedy = "make room there, set another cache_gib, or name another cache_dir"
        if error is not None:
            what = error.strerror or str(error)
            remedy = REMEDIES.get(error.errno or 0, remedy)
        with self._lock:  # of many threads, one says it
            warn_once(
                f"pieces are not kept in {self._path}, and fetched again when they are wanted "
                f"again: {what}; {remedy}"
            )


@contextmanager
def locked(path: Path) -> Generator[int]:
    """The lock of a folder of pieces, for as long as the block runs.

    Raises:
        OSError: Its file cannot be opened, or its file system has no locks.
    """
    file = os.open(path / "lock", _OPEN, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file
    finally:
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_UN)  # also where a forked process has a copy of it
        os.close(file)


def open_needs(path: Path) -> list[CacheNeed]:
    """What open runs need; with the lock. Those whose processes have all ended are removed."""
    needs: list[CacheNeed] = []
    with suppress(FileNotFoundError):
        for run in (path / "runs").iterdir():
            with suppress(OSError, ValueError, TypeError), run.open("rb") as file:
                if take_lock(file.fileno()):
                    run.unlink()
                else:
                    needs.append(CacheNeed(**json.loads(file.read())))
    return needs


def _used_bytes(path: Path, lock: int) -> int:
    """Bytes that all pieces take, by the number in the file of the lock, or counted."""
    used = os.pread(lock, 20, 0)
    return int(used) if used.isdigit() else _recount(path)[1]


def _write_used(lock: int, used: int) -> None:
    os.pwrite(lock, b"%020d" % max(0, used), 0)


def _recount(path: Path) -> tuple[list[CachedPiece], int]:
    """The pieces, and bytes of all files; what killed processes left is removed."""
    pieces: list[CachedPiece] = []
    writing = 0
    for folder in path.iterdir():
        if not _OBJECT.fullmatch(folder.name) or not folder.is_dir():
            continue
        with suppress(OSError):
            folder.rmdir()  # an empty one
        with suppress(FileNotFoundError), os.scandir(folder) as files:
            for file in files:
                with suppress(FileNotFoundError):  # it was dropped meanwhile
                    status = file.stat(follow_symlinks=False)
                    if file.name.endswith(_PART):
                        writing += _bytes_or_removed(file.path)
                    elif stat.S_ISREG(status.st_mode):
                        share = share_of(folder.name, file.name)
                        piece = CachedPiece(file.path, status.st_size, status.st_ctime_ns, share)
                        pieces.append(piece)
    return pieces, writing + sum(piece.size for piece in pieces)


def _bytes_or_removed(path: str) -> int:
    """Bytes of a piece that is being written; 0 if its process was killed, and it is removed."""
    with open(path, "rb") as file:  # noqa: PTH123 a path of scandir
        if not take_lock(file.fileno()):
            return os.fstat(file.fileno()).st_size
        os.unlink(path)  # noqa: PTH108
        return 0


def _drop(pieces: Iterable[CachedPiece]) -> int:
    """Remove pieces; how many bytes they had."""
    dropped = 0
    for piece in pieces:
        with suppress(OSError):  # it was dropped before
            os.unlink(piece.path)  # noqa: PTH108 a path of scandir
            dropped += piece.size
    return dropped


def list_pieces(folder: CacheFolder) -> list[dict[str, str | int]]:
    """What there is: its path, `pieces`, their `bytes`, of how many `shards`, and `open_runs`.

    Raises:
        FileAccessError: The cache folder belongs to another user, or others may write to it.
        OSError: It cannot be read.
    """
    path = folder.root / "pieces"
    if not path.is_dir():
        return []
    folder.make_folder(path)  # which sees whether it is private
    with locked(path):
        (pieces, _), open_runs = _recount(path), len(open_needs(path))
    shards = len({Path(piece.path).parent for piece in pieces})
    size = sum(piece.size for piece in pieces)
    counts = {"pieces": len(pieces), "bytes": size, "shards": shards, "open_runs": open_runs}
    return [{"path": str(path), **counts}]


def clear_pieces(folder: CacheFolder, *, force: bool = False) -> tuple[int, int]:
    """Remove all pieces; how many there were, and their bytes.

    Args:
        folder: The cache folder of the user.
        force: Also where runs have it open: they fetch again what they need again.

    Raises:
        ConfigError: Runs have it open.
        FileAccessError: As of `list_pieces`.
        OSError: It cannot be read.
    """
    path = folder.root / "pieces"
    if not path.is_dir():
        return 0, 0
    folder.make_folder(path)
    with locked(path) as lock:
        if open_needs(path) and not force:
            raise ConfigError(
                f"{path} is open: some run, or another tool, reads from it; wait for the end of "
                "its runs, or give --force: they then fetch again what they need"
            )
        pieces, used = _recount(path)
        dropped = _drop(pieces)
        _write_used(lock, used - dropped)
    return len(pieces), dropped
