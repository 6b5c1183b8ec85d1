"""Room for new pieces in the folder of a node: a counter of used bytes, and eviction.

All of it happens under one lock. The file of a new piece gets its full size at once, so that a
recount sees what other processes are about to write.
"""

import logging
import os
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import Final

from lightning_shards.shards.remote.cache.limits import (
    GIB,
    CachedPiece,
    CacheNeed,
    evicted_ahead,
    limit_of_pieces,
    lowered,
    pieces_to_drop,
    working_bytes,
)
from lightning_shards.shards.remote.cache.open_runs import OpenRuns
from lightning_shards.shards.remote.cache.piece_files import TRAILER_BYTES
from lightning_shards.shards.remote.cache.piece_folder import PieceFolder
from lightning_shards.shards.remote.cache.piece_names import Piece

_WAIT_S: Final = 2.0
"""Threads hold the lock of the counter for moments."""

_log = logging.getLogger(__name__)


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
        folder: The folder of pieces.
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

    def has_given(self, file: int, piece: Piece) -> bool:
        """Whether there is room for a piece, which its empty file then takes.

        There is none for a download that outlived its run: a process that has left keeps nothing.

        Raises:
            OSError: The folder cannot be used.
        """
        size = piece.size + TRAILER_BYTES
        with self._counter() as counter:
            if counter is None or self._runs.own is None:
                return False
            used, needs = self._folder.read_used(counter), self._needs()
            if self._lacking(used, size, needs) > 0:
                used, needs = self._evict(size)
                self._folder.write_used(counter, used)
                if self._lacking(used, size, needs) > 0:
                    self._warn(needs)
                    return False
            self._folder.write_used(counter, used + size)  # first, as too much is no harm
            os.ftruncate(file, size)
            return True

    def give_back(self, file: int) -> None:
        """Take back the room of a file that does not become a piece.

        Raises:
            OSError: The folder cannot be used.
        """
        with self._counter() as counter:
            if counter is not None:
                size = os.fstat(file).st_size
                os.ftruncate(file, 0)
                self._folder.write_used(counter, self._folder.read_used(counter) - size)

    def shrink(self, file: int | None, piece: Piece) -> None:
        """Keep no more than there is, as the disk is full, and make room for a piece in it.

        What the block that is read and the next one need is tried again, as others may have filled
        the disk for a while.

        Args:
            file: Of the piece, which could not be written; it is emptied. None: it was not made.
            piece: See above.

        Raises:
            OSError: The folder cannot be used.
        """
        if file is not None:
            os.ftruncate(file, 0)
        with self._counter() as counter:
            if counter is not None:
                used, _ = self._evict(piece.size + TRAILER_BYTES, is_full=True)
                self._folder.write_used(counter, used)

    @contextmanager
    def _counter(self) -> Generator[int | None, None, None]:
        """The file of the counter, locked; None if that takes too long."""
        if not self._lock.acquire(timeout=_WAIT_S):
            yield None
            return
        try:
            with self._folder.counter() as file:
                yield file
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

    def _needs(self) -> list[CacheNeed]:
        """What the open runs need, within what the disk was seen to hold."""
        needs = self._runs.needs()
        return needs if self.most_bytes is None else lowered(needs, self.most_bytes)

    def _lacking(self, used: int, size: int, needs: list[CacheNeed]) -> int:
        """Bytes that must be made free for so many new ones; 0 or less: none."""
        lacking = used + size - limit_of_pieces(needs)
        left_free = max((need.left_free_bytes for need in needs), default=0)
        if left_free:
            disk = os.statvfs(self._folder.path)
            lacking = max(lacking, left_free + size - disk.f_bavail * disk.f_frsize)
        return lacking

    def _evict(self, size: int, *, is_full: bool = False) -> tuple[int, list[CacheNeed]]:
        """Drop what is not needed for so many bytes; what is then used, and what is needed."""
        self._runs.remove_ended()
        used = self._folder.bytes_in_parts()  # first: a part becomes a piece without this lock
        pieces = list(self._folder.pieces())
        used += sum(piece.size for piece in pieces)
        if is_full:
            self.most_bytes = max(used, working_bytes(self._runs.needs()))
        needs = self._needs()
        lacking = max(self._lacking(used, size, needs), size if is_full else 0)
        if lacking > 0:
            lacking += evicted_ahead(limit_of_pieces(needs), used)
        return used - self._drop(pieces, needs, lacking), needs

    def _drop(self, pieces: list[CachedPiece], needs: list[CacheNeed], lacking: int) -> int:
        """Drop pieces until so many bytes are free; how many were dropped."""
        dropped = 0
        for piece in pieces_to_drop(pieces, needs, lacking):
            try:
                os.unlink(piece.path)  # noqa: PTH108 a path of scandir
                self._counts.evicted += 1  # under the lock of the counter
            except FileNotFoundError:
                pass
            except OSError as error:
                _log.debug("%s is not dropped: %s", piece.path, error)
                continue
            dropped += piece.size
        return dropped
