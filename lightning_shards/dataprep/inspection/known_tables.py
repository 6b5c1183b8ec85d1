"""The member tables of earlier indexes, with which shards are compared.

That of a local shard is kept in the cache folder. That of a remote one lies beside it, where
`index --upload` has put it, or is kept as well; the one beside it is of its last index, whichever
machine has made that.
"""

from contextlib import closing
from typing import Final, NamedTuple

from lightning_shards.dataprep.inspection.findings import Finding
from lightning_shards.errors import FileAccessError
from lightning_shards.shards.members import MemberTable
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.published.remote_tables import opened_table, published_bytes
from lightning_shards.shards.remote.transport import TransportSettings
from lightning_shards.shards.storage.schemes import Storages, has_ranges, remote_storages
from lightning_shards.shards.tables import TableStore
from lightning_shards.shards.urls import is_local, redact

_MOST_PACKED: Final = 64
"""How many times its bytes a published table may have unpacked. The size of the shard is no limit
here, because it may have been cut short; tables have about eight times their packed bytes."""


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
