"""The cache of pieces that the processes of a node share, without a daemon.

A piece is fetched once per node and kept as one immutable file, from which all ranks and workers
read. Whatever happens to a process, a file or a lock, no reader sees a wrong byte: a piece gets its
name when it is whole, it is checked by each process that opens it, it never changes, and who reads
it keeps its file open when it is dropped. Locks only save downloads.

What cannot be kept, since the disk is full or the folder cannot be used, is served from memory.
"""

import errno
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path
from time import perf_counter, sleep
from typing import Final, NamedTuple

from lightning_shards.errors import DamagedShardError, FileAccessError
from lightning_shards.shards.files import REMEDIES
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.remote.byte_ranges import is_sample_the_unit
from lightning_shards.shards.remote.cache.limits import (
    GIB,
    LEFT_FREE_BYTES,
    CacheNeed,
    default_limit,
    has_room,
)
from lightning_shards.shards.remote.cache.piece_files import (
    OpenPiece,
    Piece,
    believe,
    is_there,
    open_piece,
    write_piece,
)
from lightning_shards.shards.remote.cache.piece_folder import (
    PieceFolder,
    folder_of_pieces,
    is_shared_by_machines,
)
from lightning_shards.shards.remote.cache.piece_room import CacheCounts, OpenRuns, PieceRoom
from lightning_shards.shards.urls import redact

_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_REMEDIES: Final = {number: REMEDIES[number] for number in (errno.EMFILE, errno.ENFILE)}
_POLL_S: Final = 0.005  # while another process fetches what is wanted

_log = logging.getLogger(__name__)

Fetch = Callable[[], bytes | bytearray | memoryview]
"""Fetches the bytes of one piece."""


class PieceCache:
    """The pieces that a node keeps, as one process and all its threads see them.

    It enters the folder when it is first used, again in each process that is forked, and can be
    pickled: other processes of the run enter it, too.

    Args:
        root: The cache folder of the user.
        path: The folder of pieces; see `piece_folder.folder_of_pieces`.
        run: A name that all processes of this run have, and no other run.
        need: What the run needs on this node.

    Attributes:
        need: As given.
    """

    def __init__(self, root: CacheFolder, path: Path, run: str, need: CacheNeed) -> None:
        self.need = need
        self._given = (root, path, run, need)
        self._entered: dict[int, _Entered] = {}  # by process, as a fork has its parent's
        self._counts: dict[int, CacheCounts] = {}

    def open(self, piece: Piece) -> OpenPiece | None:
        """A piece that is in the cache; None if it is not, or not whole.

        Raises:
            FileAccessError: The cache folder is another user's, or others may write to it.
        """
        return self._here().open(piece)

    def kept(self, pieces: Iterable[Piece]) -> list[Piece]:
        """Those of these pieces that are in the cache, found without opening their files.

        Raises:
            FileAccessError: As of `open`.
        """
        here = self._here()
        return [piece for piece in pieces if here.has(piece)]

    def load(self, piece: Piece, fetch: Fetch, *, wait_s: float = 0.0) -> OpenPiece | None:
        """A piece from the cache, or fetched and kept; None if another process fetches it.

        Args:
            piece: Which one.
            fetch: Is called at most once, and by one process of the node at a time.
            wait_s: How long to wait for another process that fetches it.

        Raises:
            FileAccessError: As of `open`.
            DamagedShardError: `fetch` gave another number of bytes.
            Exception: What `fetch` raises; the next one who asks for the piece fetches it.
        """
        here, end = self._here(), perf_counter() + wait_s
        while True:
            found = here.open(piece) or here.load(piece, fetch)
            if found is not None or perf_counter() >= end:
                return found
            sleep(_POLL_S)

    def close(self) -> None:
        """Leave the folder; open pieces stay readable. Used again, it enters the folder again."""
        entered = self._entered.pop(os.getpid(), None)
        if entered is not None:
            entered.leave()

    @property
    def counts(self) -> CacheCounts:
        """What this process had to do with the cache so far."""
        return self._counts.setdefault(os.getpid(), CacheCounts())

    def __reduce__(self) -> tuple[type["PieceCache"], tuple[object, ...]]:
        """Pickle what it was made of; it is entered by each process."""
        return PieceCache, self._given

    def _here(self) -> "_Entered":
        here = self._entered.get(os.getpid())
        if here is None:
            made = _Entered(*self._given, self.counts)
            here = self._entered.setdefault(os.getpid(), made)
            if here is not made:  # another thread was faster
                made.leave()
        return here


