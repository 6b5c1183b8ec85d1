"""The store of member tables: one memory-mapped file (sidecar) per shard, in the cache folder.

All processes of a machine share the pages of a sidecar. It only saves time: it holds while the
shard has the size and time of change that it was made from, a damaged one is made again, and a
table that cannot be written stays in memory. Any number of processes may write a sidecar; readers
see a whole file or none. The format, all numbers little-endian::

    magic 8 · version u4 · crc32 of all that follows u4 · length of the JSON in bytes u8
    JSON: sizes of the arrays, stamp of the shard, suffixes; filled up with spaces to 8 bytes
    the arrays of `MemberTable`, widest items first, so that each one is aligned
"""

import errno
import json
import logging
import mmap
import os
import struct
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from lightning_shards.errors import DamagedShardError, FileAccessError, IndexMismatchError
from lightning_shards.shards.checksums import crc32
from lightning_shards.shards.members import ARRAY_FIELDS, MemberTable, scan_members, shard_stat
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.progress_line import progress_line
from lightning_shards.shards.storage.protocol import ShardStat
from lightning_shards.shards.storage.schemes import Storages
from lightning_shards.shards.urls import plain_path, redact

_MAGIC: Final = b"LSmember"
_VERSION: Final = 1
_PREFIX: Final = struct.Struct("<8sIIQ")
_CHECKED_FROM: Final = 16  # the checksum covers the last number of the prefix and all after it
_ALIGNMENT: Final = 8

_log = logging.getLogger(__name__)


class TableStore:
    """The member tables of shards that can be read by ranges, made on first use.

    The store holds no file open: callers keep the tables that they use, each with one memory map
    (and its file descriptor). It is picklable, with the tables that could not be written.

    Args:
        cache: The sidecars lie in its folder `members`.
        with_crc32: Whether scans read every byte. A table without crc32s is then made again, and
            the crc32s of a shard that was written again are replaced. Only the tools that index
            or write shards set it: a run checks a shard against the existing checksums.
        storages: What reads the shards; None for the package's own.
    """

    def __init__(
        self,
        cache: CacheFolder,
        *,
        with_crc32: bool = False,
        storages: Storages | None = None,
    ) -> None:
        self._cache = cache
        self._with_crc32, self._storages = with_crc32, storages or Storages()
        self._unwritten: dict[Path, MemberTable] = {}

    def table_of(
        self, path: str | os.PathLike[str], *, expected_samples: int | None = None
    ) -> MemberTable:
        """The table of a shard as it is now; `expected_samples` is its count in the run's index.

        A shard that was written again is scanned again.

        Raises:
            ShardNotFoundError: There is no such file.
            FileAccessError: The kept table, or a folder of the cache, could be another user's work.
            DamagedShardError: The shard had to be scanned and is not one whole tar archive, or has
                the same members as before and other bytes in them.
            IndexMismatchError: The shard holds another number of samples than expected.
        """
        url = _url_of(path)
        table = self.kept_table(url)
        if table is None or not self._is_current(table, url):
            table = self._renew(url, table)
        if expected_samples is not None and table.num_samples != expected_samples:
            raise IndexMismatchError(
                f"{redact(url)} changed since it was indexed: it holds {table.num_samples} "
                f"samples, {expected_samples} by the index; put the old shard back, or start the "
                "run anew (where a wids JSON or a sizes.json counts it, remake that first)"
            )
        return table

    def has_current(self, path: str | os.PathLike[str]) -> bool:
        """Whether there is a current table of this shard, so that it need not be scanned."""
        url = _url_of(path)
        table = self.kept_table(url)
        return table is not None and self._is_current(table, url)

    def kept_table(self, path: str | os.PathLike[str]) -> MemberTable | None:
        """The stored table of this shard, even if the shard has changed since.

        Raises:
            FileAccessError: The table, or a folder of the cache, could be another user's work.
        """
        sidecar = self._cache.sidecar_of(_url_of(path))
        kept = self._unwritten.get(sidecar)
        return open_table(sidecar, self._cache) if kept is None else kept

    def _is_current(self, table: MemberTable, url: str) -> bool:
        """Whether the table is of the shard as it is now, and has crc32s if they are wanted."""
        lacks_crc32 = self._with_crc32 and table.crc32 is None
        # An empty table is never believed: scanning such a shard takes no time.
        return table.num_samples > 0 and table.stamp == self._stat(url) and not lacks_crc32

    def _stat(self, url: str) -> ShardStat:
        return shard_stat(url, self._storages.of(url))

    def _renew(self, url: str, old: MemberTable | None) -> MemberTable:
        had_crc32 = old is not None and old.crc32 is not None
        table = scan_members(
            url, with_crc32=self._with_crc32 or had_crc32, storage=self._storages.of(url)
        )
        if old is not None and not old.has_same_members(table):
            if not self._with_crc32:
                _require_same_bytes(url, old, table)
            _log.warning(
                "%s changed since its members were listed: it held %d samples in %d bytes, now %d "
                "in %d",
                url,
                old.num_samples,
                old.file_size,
                table.num_samples,
                table.file_size,
            )
        self._keep(url, table)
        return table

    def _keep(self, url: str, table: MemberTable) -> None:
        """Write the sidecar; if that fails, keep the table in memory."""
        sidecar = self._cache.sidecar_of(url)
        try:
            write_table(sidecar, table, self._cache)
            self._unwritten.pop(sidecar, None)
        except OSError as error:
            if not self._unwritten:
                _log.warning(
                    "member tables stay in memory and are made again by the next run: %s; name "
                    "another cache_dir",
                    error,
                )
            self._unwritten[sidecar] = table


