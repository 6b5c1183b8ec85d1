"""The journal of a run that writes shards, by which the next run goes on where it ended.

It is one hidden file in the output folder. Its first line holds the settings, and each further line
a shard that is complete under its final name; every line has a checksum. A run holds a lock on it,
which ends with the process in any case. The settings decide all bytes, so the shards of one folder
always belong to one plan.

Others may be able to write to the folder, so a journal is believed only if it is a file of this
user without a second name, up to its first damaged line, and about a shard only while its file is
unchanged.
"""

import hashlib
import json
import logging
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, NamedTuple, Self, cast

from lightning_shards.dataprep.writing.tar_writer import WrittenShard
from lightning_shards.errors import ConfigError, FileAccessError
from lightning_shards.shards.beside import WIDS
from lightning_shards.shards.checksums import crc32
from lightning_shards.shards.files import (
    make_folder,
    not_written,
    open_regular,
    refuse_link,
    stamp_of,
    take_lock,
)

JOURNAL_NAME: Final = ".lightning-shards.journal"

_VERSION = 3
_CHECKSUM = 8  # hexadecimal digits at the beginning of a line
_FLAGS = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW
_SPECIAL = re.compile(r"[{}\\]|(?<=:):")
"""What means something else in a pattern: `::` joins two of them, `:` and `\\:` do not."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_SHARD_NAME = re.compile(r"(.*)-\d{6,}\.tar")

_FACT = {"fact": str, "value": str}
_SHARD = {"below": str, "name": str, "md5": str, "fields": dict} | dict.fromkeys(
    ("mtime_ns", "samples", "size_bytes"), int
)

_log = logging.getLogger(__name__)


class _Noted(NamedTuple):
    """A shard, and the time of change of its file when it was noted."""

    shard: WrittenShard
    mtime_ns: int


class Journal:
    """The journal of one output folder, open and locked until it is closed.

    Args:
        folder: The folder in which, or in folders below which, shards are written.
        settings: Plain values by name; equal settings must mean equal bytes.
        prefixes: Prefix of the shards in each folder below `folder` ("" for `folder` itself).

    Raises:
        ConfigError: Another run is writing here, or a run with other settings has written here, or
            the folder has shards of these names that no such run has written, or a name that no
            pattern can have.
        FileAccessError: The journal is not a file of this user alone, or it or a folder is a link,
            or the folder cannot be read.
    """

    def __init__(
        self, folder: Path, settings: Mapping[str, Any], prefixes: Mapping[str, str]
    ) -> None:
        if _CONTROL.search(str(folder)):
            raise ConfigError(
                f"a control character in {str(folder)!r}: no pattern could name the shards in it; "
                "name another folder"
            )
        self._folder = folder
        self._prefixes = dict(prefixes)
        self._done: dict[tuple[str, str], _Noted] = {}
        self._facts: dict[str, str] = {}
        self._path = folder / JOURNAL_NAME
        try:
            for below in filter(None, self._prefixes):
                refuse_link(folder / below)
            if not self._path.exists():
                self._refuse_foreign_shards()
        except OSError as error:  # no access to a folder above, or a name is too long
            raise not_written(folder, error) from error
        make_folder(folder)
        self._file = os.fdopen(self._opened(), "r+b")
        try:
            lock_output(self._file.fileno(), self._folder)
            self._begin({"version": _VERSION, "splits": self._prefixes} | dict(settings))
        except BaseException:
            self.close()
            raise

    def written(self, below: str, name: str) -> WrittenShard | None:
        """The shard of this name if it was written and still exists.

        The file is recognised by its size and time of change; if only the time differs (the folder
        was copied), by its MD5.
        """
        noted = self._done.get((below, name))
        if noted is None:
            return None
        path, shard = self._folder / below / name, noted.shard
        try:
            status = path.lstat()
            if not stat.S_ISREG(status.st_mode) or status.st_size != shard.size_bytes:
                return None
            is_there = status.st_mtime_ns == noted.mtime_ns or _md5(path) == shard.md5
        except FileNotFoundError:
            return None
        return shard if is_there else None

    def note(self, below: str, shard: WrittenShard) -> None:
        """Note a shard that is complete under its final name."""
        mtime_ns = stamp_of(self._folder / below / shard.name)[1]
        self._append({"below": below, "mtime_ns": mtime_ns} | asdict(shard))
        self._done[below, shard.name] = _Noted(shard, mtime_ns)

    def fact(self, name: str) -> str | None:
        """The text that was noted under this name; None if there is none."""
        return self._facts.get(name)

    def note_fact(self, name: str, value: str) -> None:
        """Note a text that took long to compute."""
        self._append({"fact": name, "value": value})
        self._facts[name] = value

    def own_shards(self, below: str) -> list[Path]:
        """The files with names of our shards, whether they are in the journal or not."""
        return list(_shards(self._folder / below, self._prefixes[below]))

    def is_finished(self) -> bool:
        """Whether every data set of this run has its index."""
        return all((self._folder / below / WIDS).exists() for below in self._prefixes)

    def close(self) -> None:
        """Release the folder for other runs."""
        with suppress(OSError):  # of a line that could not be written, which was said
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _opened(self) -> int:
        """The descriptor of the journal, which is made if it does not exist.

        Raises:
            FileAccessError: Another user could have written it, or another file has this name.
        """
        try:
            return os.open(self._path, _FLAGS | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        except FileExistsError:
            file = open_regular(self._path, _FLAGS)
        except OSError as error:
            raise not_written(self._path, error) from error
        status = os.fstat(file)
        if status.st_uid == os.geteuid() and status.st_nlink == 1:
            return file
        os.close(file)
        reason = (
            "has another name, too, under which it may be a file of yours"
            if status.st_nlink != 1
            else f"was written by another user (uid {status.st_uid}), who could claim any shard"
        )
        raise FileAccessError(f"{self._path} {reason}; remove it, or name another folder")

    def _begin(self, settings: dict[str, Any]) -> None:
        """Write the settings, or compare them with those of the run before and read its entries."""
        entries, end = _entries(self._file.read())
        new = json.loads(json.dumps(settings))
        old = entries[0] if entries else None
        if old is None or (old != new and not self._has_shards(old)):
            self._refuse_foreign_shards()
            self._file.truncate(0)  # no shard was written with the old settings
            self._append(new)
            return
        self._compare(old, new)
        if end < os.fstat(self._file.fileno()).st_size:
            _log.warning("%s is damaged: what it says last is done again", self._path)
            self._file.truncate(end)
        for entry in entries[1:]:
            self._remember(entry)

    def _remember(self, entry: dict[str, Any]) -> None:
        """Add an entry that an earlier run has written."""
        if "fact" in entry:
            self._facts[entry["fact"]] = entry["value"]
        else:
            below, mtime_ns = entry.pop("below"), entry.pop("mtime_ns")
            self._done[below, entry["name"]] = _Noted(WrittenShard(**entry), mtime_ns)

    def _has_shards(self, settings: dict[str, Any]) -> bool:
        """Whether there is any shard that a run with these settings may have written."""
        splits = cast("dict[str, str]", settings["splits"])
        return any(
            next(_shards(self._folder / below, prefix), None) for below, prefix in splits.items()
        )

    def _compare(self, old: dict[str, Any], new: dict[str, Any]) -> None:
        """Refuse settings that differ from those of the existing shards."""
        changed = [name for name in old | new if old.get(name) != new.get(name)]
        if changed:
            diff = "; ".join(
                f"{name} was {old.get(name)!r} and is now {new.get(name)!r}" for name in changed
            )
            raise ConfigError(
                f"{self._folder} was begun with other settings: {diff}; go on with the old ones, "
                "or name another folder"
            )

    def _refuse_foreign_shards(self) -> None:
        """Refuse a folder with shards or an index that no such run has written."""
        for below, prefix in self._prefixes.items():
            folder = self._folder / below
            file = next(_shards(folder, prefix), None) or folder / WIDS
            if file.exists():
                raise ConfigError(
                    f"{file} is there, and not from a run that can be resumed; name another folder"
                )

    def _append(self, entry: dict[str, Any]) -> None:
        text = json.dumps(entry).encode()
        try:
            self._file.write(b"%08x %s\n" % (crc32(text), text))
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise not_written(self._path, error) from error


def shard_name(prefix: str, number: int) -> str:
    """The file name of a shard.

    >>> shard_name("train", 12)
    'train-000012.tar'
    """
    return f"{prefix}-{number:06d}.tar"


def shard_pattern(folder: Path, shards: Sequence[WrittenShard], prefix: str) -> str:
    """The pattern of these shards for a configuration: a path with the numbers in braces.

    What means something else in a pattern is escaped in the folder's own name, and one that could
    be taken for a URL, an option or a home folder begins with `./`.
    """
    first, last = shards[0].name, shards[-1].name
    name = first
    if first != last:
        start, stop = (
            each.removeprefix(f"{prefix}-").removesuffix(".tar") for each in (first, last)
        )
        name = f"{prefix}-{{{start}..{stop}}}.tar"
    pattern = str(Path(_SPECIAL.sub(r"\\\g<0>", str(folder))) / name)
    is_plain = pattern[0] in "/." or (pattern[0].isalnum() and ":" not in pattern)
    return pattern if is_plain else f"./{pattern}"


def _shards(folder: Path, prefix: str) -> Iterator[Path]:
    """The files in a folder with names of shards of this prefix."""
    if folder.is_dir():
        for path in sorted(folder.iterdir()):
            match = _SHARD_NAME.fullmatch(path.name)
            if match and match[1] == prefix:
                yield path


def _entries(content: bytes) -> tuple[list[dict[str, Any]], int]:
    """The entries up to the first line that is cut off or damaged, and the offset of that line."""
    entries: list[dict[str, Any]] = []
    end = 0
    while (stop := content.find(b"\n", end)) >= 0:
        checksum, text = content[end : end + _CHECKSUM], content[end + _CHECKSUM + 1 : stop]
        entry = _parsed(text) if checksum == b"%08x" % crc32(text) else None
        if entry is None or not (_is_entry(entry) if entries else _are_settings(entry)):
            break
        entries.append(entry)
        end = stop + 1
    return entries, end


def _parsed(text: bytes) -> dict[str, Any] | None:
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


def lock_output(file: int, folder: Path) -> None:
    """Lock an open file or folder, so that one run at a time writes to this folder.

    Raises:
        ConfigError: Another run holds the lock.
    """
    if not take_lock(file):
        raise ConfigError(
            f"another run is writing to {folder}; wait until it ends, or name another folder"
        )


def _are_settings(entry: dict[str, Any]) -> bool:
    """Whether this is a valid first line, with the prefix of each folder."""
    splits = entry.get("splits")
    return isinstance(splits, dict) and all(
        isinstance(prefix, str) and Path(below).name == below
        for below, prefix in cast("dict[str, object]", splits).items()
    )


def _is_entry(entry: dict[str, Any]) -> bool:
    """Whether this is a valid further line, of a fact or of a shard."""
    kinds: dict[str, object] = {name: type(value) for name, value in entry.items()}
    if kinds == _FACT:
        return True
    return kinds == _SHARD and all(type(count) is int for count in entry["fields"].values())


def _md5(path: Path) -> str:
    with os.fdopen(open_regular(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
