"""The cache of scanned counts between runs: one small JSON file per folder of shards.

The cache only saves time: an entry holds while the shard has the same size and time of change, the
shards of a damaged file are scanned again, and a file that cannot be written is lost with one
warning. Any number of processes may use it; each file is replaced as a whole. A checksum over the
counts detects damage, and `private_files` refuses files that another user could have written.
"""

import json
import logging
import os
from pathlib import Path

from lightning_shards.shards.beside import json_object
from lightning_shards.shards.checksums import crc32
from lightning_shards.shards.private_files import CacheFolder

_VERSION = 2
_MAX_BYTES = 256 << 20  # three million shards

_log = logging.getLogger(__name__)


class CountsCache:
    """The scanned counts of the shards of one folder.

    Entries of shards that this run does not use are kept: another split may use this folder.
    """

    def __init__(self, folder: str, cache: CacheFolder) -> None:
        self._folder = str(Path(folder).absolute())
        self._cache, self._path = cache, cache.counts_of(folder)
        self._entries: dict[str, list[int]] = {}

    def load(self) -> None:
        """Read the counts that earlier runs have stored.

        Raises:
            FileAccessError: The file, or the cache folder, could be another user's work.
        """
        file = self._cache.open(self._path)
        if file is None:
            return
        try:
            with os.fdopen(file, "rb") as stored:
                self._entries = self._entries_in(stored.read(_MAX_BYTES))
        except (OSError, ValueError, RecursionError) as error:
            _log.warning("the counts in %s are made again: %s", self._path, error)

    def get(self, name: str, stamp: tuple[int, int]) -> int | None:
        """The count of a shard, if it is known and the shard has not changed since."""
        entry = self._entries.get(name)
        return entry[2] if entry and (entry[0], entry[1]) == stamp else None

    def put(self, name: str, stamp: tuple[int, int], samples: int) -> None:
        """Add a count; the stamp must have been taken before the shard was read."""
        self._entries[name] = [*stamp, samples]

    def store(self) -> None:
        """Replace the file in one step; a reader sees the old file or the new one."""
        content = {"version": _VERSION, "folder": self._folder, "counts": self._entries}
        try:
            rest = json.dumps(content)[1:].encode()
            self._cache.write(self._path, b'{"crc32": %d, ' % crc32(rest) + rest)
        except OSError as error:
            _log.warning(
                "the counts of the shards in %s could not be kept, so the next run scans them "
                "again: %s; name another cache_dir, or write a sizes.json beside the shards",
                self._folder,
                error,
            )

    def _entries_in(self, data: bytes) -> dict[str, list[int]]:
        """The entries of a stored file; none if it is of another folder or version.

        Raises:
            ValueError: The file is damaged.
        """
        content: object = json.loads(data)
        fields = json_object(content)
        if fields.get("crc32") != crc32(data.partition(b", ")[2]):  # of all that follows it
            raise ValueError("the checksum does not match")
        is_ours = fields.get("version") == _VERSION and fields.get("folder") == self._folder
        return fields["counts"] if is_ours else {}
