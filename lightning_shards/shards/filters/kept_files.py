"""What a filter left of a data set, kept in the cache for later runs and for other processes.

A file is one line of JSON, padded with spaces to a multiple of 8 bytes, and two arrays: the counts
of what is left (int64), and the numbers of `KeptSamples`. Only the numbers grow with the data set.
A process maps them when it first uses them. The name of a file has all that its content depends on,
the stamps of the shards too, so that a file is never another one while a run reads it.
"""

import hashlib
import json
import logging
import mmap
import os
from dataclasses import dataclass
from functools import cached_property
from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightning_shards.errors import FileAccessError
from lightning_shards.plan.kept_order import HeldNumbers, KeptSamples, Numbers
from lightning_shards.shards.atomic import new_file
from lightning_shards.shards.beside import json_object
from lightning_shards.shards.checksums import crc32
from lightning_shards.shards.index import ShardIndex
from lightning_shards.shards.private_files import CacheFolder, sidecar_name
from lightning_shards.shards.regular_files import stamp_of
from lightning_shards.shards.remote.providers.undated import is_of_another_run
from lightning_shards.shards.urls import is_local

_log = logging.getLogger(__name__)

_Ints = NDArray[np.int64]

_VERSION = 2
_ALIGNED = 8
_LONGEST_LINE = 4096
_FILE_MODE = 0o600
_ABSENT = (-1, -1)
_READ_BYTES = 1 << 18
"""Bytes of a file that are read at once: what stays in the processor's cache."""


@dataclass(frozen=True)
class MappedNumbers(Numbers):
    """Numbers in a file of the cache, which each process maps when it first needs them.

    Attributes:
        path: The file.
        cache: The folder that it is in.
        offset: Where the numbers begin.
        kind: Their type.
        size: How many there are.
    """

    path: Path
    cache: CacheFolder
    offset: int
    kind: str
    size: int

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the place, not the map."""
        return MappedNumbers, (self.path, self.cache, self.offset, self.kind, self.size)

    def values(self) -> NDArray[Any]:
        """The numbers.

        Raises:
            FileAccessError: The file is no longer there.
        """
        return self._mapped

    @cached_property
    def _mapped(self) -> NDArray[Any]:
        opened = self.cache.open(self.path)
        if opened is None:
            raise FileAccessError(
                f"{self.path}, which says which samples are left, was removed during the run; "
                "start it anew, and leave the cache_dir alone while it runs"
            )
        with os.fdopen(opened, "rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return np.frombuffer(data, self.kind, count=self.size, offset=self.offset)


def kept_path(index: ShardIndex, digest: str, stamps: _Ints, cache: CacheFolder) -> Path:
    """Where the cache has what the filter with this digest left of shards with these stamps."""
    assert index.counts is not None  # the caller has seen to it
    text = "\n".join([digest, *map(sidecar_name, index.urls)])
    hashed = hashlib.sha256(text.encode("utf-8", "surrogateescape"))
    hashed.update(index.counts.tobytes() + stamps.tobytes())
    return cache.root / "kept" / f"{hashed.hexdigest()[:32]}.kept"


def stamps_of(index: ShardIndex, cache: CacheFolder) -> _Ints:
    """What shows that a shard or the table of a remote one is another: int64, (num_shards, 2)."""
    stamps: list[tuple[int, int]] = []
    for url in index.urls:
        path = url if is_local(url) else cache.sidecar_of(url)
        try:
            stamp = stamp_of(path)
            is_other = not is_local(url) and is_of_another_run(stamp[1])
            stamps.append(_ABSENT if is_other else stamp)
        except OSError:
            stamps.append(_ABSENT)  # a local shard that is missing is an error elsewhere
    return np.array(stamps, np.int64).reshape(-1, 2)


def write_kept(path: Path, kept: KeptSamples, cache: CacheFolder) -> KeptSamples:
    """Write what is left, and take the numbers from the file from now on; held if it fails."""
    numbers = kept.numbers.values()
    parts = [np.ascontiguousarray(part).view(np.uint8).data for part in (kept.counts, numbers)]
    head = json.dumps(
        {
            "version": _VERSION,
            "identity": kept.identity,
            "are_kept": kept.are_kept,
            "kind": numbers.dtype.str,
            "numbers": len(numbers),
            "shards": len(kept.counts),
            "crc32": crc32(parts[1], crc32(parts[0])),
        }
    )
    line = head.ljust(-(-(len(head) + 1) // _ALIGNED) * _ALIGNED - 1) + "\n"
    try:
        cache.make_folder(path.parent)
        with new_file(path, mode=_FILE_MODE) as file:
            file.write(line.encode())
            for part in parts:
                file.write(part)
        offset = len(line) + kept.counts.nbytes
        mapped = MappedNumbers(path, cache, offset, numbers.dtype.str, len(numbers))
    except OSError as error:
        _log.warning(
            "which samples are left stays in memory, and is found out again by each rank and the "
            "next run: %s; name another cache_dir",
            error,
        )
        return kept
    return KeptSamples(kept.totals, kept.counts, mapped, kept.are_kept, kept.identity)


def read_kept(
    path: Path, index: ShardIndex, cache: CacheFolder, *, is_checked: bool
) -> KeptSamples | None:
    """What the file says is left of these shards; None if there is none, or it is damaged.

    `is_checked` says that its checksum was compared before, so that its counts alone are read.

    Raises:
        FileAccessError: It could be another user's work.
    """
    opened = cache.open(path)
    if opened is None or index.counts is None:
        return None
    with os.fdopen(opened, "rb") as file:
        try:
            line = file.readline(_LONGEST_LINE)
            head = json_object(json.loads(line))
            return _parsed(file, len(line), head, (path, index, cache), is_checked=is_checked)
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            _log.warning("which samples are left is found out again: %s: %s", path, error)
            return None


def _parsed(
    file: BufferedReader,
    begin: int,
    head: dict[str, Any],
    of: tuple[Path, ShardIndex, CacheFolder],
    *,
    is_checked: bool,
) -> KeptSamples:
    path, index, cache = of
    shards, size, kind = index.num_shards, int(head["numbers"]), np.dtype(str(head["kind"]))
    counts = np.frombuffer(file.read(8 * shards), np.int64)
    offset = begin + counts.nbytes
    is_whole = os.fstat(file.fileno()).st_size == offset + size * kind.itemsize
    if head["version"] != _VERSION or head["shards"] != shards or not is_whole:
        raise ValueError("it is of another version, or damaged")
    if not is_checked and _crc32_of_rest(file, crc32(counts.data)) != head["crc32"]:
        raise ValueError("it is damaged: its checksum differs")
    assert index.counts is not None  # the caller has seen to it
    numbers: Numbers = HeldNumbers(np.empty(0, kind))
    if size:
        numbers = MappedNumbers(path, cache, offset, kind.str, size)
    are_kept, identity = bool(head["are_kept"]), str(head["identity"])
    return KeptSamples(index.counts, counts, numbers, are_kept, identity)


def _crc32_of_rest(file: BufferedReader, checksum: int) -> int:
    """The crc32 of what was read of a file, continued to its end."""
    buffer = memoryview(bytearray(_READ_BYTES))
    while size := file.readinto(buffer):
        checksum = crc32(buffer[:size], checksum)
    return checksum
