"""The runs that use a folder of pieces at present, and what each needs.

A run writes a small file, which each of its processes holds locked, shared with the other ones.
When that lock is free, all have ended, however they ended.
"""

import json
import logging
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Final

from lightning_shards.errors import ConfigError
from lightning_shards.shards.beside import is_number
from lightning_shards.shards.remote.cache.limits import (
    GIB,
    CacheNeed,
    limit_of_pieces,
    working_bytes,
)
from lightning_shards.shards.remote.cache.piece_folder import PieceFolder
from lightning_shards.system.file_locks import is_locked

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
