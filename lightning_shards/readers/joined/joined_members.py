"""The joined fields of samples, read from what is kept of their joins, like members of a shard."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lightning_shards.samples.fields import Field
from lightning_shards.samples.member_bytes import ABSENT, Ints, MemberBytes
from lightning_shards.shards.index import ShardIndex
from lightning_shards.shards.joins.kept_file import KeptJoin
from lightning_shards.shards.joins.kept_joins import Join, KeptJoins
from lightning_shards.shards.members import MemberTable
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.tables import TableStore


class JoinedMembers:
    """The values of joins, by sample ids; each join is opened when a shard is.

    Args:
        joins: Of the split.
        index: Its shards.
        cache: Where joins are kept.
        store: The member tables of the shards.
    """

    def __init__(
        self, joins: Sequence[Join], index: ShardIndex, cache: CacheFolder, store: TableStore
    ) -> None:
        self._joins = {join.settings.name: join for join in joins}
        self._kept_joins = KeptJoins(index, cache, store)
        self._kept: dict[str, KeptJoin] = {}
        # firsts: the number of the first sample of each shard among all, shape (num_shards,).
        if joins and index.counts is not None:
            self._firsts = np.cumsum(index.counts) - index.counts

    def require_same(self, shard: int, table: MemberTable) -> None:
        """Make each join anew if this shard has changed since its keys were matched.

        Raises:
            ShardError: A join cannot be made.
        """
        for name, join in self._joins.items():
            if name not in self._kept:
                self._kept[name] = self._kept_joins.open(join)
            if tuple(self._kept[name].stamps[shard].tolist()) != table.stamp:
                self._kept[name] = self._kept_joins.renewed(join)

    def members(self, ids: Ints) -> dict[str, MemberBytes]:
        """The values of these samples by the names of the fields; their shards have been opened.

        Args:
            ids: int64 of shape (n, 2).
        """
        columns: dict[str, MemberBytes] = {}
        for name, kept in self._kept.items():
            starts, sizes = kept.extents(self._firsts[ids[:, 0]] + ids[:, 1])
            columns[name] = MemberBytes(kept.data, starts, sizes, np.full(len(ids), ABSENT))
        return columns

    def of_sample(
        self, field: Field, shard: int, sample: int, members: Mapping[str, Any]
    ) -> dict[str, Any]:
        """The value of a joined field in one sample, by its suffix, as `Field.decode` takes it."""
        given = {name: members[name] for name in ("__key__", "__url__")}
        kept = self._kept[field.name]
        starts, sizes = kept.extents(self._firsts[[shard]] + sample)
        start, size = int(starts[0]), int(sizes[0])
        if size < 0:
            return given
        return given | {field.suffixes[0]: kept.data[start : start + size].tobytes()}

    def release(self) -> None:
        """Count the pages that were read no longer as memory of this process."""
        for kept in self._kept.values():
            kept.release()