def _url_of(path: str | os.PathLike[str]) -> str:
    return plain_path(os.fspath(path)) if isinstance(path, os.PathLike) else path


def build_tables(
    paths: Sequence[str], store: TableStore, *, show_progress: bool | None = None
) -> None:
    """Make the tables that the store lacks; finished ones stay if a later shard is damaged.

    `show_progress` draws a line on stderr; None does so on a terminal.

    Raises:
        ShardNotFoundError: A shard does not exist.
        DamagedShardError: A shard is not one whole tar archive.
    """
    missing = [path for path in dict.fromkeys(paths) if not store.has_current(path)]
    if not missing:
        return
    folders = {os.path.dirname(path) for path in missing}  # noqa: PTH120 - a leading ./ stays
    where = folders.pop() if len(folders) == 1 else f"{len(folders)} folders"
    with progress_line("listed", len(missing), where, show=show_progress) as step:
        for path in missing:
            store.table_of(path)
            step()


def _require_same_bytes(url: str, old: MemberTable, new: MemberTable) -> None:
    """Refuse a shard that has the same members as before, and other bytes in them."""
    if old.crc32 is None or new.crc32 is None or not old.has_same_members(replace(new, crc32=None)):
        return
    changed = np.flatnonzero(old.crc32 != new.crc32)
    member = int(changed[0])
    sample = int(np.searchsorted(old.sample_starts, member, side="right")) - 1
    name = f"{old.key(sample)}.{old.suffixes[old.suffix_ids[member]]}"
    raise DamagedShardError(
        f"{redact(url)} has other bytes than when it was indexed in {len(changed):,} of "
        f"{len(old.offsets):,} members, first in {name!r}, at byte {old.offsets[member]}; fetch it "
        "again, or, if it was written anew, run `lightning-shards index --checksums` on it"
    )


def write_table(path: Path, table: MemberTable, cache: CacheFolder) -> None:
    """Put the table at `path` in one step; a reader sees the old file, the new one or none."""
    cache.write(path, _packed(table))


def open_table(path: Path, cache: CacheFolder) -> MemberTable | None:
    """The table in a sidecar, mapped and not copied; None if it is absent or damaged.

    Raises:
        FileAccessError: It is not a regular file, or could be another user's work.
    """
    sidecar = cache.open(path)
    if sidecar is None:
        return None
    try:
        with os.fdopen(sidecar, "rb") as file:
            if not os.fstat(file.fileno()).st_size:
                raise _Unusable("is empty")  # an empty file cannot be mapped
            return _unpacked(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, ValueError, RecursionError) as error:  # hostile JSON gives the last two
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
            raise FileAccessError(
                f"the member table {path} cannot be opened: {error.strerror}; raise the limit of "
                "open files (ulimit -n), or use fewer workers or threads"
            ) from error
        _log.warning("the member table %s is made again: %s", path, error)
        return None


class _Unusable(ValueError):  # noqa: N818 - a signal within this module, never seen outside
    """The reason why a sidecar is treated as absent."""


