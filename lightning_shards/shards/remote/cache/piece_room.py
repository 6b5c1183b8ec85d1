"""Room for new pieces in the folder of a node: a counter of used bytes, and eviction.

All of it happens under one lock. The file of a new piece is made with its full size at once, so
that a recount sees what other processes are about to write.
"""

import logging
import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Final, NamedTuple

from lightning_shards.shards.remote.cache.limits import (
    GIB,
    CachedPiece,
    CacheNeed,
    OwnShare,
    evicted_ahead,
    limit_of_pieces,
    lowered,
    own_share,
    pieces_to_drop,
)
from lightning_shards.shards.remote.cache.open_runs import OpenRuns
from lightning_shards.shards.remote.cache.piece_files import TRAILER_BYTES
from lightning_shards.shards.remote.cache.piece_folder import COUNTER_LOCK, PieceFolder
from lightning_shards.shards.remote.cache.piece_names import Piece, number_of

_WAIT_S: Final = 2.0
"""Nobody holds the lock of the counter for long, except a process that is stopped."""

_log = logging.getLogger(__name__)


class NewPiece(NamedTuple):
    """A file with room for a piece, which is not in the cache yet.

    Attributes:
        path: Where it is.
        file: Its descriptor, which belongs to who asked for the room.
        size: Its bytes, with the trailer.
    """

    path: Path
    file: int
    size: int


@dataclass(slots=True)
class CacheCounts:
    """What this process had to do with the cache.

    Attributes:
        opened: Pieces that were there.
        fetched: Pieces that this process fetched.
        fetched_bytes: Their bytes.
        bypassed: Those of them that could not be kept.
        evicted: Pieces that this process dropped.
    """

    opened: int = 0
    fetched: int = 0
    fetched_bytes: int = 0
    bypassed: int = 0
    evicted: int = 0


