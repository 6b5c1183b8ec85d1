"""The runs that use a folder of pieces at present, and what each needs.

A run writes a small file, and each of its processes holds the run's lock, shared with the other
ones. When the lock is free, all have ended, however they ended; where the system does not say who
has it, when the file is old, which a run at work touches from time to time. A process counts its
own need in any case, and writes it again when something else has removed it.
"""

import json
import os
import re
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from lightning_shards.errors import ConfigError
from lightning_shards.shards.beside import is_number
from lightning_shards.shards.remote.cache.limits import CacheNeed, lack_beside
from lightning_shards.shards.remote.cache.piece_folder import (
    COUNTER_LOCK,
    PieceFolder,
    is_left_behind,
    lock_of,
    number_of_run,
)

_NAME: Final = re.compile(r"[0-9a-zA-Z_-]{1,64}")
_WAIT_S: Final = 10.0  # others hold it alone for as long as it takes to look
_COUNTER_WAIT_S: Final = 2.0  # nobody holds it for long, except a process that is stopped
_TOUCHED_EVERY_S: Final = 300.0


class OpenRuns:
    """The registered needs of a folder."""

    def __init__(self, folder: PieceFolder) -> None:
        self._folder = folder
        self._known: dict[str, CacheNeed] = {}
        self._own: dict[str, CacheNeed] = {}  # of the run of this process
        self._touched_s = 0.0

    def register(self, run: str, need: CacheNeed) -> int:
        """Make a need known to all processes, for as long as the open file that is returned.

        The need of the first process of a run holds for all of them: a limit that follows from the
        free disk is another one when it is asked for later.

        Raises:
            ConfigError: The run's name cannot be that of a file.
            OSError: It cannot be written, or there is no room beside the open runs.
        """
        if not _NAME.fullmatch(run):
            raise ConfigError(f"{run!r} cannot name a run; take up to 64 letters and digits")
        locks, number = self._folder.locks, _lock_of(run)
        lock, is_first = locks.take_first(number, wait_s=_WAIT_S)
        if lock is None:
            raise OSError(f"the lock of run {run} in {self._folder.path} does not become free")
        try:
            with locks.held(
                COUNTER_LOCK, _COUNTER_WAIT_S
            ):  # so that one of two newcomers is the first
                known = None if is_first else self._read(run)
                if known is None:
                    self._require_room(run, need)
                    self._write(run, need)
            self._own, self._touched_s = {run: known or need}, time.monotonic()
            locks.share(lock.file, number)
        except BaseException:
            lock.close()
            raise
        return lock.file

    def touch(self) -> None:
        """Show now and then that the run is at work; what others have removed is made again.

        Without it, programs that clean up by age would remove these files, and without locks the
        other processes of the cache, too.
        """
        now = time.monotonic()
        if now - self._touched_s < _TOUCHED_EVERY_S:
            return
        self._touched_s = now
        with suppress(OSError):  # the next piece that is written says what is wrong
            self._folder.make()
            self._renew()
            for path in (self._folder.locks.path, *map(self._folder.runs.joinpath, self._own)):
                os.utime(path)

    def forget(self, run: str, file: int) -> None:
        """A process of this run has ended its part; the last one takes the need back."""
        os.close(file)
        self._own.pop(run, None)
        with suppress(OSError):
            self._remove_ended([run])

    def needs(self) -> list[CacheNeed]:
        """What open runs need, that of this process always.

        A run that was killed counts until `remove_ended`.

        Raises:
            OSError: They cannot be read.
        """
        names = {name for name in os.listdir(self._folder.runs) if _NAME.fullmatch(name)}  # noqa: PTH208
        for name in self._known.keys() - names:
            self._known.pop(name, None)  # where there are no locks, another thread may be here
        for name in names - self._known.keys():
            need = self._read(name)
            if need is not None:
                self._known[name] = need
        if not self._own.keys() <= names:
            with suppress(OSError):
                self._renew()
        return list((self._known | self._own).values())

    @property
    def own(self) -> CacheNeed | None:
        """The need of the run of this process; None where it has none."""
        return next(iter(self._own.values()), None)

    @property
    def own_count(self) -> Path | None:
        """The file that counts what the run of this process holds, where that is bounded."""
        return next((self._folder.runs / f"{run}.used" for run in self._own), None)

    def others(self, run: str) -> list[CacheNeed]:
        """What runs but this one need that are surely open.

        Raises:
            OSError: They cannot be read.
        """
        names = [name for name in os.listdir(self._folder.runs) if _NAME.fullmatch(name)]  # noqa: PTH208
        locks = self._folder.locks
        found = (
            self._read(name)
            for name in names
            if name != run and locks.is_free(_lock_of(name)) is False
        )
        return [need for need in found if need is not None]

    def remove_ended(self) -> None:
        """Take back the needs of runs whose processes have all ended.

        Raises:
            OSError: They cannot be read.
        """
        self._remove_ended(os.listdir(self._folder.runs))  # noqa: PTH208 names alone

    def _remove_ended(self, names: Iterable[str]) -> None:
        for name in names:
            if _NAME.fullmatch(name):
                path = self._folder.runs / name
                with (
                    suppress(FileNotFoundError, IsADirectoryError),
                    self._folder.locks.held(_lock_of(name)) as lock,
                ):
                    if lock is not None and (lock.is_sure or is_left_behind(path.stat())):
                        path.unlink()
                        path.with_name(f"{name}.used").unlink(missing_ok=True)

    def _require_room(self, run: str, need: CacheNeed) -> None:
        lack = lack_beside(need, self.others(run))
        if lack:
            raise OSError(f"{lack} (raise cache_gib)")

    def _renew(self) -> None:
        """Write the need of this process's run again if it is gone."""
        for run, need in list(self._own.items()):  # another thread may take it back
            if not (self._folder.runs / run).exists():
                self._write(run, need)

    def _write(self, run: str, need: CacheNeed) -> None:
        part = self._folder.part_of(number_of_run(run))
        part.write_text(json.dumps(need._asdict()))
        part.replace(self._folder.runs / run)

    def _read(self, name: str) -> CacheNeed | None:
        try:
            need = CacheNeed(**json.loads((self._folder.runs / name).read_bytes()))
            groups: list[object] = list(need.groups)
        except (FileNotFoundError, IsADirectoryError, ValueError, TypeError, RecursionError):
            return None  # it was taken back meanwhile, or a power cut has torn it
        is_need = all(map(is_number, (*need[1:6], need.begun_ns)))
        names = tuple(group for group in groups if isinstance(group, str))
        return need._replace(groups=names) if is_need else None


def _lock_of(run: str) -> int:
    return lock_of(number_of_run(run))
