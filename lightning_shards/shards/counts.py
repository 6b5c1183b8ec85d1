"""How many samples shards hold: by files beside them, or by their member tables.

A wids JSON is believed first, then `sizes.json` and what timm leaves. Local shards that no file
counts are scanned once. Remote shards are never scanned: if one of them is counted by no file, the
whole index has no counts, and at most a total is known. All counts are held against the shards when
these are read, so a file that cannot be read is passed over.

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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

import numpy as np

from lightning_shards.errors import ConfigError
from lightning_shards.shards.classes import CLASSES
from lightning_shards.shards.files import MAX_INDEX_BYTES, CacheFolder, is_count
from lightning_shards.shards.index import ShardIndex
from lightning_shards.shards.patterns import require_local_shards
from lightning_shards.shards.scheme_table import has_ranges
from lightning_shards.shards.storage.schemes import Storages
from lightning_shards.shards.tables import TableStore, build_tables
from lightning_shards.shards.urls import (
    escaped,
    is_local,
    redact,
    split_url,
    unescaped,
    url_beside,
)

WIDS: Final = "wids.json"
_SIZES: Final = "sizes.json"
_INFO: Final = "_info.json"  # of timm
_MARKER: Final = b'"wids_version"'  # is in every wids JSON
_LENGTH: Final = "__len__"  # of open_clip: one number for all shards of the folder
_LENGTH_BYTES: Final = 64

_log = logging.getLogger(__name__)


def load_index(
    urls: Sequence[str],
    *,
    cache: CacheFolder,
    wants_total: bool = False,
    storages: Storages | None = None,
) -> ShardIndex:
    """Find out how many samples each of these expanded urls holds.

    Files beside the shards are believed first, and then the member tables of local ones in `cache`.
    If a remote shard has no count, there are none; `wants_total` then asks for that of its folder.

    Raises:
        ShardNotFoundError: A shard does not exist.
        DamagedShardError: One that had to be scanned is not a whole tar.
    """
    require_local_shards(urls)
    url_of = {split_url(url): url for url in urls}
    with nullcontext(storages) if storages else closing(Storages()) as reading:
        claims = claimed_counts(url_of, reading)
        uncounted = [url for place, url in url_of.items() if place not in claims]
        remote = next((url for url in uncounted if not is_local(url)), None)
        if remote is not None:
            if split_url(remote)[0] in {folder for folder, _ in claims}:
                reading.of(remote).stat(remote)  # braces may name one too many
                _log.warning("%s is counted in no file beside it; index again", redact(remote))
            total = _folder_total(list(url_of.values()), reading) if wants_total else None
            return ShardIndex(tuple(urls), None, total)
    tables = build_tables(uncounted, TableStore(cache, takes_split=True))
    known = {place: claim.samples for place, claim in claims.items()}
    known |= {split_url(url): samples for url, samples in tables.items()}
    counts = np.fromiter((known[split_url(url)] for url in urls), np.int64, count=len(urls))
    sizes = [claim.size_bytes for claim in claims.values() if claim.size_bytes is not None]
    return ShardIndex(
        tuple(urls), counts, size_bytes=sum(sizes) if len(sizes) == len(urls) else None
    )


class CountClaim(NamedTuple):
    """The count that a file gives for one shard.

    Attributes:
        samples: Samples in the shard.
        size_bytes: Size of the shard when it was counted, if the file has it.
    """

    samples: int
    size_bytes: int | None


def claimed_counts(
    url_of: Mapping[tuple[str, str], str], storages: Storages
) -> dict[tuple[str, str], CountClaim]:
    """By folder and name, the counts that files beside these shards give for them.

    A local count of 0 is not believed: scanning such a shard takes no time.

    Args:
        url_of: The shards by folder and name, as `split_url` gives them. Their users, passwords and
            queries go with the files, too.
        storages: Read ranges of the shards, and so the files.
    """
    folders: dict[str, list[str]] = {}
    for folder, name in url_of:
        folders.setdefault(folder, []).append(name)
    claims: dict[tuple[str, str], CountClaim] = {}
    for folder, names in folders.items():
        shard = url_of[folder, names[0]]
        # files have names as they are, or as URLs escape them
        named = {unescaped(name, shard): name for name in names} | {name: name for name in names}
        of_folder: dict[str, CountClaim] = {}
        for content in _contents_beside(shard, storages) if has_ranges(shard) else ():
            stated = _claims_in(content, frozenset(named))
            of_folder = {named[name]: claim for name, claim in stated.items()} | of_folder
            if len(of_folder) == len(names):
                break
        for name, claim in of_folder.items():
            if claim.samples or not is_local(folder):
                claims[folder, name] = claim
    return claims


def _contents_beside(shard: str, storages: Storages) -> Iterator[object]:
    """The contents of the files beside a shard that may have counts, the most reliable first."""
    names = [WIDS, _SIZES, _INFO]
    if is_local(shard):
        paths = sorted(Path(url_beside(shard, "")).glob("*.json"), reverse=True)
        names = [path.name for path in paths if path.is_file()]
    for name in names:
        url = url_beside(shard, name)
        try:
            data = bytes_beside(url, storages) or b"null"
            if name in (_SIZES, _INFO) or _MARKER in data or not is_local(shard):
                yield json.loads(data)
        except (OSError, ValueError, RecursionError) as error:
            _log.warning("no JSON of counts from %s: %s", redact(url), error)
            if not getattr(error, "is_final", True):
                return  # the server does not answer: once is enough


def _claims_in(content: object, names: frozenset[str]) -> dict[str, CountClaim]:
    """The claims of one JSON file about these shards of a folder, by file name.

    Folders are not compared, because shards may have moved, and no path in the file is opened.
    Several entries with one file name count if all say the same.
    """
    fields, found = json_object(content), dict[str, set[CountClaim]]()
    stated: Iterable[tuple[object, ...]] = ((*item, None) for item in fields.items())
    if fields.get("wids_version") == 1:
        keys = ("url", "nsamples", "filesize")
        stated = (tuple(map(entry.get, keys)) for entry in shard_entries(fields))
    elif "splits" in fields:
        stated = _stated_by_timm(json_object(fields["splits"]))
    for url, samples, size in stated:
        name = str(url).rpartition("/")[2]
        if name in names and is_count(samples):
            claim = CountClaim(samples, size if isinstance(size, int) else None)
            found.setdefault(name, set()).add(claim)
    return {name: claims.pop() for name, claims in found.items() if len(claims) == 1}


def _stated_by_timm(splits: Mapping[str, object]) -> Iterator[tuple[object, ...]]:
    """Names and counts in timm's `_info.json`."""
    for split in map(json_object, splits.values()):
        names, lengths = split.get("filenames"), split.get("shard_lengths")
        if isinstance(names, list) and isinstance(lengths, list):
            pairs = zip(cast("list[Any]", names), cast("list[Any]", lengths), strict=False)
            yield from ((name, samples, None) for name, samples in pairs)


