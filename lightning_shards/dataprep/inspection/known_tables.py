"""The member tables of earlier indexes, with which shards are compared."""

from lightning_shards.shards.members import MemberTable
from lightning_shards.shards.storage.local_copies import LocalShard
from lightning_shards.shards.tables import TableStore


def known_table(shard: LocalShard) -> MemberTable | None:
    """The table of an earlier index, which may be of an older state of the shard."""
    return TableStore(shard.cache).kept_table(shard.path)
