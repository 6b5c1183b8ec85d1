"""The values of joined fields, by sample ids. Only what reads a split with joins imports this."""

import numpy as np

from lightning_shards.samples.fields import Field
from lightning_shards.samples.member_bytes import ABSENT, Ints, MemberBytes
from lightning_shards.shards.joins.kept import JoinedShards, KeptJoin, KeptJoins
from lightning_shards.shards.members import MemberTable
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.tables import TableStore


class Joined(JoinedShards):
    """Shards whose samples have joins, as a source holds them."""

    __slots__ = ()

    def prepare(self, cache: CacheFolder, store: TableStore) -> None:
        """Make on this node what is kept of the joins; raises what `KeptJoins.prepare` does."""
        for join in self.joins:
            KeptJoins(self, cache, store).prepare(join)

    def opened(self, cache: CacheFolder, store: TableStore) -> "JoinedMembers":
        """The values of the joins, which are opened with the shards."""
        return JoinedMembers(self, cache, store)


class JoinedMembers:
    """The values of the joins of some shards, by sample ids; joins are opened when a shard is.

    Args:
        joined: The shards, by their numbers in the split, and their joins.
        cache: Where joins are kept.
        store: The member tables of the shards.

    Attributes:
        shards: The numbers of the shards.
    """

    def __init__(self, joined: JoinedShards, cache: CacheFolder, store: TableStore) -> None:
        index, first = joined.index, joined.first_shard
        self._joins, self._kept_joins = joined.joins, KeptJoins(joined, cache, store)
        self.shards = range(first, first + index.num_shards)
        self._kept: dict[str, KeptJoin] = {}
        self._same: dict[int, tuple[int, int]] = {}  # stamps that the joins were found to have
        assert index.counts is not None  # the reader's choice sees to it
        # firsts: the number of the first sample of each shard among those of all these shards.
        self._firsts = np.cumsum(index.counts) - index.counts

    def require_same(self, shard: int, table: MemberTable) -> None:
        """Make each join anew if this shard has changed since its keys were matched.

        Raises:
            ShardError: A join cannot be made.
        """
        if self._same.get(shard) == table.stamp:
            return
        if not self._kept:
            self._kept = {each.settings.name: self._kept_joins.open(each) for each in self._joins}
        for join in self._joins:
            name = join.settings.name
            if tuple(self._kept[name].stamps[shard - self.shards.start].tolist()) != table.stamp:
                self._kept[name] = self._kept_joins.renewed(join)
        self._same[shard] = table.stamp

    def members(self, ids: Ints) -> dict[str, MemberBytes]:
        """The values of these samples by the names of the fields; their shards have been opened.

        Args:
            ids: int64 of shape (n, 2).
        """
        numbers = self._firsts[ids[:, 0] - self.shards.start] + ids[:, 1]
        columns: dict[str, MemberBytes] = {}
        for name, kept in self._kept.items():
            starts, sizes = kept.extents(numbers)
            columns[name] = MemberBytes(kept.data, starts, sizes, np.full(len(ids), ABSENT))
        return columns

    def of_sample(self, field: Field, shard: int, sample: int) -> dict[str, bytes]:
        """The value of a field in one sample, by its suffix, as `Field.decode` takes it."""
        (value,) = self.members(np.array([[shard, sample]]))[field.name].with_gaps()
        return {} if value is None else {field.suffixes[0]: value}

    def release(self) -> None:
        """Count the pages that were read no longer as memory of this process."""
        for kept in self._kept.values():
            kept.release()
