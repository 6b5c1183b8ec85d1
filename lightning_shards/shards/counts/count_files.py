"""Counts in files beside the shards: wids JSON and `sizes.json`, otherwise `count_formats`.

Two files that disagree are an error, because one of them is wrong. A file that cannot be read is
passed over: local shards can be scanned, and of remote ones another file may have the counts.
"""

import json
import logging
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from lightning_shards.errors import IndexMismatchError, StorageError
from lightning_shards.shards import beside
from lightning_shards.shards.beside import (
    SIZES,
    WIDS,
    is_count,
    json_files,
    read_json,
)
from lightning_shards.shards.counts.claims import CountClaim, ShardClaim, claims_in
from lightning_shards.shards.counts.count_formats import (
    LENGTH,
    MAX_HEADER,
    REMOTE_NAMES,
    length_in,
    other_counts,
)
from lightning_shards.shards.counts.escaped_names import unescaped
from lightning_shards.shards.counts.wids import MARKER
from lightning_shards.shards.storage.schemes import Storages
from lightning_shards.shards.urls import redact, split_url, url_beside

_GZIP: Final = b"\x1f\x8b"

_log = logging.getLogger(__name__)


def local_claims(folder: str, names: Iterable[str]) -> dict[str, CountClaim]:
    """The counts that the files in a local folder give for these of its shards.

    Raises:
        IndexMismatchError: Two files disagree, or a shard's size is not the one that was indexed.
    """
    wanted = frozenset(names)
    claims: dict[str, CountClaim] = {}
    for source, content in json_contents(Path(folder)):
        for name, claim in claims_in(content, source, folder_parts(folder), wanted):
            counted = _counted(name, claim)
            if counted is not None:
                _check_size(Path(folder) / name, counted)
                _merge(claims, name, counted)
    for name, claim in other_claims(Path(folder), wanted - claims.keys(), take_all=False):
        counted = _counted(name, claim)
        if counted is not None:
            claims[name] = counted
    return claims


def json_contents(folder: Path) -> Iterator[tuple[str, object]]:
    """Path and content of the wids JSONs and of `sizes.json` in a local folder."""
    for path in json_files(folder):
        yield str(path), read_json(path, containing=b"" if path.name == SIZES else MARKER)


def folder_parts(folder: str) -> tuple[str, ...]:
    """The parts of the path of a local folder, of which entries of an index may name the last."""
    return Path(folder).absolute().parts


def other_claims(
    folder: Path, names: Iterable[str], *, take_all: bool
) -> Iterator[tuple[str, ShardClaim]]:
    """The claims of other tools' files in a local folder; without `take_all` one for each shard."""
    for name, samples, source in other_counts(folder, names, take_all=take_all):
        yield name, ShardClaim(source, {"nsamples": samples})


def remote_claims(shard: str, names: Iterable[str], storages: Storages) -> dict[str, CountClaim]:
    """The counts that `sizes.json` and `wids.json`, or other tools' files, give beside a shard.

    A file that cannot be read gives no counts. If some are lacking in the end, a warning says why.

    Args:
        shard: URL of a remote shard, whose user, password and query go with the files, too.
        names: File names of the shards of its folder that are asked for.
        storages: Read ranges of the shard, and so the files.

    Raises:
        IndexMismatchError: The two files disagree.
    """
    asked = frozenset(names)
    claims: dict[str, CountClaim] = {}
    unread: list[str] = []
    for file_name in (SIZES, WIDS, *REMOTE_NAMES):
        if file_name in REMOTE_NAMES and asked <= claims.keys():
            break
        found = claims_of_file(file_name, shard, asked, storages, unread)
        if found is None:
            break
        for name, claim in found:
            counted = _counted(name, claim)
            if counted is not None:
                _merge(claims, name, counted)
    if unread and not asked <= claims.keys():
        _log.warning("counts are lacking, and files were not read: %s", "; ".join(unread))
    return claims


def claims_of_file(
    file_name: str, shard: str, asked: frozenset[str], storages: Storages, unread: list[str]
) -> list[tuple[str, ShardClaim]] | None:
    """The claims of one file beside a remote shard, further arguments as of `remote_claims`.

    None if the server does not answer, so that nobody waits for another file: once is enough.
    `unread` gets the reason why the file cannot be read, unless it is absent.
    """
    named = {unescaped(name, shard): name for name in asked}
    wanted = asked | named.keys()  # files have names as they are, or as URLs escape them
    parts = tuple(split_url(shard)[0].split("/"))
    url = url_beside(shard, file_name)
    try:
        content = _read_json(url, storages, unread)
    except OSError as error:
        unread.append(str(error))
        return [] if isinstance(error, StorageError) and error.is_final else None
    found = claims_in(content, redact(url), parts, wanted)
    return [(name if name in asked else named[name], claim) for name, claim in found]


def remote_total(shard: str, storages: Storages) -> int | None:
    """The samples that open_clip's `__len__` counts in all shards of this remote shard's folder.

    None if there is no such number. It does not say which shards it counts.
    """
    url = url_beside(shard, LENGTH)
    source = redact(url)
    try:
        content = bytes_beside(url, MAX_HEADER, storages)
    except OSError as error:
        _log.info("no total from %s: %s", source, error)
        return None
    if content is None:
        return None
    total = length_in(content)
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


def bytes_beside(url: str, max_bytes: int, storages: Storages) -> bytes | None:
    """At most so many bytes of a file beside shards, and one more; None if it is absent.

    Raises:
        ShardError: The store does not answer.
    """
    return storages.of(url).read_whole([url], max_bytes + 1)[0]


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


def _check_size(shard: Path, claim: CountClaim) -> None:
    """Refuse a shard that was written again since it was indexed."""
    size = shard.stat().st_size
    if claim.size_bytes not in (None, size):
        raise IndexMismatchError(
            f"{shard} changed since it was indexed: it has {size} bytes, {claim.size_bytes} by "
            f"{claim.source}; remake that index, or fetch the shard again"
        )


def _counted(name: str, claim: ShardClaim) -> CountClaim | None:
    """The claim if it counts the samples; a warning if it does so by something else."""
    if claim.counted is None and "nsamples" in claim.facts:
        what = repr(claim.facts["nsamples"])[:40]
        _log.warning("%s is no count of %s in %s", what, name, claim.source)
    return claim.counted
