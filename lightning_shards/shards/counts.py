"""How many samples shards hold: by files beside them, otherwise by scans, which the cache keeps.

A wids JSON and `sizes.json` are believed first; then, of local shards, what timm, img2dataset and
open_clip leave. None of these says which bytes it counted, so one that is older than its shard is
passed over. Two files that disagree are an error, because one of them is wrong. A file that cannot
be read is passed over: local shards can be scanned, and of remote ones another file may have the
counts. All counts are held against the shards when these are read.
"""

import json
import logging
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from lightning_shards.errors import IndexMismatchError, StorageError
from lightning_shards.shards import beside
from lightning_shards.shards.beside import (
    MARKER,
    SIZES,
    WIDS,
    is_count,
    is_number,
    json_files,
    json_object,
    read_json,
    read_start,
    stated_counts,
)
from lightning_shards.shards.checksums import crc32
from lightning_shards.shards.files import is_newer, stamp_of
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.progress_line import progress_line
from lightning_shards.shards.storage.schemes import Storages, has_ranges
from lightning_shards.shards.tar.plain_runs import count_samples, holds_samples
from lightning_shards.shards.tar.walk import BLOCK
from lightning_shards.shards.urls import is_local, redact, split_url, unescaped, url_beside

_INFO: Final = "_info.json"  # of timm
_STATS: Final = "_stats.json"  # img2dataset writes 00000_stats.json beside 00000.tar
_LENGTH: Final = "__len__"  # of open_clip: one number for all shards of the folder
_LENGTH_BYTES: Final = 64
_GZIP: Final = b"\x1f\x8b"
_VERSION: Final = 2
_MAX_BYTES: Final = 256 << 20  # three million shards in the cache

_log = logging.getLogger(__name__)

_Entries = dict[str, list[int]]
"""By file name of a shard its size, its time of change, and its samples."""


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
    """The counts that files give for shards of a folder, without a false count of 0."""
    shard, claims = url_of[folder, names[0]], dict[str, CountClaim]()
    if is_local(folder):
        claims = local_claims(folder, names)
    elif has_ranges(shard):
        claims = _remote_claims(shard, frozenset(names), storages)
    return {
        name: claim
        for name, claim in claims.items()
        if claim.samples or _is_empty(url_of[folder, name], claim, storages)
    }


def _is_empty(url: str, claim: CountClaim, storages: Storages) -> bool:
    """Whether a shard that is said to hold no sample really holds none, by its own headers.

    Of a remote shard only the first header is read, which must be the end marker.
    """
    if is_local(url):
        is_empty, reason = not holds_samples(url), "it holds some"
    else:
        start = storages.of(url).read_beside([url], BLOCK)[0][0]
        is_empty, reason = start == bytes(BLOCK), "it does not begin with its end"
    if not is_empty:
        _log.warning(
            "%s is not believed that %s holds no sample: %s; remake that file",
            claim.source,
            redact(url),
            reason,
        )
    return is_empty


def local_claims(folder: str, names: Iterable[str]) -> dict[str, CountClaim]:
    """The counts that the files in a local folder give for these of its shards.

    Raises:
        IndexMismatchError: Two files disagree, or a shard's size is not the one that was indexed.
        FileAccessError: One of these files is a fifo, a socket, a device or a folder.
    """
    wanted, claims, root = frozenset(names), dict[str, CountClaim](), Path(folder)
    for path in json_files(root):
        content = read_json(path, containing=b"" if path.name == SIZES else MARKER)
        for name, claim in _claims_in(content, str(path), root.absolute().parts, wanted):
            _check_size(root / name, claim)
            _merge(claims, name, claim)
    return claims | _other_claims(root, wanted - claims.keys())


def _claims_in(
    content: object, source: str, folder: tuple[str, ...], names: frozenset[str]
) -> Iterator[tuple[str, CountClaim]]:
    """The claims of one JSON file about these shards of a folder, by file name."""
    fields, name_of_file = json_object(content), source.rpartition("/")[2]
    stated: list[tuple[str, object, object]] = []
    if fields.get("wids_version") == 1:
        stated = stated_counts(fields, folder, names)
    elif name_of_file in (SIZES, _INFO):
        counts = fields if name_of_file == SIZES else _counts_of_info(fields)
        stated = [(name, counts[name], None) for name in sorted(names & counts.keys())]
    for name, samples, size in stated:
        if is_count(samples):
            yield name, CountClaim(samples, source, size if is_number(size) else None)
        elif samples is not None:
            _log.warning("%s is no count of %s in %s", repr(samples)[:40], name, source)


