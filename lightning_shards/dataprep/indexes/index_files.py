"""A data set read from its index file alone: shards, counts and sizes, without the shards."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lightning_shards.errors import ConfigError, ShardNotFoundError
from lightning_shards.shards.beside import (
    MAX_INDEX_BYTES,
    counted_shard,
    json_object,
    shard_entries,
)
from lightning_shards.shards.files import read_regular
from lightning_shards.shards.index import ShardIndex
from lightning_shards.shards.table_bytes import published_url
from lightning_shards.shards.urls import is_local


def index_from_file(path: Path, folder: str = "") -> tuple[ShardIndex, int | None]:
    """The index in a wids JSON or a `sizes.json`, and the bytes of all shards (None if unknown).

    No shard is opened, and none needs to be on this machine.

    Args:
        path: Path of the file.
        folder: URL of the folder that the shards are in; empty if they are local.

    Raises:
        ConfigError: The file is neither of the two.
        ShardNotFoundError: There is no such file.
        FileAccessError: It is not a regular file, or cannot be opened.
    """
    if not os.path.exists(path):  # noqa: PTH110 never raises
        raise ShardNotFoundError(f"{path} does not exist; name a wids JSON, as `index` writes it")
    content = _parsed(path)
    entries = shard_entries(content)
    urls: list[str] = []
    counts: list[int] = []
    sizes: list[int] = []
    have_tables = entries is not None and all(map(names_table, entries))
    for entry in _sizes_as_entries(content) if entries is None else entries:
        shard = counted_shard(entry)
        if shard is None:
            raise ConfigError(
                f"{path} does not say how many samples {entry.get('url')!r} holds; remake it"
            )
        urls.append(f"{folder}/{shard.url}" if folder else shard.url)
        counts.append(shard.samples)
        sizes += [] if shard.size_bytes is None else [shard.size_bytes]
    if not urls:
        raise ConfigError(f"{path} lists no shard; name a wids JSON, as `index` writes it")
    total = sum(sizes) if len(sizes) == len(urls) else None
    index = ShardIndex(
        tuple(urls), np.array(counts, np.int64), has_tables=have_tables, size_bytes=total
    )
    return index, total


def names_table(entry: Mapping[str, Any]) -> bool:
    """Whether an entry names the member table beside its shard."""
    return isinstance(url := entry.get("url"), str) and entry.get("members") == published_url(url)


def _parsed(path: Path) -> object:
    try:
        return json.loads(read_regular(path, MAX_INDEX_BYTES))
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"{path} is no JSON ({error}); name a wids JSON, as `index` writes it"
        ) from error


def _sizes_as_entries(content: object) -> list[dict[str, Any]]:
    return [{"url": name, "nsamples": count} for name, count in json_object(content).items()]


def shard_bytes(index: ShardIndex) -> int | None:
    """The size of all shards in bytes; None if one is remote."""
    if not all(map(is_local, index.urls)):
        return None
    return sum(Path(url).stat().st_size for url in index.urls)
