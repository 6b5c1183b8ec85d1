"""How many samples shards hold, by files beside them.

A wids JSON is believed first, and `sizes.json`; then, of local shards, what timm and img2dataset
leave, if it is not older than its shard. A file that cannot be read is passed over: local shards
are scanned, and of remote ones another file may have the counts. All counts are held against the
shards when these are read.
"""

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from lightning_shards.errors import ConfigError
from lightning_shards.shards.beside import (
    MARKER,
    MAX_INDEX_BYTES,
    SIZES,
    WIDS,
    is_count,
    is_number,
    json_files,
    json_object,
    read_json,
    shard_entries,
)
from lightning_shards.shards.files import is_newer
from lightning_shards.shards.storage.schemes import Storages, has_ranges
from lightning_shards.shards.urls import (
    escaped,
    is_local,
    redact,
    split_url,
    unescaped,
    url_beside,
)

_INFO: Final = "_info.json"  # of timm
_STATS: Final = "_stats.json"  # img2dataset writes 00000_stats.json beside 00000.tar
_LENGTH: Final = "__len__"  # of open_clip: one number for all shards of the folder
_LENGTH_BYTES: Final = 64

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CountClaim:
    """The count that one file gives for one shard.

    Attributes:
        samples: Samples in the shard.
        source: Path or URL of the file that says so.
        size_bytes: Size of the shard when it was counted, if the file has it.
    """

    samples: int
    source: str
    size_bytes: int | None = None


def believed_claims(
    folder: str,
    names: Sequence[str],
    url_of: Mapping[tuple[str, str], str],
    storages: Storages,
) -> dict[str, CountClaim]:
    """The counts that files give for shards of a folder."""
    if is_local(folder):
        return local_claims(folder, names)
    shard = url_of[folder, names[0]]
    return _remote_claims(shard, frozenset(names), storages) if has_ranges(shard) else {}


def local_claims(folder: str, names: Iterable[str]) -> dict[str, CountClaim]:
    """The counts that the files in a local folder give for these of its shards.

    A count of 0 is not believed: scanning such a shard takes no time.
    """
    wanted, claims, root = frozenset(names), dict[str, CountClaim](), Path(folder)
    for path in json_files(root):
        content = read_json(path, containing=b"" if path.name == SIZES else MARKER)
        claims |= _claims_in(content, str(path), wanted)
    info = _counts_of_info(read_json(root / _INFO))
    for name in sorted(wanted - claims.keys()):
        stats = f"{name.removesuffix('.tar')}{_STATS}"  # its `count` includes failed downloads
        downloaded = json_object(read_json(root / stats)).get("successes")
        for file_name, samples in ((_INFO, info.get(name)), (stats, downloaded)):
            if is_count(samples) and is_newer(root / file_name, root / name):
                claims.setdefault(name, CountClaim(samples, str(root / file_name)))
    return {name: claim for name, claim in claims.items() if claim.samples}


def _claims_in(content: object, source: str, names: frozenset[str]) -> dict[str, CountClaim]:
    """The claims of one JSON file about these shards of a folder, by file name.

    Folders are not compared, because shards may have moved, and no path in the file is opened.
    Several entries with one file name count if all say the same.
    """
    fields, found = json_object(content), dict[str, set[CountClaim]]()
    stated: Iterable[tuple[object, ...]] = ()
    if fields.get("wids_version") == 1:
        keys, entries = ("url", "nsamples", "filesize"), shard_entries(fields) or ()
        stated = [tuple(map(entry.get, keys)) for entry in entries]
    elif source.endswith((SIZES, _INFO)):
        counts = fields if source.endswith(SIZES) else _counts_of_info(fields)
        stated = ((name, samples, None) for name, samples in counts.items())
    for url, samples, size in stated:
        name = str(url).rpartition("/")[2]
        if name in names and is_count(samples):
            claim = CountClaim(samples, source, size if is_number(size) else None)
            found.setdefault(name, set()).add(claim)
    return {name: claims.pop() for name, claims in found.items() if len(claims) == 1}