def _check_size(shard: Path, claim: CountClaim) -> None:
    """Refuse a shard that was written again since it was indexed."""
    size = shard.stat().st_size
    if claim.size_bytes not in (None, size):
        raise IndexMismatchError(
            f"{shard} changed since it was indexed: it has {size} bytes, {claim.size_bytes} by "
            f"{claim.source}; remake that index, or fetch the shard again"
        )


def _merge(claims: dict[str, CountClaim], name: str, claim: CountClaim) -> None:
    """Add a claim, unless another one contradicts it."""
    known = claims.setdefault(name, claim)
    if known.samples != claim.samples:
        raise IndexMismatchError(
            f"{name} holds {known.samples} samples by {known.source}, {claim.samples} by "
            f"{claim.source}; delete or remake the one that is out of date"
        )
    if known.size_bytes is None:
        claims[name] = claim  # it may say how large the shard is


# --- what other tools leave beside local shards


def _other_claims(folder: Path, wanted: frozenset[str]) -> dict[str, CountClaim]:
    """The counts that other tools' files give for local shards."""
    claims: dict[str, CountClaim] = {}
    if not wanted:
        return claims
    listed = _listed(folder)
    shards = {name for name in listed if name.endswith(".tar")}
    info, own = _counts_of_info(read_json(folder / _INFO)), _with_own_stems(wanted | shards)
    length = _length_in(read_start(folder / _LENGTH, _LENGTH_BYTES + 1) or b"")
    for name in wanted:
        stats = f"{name.partition('.')[0]}{_STATS}"
        found: list[tuple[str, object]] = [(_INFO, info.get(name))]
        if stats in listed and name in own:  # its `count` includes failed downloads
            found.append((stats, json_object(read_json(folder / stats)).get("successes")))
        if len(shards) == 1:  # otherwise it counts all shards of the folder together
            found.append((_LENGTH, length))
        for file_name, samples in found:
            if is_count(samples) and is_newer(folder / file_name, folder / name):
                claims.setdefault(name, CountClaim(samples, str(folder / file_name)))
    return claims


def _listed(folder: Path) -> set[str]:
    """The names in a folder; none, with a warning, if it cannot be listed."""
    try:
        return {path.name for path in folder.iterdir()}
    except OSError as error:
        _log.warning("no files that count shards are looked for in %s: %s", folder, error)
        return set()


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


def _with_own_stems(shards: Iterable[str]) -> set[str]:
    """Those of a folder's shards to which a file named by the part before the first dot belongs.

    >>> sorted(_with_own_stems(["a.tar", "a.new.tar", "b.0.tar", "c.0.tar", "c.1.tar"]))
    ['a.tar', 'b.0.tar']
    """
    stems = {name: name.partition(".")[0] for name in shards}
    counts = Counter(stems.values())
    return {name for name, stem in stems.items() if counts[stem] == 1 or name == f"{stem}.tar"}


def _length_in(content: bytes) -> int | None:
    """The number in a file `__len__`; None if it holds something else."""
    text = content.strip()
    return int(text) if text.isdigit() and len(content) <= _LENGTH_BYTES else None


# --- files beside remote shards


def _remote_claims(shard: str, asked: frozenset[str], storages: Storages) -> dict[str, CountClaim]:
    """The counts that `sizes.json` and `wids.json`, or timm's file, give beside a shard.

    A file that cannot be read gives no counts. If some are lacking in the end, a warning says why.

    Args:
        shard: URL of a remote shard, whose user, password and query go with the files, too.
        asked: File names of the shards of its folder that are asked for.
        storages: Read ranges of the shard, and so the files.

    Raises:
        IndexMismatchError: The two files disagree.
    """
    claims: dict[str, CountClaim] = {}
    unread: list[str] = []
    # files have names as they are, or as URLs escape them
    named = {unescaped(name, shard): name for name in asked} | {name: name for name in asked}
    parts = tuple(split_url(shard)[0].split("/"))
    for file_name in (SIZES, WIDS, _INFO):
        if file_name == _INFO and asked <= claims.keys():
            break
        url = url_beside(shard, file_name)
        try:
            content = _read_json(url, storages, unread)
        except OSError as error:
            unread.append(str(error))
            if not (isinstance(error, StorageError) and error.is_final):
                break  # the server does not answer: once is enough
            continue
        for name, claim in _claims_in(content, redact(url), parts, frozenset(named)):
            _merge(claims, named[name], claim)
    if unread and not asked <= claims.keys():
        _log.warning("counts are lacking, and files were not read: %s", "; ".join(unread))
    return claims


def bytes_beside(url: str, max_bytes: int, storages: Storages) -> bytes | None:
    """At most so many bytes of a file beside shards, and one more; None if it is absent.

    Raises:
        ShardError: The store does not answer.
    """
    return storages.of(url).read_beside([url], max_bytes + 1)[0][0]


