"""The files of a table, by their contents: the crc32 of a table decides what is kept of it."""

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, cast

from lightning_shards.errors import ConfigError, FileAccessError, ShardNotFoundError
from lightning_shards.shards.atomic import locked_file, not_written
from lightning_shards.shards.joins.settings import JoinSettings
from lightning_shards.shards.joins.table_copies import copy_path, crc32_of, fetch_copy
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.regular_files import stamp_of
from lightning_shards.shards.remote.providers.proxies import require_hosts
from lightning_shards.shards.storage.protocol import ShardStat
from lightning_shards.shards.storage.schemes import Storages, has_ranges
from lightning_shards.shards.urls import (
    expand_urls,
    is_local,
    redact,
    require_local_shards,
)

_MOST_BYTES: Final = 1 << 16  # of a kept crc32


@dataclass(frozen=True, slots=True)
class TableFile:
    """One file of a table as it was when its checksum was taken.

    Attributes:
        path: Where it lies: a path, or a URL with what may be secret in it.
        size: bytes of it.
        crc32: Of all its bytes.
    """

    path: str = field(repr=False)
    size: int
    crc32: int

    @property
    def name(self) -> str:
        """Its path or URL, for messages."""
        return redact(self.path)

    @property
    def is_remote(self) -> bool:
        """Whether it is no file of this machine."""
        return not is_local(self.path)


def find_table_files(
    settings: JoinSettings, storages: Storages, cache: CacheFolder
) -> tuple[TableFile, ...]:
    """The files of a table; one that has not changed since an earlier run is not read again.

    A remote one is fetched to be read, and its copy stays until the join is made.

    Raises:
        ShardNotFoundError: A file does not exist.
        FileAccessError: One cannot be read, or changed while it was read.
        IndexMismatchError: A remote one was replaced while it was fetched.
        StorageError: A remote one could not be had, after all retries.
        ConfigError: A remote one can only be streamed, or a folder is named.
        UrlError: A pattern cannot be read.
    """
    for pattern in settings.table:
        if is_local(pattern) and Path(pattern).is_dir():
            files = Path(pattern) / f"*{Path(pattern).suffix}"
            raise ConfigError(
                f"the table of join {settings.name!r} is the folder {pattern}; name the files in "
                f"it, as in table: {files}"
            )
    try:
        paths = expand_urls(settings.table)
        require_local_shards(paths)
        remote = [path for path in paths if not is_local(path)]
        _require_stores(settings, remote)
        stats = _stats(remote, storages)
    except ShardNotFoundError as error:
        raise ShardNotFoundError(f"the table of join {settings.name!r}: {error}") from error
    return tuple(
        _remote_file(path, stats[path], storages, cache)
        if path in stats
        else _table_file(path, cache)
        for path in paths
    )


def content_digest(files: Iterable[TableFile]) -> str:
    """16 hex digits over sizes and checksums of files in their order; their names do not count."""
    texts = (f"{file.size} {file.crc32:08x}\n" for file in files)
    return sha256("".join(texts).encode()).hexdigest()[:16]


def have_changed(files: Iterable[TableFile], cache: CacheFolder) -> bool:
    """Whether some of those of this machine are others now; errors as of `find_table_files`."""
    return any(_table_file(file.path, cache) != file for file in files if not file.is_remote)


def _require_stores(settings: JoinSettings, urls: list[str]) -> None:
    for url in urls:
        if not has_ranges(url):
            raise ConfigError(
                f"the table of join {settings.name!r}: {redact(url)} can only be streamed; copy it "
                "here, or to a store"
            )
    require_hosts(urls)


def _stats(urls: Iterable[str], storages: Storages) -> dict[str, ShardStat]:
    """What each of these is, asked at once."""
    return {
        url: stat
        for storage, group in storages.grouped(dict.fromkeys(urls))
        for url, stat in zip(group, storage.stats(group), strict=True)
    }


def _table_file(path: str, cache: CacheFolder) -> TableFile:
    absolute = os.fsencode(Path(path).absolute())
    kept = cache.root / "joins" / f"{sha256(absolute).hexdigest()[:24]}.json"
    stamp = stamp_of(path)
    checksum = _kept_crc32(kept, stamp, cache)
    if checksum is None:
        checksum = crc32_of(path)
        if stamp_of(path) != stamp:
            raise FileAccessError(
                f"{path} changed while it was read; wait until it is written, and start again"
            )
        _keep_crc32(kept, stamp, checksum, cache)
    return TableFile(path, stamp[0], checksum)


def _remote_file(url: str, stat: ShardStat, storages: Storages, cache: CacheFolder) -> TableFile:
    kept = copy_path(url, cache).with_suffix(".json")
    checksum = _kept_crc32(kept, stat, cache)
    if checksum is None:
        try:
            cache.make_folder(kept.parent)
        except OSError as error:
            raise not_written(kept.parent, error) from error
        with locked_file(kept.with_suffix(".lock")):
            checksum = _kept_crc32(kept, stat, cache)  # another process may have been first
            if checksum is None:
                checksum = fetch_copy(url, stat, storages, cache)
                _keep_crc32(kept, stat, checksum, cache)
    return TableFile(url, stat.size, checksum)


def _keep_crc32(path: Path, stamp: tuple[int, int], checksum: int, cache: CacheFolder) -> None:
    facts = {"size": stamp[0], "mtime_ns": stamp[1], "crc32": checksum}
    try:
        cache.write(path, json.dumps(facts).encode(), outlives_power=False)
    except OSError as error:
        raise not_written(path, error) from error


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
