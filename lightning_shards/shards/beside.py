"""The small files beside shards, such as indexes and counts: their names, and how they are read.

Files that are absent, too large or unreadable are passed over, because the shards themselves can
answer.

The wids JSON is webdataset's index of a folder of shards: how many samples and bytes each has. This
package writes it so::

    {"__kind__": "wids-shard-index-v1", "wids_version": 1, "name": "train", "shardlist": [
        {"url": "000.tar", "md5sum": "0123456789abcdef...", "nsamples": 30, "filesize": 20480,
         "members": "000.tar.members"}]}

The last is the member table beside the shard, where it was made with the index. Other programs
leave fields out, and a damaged file may hold anything, so readers check the type of each value.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeGuard, cast

from lightning_shards.errors import ShardNotFoundError
from lightning_shards.shards.files import read_regular

SIZES: Final = "sizes.json"
WIDS: Final = "wids.json"

MAX_INDEX_BYTES: Final = 256 << 20
"""Largest file that is read: a wids JSON of a million shards has about 150 MB."""

_MAX_SAMPLES = 1 << 40  # of one shard; a larger number is a damaged file

_log = logging.getLogger(__name__)


def read_beside(path: Path, most: int = MAX_INDEX_BYTES + 1) -> bytes | None:
    """The first bytes of a file, all of a small one; None if it is absent.

    One that cannot be read, or is no regular file, is passed over with a warning.
    """
    try:
        return read_regular(path, most)
    except ShardNotFoundError:
        return None
    except OSError as error:  # its message names the path
        _log.warning("passed over: %s", error)
        return None


def json_files(folder: Path) -> list[Path]:
    """The files of a folder that may be indexes of its shards, by name."""
    return [path for path in sorted(folder.glob("*.json")) if path.is_file()]


def read_json(path: Path, *, containing: bytes = b"") -> object:
    """The content of a JSON file; None if it is absent or unreadable or lacks these bytes."""
    data = read_beside(path)
    if data is None or containing not in data:
        return None
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        _log.warning("%s is passed over: it is no JSON: %s", path, error)
        return None


def json_object(value: object) -> dict[str, Any]:
    """The value itself if it is a JSON object, otherwise an empty object."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def is_count(value: object) -> TypeGuard[int]:
    """Whether a value from a JSON file can be a number of samples."""
    return is_number(value) and 0 <= value < _MAX_SAMPLES


def is_number(value: object) -> TypeGuard[int]:
    """Whether a value from a JSON file is a whole number (`true` and `false` are not)."""
    return isinstance(value, int) and not isinstance(value, bool)


MARKER: Final = b'"wids_version"'
"""Bytes that every wids JSON contains."""


def shard_entries(content: object) -> list[dict[str, Any]] | None:
    """The entries of all shards, as they are in the file; None if there is no list of them.

    An entry that is not a JSON object is replaced by an empty one.
    """
    listed = json_object(content).get("shardlist")
    return list(map(json_object, cast("list[Any]", listed))) if isinstance(listed, list) else None


def wids_entry(
    name: str, samples: int, size_bytes: int, md5: str | None, table: str | None = None
) -> dict[str, str | int]:
    """The entry of a shard beside the index: it has no folder, so the folder may move."""
    checksum = {} if md5 is None else {"md5sum": md5}
    members = {} if table is None else {"members": table}
    return {"url": name} | checksum | {"nsamples": samples, "filesize": size_bytes} | members


def wids_json(entries: Sequence[Mapping[str, str | int]]) -> str:
    """The wids JSON with these entries."""
    content = {"__kind__": "wids-shard-index-v1", "wids_version": 1, "name": "wids"}
    return json.dumps(content | {"shardlist": entries}, indent=1) + "\n"
