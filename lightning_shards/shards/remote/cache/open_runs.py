"""The runs that use a folder of pieces at present, and what each needs.

A run writes a small file, once, and each of its processes holds the run's lock, shared with the
other ones. When the lock is free, all have ended, however they ended.
"""

import json
import os
import re
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from lightning_shards.errors import ConfigError
from lightning_shards.shards.beside import is_number
from lightning_shards.shards.remote.cache.limits import CacheNeed
from lightning_shards.shards.remote.cache.piece_folder import PieceFolder, lock_of, number_of_run

_NAME: Final = re.compile(r"[0-9a-zA-Z_-]{1,64}")
_WAIT_S: Final = 10.0  # others hold it alone for as long as it takes to look


class OpenRuns:
    """The registered needs of a folder."""

    def __init__(self, folder: PieceFolder) -> None:
        self._folder = folder
        self._known: dict[str, CacheNeed] = {}

    def register(self, run: str, need: CacheNeed) -> int:
        """Make a need known to all processes, for as long as the open file that is returned.

        The need of the first process of a run holds for all of them: a limit that follows from the
        free disk is another one when it is asked for later.

        Raises:
            ConfigError: The run's name cannot be that of a file.
            OSError: It cannot be written.
        """
        if not _NAME.fullmatch(run):
            raise ConfigError(f"{run!r} cannot name a run; take up to 64 letters and digits")
        locks, number = self._folder.locks, _lock_of(run)
        file = locks.take(number)
        is_first = file is not None
        if file is None:
            file = locks.take(number, shared=True, wait_s=_WAIT_S)
        if file is None:
            raise OSError(f"the lock of run {run} in {self._folder.path} does not become free")
        try:
            if is_first or self._read(run) is None:
                part = self._folder.part_of(number_of_run(run))
                part.write_text(json.dumps(need._asdict()))
                part.replace(self._folder.runs / run)
            locks.share(file, number)
        except BaseException:
            os.close(file)
            raise
        return file

    def forget(self, run: str, file: int) -> None:
        """A process of this run has ended its part; the last one takes the need back."""
        os.close(file)
        with suppress(OSError):
            self._remove_ended([run])

    def needs(self) -> list[CacheNeed]:
        """What open runs need; a run that was killed counts until `remove_ended`.

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
        return list(self._known.values())

    def remove_ended(self) -> None:
        """Take back the needs of runs whose processes have all ended.

        Raises:
            OSError: They cannot be read.
        """
        self._remove_ended(os.listdir(self._folder.runs))  # noqa: PTH208 names alone

    def _remove_ended(self, names: Iterable[str]) -> None:
        for name in names:
            if _NAME.fullmatch(name):
                with self._folder.locks.held(_lock_of(name)) as file:
                    if file is not None:
                        with suppress(IsADirectoryError):
                            (self._folder.runs / name).unlink(missing_ok=True)

    def _read(self, name: str) -> CacheNeed | None:
        try:
            need = CacheNeed(**json.loads((self._folder.runs / name).read_bytes()))
        except (FileNotFoundError, IsADirectoryError, ValueError, TypeError, RecursionError):
            return None  # it was taken back meanwhile, or a power cut has torn it
        return need if all(map(is_number, need[1:])) else None


def _lock_of(run: str) -> int:
    return lock_of(number_of_run(run))