def _packed(table: MemberTable) -> bytearray:
    """The contents of the sidecar."""
    facts = {
        "num_samples": table.num_samples,
        "num_members": len(table.offsets),
        "key_bytes": len(table.keys),
        "file_size": table.file_size,
        "mtime_ns": table.mtime_ns,
        "has_crc32": table.crc32 is not None,
        "suffixes": table.suffixes,
    }
    header = json.dumps(facts).encode("ascii")
    header += b" " * (-len(header) % _ALIGNMENT)
    values = [
        np.asarray(getattr(table, name), dtype).tobytes() for name, dtype, _ in _columns(facts)
    ]
    packed = bytearray(_PREFIX.pack(_MAGIC, _VERSION, 0, len(header)) + header + b"".join(values))
    _PREFIX.pack_into(packed, 0, _MAGIC, _VERSION, crc32(packed[_CHECKED_FROM:]), len(header))
    return packed


def _columns(facts: dict[str, Any]) -> list[tuple[str, str, int]]:
    """Name, type and length of the arrays in a sidecar, in their order."""
    samples, members = facts["num_samples"], facts["num_members"]
    kinds = {
        "key_starts": ("<i8", samples + 1),
        "sample_starts": ("<i8", samples + 1),
        "offsets": ("<i8", members),
        "sizes": ("<i8", members),
        "suffix_ids": ("<u4", members),
        "crc32": ("<u4", members),
        "keys": ("|u1", facts["key_bytes"]),
    }
    return [(name, *kinds[name]) for name in ARRAY_FIELDS if name != "crc32" or facts["has_crc32"]]


def _unpacked(data: mmap.mmap) -> MemberTable:
    """The table in these bytes, after a check of their checksum and of all positions in them."""
    if len(data) < _PREFIX.size:
        raise _Unusable("it is cut short")
    magic, version, checksum, header_bytes = _PREFIX.unpack_from(data)
    if (magic, version) != (_MAGIC, _VERSION):
        raise _Unusable("it is of another version, or no member table")
    if crc32(memoryview(data)[_CHECKED_FROM:]) != checksum:
        raise _Unusable("it is damaged: its checksum does not match")
    if header_bytes % _ALIGNMENT:
        raise _Unusable("its arrays are not aligned")  # numpy could not read its items
    position = _PREFIX.size + header_bytes
    facts = _facts(json.loads(data[_PREFIX.size : position]))
    columns = _columns(facts)
    if position + sum(length * int(kind[2]) for _, kind, length in columns) != len(data):
        raise _Unusable("its arrays do not fill it")
    arrays: dict[str, NDArray[Any] | None] = {"crc32": None}
    for name, kind, length in columns:
        values = np.frombuffer(data, kind, length, position)
        position += values.nbytes
        arrays[name] = values.astype(values.dtype.newbyteorder("="), copy=False)
    names = {"suffixes": tuple(facts["suffixes"])}
    stamp = {"file_size": facts["file_size"], "mtime_ns": facts["mtime_ns"]}
    table = MemberTable(**cast("dict[str, Any]", arrays), **names, **stamp)
    if not _is_sound(table):
        raise _Unusable("it points to where nothing is")
    return table


def _facts(content: object) -> dict[str, Any]:
    """The JSON of a sidecar, with values of the right types."""
    facts = cast("dict[str, Any]", content) if isinstance(content, dict) else {}
    counts = [facts.get(name) for name in ("num_samples", "num_members", "key_bytes", "file_size")]
    suffixes = facts.get("suffixes")
    are_right = (
        all(type(count) is int and 0 <= count < 1 << 62 for count in counts)
        and type(facts.get("mtime_ns")) is int
        and type(facts.get("has_crc32")) is bool
        and isinstance(suffixes, list)
        and all(isinstance(suffix, str) for suffix in cast("list[object]", suffixes))
    )
    if not are_right or len(set(cast("list[str]", suffixes))) < len(cast("list[str]", suffixes)):
        raise _Unusable("its JSON is not that of a member table")
    return facts


def _is_sound(table: MemberTable) -> bool:
    """Whether every number in the table lies within the array or file that it points into."""
    offsets, sizes, size = table.offsets, table.sizes, table.file_size
    if ((offsets < 0) | (sizes < 0) | (offsets > size) | (sizes > size)).any():
        return False
    ends = offsets + sizes
    return bool(
        _cuts(table.sample_starts, len(offsets))
        and _cuts(table.key_starts, len(table.keys))
        and (offsets[1:] >= ends[:-1]).all()
        and (ends <= size).all()
        and (table.suffix_ids < len(table.suffixes)).all()
    )


def _cuts(starts: NDArray[np.int64], length: int) -> bool:
    """Whether these positions cut a list of this length into consecutive pieces."""
    return bool(starts[0] == 0 and starts[-1] == length and (starts[:-1] <= starts[1:]).all())