def bytes_beside(url: str, storages: Storages, most: int = MAX_INDEX_BYTES) -> bytes | None:
    """The first bytes of a file beside shards; None if it is absent.

    Raises:
        ShardError: The store does not answer.
    """
    return storages.of(url).read_beside([url], most)[0][0]


def wids_entries(url: str, storages: Storages) -> list[dict[str, Any]]:
    """The entries of the wids JSON at this URL; none if it is absent or another file.

    Raises:
        ShardError: The store does not answer.
    """
    try:
        return shard_entries(json.loads(bytes_beside(url, storages) or b"null"))
    except (ValueError, RecursionError):
        return []


def shard_entries(content: object) -> list[dict[str, Any]]:
    """The entries of all shards, as they are in the file; what is no entry is an empty one."""
    listed = json_object(content).get("shardlist")
    return list(map(json_object, cast("list[Any]", listed))) if isinstance(listed, list) else []


def json_object(value: object) -> dict[str, Any]:
    """The value itself if it is a JSON object, otherwise an empty object."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def shards_listed(url: str, storages: Storages) -> list[str]:
    """The shards beside a remote `wids.json` that is named in their place; else the URL alone.

    Raises:
        ConfigError: It lists no shards.
        ShardError: The store does not answer.
    """
    if is_local(url) or split_url(url)[1] != WIDS:
        return [url]
    entries = wids_entries(url, storages)
    if not entries:
        raise ConfigError(f"{redact(url)} lists no shards, or is not there; name the shards")
    names = [str(entry.get("url")).rpartition("/")[2] for entry in entries]
    return [url_beside(url, escaped(name, url)) for name in names]


def _folder_total(urls: Sequence[str], storages: Storages) -> int | None:
    """The samples of the remote folder that all shards are in, if open_clip's `__len__` is there.

    None if there is no such number. It does not say which shards it counts.
    """
    url = url_beside(urls[0], _LENGTH)
    if len({split_url(each)[0] for each in urls}) > 1 or not has_ranges(url):
        return None
    try:
        total = int(bytes_beside(url, storages, _LENGTH_BYTES) or b"0")
    except (OSError, ValueError) as error:
        _log.warning("no total from %s: %s", redact(url), error)
        return None
    return total if is_count(total) and total else None


def remote_class_files(urls: Sequence[str], storages: Storages) -> dict[str, bytes]:
    """What is in the `classes.json` of each remote folder of these shards that has one.

    Raises:
        ShardError: A store does not answer.
    """
    first_of = {split_url(url)[0]: url for url in reversed(urls) if not is_local(url)}
    found: dict[str, bytes] = {}
    for folder, url in first_of.items():
        data = bytes_beside(url_beside(url, CLASSES), storages) if has_ranges(url) else None
        if data is not None:
            found[folder] = data
    return found


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
