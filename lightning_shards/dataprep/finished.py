"""The finished shards of an output folder, by which a run that was killed goes on.

`.lightning-shards.json` in the folder holds the settings of the run and its finished shards, each
with its size and MD5; it is replaced in one step whenever a shard is added. The
settings decide all bytes, so the shards of one folder always belong to one plan. A run holds a lock
on the folder, which ends with the process in any case.
"""

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from lightning_shards.dataprep.tar_writer import WrittenShard
from lightning_shards.errors import ConfigError
from lightning_shards.shards.counts import WIDS, wids_entry, wids_json
from lightning_shards.shards.files import make_folder, replace_file, take_lock
from lightning_shards.shards.urls import plain_path

RUN_FILE: Final = ".lightning-shards.json"


class FinishedShards:
    """What a run has written to one output folder, which is locked until this is closed.

    Args:
        folder: The folder in which, or in folders below which, shards are written.
        settings: Plain values by name; equal settings must mean equal bytes.
        prefixes: Prefix of the shards in each folder below `folder` ("" for `folder` itself).

    Raises:
        ConfigError: Another run is writing here, or a run with other settings has written here, or
            the folder has shards of these names that no such run has written.
        FileAccessError: The folder cannot be made or written to.
    """

    def __init__(
        self, folder: Path, settings: Mapping[str, Any], prefixes: Mapping[str, str]
    ) -> None:
        self._folder, self._path = folder, folder / RUN_FILE
        self._prefixes = dict(prefixes)
        self._settings = json.loads(json.dumps({"splits": self._prefixes, **settings}))
        self._shards: dict[str, dict[str, Any]] = {}  # by path below the folder
        with ExitStack() as stack:
            lock = os.open(make_folder(folder), os.O_RDONLY | os.O_CLOEXEC)
            stack.callback(os.close, lock)
            if not take_lock(lock):
                raise ConfigError(
                    f"another run is writing to {folder}; wait until it ends, or name another one"
                )
            self._continue()
            self._lock = stack.pop_all()

    def written(self, below: str, name: str) -> WrittenShard | None:
        """The shard of this name if it was written and its file still has its size."""
        path, noted = self._folder / below / name, self._shards.get(str(Path(below, name)))
        if noted is None or not path.is_file() or path.stat().st_size != noted["size_bytes"]:
            return None
        return WrittenShard(**noted)

    def note(self, below: str, shard: WrittenShard) -> None:
        """Note a shard that is complete under its final name."""
        self._shards[str(Path(below, shard.name))] = asdict(shard)
        self._save()

    def list_shards(self, below: str, shards: Sequence[WrittenShard]) -> None:
        """Write the wids JSON of these shards of a folder."""
        entries = [
            wids_entry(each.name, each.samples, each.size_bytes, each.md5) for each in shards
        ]
        replace_file(self._folder / below / WIDS, wids_json(entries))

    def close(self) -> None:
        """Release the folder for other runs."""
        self._lock.close()

    def _continue(self) -> None:
        """Take over what an earlier run with the same settings has written."""
        old: dict[str, Any] = {}
        if self._path.exists():
            before = json.loads(self._path.read_bytes())
            old, self._shards = before["settings"], before["shards"]
        if old == self._settings:
            return
        folders = [self._folder / below for below in self._prefixes]
        present = [path for folder in folders for path in (*folder.glob("*.tar"), folder / WIDS)]
        if self._shards or any(map(Path.exists, present)):
            changed = "; ".join(
                f"{name} was {old.get(name)!r} and is now {self._settings.get(name)!r}"
                for name in (old and old | self._settings)
                if old.get(name) != self._settings.get(name)
            )
            raise ConfigError(
                f"{self._folder} holds shards, and not from a run with these settings "
                f"({changed or 'no run is noted'}); go on with the old ones, or name another folder"
            )
        self._save()

    def _save(self) -> None:
        content = {"settings": self._settings, "shards": self._shards}
        replace_file(self._path, json.dumps(content, indent=1) + "\n")


def shard_name(prefix: str, number: int) -> str:
    """The file name of a shard.

    >>> shard_name("train", 12)
    'train-000012.tar'
    """
    return f"{prefix}-{number:06d}.tar"


def shard_pattern(folder: Path, shards: Sequence[WrittenShard], prefix: str) -> str:
    """The pattern of these shards for a configuration: a path with the numbers in braces."""
    name = shards[0].name
    if len(shards) > 1:
        name = f"{prefix}-{{000000..{len(shards) - 1:06d}}}.tar"
    return plain_path(str(folder / name))
