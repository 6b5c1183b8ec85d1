"""The wids JSON, webdataset's index of a folder of shards: how many samples and bytes each has.

This package writes it so::

    {"__kind__": "wids-shard-index-v1", "wids_version": 1, "name": "train", "shardlist": [
        {"url": "000.tar", "md5sum": "0123456789abcdef...", "nsamples": 30, "filesize": 20480,
         "members": "000.tar.members"}]}

The last is the member table beside the shard, where it was made with the index.
Other programs leave fields out, and a damaged file may hold anything, so readers check the type of
each value before they use it.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

from lightning_shards.shards.atomic import replace_file
from lightning_shards.shards.beside import is_count, is_number, json_object

MARKER: Final = b'"wids_version"'
"""Bytes that every wids JSON contains."""


_UNSAFE_NAME = re.compile(r"^/|^[A-Za-z][A-Za-z0-9+.-]*:|[${}\\]|(^|/)\.\.(/|$)")

_FIELDS: Final = frozenset({"__kind__", "wids_version", "name", "shardlist"})
_ENTRY_FIELDS: Final = frozenset({"url", "md5sum", "nsamples", "filesize", "members"})


class CountedShard(NamedTuple):
    """A shard by its path in the index; `size_bytes` and `md5` are None where it has none."""

    url: str
    samples: int
    size_bytes: int | None
    md5: str | None


def shard_entries(content: object) -> list[dict[str, Any]] | None:
    """The entries of all shards, as they are in the file; None if there is no list of them.

    An entry that is not a JSON object is replaced by an empty one.
    """
    listed = json_object(content).get("shardlist")
    return list(map(json_object, cast("list[Any]", listed))) if isinstance(listed, list) else None


def stated_counts(
    fields: Mapping[str, Any], folder: tuple[str, ...], names: frozenset[str]
) -> list[tuple[str, object, object]]:
    """What a wids index says of these shards: their file names, samples and bytes, as they stand.

    An entry whose path ends in this folder is certain to be meant. Entries with another folder (the
    shards were moved) count if all with their file name say the same. The file may come from a
    stranger: names are only compared, and no path in it is opened.

    Args:
        fields: The index.
        folder: The parts of the path or URL of the folder that the shards are in.
        names: File names of the shards.
    """
    here: list[tuple[str, object, object]] = []
    moved: dict[str, list[tuple[str, object, object]]] = {}
    for entry in shard_entries(fields) or ():
        url = entry.get("url")
        parts = entry_parts(fields.get("base"), url) if isinstance(url, str) else ()
        if parts and parts[-1] in names:
            above, stated = parts[:-1], (parts[-1], entry.get("nsamples"), entry.get("filesize"))
            if not above or folder[-len(above) :] == above:
                here.append(stated)
            else:
                moved.setdefault(parts[-1], []).append(stated)
    certain = {name for name, _, _ in here}
    alike = [
        stated[0]
        for name, stated in moved.items()
        if name not in certain and all(each == stated[0] for each in stated)
    ]
    return here + alike


def entry_parts(base: object, url: str) -> tuple[str, ...]:
    """The relative path of an entry; empty if it does not lead below the index's folder."""
    path = f"{base.rstrip('/')}/{url}" if isinstance(base, str) and base else url
    parts = () if _UNSAFE_NAME.search(path) else path.split("/")
    return tuple(part for part in parts if part not in ("", "."))


def foreign_field(content: object) -> str | None:
    """What would be lost if this package wrote the index anew; None if there is nothing."""
    fields = json_object(content)
    if fields.get("wids_version") != 1:
        return "it is no wids JSON"
    for known, has in ((_FIELDS, [fields]), (_ENTRY_FIELDS, shard_entries(content) or ())):
        foreign = sorted(set[str]().union(*has) - known)
        if foreign:
            return f"it has {foreign[0]!r}"
    return None


def counted_shard(entry: Mapping[str, Any]) -> CountedShard | None:
    """What an entry says of a shard; None if it does not count the samples."""
    url, samples, size = entry.get("url"), entry.get("nsamples"), entry.get("filesize")
    if not isinstance(url, str) or not is_count(samples):
        return None
    md5 = entry.get("md5sum")
    known_size = size if is_number(size) else None
    return CountedShard(url, samples, known_size, md5 if isinstance(md5, str) else None)


def wids_entry(
    name: str, samples: int, size_bytes: int, md5: str | None, table: str | None = None
) -> dict[str, str | int]:
    """The entry of a shard beside the index: it has no folder, so the folder may move."""
    checksum = {} if md5 is None else {"md5sum": md5}
    members = {} if table is None else {"members": table}
    return {"url": name} | checksum | {"nsamples": samples, "filesize": size_bytes} | members


def write_wids(path: Path, entries: Sequence[Mapping[str, str | int]]) -> None:
    """Write the wids JSON with these entries in one step.

    Raises:
        FileAccessError: It cannot be written.
    """
    content = {"__kind__": "wids-shard-index-v1", "wids_version": 1, "name": path.stem}
    replace_file(path, json.dumps(content | {"shardlist": entries}, indent=1) + "\n")