class _Entered:
    """The cache in one process: what it holds open, and what it counts."""

    def __init__(
        self, root: CacheFolder, path: Path, run: str, need: CacheNeed, counts: CacheCounts
    ) -> None:
        self._folder, self._run = PieceFolder(root, path), run
        self._runs = OpenRuns(self._folder)
        self._room = PieceRoom(self._folder, self._runs, counts)
        self._lock, self._warned, self._counts = threading.Lock(), False, counts
        self._registered: int | None = None
        self._is_elsewhere = is_shared_by_machines(path)
        try:
            self._folder.make()
            self._registered = self._runs.register(run, need)
        except FileAccessError:
            raise
        except OSError as error:
            self._warn(error)

    def open(self, piece: Piece) -> OpenPiece | None:
        """See `PieceCache.open`."""
        opened = self._opened(piece)
        if opened is not None:
            with self._lock:
                self._counts.opened += 1
        return opened

    def has(self, piece: Piece) -> bool:
        """Whether the piece is there."""
        return self._registered is not None and is_there(self._folder.path_of(piece), piece.size)

    def load(self, piece: Piece, fetch: Fetch) -> OpenPiece | None:
        """The piece, fetched; None if another process fetches it."""
        part = None
        if self._registered is not None:
            try:
                part = self._begun(piece)
            except OSError as error:
                self._warn(error)
            else:
                if part is None:
                    return None
        try:
            # it may have come between the look at the cache and the lock
            opened = None if part is None else self.open(piece)
            opened = opened or self._fetched(piece, fetch, part)
        except BaseException:
            self._end(piece, part)
            raise
        if part is not None and opened.file != part:
            self._end(piece, part)
        return opened

    def leave(self) -> None:
        """Leave the folder."""
        if self._registered is not None:
            registered, self._registered = self._registered, None
            self._runs.forget(self._run, registered)

    def _begun(self, piece: Piece) -> int | None:
        try:
            return self._folder.begin_part(piece)
        except FileNotFoundError:  # somebody has removed the folders
            self._folder.make()
        except OSError as error:
            if error.errno not in _FULL:  # as by a quota of files
                raise
            self._room.shrink(None, piece)
            self._warn(error)
        return self._folder.begin_part(piece)

    def _end(self, piece: Piece, part: int | None) -> None:
        """Remove the file of a piece that was not kept."""
        if part is not None:
            with suppress(OSError):
                os.unlink(self._folder.part_of(piece))  # noqa: PTH108 a string
            os.close(part)

    def _opened(self, piece: Piece) -> OpenPiece | None:
        if self._registered is None:
            return None
        try:
            return open_piece(self._folder.path_of(piece), piece.begin, piece.end)
        except OSError as error:
            self._warn(error)
            return None

    def _fetched(self, piece: Piece, fetch: Fetch, part: int | None) -> OpenPiece:
        data = memoryview(fetch()).cast("B")
        if len(data) != piece.size:
            raise DamagedShardError(
                f"{len(data):,} bytes were fetched of {redact(piece.url)} at byte {piece.begin:,}, "
                f"not {piece.size:,}; check the network, and whether the object is being replaced"
            )
        is_kept = False
        if part is not None:
            try:
                is_kept = self._is_kept(piece, part, data)
            except OSError as error:
                self._warn(error)
        with self._lock:
            self._counts.fetched += 1
            self._counts.fetched_bytes += piece.size
            self._counts.bypassed += not is_kept
        if is_kept:
            return OpenPiece(piece.begin, piece.end, part, path=self._folder.path_of(piece))
        return OpenPiece(piece.begin, piece.end, None, data)

    def _is_kept(self, piece: Piece, part: int, data: memoryview, *, is_last: bool = False) -> bool:
        """Whether the piece is in the cache now; not if there is no room for it."""
        if not self._room.has_given(part, piece):
            return False
        try:
            write_piece(part, data)
            if self._is_elsewhere:
                os.fsync(part)  # before, it may not say that a quota is full
            self._publish(piece, part)
        except BaseException as error:
            full = error if isinstance(error, OSError) and error.errno in _FULL else None
            with suppress(OSError):  # the first error tells more
                if full:
                    self._room.shrink(part, piece)
                else:
                    self._room.give_back(part)
            if full is None or is_last:
                raise
            self._warn(full)
        else:
            return True
        return self._is_kept(piece, part, data, is_last=True)  # after an eviction

    def _publish(self, piece: Piece, part: int) -> None:
        path = self._folder.path_of(piece)
        with suppress(FileExistsError):
            os.mkdir(os.path.dirname(path), 0o700)  # noqa: PTH102, PTH120 a string
        os.rename(self._folder.part_of(piece), path)  # noqa: PTH104 a string
        believe(part)

    def _warn(self, error: OSError) -> None:
        """Say once per process why pieces are not kept, or fewer than the limit allows."""
        with self._lock:
            is_first, self._warned = not self._warned, True
        if not is_first:
            return
        path, what, most = self._folder.path, error.strerror or error, self._room.most_bytes
        if error.errno in _FULL and most is not None:
            _log.warning(
                "the cache of pieces in %s is full before its limit: %s; no more than %.3g GiB are "
                "kept there from now on: set loader.cache_gib to less than a quota leaves, make "
                "room there, or name another cache_dir",
                path,
                what,
                most / GIB,
            )
            return
        _log.warning(
            "the cache of pieces in %s cannot be used: %s; what is not kept there is fetched "
            "again when it is wanted again: %s",
            path,
            what,
            _REMEDIES.get(error.errno or 0, "make room there, or name another cache_dir"),
        )


