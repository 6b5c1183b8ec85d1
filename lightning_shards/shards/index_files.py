"""A data set from an index file alone: which shards, how many samples, how many bytes."""

import json
import os
from pathlib import Path
from typing import Any, cast

import numpy as np

from lightning_shards.errors import ConfigError, ShardNotFoundError
from lightning_shards.shards.formats.beside import MAX_INDEX_BYTES
from lightning_shards.shards.formats.count_files import is_count, is_number
from lightning_shards.shards.index import ShardIndex
from lightning_shards.shards.regular_files import read_regular
from lightning_shards.shards.urls import is_local


def index_from_file(path: Path, folder: str = "") -> tuple[ShardIndex, int | None]:
    """Shards, counts and bytes (None where unknown) of a wids JSON or a `sizes.json`.

    No shard is looked at, nor need there be any on this machine.

    Args:
        path: of the file.
        folder: URL of the folder that the shards are in; empty where they are local.

    Raises:
        ConfigError: It is neither.
        ShardNotFoundError: There is no such file.
        FileAccessError: It is no regular file, or cannot be opened.
    """
    if not os.path.exists(path):  # noqa: PTH110 never raises
        raise ShardNotFoundError(f"{path} does not exist; name a wids JSON, as `index` writes it")
    content = _parsed(path)
    fields = cast("dict[str, Any]", content) if isinstance(content, dict) else {}
    listed: Any = fields.get("shardlist")
    is_list = isinstance(listed, list)
    entries = cast("list[Any]", listed) if is_list else _as_entries(fields)
    urls: list[str] = []
    counts: list[int] = []
    sizes: list[int] = []
    for entry in entries:
        known = cast("dict[str, Any]", entry) if isinstance(entry, dict) else {}
        url, count, size = known.get("url"), known.get("nsamples"), known.get("filesize")
        if not isinstance(url, str) or not is_count(count):
            raise ConfigError(f"{path} does not say how many samples {url!r} holds; remake it")
        urls.append(f"{folder}/{url}" if folder else url)
        counts.append(count)
        sizes += [size] if is_number(size) else []
    if not urls:
        raise ConfigError(f"{path} lists no shard; name a wids JSON, as `index` writes it")
    total = sum(sizes) if len(sizes) == len(urls) else None
    return ShardIndex(tuple(urls), np.array(counts, np.int64)), total


def _parsed(path: Path) -> object:
    try:
        return json.loads(read_regular(path, MAX_INDEX_BYTES))
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"{path} is no JSON ({error}); name a wids JSON, as `index` writes it"
        ) from error


def _as_entries(sizes: dict[str, Any]) -> list[dict[str, Any]]:
    """A `sizes.json` as the entries of a wids JSON."""
    return [{"url": name, "nsamples": count} for name, count in sizes.items()]


def shard_bytes(index: ShardIndex) -> int | None:
    """Bytes of all shards; None if one is remote."""
    if not all(map(is_local, index.urls)):
        return None
    return sum(Path(url).stat().st_size for url in index.urls)
