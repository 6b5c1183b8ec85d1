"""What earlier indexes say of shards, for a check: sizes, counts, checksums, and missing shards.

The JSON files lie beside the shards. The member table of a local shard is kept in the cache folder.
That of a remote one lies beside it, where `index --upload` has put it, or is kept as well; the one
beside it is of its last index, whichever machine has made that.
"""

import hashlib
import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from lightning_shards.dataprep.inspection.findings import Finding
from lightning_shards.errors import DamagedShardError, FileAccessError, IndexMismatchError
from lightning_shards.shards.beside import json_files, read_json
from lightning_shards.shards.counts.count_files import remote_claims
from lightning_shards.shards.counts.wids import MARKER, entries_by_name
from lightning_shards.shards.members import MemberTable
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.published.remote_tables import opened_table, published_bytes
from lightning_shards.shards.regular_files import open_regular
from lightning_shards.shards.remote.retries import LOOK_UP
from lightning_shards.shards.remote.transport import TransportSettings
from lightning_shards.shards.storage.schemes import Storages, has_ranges, remote_storages
from lightning_shards.shards.tables import TableStore
from lightning_shards.shards.urls import is_local, redact, split_url

_MOST_PACKED: Final = 64
"""How many times its bytes a published table may have unpacked. The size of the shard is no limit
here, because it may have been cut short; tables have about eight times their packed bytes."""

_MD5_CHUNK: Final = 1 << 22

_log = logging.getLogger(__name__)


def local_entries(urls: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The entries of all shards in the wids JSONs beside local shards, by path."""
    folders = dict.fromkeys(Path(url).parent for url in urls if is_local(url))
    return {
        str(folder / name): entry | {"source": str(path)}
        for folder in folders
        for path in json_files(folder)
        for name, entry in entries_by_name(read_json(path, containing=MARKER)).items()
    }


def remote_entries(
    urls: Sequence[str], settings: TransportSettings
) -> tuple[dict[str, dict[str, Any]], list[Finding]]:
    """Entries from the JSON files in remote folders, by URL, and findings where they disagree."""
    folders: dict[str, dict[str, str]] = {}
    for url in urls:
        if not is_local(url) and has_ranges(url):
            folder, name = split_url(url)
            folders.setdefault(folder, {})[name] = url
    entries: dict[str, dict[str, Any]] = {}
    findings: list[Finding] = []
    with closing(Storages(remote_storages(replace(settings, policy=LOOK_UP)))) as storages:
        for folder, named in folders.items():
            try:
                one = next(iter(named.values()))
                claims = remote_claims(one, named, partial(_fetched_beside, storages))
            except IndexMismatchError as error:
                findings.append(Finding("stale count", str(error), folder))
                continue
            for name, claim in claims.items():
                facts = {
                    "nsamples": claim.samples,
                    "filesize": claim.size_bytes,
                    "md5sum": claim.md5,
                    "source": claim.source,
                }
                known = {fact: value for fact, value in facts.items() if value is not None}
                entries[named[name]] = known
    return entries, findings


def _fetched_beside(storages: Storages, url: str, max_bytes: int) -> bytes | None:
    return storages.of(url).read_whole([url], max_bytes + 1)[0]


def missing_listed(urls: Sequence[str], indexed: Mapping[str, Mapping[str, Any]]) -> list[Finding]:
    """Findings about shards that do not exist, though an index of these shards lists them."""
    sources = {indexed[str(Path(url))]["source"] for url in urls if str(Path(url)) in indexed}
    return [
        Finding(
            "missing shard",
            f"{path} does not exist, but {entry['source']} lists it; fetch it, or index again",
            path,
        )
        for path, entry in indexed.items()
        if entry["source"] in sources and not os.path.isfile(path)  # noqa: PTH113 never raises
    ]


class KnownTable(NamedTuple):
    """The table of an earlier index, which may be of an older state of the shard.

    Attributes:
        table: The table; None if there is none.
        findings: What is wrong with a table that could not be used.
    """

    table: MemberTable | None
    findings: list[Finding]


def known_table(
    url: str, cache: CacheFolder, settings: TransportSettings | None = None
) -> KnownTable:
    """The table by which changed bytes of a shard are found: one with crc32s, if there is one.

    Raises:
        FileAccessError: The kept table, or a folder of the cache, could be another user's work.
        StorageError: The store of the shard does not answer.
        ConfigError: It cannot be reached as it is set up.
    """
    if not is_local(url) and not has_ranges(url):
        return KnownTable(None, [])
    kept = TableStore(cache).kept_table(url)
    if is_local(url):
        return KnownTable(kept, [])
    beside, findings = _table_beside(url, settings or TransportSettings(cache_dir=str(cache.root)))
    tables = [table for table in (beside, kept) if table is not None]
    tables.sort(key=lambda table: table.crc32 is None)  # stable: with crc32s first
    return KnownTable(tables[0] if tables else None, findings)


def _table_beside(url: str, settings: TransportSettings) -> KnownTable:
    with closing(Storages(remote_storages(settings))) as storages:
        data = published_bytes(url, storages.of(url))
    if data is None:
        return KnownTable(None, [])
    try:
        return KnownTable(opened_table(url, data, _MOST_PACKED * len(data)), [])
    except FileAccessError as error:
        return KnownTable(None, [Finding("unusable table", str(error), redact(url))])


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