_WINDOWS: Final = 2  # that which is read and the next one
_BATCHES: Final = 3  # of large samples: that which is read and two that follow


class RunSize(NamedTuple):
    """How much data the processes of a run on one node read, and how much of it at a time.

    Attributes:
        data: By what the data is recognised that several runs read: a hash of the URLs.
        size_bytes: Bytes of all shards that the node reads in the epochs of the run.
        tables_bytes: Bytes of their member tables.
        working_set_bytes: What is worked on at a time; see `working_set_of`.
        groups: The groups of the pieces of its shards; see `piece_files.groups_of`.
        is_drawn: Whether runs are drawn, of which no piece comes again.
    """

    data: str
    size_bytes: int
    tables_bytes: int
    working_set_bytes: int
    groups: tuple[str, ...] = ()
    is_drawn: bool = False


def is_drawn_anew(sampling: str, size_bytes: int, samples: int) -> bool:
    """Whether runs begin at other samples in each epoch; of large samples each is a piece."""
    return sampling == "resampled" and not is_sample_the_unit(size_bytes, samples)


def working_set_of(size_bytes: int, samples: int, window: int, prepared: int) -> int:
    """Bytes that a node works on: two windows, or of large samples three times what it prepares.

    >>> working_set_of(1000 * 2**10, 1000, window=100, prepared=32)
    204800
    >>> working_set_of(1000 * 2**20, 1000, window=100, prepared=32)
    100663296

    Args:
        size_bytes: Bytes of all shards.
        samples: Samples in them.
        window: Samples whose pieces are announced together.
        prepared: Samples of a batch times the processes of the node that prepare batches.
    """
    is_large = is_sample_the_unit(size_bytes, samples)
    at_a_time = _BATCHES * prepared if is_large else _WINDOWS * window
    return min(size_bytes, size_bytes * at_a_time // max(samples, 1))


def cache_of_run(
    folder: CacheFolder, run: str, size: RunSize, cache_gib: float | None = None
) -> PieceCache | None:
    """The cache that all processes of a run on this node read through; it is given to them.

    It is made where a run is set up.

    Args:
        folder: The cache folder of the user.
        run: A name that all processes of this run have, and no other run.
        size: What the run reads.
        cache_gib: The limit in GiB. Default: three quarters of the disk, 50 GiB always left.

    Returns:
        None if the default limit is too low, with a warning: batches are then read exactly.

    Raises:
        ConfigError: The limit that was given is too low.
        FileAccessError: The folder belongs to another user, or others may write to it.
        OSError: It cannot be made or read.
    """
    path = folder_of_pieces(folder)
    pieces = PieceFolder(folder, path)
    folder.make_folder(path)
    limit, left_free = _limit(pieces, cache_gib)
    working_set, tables = size.working_set_bytes, size.tables_bytes
    sizes = (limit, size.size_bytes, working_set, tables, left_free)
    need = CacheNeed(size.data, *sizes, size.groups, time.time_ns(), size.is_drawn)
    if has_room(need, is_set=cache_gib is not None):
        return PieceCache(folder, path, run, need)
    _warn_once(
        f"nothing is kept of remote shards: {folder.root} has {limit / GIB:.3g} GiB for it, and "
        f"the block that is read and the one that follows have {working_set / GIB:.3g} GiB, the "
        f"member tables {tables / GIB:.3g} GiB; name a folder with more room as cache_dir, or set "
        "cache_gib or a smaller shuffle_block"
    )
    return None


@cache
def _warn_once(message: str) -> None:
    """Each loader of a run would say it again."""
    _log.warning("%s", message)


def _limit(pieces: PieceFolder, cache_gib: float | None) -> tuple[int, int]:
    """What pieces may take, and what is left free on the disk."""
    if cache_gib is not None:
        return round(cache_gib * GIB), 0
    used = 0
    with suppress(FileNotFoundError):  # there is none yet, or another process removes it
        used = sum(piece.size for piece in pieces.pieces())
    path = pieces.path.absolute()
    disk = os.statvfs(next(above for above in (path, *path.parents) if above.exists()))
    return default_limit(disk.f_bavail * disk.f_frsize, used), LEFT_FREE_BYTES
