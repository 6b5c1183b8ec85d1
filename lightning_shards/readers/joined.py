"""The values of joined fields, by sample ids. Only what reads a split with joins imports this."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lightning_shards.samples.fields import Field
from lightning_shards.samples.member_bytes import ABSENT, Ints, MemberBytes
from lightning_shards.shards.joins.kept import JoinedShards, KeptJoin, KeptJoins
from lightning_shards.shards.members import MemberTable
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.tables import TableStore


@dataclass(frozen=True)
class Joined:
    """The joins of a source.

    Attributes:
        parts: The shards of each component, in the order of the mix, with its joins.
    """

    parts: tuple[JoinedShards, ...]

    def identity(self) -> dict[str, str]:
        """The contents of the tables, by names that begin with `JOIN_PREFIX`."""
        return {name: digest for part in self.parts for name, digest in part.identity().items()}

    def alone(self, component: int) -> "Joined":
        """Those of one component, as a data set alone."""
        return Joined((replace(self.parts[component], first_shard=0, component=""),))

    def prepare(self, cache: CacheFolder, store: TableStore) -> None:
        """Make on this node what is kept of the joins; raises what `KeptJoins.prepare` does."""
        for part in self.parts:
            for join in part.joins:
                KeptJoins(part, cache, store).prepare(join)

    def open(self, cache: CacheFolder, store: TableStore) -> "JoinedMembers":
        """The values of the joins, which are opened with the shards."""
        return JoinedMembers(self.parts, cache, store)


class JoinedMembers:
    """The values of joins, by sample ids; each join is opened when a shard is.

    Args:
        joined: The shards that have joins; no shard is in two of them.
        cache: Where joins are kept.
        store: The member tables of the shards.
    """

    def __init__(
        self, joined: Sequence[JoinedShards], cache: CacheFolder, store: TableStore
    ) -> None:
        self._parts = [_Part(each, cache, store) for each in joined if each.joins]

    def require_same(self, shard: int, table: MemberTable) -> None:
        """Make each join anew if this shard has changed since its keys were matched.

        Raises:
            ShardError: A join cannot be made.
        """
        part = self._part_of(shard)
        if part is not None:
            part.require_same(shard, table)

    def members(self, ids: Ints) -> dict[str, MemberBytes]:
        """The values of these samples by the names of the fields; their shards have been opened.

        Args:
            ids: int64 of shape (n, 2), all of one component if the split is a mix.
        """
        part = self._part_of(int(ids[0, 0])) if len(ids) else next(iter(self._parts), None)
        return {} if part is None else part.members(ids)

    def of_sample(
        self, field: Field, shard: int, sample: int, members: Mapping[str, Any]
    ) -> dict[str, Any]:
        """The value of a joined field in one sample, by its suffix, as `Field.decode` takes it."""
        given = {name: members[name] for name in ("__key__", "__url__")}
        part = self._part_of(shard)
        assert part is not None  # fields of other shards are not joined
        value = part.value(field.name, shard, sample)
        return given if value is None else given | {field.suffixes[0]: value}

    def release(self) -> None:
        """Count the pages that were read no longer as memory of this process."""
        for part in self._parts:
            for kept in part.kept.values():
                kept.release()

    def _part_of(self, shard: int) -> "_Part | None":
        return next((part for part in self._parts if shard in part.shards), None)


class _Part:
    """The joins of some shards, whose numbers are those in the split.

    Attributes:
        shards: The numbers of the shards.
        kept: The joins that are open, by name.
    """

    def __init__(self, joined: JoinedShards, cache: CacheFolder, store: TableStore) -> None:
        index, first = joined.index, joined.first_shard
        self._joins, self._kept_joins = joined.joins, KeptJoins(joined, cache, store)
        self.shards = range(first, first + index.num_shards)
        self.kept: dict[str, KeptJoin] = {}
        self._same: dict[int, tuple[int, int]] = {}  # stamps that the joins were found to have
        assert index.counts is not None  # the reader's choice sees to it
        # firsts: the number of the first sample of each shard among those of all these shards.
        self._firsts = np.cumsum(index.counts) - index.counts

    def require_same(self, shard: int, table: MemberTable) -> None:
        """As of `JoinedMembers`."""
        if self._same.get(shard) == table.stamp:
            return
        if not self.kept:
            self.kept = {each.settings.name: self._kept_joins.open(each) for each in self._joins}
        for join in self._joins:
            name = join.settings.name
            if tuple(self.kept[name].stamps[shard - self.shards.start].tolist()) != table.stamp:
                self.kept[name] = self._kept_joins.renewed(join)
        self._same[shard] = table.stamp

    def members(self, ids: Ints) -> dict[str, MemberBytes]:
        """As of `JoinedMembers`."""
        numbers = self._firsts[ids[:, 0] - self.shards.start] + ids[:, 1]
        columns: dict[str, MemberBytes] = {}
        for name, kept in self.kept.items():
            starts, sizes = kept.extents(numbers)
            columns[name] = MemberBytes(kept.data, starts, sizes, np.full(len(ids), ABSENT))
        return columns

    def value(self, name: str, shard: int, sample: int) -> bytes | None:
        """The value of one sample; None if it has none."""
        kept = self.kept[name]
        starts, sizes = kept.extents(self._firsts[[shard - self.shards.start]] + sample)
        start, size = int(starts[0]), int(sizes[0])
        return None if size < 0 else kept.data[start : start + size].tobytes()
