"""What a run that writes shards has decided and done, so that the next one goes on where it ended.

One hidden file in the folder that is written: its first line holds the settings, each further line
a shard that is whole under its final name. A run holds a lock on it, which ends with the process
however that dies. The settings say all that decides the bytes, so shards of one folder are always
shards of one plan.
"""

import fcntl
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, Self, cast

from lightning_shards.errors import ConfigError
from lightning_shards.shards.writing.tar_writer import INDEX_NAME, WrittenShard

JOURNAL_NAME: Final = ".lightning-shards.journal"

_VERSION = 1
_SHARD_NAME = re.compile(r"(.*)-\d{6,}\.tar")


class Journal:
    """The journal of one output folder, open and locked until it is closed.

    Args:
        folder: where shards are written, or in folders below it.
        settings: plain values by name; equal settings must mean equal bytes.
        prefixes: folder below `folder` ("" for itself) to prefix of the shards that go there.

    Raises:
        ConfigError: Another run is at work here, or one with other settings was, or the folder has
            shards of these names that no such run has written.
    """

    def __init__(
        self, folder: Path, settings: Mapping[str, Any], prefixes: Mapping[str, str]
    ) -> None:
        self._folder = folder
        self._prefixes = dict(prefixes)
        self._done: dict[tuple[str, str], WrittenShard] = {}
        self._facts: dict[str, Any] = {}
        path = folder / JOURNAL_NAME
        if not path.exists():
            self._refuse_foreign_shards()
        folder.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a+b")
        try:
            self._lock()
            self._begin({"version": _VERSION, "splits": self._prefixes} | dict(settings))
        except BaseException:
            self._file.close()
            raise

    def written(self, below: str, name: str) -> WrittenShard | None:
        """The shard of this name if it is written and still there, as far as its size tells."""
        shard = self._done.get((below, name))
        try:
            is_there = shard and (self._folder / below / name).stat().st_size == shard.size_bytes
        except FileNotFoundError:
            return None
        return shard if is_there else None

    def note(self, below: str, shard: WrittenShard) -> None:
        """Remember a shard that is whole under its final name."""
        self._append({"below": below} | asdict(shard))
        self._done[below, shard.name] = shard

    def fact(self, name: str) -> Any:
        """What was remembered under this name; None if nothing was."""
        return self._facts.get(name)

    def note_fact(self, name: str, value: Any) -> None:
        """Remember a plain value that took long to find out."""
        self._append({"fact": name, "value": value})
        self._facts[name] = value

    def own_shards(self, below: str) -> list[Path]:
        """The files that are named like our shards, whether a run has noted them or not."""
        return list(_shards(self._folder / below, self._prefixes[below]))

    def is_finished(self) -> bool:
        """Whether every data set of this run has its index."""
        return all((self._folder / below / INDEX_NAME).exists() for below in self._prefixes)

    def close(self) -> None:
        """Give the folder free for other runs."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError(
                f"another run is writing to {self._folder}; wait until it ends, or name another "
                "folder"
            ) from error

    def _begin(self, settings: dict[str, Any]) -> None:
        """Write the settings, or compare them with those of the run before and read what it did."""
        lines = [_parsed(line) for line in self._whole_lines()]
        new = _parsed(json.dumps(settings).encode())
        if lines and lines[0] != new and not self._has_shards(lines[0]["splits"]):
            self._file.truncate(0)  # nothing was written by them: they bind nobody
            lines = []
        if not lines:
            self._refuse_foreign_shards()
            self._append(new)
            return
        self._compare(lines[0], new)
        for entry in lines[1:]:
            if "fact" in entry:
                self._facts[entry["fact"]] = entry["value"]
            else:
                below = entry.pop("below")
                self._done[below, entry["name"]] = WrittenShard(**entry)

    def _has_shards(self, splits: dict[str, str]) -> bool:
        """Whether there is any shard that a run with these splits may have written."""
        return any(
            next(_shards(self._folder / below, prefix), None) for below, prefix in splits.items()
        )

    def _whole_lines(self) -> list[bytes]:
        """The lines of the file; a last one that was cut off is deleted."""
        self._file.seek(0)
        content = self._file.read()
        end = content.rfind(b"\n") + 1
        self._file.truncate(end)
        return content[:end].splitlines()

    def _compare(self, old: dict[str, Any], new: dict[str, Any]) -> None:
        """Refuse other settings than those of the shards that are there."""
        changed = [name for name in old | new if old.get(name) != new.get(name)]
        if changed:
            each = "; ".join(
                f"{name} was {old.get(name)!r} and is now {new.get(name)!r}" for name in changed
            )
            raise ConfigError(
                f"{self._folder} was begun with other settings: {each}; go on with the old ones, "
                "or name another folder"
            )

    def _refuse_foreign_shards(self) -> None:
        """Overwrite nothing that is not ours."""
        for below, prefix in self._prefixes.items():
            folder = self._folder / below
            found = next(_shards(folder, prefix), None) or folder / INDEX_NAME
            if found.exists():
                raise ConfigError(
                    f"{found} is there, and not from a run that can be resumed; name another folder"
                )

    def _append(self, entry: dict[str, Any]) -> None:
        self._file.write(json.dumps(entry).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())


def shard_name(prefix: str, number: int) -> str:
    """The file name of a shard.

    >>> shard_name("train", 12)
    'train-000012.tar'
    """
    return f"{prefix}-{number:06d}.tar"


def shard_pattern(folder: Path, shards: Sequence[WrittenShard], prefix: str) -> str:
    """How a configuration names these shards: a path with the numbers in braces."""
    first, last = shards[0].name, shards[-1].name
    if first == last:
        return str(folder / first)
    start, stop = (name.removeprefix(f"{prefix}-").removesuffix(".tar") for name in (first, last))
    return str(folder / f"{prefix}-{{{start}..{stop}}}.tar")


def _shards(folder: Path, prefix: str) -> Iterator[Path]:
    """The files in a folder that are named like shards with this prefix."""
    if folder.is_dir():
        for path in sorted(folder.iterdir()):
            match = _SHARD_NAME.fullmatch(path.name)
            if match and match[1] == prefix:
                yield path


def _parsed(line: bytes) -> dict[str, Any]:
    return cast("dict[str, Any]", json.loads(line))