class PieceRoom:
    """Makes room for pieces, and counts what it costs.

    Args:
        folder: The folder of pieces; the process has entered it.
        runs: The open runs.
        counts: Where the pieces that are dropped are counted.

    Attributes:
        most_bytes: What pieces may take, whatever the limit, since the disk was full: a quota may
            be far below the limit, and no file system tells it. None: it never was.
    """

    def __init__(self, folder: PieceFolder, runs: OpenRuns, counts: CacheCounts) -> None:
        self._folder, self._runs, self._counts = folder, runs, counts
        self.most_bytes: int | None = None
        self._warned = False
        # Threads of one process queue here: a lock of a file is asked for again and again
        self._lock = Lock()

    def take(self, piece: Piece) -> NewPiece | None:
        """Room for a piece; None if there is none within the limit, whatever is dropped.

        None, too, for a download that outlived its run: who has left keeps nothing.

        Raises:
            OSError: The folder cannot be used.
        """
        size = piece.size + TRAILER_BYTES
        with self._counter() as file:
            if file is None or self._runs.own is None:
                return None
            used, needs = self._folder.read_used(file), self._needs()
            if max(self._lacking(used, size, needs), self._lacking_share(size, needs)) > 0:
                used, needs = self._evict(size)
                self._folder.write_used(file, used)
                if max(self._lacking(used, size, needs), self._lacking_share(size, needs)) > 0:
                    self._warn(needs)
                    return None
            self._folder.write_used(file, used + size)  # first, as too much is no harm
            self._count_share(size, needs)
            return self._made(piece, size)

    def give_back(self, room: NewPiece) -> None:
        """Remove a file that does not become a piece.

        Args:
            room: The file; its descriptor is closed.

        Raises:
            OSError: The folder cannot be used.
        """
        self._remove(room)
        with self._counter() as file:
            if file is not None:
                self._folder.write_used(file, self._folder.read_used(file) - room.size)

    def shrink(self, piece: Piece, room: NewPiece | None) -> None:
        """Keep no more than there is, as the disk is full, and make room for a piece in it.

        What the block that is read and the next one need is tried again, as others may have filled
        the disk for a while.

        Args:
            piece: Which could not be written.
            room: What was made of its file, which is removed; its descriptor is closed.

        Raises:
            OSError: The folder cannot be used.
        """
        if room is not None:
            self._remove(room)
        with self._counter() as file:
            if file is not None:
                used, _ = self._evict(piece.size + TRAILER_BYTES, is_full=True)
                self._folder.write_used(file, used)

    @contextmanager
    def _counter(self) -> Generator[int | None, None, None]:
        """The file of the counter, locked; None if that takes too long."""
        if not self._lock.acquire(timeout=_WAIT_S):
            yield None
            return
        try:
            with self._folder.locks.held(COUNTER_LOCK, _WAIT_S) as lock:
                yield None if lock is None else lock.file
        finally:
            self._lock.release()

    def _warn(self, needs: list[CacheNeed]) -> None:
        """Say once per process that there is no room, under the lock of the counter."""
        if not self._warned:
            self._warned = True
            _log.warning(
                "some pieces are not kept in %s for lack of room: beside member tables its limit "
                "leaves %.3g GiB for the pieces of %d open runs, and %.3g GiB stay free on the "
                "disk; raise cache_gib, make room on the disk, or name another cache_dir",
                self._folder.path,
                limit_of_pieces(needs) / GIB,
                len(needs),
                max((need.left_free_bytes for need in needs), default=0) / GIB,
            )

    def _remove(self, room: NewPiece) -> None:
        os.close(room.file)
        with suppress(FileNotFoundError):
            room.path.unlink()

    def _needs(self) -> list[CacheNeed]:
        """What the open runs need, within what the disk was seen to hold."""
        needs = self._runs.needs()
        return needs if self.most_bytes is None else lowered(needs, self.most_bytes)

    def _made(self, piece: Piece, size: int) -> NewPiece:
        path = self._folder.part_of(number_of(piece.folder, piece.name))
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        file = os.open(path, flags, 0o600)
        try:
            os.ftruncate(file, size)
        except BaseException:
            os.close(file)
            path.unlink()
            raise
        return NewPiece(path, file, size)

    def _lacking(self, used: int, size: int, needs: list[CacheNeed]) -> int:
        """Bytes that must be made free for so many new ones; 0 or less: none."""
        lacking = used + size - limit_of_pieces(needs)
        left_free = max((need.left_free_bytes for need in needs), default=0)
        if left_free:
            disk = os.statvfs(self._folder.path)
            lacking = max(lacking, left_free + size - disk.f_bavail * disk.f_frsize)
        return lacking

    def _share(self, needs: list[CacheNeed]) -> tuple[Path, OwnShare] | None:
        """What this run may hold, and the file that counts it; None if it may take all."""
        own, count = self._runs.own, self._runs.own_count
        share = None if own is None else own_share(needs, own)
        return None if share is None or count is None else (count, share)

    def _lacking_share(self, size: int, needs: list[CacheNeed]) -> int:
        """Bytes that this run must make free of its own for so many new ones, or must count."""
        count, share = self._share(needs) or (None, None)
        if count is None or share is None:
            if self._runs.own_count is not None:
                self._runs.own_count.unlink(missing_ok=True)  # others count no more than their own
            return 0
        held = self._folder.read_count(count)
        return size if held is None else held + size - share.limit_bytes

    def _count_share(self, size: int, needs: list[CacheNeed]) -> None:
        count, _ = self._share(needs) or (None, None)
        if count is not None:
            self._folder.write_count(count, (self._folder.read_count(count) or 0) + size)

    def _evict_share(
        self, pieces: list[CachedPiece], size: int, needs: list[CacheNeed]
    ) -> set[CachedPiece]:
        """Drop what is too much of this run's own, and count that; what is gone."""
        count, share = self._share(needs) or (None, None)
        if count is None or share is None:
            return set()
        own = [piece for piece in pieces if piece.group in share.groups]
        held = sum(piece.size for piece in own)
        lacking = held + size - share.limit_bytes
        if lacking > 0:
            lacking += evicted_ahead(share.limit_bytes, held)
        gone = self._drop(own, needs, lacking)
        self._folder.write_count(count, held - sum(piece.size for piece in gone))
        return gone

    def _evict(self, size: int, *, is_full: bool = False) -> tuple[int, list[CacheNeed]]:
        """Drop what is not needed for so many bytes; what is then used, and what is needed."""
        self._runs.remove_ended()
        used = self._folder.bytes_in_parts()  # first: a part becomes a piece without this lock
        pieces = list(self._folder.pieces())
        used += sum(piece.size for piece in pieces)
        if is_full:
            works_on = sum(need.working_set_bytes for need in self._runs.needs())
            self.most_bytes = max(used, works_on)
        needs = self._needs()
        gone = self._evict_share(pieces, size, needs)
        used -= sum(piece.size for piece in gone)
        lacking = max(self._lacking(used, size, needs), size if is_full else 0)
        if lacking > 0:
            lacking += evicted_ahead(limit_of_pieces(needs), used)
        gone = self._drop([piece for piece in pieces if piece not in gone], needs, lacking)
        return used - sum(piece.size for piece in gone), needs

    def _drop(
        self, pieces: list[CachedPiece], needs: list[CacheNeed], lacking: int
    ) -> set[CachedPiece]:
        """Drop pieces until so many bytes are free; those that are gone."""
        gone = set[CachedPiece]()
        for piece in pieces_to_drop(pieces, needs, lacking):
            try:
                os.unlink(piece.path)  # noqa: PTH108 a path of scandir
                self._counts.evicted += 1  # under the lock of the counter
            except FileNotFoundError:
                pass
            except OSError as error:
                _log.debug("%s is not dropped: %s", piece.path, error)
                continue
            gone.add(piece)
        return gone
