"""Digests of lists, remembered in the cache while a list is the file that it was.

What is remembered of a list holds while its inode, its size and both of its times are the same. Any
program can set the time of modification, and none the time of change (ctime). But times are ticks
of the clock of a file system, of 2 s at most, and a file that is written twice within one tick
looks the same. So a digest is believed only once the file was read twice, at least 2 s apart, and
looked the same at both: what is written after the second reading has another time. The time between
them is by the clock of this machine alone, as that of a file server may differ.
"""

import hashlib
import json
import logging
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO, Final

from lightning_shards.shards.beside import json_object
from lightning_shards.shards.checksums import crc32
from lightning_shards.shards.filters.key_lists import open_list
from lightning_shards.shards.private_files import CacheFolder

_REMEMBERED_FROM: Final = 1 << 20
"""Bytes of a list; a smaller one is hashed as fast as it is looked up."""

_APART_NS: Final = 2 * 10**9
_MOST_BYTES: Final = 4096  # of what is remembered of a list

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Reading:
    """What is remembered of a list.

    Attributes:
        stamp: Its size, inode, time of modification and time of change.
        first_ns: When it was first read with this stamp.
        is_settled: Whether it was read again, at least `_APART_NS` later.
        digest: The SHA-256 of its content, in hex digits.
    """

    stamp: list[int]
    first_ns: int
    is_settled: bool
    digest: str


def remembered_digest(
    path: str, cache: CacheFolder, *, clock_ns: Callable[[], int] = time.time_ns
) -> str:
    """The SHA-256 of a list, in hex digits; a large one is read only if it may have changed.

    Raises:
        ConfigError: The list cannot be read.
        FileAccessError: What is remembered could be another user's work.
    """
    name = hashlib.sha256(os.fsencode(Path(path).expanduser().absolute())).hexdigest()[:24]
    note = cache.root / "kept" / f"{name}.digest"
    with os.fdopen(open_list(path), "rb") as file:
        stamp, began_ns = _stamp_of(file), clock_ns()
        is_large = stamp[0] >= _REMEMBERED_FROM
        before = _read(note, cache) if is_large else None
        if before is not None and before.stamp == stamp and before.is_settled:
            return before.digest
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        if is_large and _stamp_of(file) == stamp:
            _write(note, _reading(stamp, digest, began_ns, before), cache)
        return digest


def _reading(stamp: list[int], digest: str, began_ns: int, before: _Reading | None) -> _Reading:
    """What this reading, and the one before it if there was one, say of a list."""
    first_ns = began_ns
    if before is not None and (before.stamp, before.digest) == (stamp, digest):
        first_ns = min(before.first_ns, began_ns)  # the clock may have been set back
    return _Reading(stamp, first_ns, began_ns - first_ns >= _APART_NS, digest)


def _stamp_of(file: BinaryIO) -> list[int]:
    status = os.fstat(file.fileno())
    return [status.st_size, status.st_ino, status.st_mtime_ns, status.st_ctime_ns]


def _read(note: Path, cache: CacheFolder) -> _Reading | None:
    """What was remembered; None if there is nothing, or it is damaged."""
    opened = cache.open(note)
    if opened is None:
        return None
    with os.fdopen(opened, "rb") as file:
        try:
            checksum, line = file.read(_MOST_BYTES).split(b" ", 1)
            if int(checksum, 16) == crc32(line):
                return _Reading(**json_object(json.loads(line)))
        except (OSError, ValueError, TypeError, RecursionError) as error:
            _log.debug("%s is damaged: %s", note, error)
    return None


def _write(note: Path, reading: _Reading, cache: CacheFolder) -> None:
    line = json.dumps(asdict(reading)).encode()
    try:
        cache.write(note, b"%08x %s" % (crc32(line), line), outlives_power=False)
    except OSError as error:
        _log.debug("the digest of a list is not remembered: %s", error)
