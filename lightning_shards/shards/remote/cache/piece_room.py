"""The runs that use a folder of pieces, and room in it for new ones.

A run writes a small file, which each of its processes holds locked, shared with the other ones.
When that lock is free, all have ended, however they ended.

A counter says how many bytes are used; where a new piece lacks room, others are dropped. All of it
happens under one lock. The file of a new piece gets its full size at once, so that a recount sees
what other processes are about to write.
"""

import json
import logging
import os
import re
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Final

from lightning_shards.errors import ConfigError
from lightning_shards.shards.beside import is_number
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
from lightning_shards.shards.remote.cache.piece_files import TRAILER_BYTES, Piece
from lightning_shards.shards.remote.cache.piece_folder import PieceFolder, is_locked

_NAME: Final = re.compile(r"[0-9a-zA-Z_-]{1,64}")
_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK

_log = logging.getLogger(__name__)


class OpenRuns:
    """The registered needs of a folder."""

    def __init__(self, folder: PieceFolder) -> None:
        self._folder = folder
        self._known: dict[str, CacheNeed] = {}
        self.own: CacheNeed | None = None
        """What the run of this process needs; None where it has none."""

    def register(self, run: str, need: CacheNeed) -> int:
        """Make a need known to all processes, for as long as the open file that is returned.

        The need of the first process of a run holds for all of them, and the limit of the first run
        of a folder for all that have it open at the same time.

        Raises:
            ConfigError: The run's name cannot be that of a file.
            OSError: It cannot be written or locked.
        """
        if not _NAME.fullmatch(run):
            raise ConfigError(f"{run!r} cannot name a run; take up to 64 letters and digits")
        with self._folder.counter() as counter:  # so that one of two newcomers is the first
            if counter is None:
                raise OSError(f"the lock of {self._folder.path} does not become free")
            self.remove_ended()
            others = self.needs()
            if not others:
                self._folder.clean(counter)
            known = self._known.get(run)
            if known is None:
                known = self._with_limit(need, others)
                self._write(run, known)
            self.own = known
            file = os.open(self._folder.runs / run, _FLAGS)
            is_locked(file, shared=True)  # nobody holds it alone, except with the counter
            return file

    def forget(self, run: str, file: int) -> None:
        """A process of this run has ended its part; the last one takes the need back."""
        os.close(file)
        self.own = None
        with suppress(OSError), self._folder.counter() as counter:
            if counter is not None:
                self._remove_if_ended(run)

    def needs(self) -> list[CacheNeed]:
        """What open runs need, that of this process always.

        A run that was killed counts until `remove_ended`.

        Raises:
            OSError: They cannot be read.
        """
        names = set(self._names())
        for name in self._known.keys() - names:
            self._known.pop(name, None)
        for name in names - self._known.keys():
            need = self._read(name)
            if need is not None:
                self._known[name] = need
        needs = list(self._known.values())
        return needs if self.own is None or self.own in needs else [*needs, self.own]

    def remove_ended(self) -> None:
        """Take back the needs of runs whose processes have all ended.

        Raises:
            OSError: They cannot be read.
        """
        for name in self._names():
            self._remove_if_ended(name)

    def _names(self) -> list[str]:
        return [name for name in os.listdir(self._folder.runs) if _NAME.fullmatch(name)]  # noqa: PTH208

    def _remove_if_ended(self, name: str) -> None:
        path = self._folder.runs / name
        with suppress(FileNotFoundError, IsADirectoryError):
            file = os.open(path, _FLAGS)
            try:
                if is_locked(file):
                    path.unlink()
            finally:
                os.close(file)

    def _with_limit(self, need: CacheNeed, others: list[CacheNeed]) -> CacheNeed:
        """The need with the limit of the folder, which the runs that have it open have brought."""
        if not others:
            return need
        limit, left_free = others[0].limit_bytes, others[0].left_free_bytes
        if not need.left_free_bytes and limit != need.limit_bytes:
            _log.warning(
                "cache_gib=%.3g does not hold in %s: its limit is %.3g GiB as long as runs have it "
                "open that were given that; give all runs of a folder the same cache_gib",
                need.limit_bytes / GIB,
                self._folder.path,
                limit / GIB,
            )
        need = need._replace(limit_bytes=limit, left_free_bytes=left_free)
        works, room = working_bytes([*others, need]), limit_of_pieces([*others, need])
        if works > room:
            _log.warning(
                "the runs that have %s open work on %.3g GiB together, and its limit leaves %.3g "
                "GiB for pieces, so some are fetched more than once; raise cache_gib, or name "
                "another cache_dir",
                self._folder.path,
                works / GIB,
                room / GIB,
            )
        return need

    def _write(self, run: str, need: CacheNeed) -> None:
        (self._folder.runs / run).write_text(json.dumps(need._asdict()))
        self._known[run] = need

    def _read(self, name: str) -> CacheNeed | None:
        path: Path = self._folder.runs / name
        try:
            need = CacheNeed(**json.loads(path.read_bytes()))
            groups: list[object] = list(need.groups)
        except (FileNotFoundError, IsADirectoryError, ValueError, TypeError, RecursionError):
            return None  # it was taken back meanwhile, or a power cut has torn it
        is_need = all(map(is_number, (*need[1:6], need.begun_ns)))
        names = tuple(group for group in groups if isinstance(group, str))
        return need._replace(groups=names) if is_need else None


_WAIT_S: Final = 2.0
"""Threads hold the lock of the counter for moments."""


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