def _counts_of_info(content: object) -> dict[str, object]:
    """The counts in timm's `_info.json`, by file name."""
    counted: dict[str, object] = {}
    for split in json_object(json_object(content).get("splits")).values():
        values = json_object(split)
        names, lengths = values.get("filenames"), values.get("shard_lengths")
        if isinstance(names, list) and isinstance(lengths, list):
            pairs = zip(cast("list[Any]", names), cast("list[Any]", lengths), strict=False)
            counted |= {name: samples for name, samples in pairs if isinstance(name, str)}
    return counted


def _remote_claims(shard: str, asked: frozenset[str], storages: Storages) -> dict[str, CountClaim]:
    """The counts that `sizes.json` and `wids.json`, or timm's file, give beside a shard.

    A file that cannot be read gives no counts, and a warning says why.

    Args:
        shard: URL of a remote shard, whose user, password and query go with the files, too.
        asked: File names of the shards of its folder that are asked for.
        storages: Read ranges of the shard, and so the files.
    """
    claims: dict[str, CountClaim] = {}
    # files have names as they are, or as URLs escape them
    named = {unescaped(name, shard): name for name in asked} | {name: name for name in asked}
    for file_name in (WIDS, SIZES, _INFO):
        if file_name == _INFO and asked <= claims.keys():
            break
        url = url_beside(shard, file_name)
        try:
            content = json.loads(bytes_beside(url, MAX_INDEX_BYTES, storages) or b"null")
        except (OSError, ValueError, RecursionError) as error:
            _log.warning("no JSON of counts from %s: %s", redact(url), error)
            if not getattr(error, "is_final", True):
                break  # the server does not answer: once is enough
            continue
        stated = _claims_in(content, redact(url), frozenset(named))
        claims = {named[name]: claim for name, claim in stated.items()} | claims
    return claims


def bytes_beside(url: str, max_bytes: int, storages: Storages) -> bytes | None:
    """At most so many bytes of a file beside shards, and one more; None if it is absent.

    Raises:
        ShardError: The store does not answer.
    """
    return storages.of(url).read_beside([url], max_bytes + 1)[0][0]


def shards_listed(url: str, storages: Storages) -> list[str]:
    """The shards beside a remote `wids.json` that is named in their place; else the URL alone.

    Raises:
        ConfigError: It lists no shards.
        ShardError: The store does not answer.
    """
    if is_local(url) or split_url(url)[1] != WIDS:
        return [url]
    data = bytes_beside(url, MAX_INDEX_BYTES, storages) or b"null"
    try:
        entries = shard_entries(json.loads(data)) or []
    except ValueError:
        entries = []
    names = [str(entry.get("url")).rpartition("/")[2] for entry in entries]
    if not names:
        raise ConfigError(f"{redact(url)} lists no shards, or is not there; name the shards")
    return [url_beside(url, escaped(name, url)) for name in names]


def folder_total(
    urls: Sequence[str], folders: Mapping[str, object], storages: Storages
) -> int | None:
    """The samples of the remote folder that all shards are in, if open_clip's `__len__` is there.

    None if there is no such number. It does not say which shards it counts.
    """
    if len(folders) != 1 or not has_ranges(urls[0]):
        return None
    url, content = url_beside(urls[0], _LENGTH), b""
    try:
        content = bytes_beside(url, _LENGTH_BYTES, storages) or b""
    except OSError as error:
        _log.info("no total from %s: %s", redact(url), error)
    total = int(content) if content.strip().isdigit() else 0
    if total and is_count(total):
        _log.info(
            "%s counts %d samples in all shards of its folder: the size of an epoch under "
            "sampling='resampled'; if only a part of them is named, set dataset_size",
            redact(url),
            total,
        )
        return total
    if content:
        _log.warning("%s is passed over: %r is no number of samples", redact(url), content[:40])
    return None
