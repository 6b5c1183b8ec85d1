"""The finished shards of an output folder, by which a run that was killed goes on.

`.lightning-shards.json` in the folder holds the settings of the run and its finished shards, each
with the size and the time of its file; it is replaced in one step whenever a shard is added. The
settings decide all bytes, so the shards of one folder always belong to one plan. A run holds a lock
on the folder, which ends with the process in any case.
"""

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from lightning_shards.dataprep.tar_writer import WrittenShard
from lightning_shards.errors import ConfigError
from lightning_shards.shards.beside import WIDS, wids_entry, write_wids
from lightning_shards.shards.files import (
    make_folder,
    open_folder,
    replace_file,
    stamp_of,
    take_lock,
)

RUN_FILE: Final = ".lightning-shards.json"

_SPECIAL = re.compile(r"[{}\\]|(?<=:):")
"""What means something else in a pattern: `::` joins two of them, `:` and `\\:` do not."""


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
            if not take_lock(stack.enter_context(open_folder(make_folder(folder)))):
                raise ConfigError(
                    f"another run is writing to {folder}; wait until it ends, or name another one"
                )
            self._continue()
            self._lock = stack.pop_all()

    def written(self, below: str, name: str) -> WrittenShard | None:
        """The shard of this name if it was written and its file is still as it was."""
        path = self._folder / below / name
        noted = dict(self._shards.get(str(Path(below, name)), {}))
        if not noted or not path.is_file() or list(stamp_of(path)) != noted.pop("stamp"):
            return None
        return WrittenShard(**noted)

    def note(self, below: str, shard: WrittenShard) -> None:
        """Note a shard that is complete under its final name."""
        stamp = list(stamp_of(self._folder / below / shard.name))
        self._shards[str(Path(below, shard.name))] = {"stamp": stamp, **asdict(shard)}
        self._save()

    def list_shards(self, below: str, shards: Sequence[WrittenShard]) -> None:
        """Write the wids JSON of these shards of a folder."""
        entries = [
            wids_entry(each.name, each.samples, each.size_bytes, each.md5) for each in shards
        ]
        write_wids(self._folder / below / WIDS, entries)

    def is_finished(self) -> bool:
        """Whether every data set of this run has its index."""
        return all((self._folder / below / WIDS).exists() for below in self._prefixes)

    def close(self) -> None:
        """Release the folder for other runs."""
        self._lock.close()

    def _continue(self) -> None:
        """Take over what an earlier run with the same settings has written."""
        old: dict[str, Any] = {}
        shards: dict[str, dict[str, Any]] = {}
        try:
            before = json.loads(self._path.read_bytes())
            old, shards = before["settings"], before["shards"]
        except FileNotFoundError:
            pass
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"{self._path} is damaged ({error}); remove the folder, or name another one"
            ) from error
        if old == self._settings:
            self._shards = shards
            return
        prefixes: dict[str, str] = old.get("splits", self._prefixes)
        for below, prefix in prefixes.items():
            folder = self._folder / below
            present = next(filter(Path.exists, [folder / WIDS, *shards_in(folder, prefix)]), None)
            if present:
                changed = "; ".join(
                    f"{name} was {old.get(name)!r} and is now {self._settings.get(name)!r}"
                    for name in (old and old | self._settings)
                    if old.get(name) != self._settings.get(name)
                )
                raise ConfigError(
                    f"{present} is there, and not from a run with these settings "
                    f"({changed or 'no run is noted'}); go on with the old ones, or name another "
                    "folder"
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


def shards_in(folder: Path, prefix: str) -> list[Path]:
    """The files in a folder with names of shards of this prefix."""
    name = re.compile(rf"{re.escape(prefix)}-\d{{6,}}\.tar")
    paths = sorted(folder.iterdir()) if folder.is_dir() else []
    return [path for path in paths if name.fullmatch(path.name)]


def shard_pattern(folder: Path, shards: Sequence[WrittenShard], prefix: str) -> str:
    """The pattern of these shards for a configuration: a path with the numbers in braces.

    What means something else in a pattern is escaped in the folder's own name, and one that could
    be taken for a URL, an option or a home folder begins with `./`.
    """
    name = shards[0].name
    if len(shards) > 1:
        numbers = [shards[end].name.removeprefix(f"{prefix}-")[:-4] for end in (0, -1)]
        name = f"{prefix}-{{{'..'.join(numbers)}}}.tar"
    pattern = str(Path(_SPECIAL.sub(r"\\\g<0>", str(folder))) / name)
    is_plain = pattern[0] in "/." or (pattern[0].isalnum() and ":" not in pattern)
    return pattern if is_plain else f"./{pattern}"
