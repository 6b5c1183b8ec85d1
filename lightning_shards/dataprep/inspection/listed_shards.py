"""What earlier indexes say of shards, for a check: sizes, counts, checksums, and missing shards.

A shard is held against everything that lies beside it, as training and other tools read it: each
JSON file, and the files that count single shards. Its member table lies there too, where `index`
has put it, or is kept in the cache folder. Of a remote shard the table beside it is believed first,
because it is of its last index, whichever machine has made that.
"""

import hashlib
import logging
import os
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from lightning_shards.dataprep.earlier_claims import (
    REMOTE_NAMES,
    ShardClaim,
    claims_in,
    claims_of_file,
    entries_listed,
    folder_parts,
    json_contents,
    other_claims,
)
from lightning_shards.dataprep.inspection.findings import Finding, reported_name
from lightning_shards.errors import DamagedShardError, FileAccessError
from lightning_shards.shards.beside import (
    MARKER,
    SIZES,
    WIDS,
    json_object,
    read_start,
    shard_entries,
)
from lightning_shards.shards.files import open_regular, read_regular
from lightning_shards.shards.members import MemberTable
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.remote.retries import LOOK_UP
from lightning_shards.shards.remote.transport import TransportSettings
from lightning_shards.shards.storage.schemes import Storages, has_ranges, remote_storages
from lightning_shards.shards.table_bytes import MAX_PUBLISHED_BYTES, published_url
from lightning_shards.shards.tables import TableStore, opened_table, published_bytes
from lightning_shards.shards.urls import is_local, split_url

_MOST_PACKED: Final = 64
"""How many times its bytes a published table may have unpacked. The size of the shard is no limit
here, because it may have been cut short; tables have about eight times their packed bytes."""

_MD5_CHUNK: Final = 1 << 22

_BEGINNING: Final = 256  # bytes of a wids JSON that have its marker, as this package writes it

_log = logging.getLogger(__name__)


def claims_beside(
    urls: Sequence[str], settings: TransportSettings
) -> tuple[dict[str, list[ShardClaim]], list[Finding]]:
    """All that files beside these shards say of them, by URL, and findings about missing shards."""
    folders: dict[str, dict[str, list[str]]] = {}
    for url in urls:
        if is_local(url) or has_ranges(url):
            folder, name = os.path.split(str(Path(url))) if is_local(url) else split_url(url)
            folders.setdefault(folder, {}).setdefault(name, []).append(url)
    claims: dict[str, list[ShardClaim]] = {}
    findings: list[Finding] = []
    with closing(Storages(remote_storages(replace(settings, policy=LOOK_UP)))) as storages:
        for folder, named in folders.items():
            first = next(iter(named.values()))[0]
            if is_local(first):
                found, missing = _claims_beside_local(folder, frozenset(named))
                findings += missing
            else:
                found = _claims_beside_remote(first, frozenset(named), storages)
            for name, claim in found:
                for url in named[name]:
                    claims.setdefault(url, []).append(claim)
    return claims, findings


_Named = list[tuple[str, ShardClaim]]
"""Claims by the file names of their shards."""


def _claims_beside_local(folder: str, names: frozenset[str]) -> tuple[_Named, list[Finding]]:
    """The claims about shards of a folder, and findings about those that are listed with them."""
    claims: _Named = []
    findings: list[Finding] = []
    for source, content in json_contents(Path(folder)):
        if _is_unusable(Path(source), content):
            message = f"{source} is no index that can be read; move it away, and index again"
            findings.append(Finding("unusable index", message, folder))
        claims += claims_in(content, source, folder_parts(folder), names)
        listed = entries_listed(content, folder_parts(folder)).keys()
        if not listed.isdisjoint(names):
            findings += _missing(folder, sorted(listed - names), source)
    return [*claims, *other_claims(Path(folder), names, take_all=True)], findings


def _is_unusable(path: Path, content: object) -> bool:
    """Whether a file that is an index by its name or its beginning has no contents of one."""
    if path.name == SIZES:
        return not isinstance(content, dict)
    if path.name == WIDS:
        return json_object(content).get("wids_version") != 1 or shard_entries(content) is None
    return content is None and MARKER in (read_start(path, _BEGINNING) or b"")


def _missing(folder: str, names: Sequence[str], source: str) -> list[Finding]:
    paths = [os.path.join(folder, name) for name in names]  # noqa: PTH118 - paths stay strings here
    return [
        Finding(
            "missing shard",
            f"{path} does not exist, but {source} lists it; fetch it, or index again",
            path,
        )
        for path in paths
        if not os.path.isfile(path)  # noqa: PTH113 never raises
    ]


