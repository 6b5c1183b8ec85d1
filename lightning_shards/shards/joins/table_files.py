"""The files of a table, by their contents: the crc32 of a table decides what is kept of it."""

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, cast

from lightning_shards.errors import FileAccessError, ShardNotFoundError
from lightning_shards.shards.atomic import not_written
from lightning_shards.shards.checksums import crc32
from lightning_shards.shards.joins.settings import JoinSettings
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.regular_files import open_regular, stamp_of
from lightning_shards.shards.urls import expand_urls, require_local_shards

_READ_BYTES: Final = 1 << 22
_MOST_BYTES: Final = 1 << 16  # of a kept crc32


@dataclass(frozen=True, slots=True)
class TableFile:
    """One file of a table as it was when its checksum was taken.

    Attributes:
        path: Where it lies.
        size: bytes of it.
        crc32: Of all its bytes.
    """

    path: str
    size: int
    crc32: int


def find_table_files(settings: JoinSettings, cache: CacheFolder) -> tuple[TableFile, ...]:
    """The files of a table; one that has not changed since an earlier run is not read again.

    Raises:
        ShardNotFoundError: A file does not exist.
        FileAccessError: One cannot be read, or changed while it was read.
        UrlError: A pattern cannot be read.
    """
    try:
        paths = expand_urls(settings.table)
        require_local_shards(paths)
    except ShardNotFoundError as error:
        raise ShardNotFoundError(f"the table of join {settings.name!r}: {error}") from error
    return tuple(_table_file(path, cache) for path in paths)


def content_digest(files: Iterable[TableFile]) -> str:
    """16 hex digits over sizes and checksums of files in their order; their names do not count."""
    texts = (f"{file.size} {file.crc32:08x}\n" for file in files)
    return sha256("".join(texts).encode()).hexdigest()[:16]


def _table_file(path: str, cache: CacheFolder) -> TableFile:
    absolute = os.fsencode(Path(path).absolute())
    kept = cache.root / "joins" / f"{sha256(absolute).hexdigest()[:24]}.json"
    stamp = stamp_of(path)
    checksum = _kept_crc32(kept, stamp, cache)
    if checksum is None:
        checksum = _crc32_of(path)
        if stamp_of(path) != stamp:
            raise FileAccessError(
                f"{path} changed while it was read; wait until it is written, and start again"
            )
        facts = {"size": stamp[0], "mtime_ns": stamp[1], "crc32": checksum}
        try:
            cache.write(kept, json.dumps(facts).encode(), outlives_power=False)
        except OSError as error:
            raise not_written(kept, error) from error
    return TableFile(path, stamp[0], checksum)


def _kept_crc32(path: Path, stamp: tuple[int, int], cache: CacheFolder) -> int | None:
    """The checksum that is kept of a file with this stamp; None if there is none."""
    file = cache.open(path)
    if file is None:
        return None
    try:
        with os.fdopen(file, "rb") as kept:
            content: object = json.loads(kept.read(_MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    facts = cast("dict[str, Any]", content) if isinstance(content, dict) else {}
    if (facts.get("size"), facts.get("mtime_ns")) != stamp or type(facts.get("crc32")) is not int:
        return None
    return facts["crc32"]


def _crc32_of(path: str) -> int:
    checksum = 0
    with os.fdopen(open_regular(path), "rb", buffering=0) as file:
        try:
            while data := file.read(_READ_BYTES):
                checksum = crc32(data, checksum)
        except OSError as error:
            raise FileAccessError(f"{path} cannot be read: {error.strerror}") from error
    return checksum
