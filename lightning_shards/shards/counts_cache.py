"""The counts that scans have found, kept between runs: one small JSON file per folder of shards.

The cache is a convenience and nothing else: an entry holds only while the shard has the same size
and time of change, what cannot be read is scanned again, what cannot be written is lost with one
warning. Any number of processes may use it; each file is replaced as a whole.
"""

import hashlib
import json
import logging
import os
import tempfile
from pathlib import Path
from typing import Final, TypeGuard, cast

from lightning_shards.shards.formats.beside import read_json
from lightning_shards.shards.formats.count_files import is_count

DEFAULT_CACHE_DIR: Final = Path("~/.cache/lightning_shards")

_VERSION = 1
_LENGTH_OF_ENTRY = 3

_log = logging.getLogger(__name__)


def stamp_of(path: Path) -> tuple[int, int]:
    """Size in bytes and time of change in ns: what tells that a shard is still the same."""
    status = path.stat()
    return status.st_size, status.st_mtime_ns


class CountsCache:
    """The scanned counts of the shards of one folder.

    Entries of shards that this run does not use are kept: another split may live in the folder.
    """

    def __init__(self, folder: str, cache_dir: str | os.PathLike[str] | None = None) -> None:
        self._folder = str(Path(folder).absolute())
        self._cache_dir = Path(cache_dir or DEFAULT_CACHE_DIR)
        self._entries: dict[str, list[int]] = {}

    def load(self) -> None:
        """Read what earlier runs have stored.

        Raises:
            FileAccessError: The file of the cache is a fifo, a socket, a device or a folder.
        """
        try:
            stored = read_json(self._path())
        except RuntimeError:  # this user has no home folder
            return
        if not isinstance(stored, dict):
            return
        fields = cast("dict[str, object]", stored)
        entries = fields.get("counts")
        is_ours = fields.get("version") == _VERSION and fields.get("folder") == self._folder
        if is_ours and isinstance(entries, dict):
            named = cast("dict[str, object]", entries)
            self._entries = {name: entry for name, entry in named.items() if _is_entry(entry)}

    def get(self, name: str, stamp: tuple[int, int]) -> int | None:
        """The count of a shard, if it is known and the shard has not changed since."""
        entry = self._entries.get(name)
        return entry[2] if entry and (entry[0], entry[1]) == stamp else None

    def put(self, name: str, stamp: tuple[int, int], samples: int) -> None:
        """Note a count; the stamp was taken before the shard was read."""
        self._entries[name] = [*stamp, samples]

    def store(self) -> None:
        """Write the file anew; a reader sees the old one or the new one."""
        content = {"version": _VERSION, "folder": self._folder, "counts": self._entries}
        try:
            path = self._path()
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _replace(path, json.dumps(content))
        except (OSError, RuntimeError) as error:
            _log.warning(
                "the counts of the shards in %s could not be kept, so the next run scans them "
                "again: %s; name another cache_dir, or write a sizes.json beside the shards",
                self._folder,
                error,
            )

    def _path(self) -> Path:
        """The file of this folder; its name gives nothing away."""
        digest = hashlib.sha256(os.fsencode(self._folder)).hexdigest()
        return self._cache_dir.expanduser() / f"counts-{digest[:24]}.json"


def _is_entry(entry: object) -> TypeGuard[list[int]]:
    """Whether a stored value is [bytes, mtime_ns, samples]."""
    if not isinstance(entry, list):
        return False
    values = cast("list[object]", entry)
    is_whole = len(values) == _LENGTH_OF_ENTRY and all(isinstance(value, int) for value in values)
    return is_whole and is_count(values[-1])


def _replace(path: Path, text: str) -> None:
    """Put a new file in the place of `path` in one step."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f"{path.stem}-", suffix=".part")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink()
        raise