def _claims_beside_remote(shard: str, names: frozenset[str], storages: Storages) -> _Named:
    claims: _Named = []
    unread: list[str] = []
    for file_name in (SIZES, WIDS, *REMOTE_NAMES):
        found = claims_of_file(file_name, shard, names, storages, unread)
        if found is None:
            break
        claims += found
    if unread and not claims:
        _log.warning("no file lists the shards, and some were not read: %s", "; ".join(unread))
    return claims


class KnownTables(NamedTuple):
    """The tables of earlier indexes, which may be of older states of the shard.

    Attributes:
        tables: The tables, those with crc32s first.
        findings: What is wrong with a table that could not be used.
    """

    tables: list[MemberTable]
    findings: list[Finding]


def known_tables(
    url: str, cache: CacheFolder, settings: TransportSettings | None = None
) -> KnownTables:
    """The tables by which changed bytes of a shard are found: of a remote shard one at most.

    Raises:
        FileAccessError: The kept table, or a folder of the cache, could be another user's work.
        StorageError: The store of the shard does not answer.
        ConfigError: It cannot be reached as it is set up.
    """
    if not is_local(url) and not has_ranges(url):
        return KnownTables([], [])
    kept = TableStore(cache).kept_table(url)
    beside, findings = _table_beside(url, settings or TransportSettings(cache_dir=str(cache.root)))
    tables = [table for table in (beside, kept) if table is not None]
    tables.sort(key=lambda table: table.crc32 is None)  # stable: with crc32s first
    return KnownTables(tables if is_local(url) else tables[:1], findings)


def have_same_extents(table: MemberTable, other: MemberTable) -> bool:
    """Whether the members of two tables lie at the same bytes, whatever their names are."""
    same_offsets = np.array_equal(table.offsets, other.offsets)
    return same_offsets and np.array_equal(table.sizes, other.sizes)


def _table_beside(
    url: str, settings: TransportSettings
) -> tuple[MemberTable | None, list[Finding]]:
    data: bytes | None = None
    if not is_local(url):
        with closing(Storages(remote_storages(settings))) as storages:
            data = published_bytes(url, storages.of(url))
    try:
        path = published_url(url)
        if is_local(url) and os.path.exists(path):  # noqa: PTH110 never raises
            data = read_regular(path, MAX_PUBLISHED_BYTES)
        return None if data is None else opened_table(url, data, _MOST_PACKED * len(data)), []
    except FileAccessError as error:
        return None, [Finding("unusable table", str(error), reported_name(url))]


class ListedMd5(NamedTuple):
    """The MD5 of a local shard in an index that is to be made again.

    Attributes:
        md5: The MD5.
        size_bytes: Size of the shard by that index.
        source: Path of the index.
        written_ns: When the index was written.
    """

    md5: str
    size_bytes: int
    source: Path
    written_ns: int


def md5_of(path: str, listed: ListedMd5 | None, *, is_wanted: bool) -> str | None:
    """The MD5 of a file, or None if none is wanted and the listed one is out of date.

    If none is wanted, only a file is read that was touched after its index was written.

    Raises:
        DamagedShardError: The file has other bytes than its index says, though by its size and its
            time of change it was not written since.
    """
    if listed is None:
        return file_md5(path) if is_wanted else None
    with os.fdopen(open_regular(path), "rb") as file:
        status = os.fstat(file.fileno())
    is_same_size = status.st_size == listed.size_bytes
    # The inode's time, because the time of the contents is copied with a file.
    is_untouched = is_same_size and status.st_ctime_ns < listed.written_ns
    if not is_wanted and is_untouched:
        return listed.md5
    md5 = file_md5(path) if is_wanted or is_same_size else None
    if md5 == listed.md5:
        return md5
    if is_same_size and status.st_mtime_ns < listed.written_ns:
        raise DamagedShardError(
            f"{path} has other bytes than when it was indexed: its MD5 is {md5}, {listed.md5} by "
            f"{listed.source}, which was written after it; fetch it again, or, if it was written "
            "anew, `touch` it and run `lightning-shards index --checksums` on it"
        )
    if not is_wanted:
        _log.warning(
            "the MD5 of %s in %s is out of date and left out; --checksums makes it anew",
            path,
            listed.source,
        )
        return None
    return md5


def file_md5(path: str) -> str:
    """MD5 of a file, as in the wids JSON; it protects against accidents only."""
    digest = hashlib.md5(usedforsecurity=False)
    with os.fdopen(open_regular(path), "rb") as file:
        while chunk := file.read(_MD5_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