def _read_json(url: str, storages: Storages, unread: list[str]) -> object:
    """The content of a remote JSON file; None if it is absent, too large or not JSON."""
    data = bytes_beside(url, beside.MAX_INDEX_BYTES, storages)
    if data is None:
        return None
    if len(data) > beside.MAX_INDEX_BYTES:
        _log.warning(
            "%s is passed over: it has more than the %s bytes that such a file may have; remake it",
            redact(url),
            f"{beside.MAX_INDEX_BYTES:,}",
        )
        return None
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        kind = "compressed JSON" if data.startswith(_GZIP) else "no JSON"
        unread.append(f"{redact(url)} is {kind}: {error}")
    return None


def folder_total(
    urls: Sequence[str], folders: Mapping[str, object], storages: Storages
) -> int | None:
    """The samples of the remote folder that all shards are in, if open_clip's `__len__` is there.

    None if there is no such number. It does not say which shards it counts.
    """
    if len(folders) != 1 or not has_ranges(urls[0]):
        return None
    url = url_beside(urls[0], _LENGTH)
    source = redact(url)
    try:
        content = bytes_beside(url, _LENGTH_BYTES, storages)
    except OSError as error:
        _log.info("no total from %s: %s", source, error)
        return None
    if content is None:
        return None
    total = _length_in(content)
    if not total or not is_count(total):
        _log.warning("%s is passed over: %r is no number of samples", source, content[:40])
        return None
    _log.info(
        "%s counts %d samples in all shards of its folder: the size of an epoch under "
        "sampling='resampled'; if only a part of them is named, set dataset_size",
        source,
        total,
    )
    return total


# --- scans of local shards


def scan_all(
    unknown: Mapping[str, Sequence[str]], cache: CacheFolder, show_progress: bool | None
) -> dict[tuple[str, str], int]:
    """The samples of local shards, by folder and file name."""
    return {
        (folder, name): samples
        for folder, names in unknown.items()
        if names
        for name, samples in _scan(folder, names, cache, show_progress).items()
    }


def _scan(
    folder: str, names: Sequence[str], cache: CacheFolder, show_progress: bool | None
) -> dict[str, int]:
    """The samples of local shards, by file name; counts are kept even if a later shard fails."""
    entries = _kept_entries(folder, cache)
    # Taken before any shard is read, so that the next run counts a shard again that changes now.
    stamps = {name: list(stamp_of(Path(folder, name))) for name in names}
    known = {name: entries[name] for name in names if name in entries}
    # A cached count of 0 is never believed: reading such a shard takes no time.
    counts = {
        name: samples
        for name, (*stamp, samples) in known.items()
        if samples and stamp == stamps[name]
    }
    to_scan = [name for name in names if name not in counts]
    if not to_scan:
        return counts
    try:
        with progress_line("counted", len(to_scan), folder, show=show_progress) as step:
            for name in to_scan:
                counts[name] = count_samples(Path(folder, name))
                entries[name] = [*stamps[name], counts[name]]
                step()
    finally:
        _keep_entries(folder, cache, entries)
    return counts


def _kept_entries(folder: str, cache: CacheFolder) -> _Entries:
    """The counts that earlier runs have scanned; those of other splits of the folder, too.

    An entry holds while the shard has the same size and time of change.

    Raises:
        FileAccessError: The cache folder could be another user's work.
    """
    path = cache.counts_of(folder)
    file = cache.open(path)
    if file is None:
        return {}
    try:
        with os.fdopen(file, "rb") as stored:
            data = stored.read(_MAX_BYTES)
        fields = json_object(json.loads(data))
    except (OSError, ValueError, RecursionError) as error:
        _log.warning("the counts in %s are made again: %s", path, error)
        return {}
    if fields.get("crc32") != crc32(data.partition(b", ")[2]):  # of all that follows it
        _log.warning("the counts in %s are made again: the checksum does not match", path)
        return {}
    is_ours = (fields["version"], fields["folder"]) == (_VERSION, str(Path(folder).absolute()))
    return fields["counts"] if is_ours else {}


def _keep_entries(folder: str, cache: CacheFolder, entries: _Entries) -> None:
    """Replace the file in one step; one that cannot be written is lost with a warning."""
    absolute = str(Path(folder).absolute())
    content = {"version": _VERSION, "folder": absolute, "counts": entries}
    try:
        rest = json.dumps(content)[1:].encode()
        cache.write(cache.counts_of(folder), b'{"crc32": %d, ' % crc32(rest) + rest)
    except OSError as error:
        _log.warning(
            "the counts of the shards in %s could not be kept, so the next run scans them "
            "again: %s; name another cache_dir, or write a sizes.json beside the shards",
            absolute,
            error,
        )
