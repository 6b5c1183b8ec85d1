"""The fields of a split, those that come from joins among them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from lightning_shards.errors import ConfigError
from lightning_shards.samples.decoders import RAW
from lightning_shards.samples.fields import Field, make_fields
from lightning_shards.samples.member_bytes import ABSENT, Ints, MemberBytes
from lightning_shards.samples.transforms import Transform, takes_bytes
from lightning_shards.shards.joins.arrow_values import NPY, npy_type
from lightning_shards.shards.joins.finding import JoinedShards
from lightning_shards.shards.joins.kept_file import KeptJoin
from lightning_shards.shards.joins.kept_joins import Join, KeptJoins, without_copies
from lightning_shards.shards.joins.settings import JoinSettings
from lightning_shards.shards.members import MemberTable
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.tables import TableStore

_OF_BYTES: Final = frozenset({"text", "raw", "json"})
"""Kinds of values that are kept as bytes which a decoder may be given."""


def make_all_fields(
    fields: Mapping[str, str],
    joins: Sequence[JoinSettings],
    decode: Mapping[str, Any],
    allow_unsafe: frozenset[str],
    transforms: Mapping[str, Transform],
    defaults: Mapping[str, Any],
) -> tuple[Field, ...]:
    """The fields of members, and after them those of joins, all checked.

    The arguments are those of `make_fields`, and the settings of the joins.

    Raises:
        ConfigError: As of `make_fields`; or a join has the name of a field, or a default without a
            use.
        UnsafeError: As of `make_fields`.
    """
    for join in joins:
        if join.name in fields:
            raise ConfigError(
                f"join {join.name!r} has the name of a field that comes from "
                f"{fields[join.name]!r}; give one of them another name"
            )
        if join.name in defaults and join.missing == "raise":
            raise ConfigError(
                f"defaults names {join.name!r}, and missing='raise' of its join leaves no sample "
                "without a value; leave one of them out"
            )
    if not joins or not fields:
        return make_fields(fields, decode, allow_unsafe, transforms, defaults)
    # until their columns have been looked at
    undecoded = {join.name: RAW for join in joins if not join.is_tar}
    texts = {join.name: join.member_text for join in joins}
    made = make_fields(
        {**fields, **texts}, {**undecoded, **decode}, allow_unsafe, transforms, defaults
    )
    return tuple(replace(field, is_joined=field.name in texts) for field in made)


def with_kinds(
    fields: Iterable[Field],
    joins: Iterable[Join],
    decode: Mapping[str, Any],
    transforms: Mapping[str, Transform],
) -> tuple[Field, ...]:
    """The fields, where the decoders of joined ones are those of what their columns hold.

    Raises:
        ConfigError: A decoder is named for a column that holds no bytes, or a default is not of the
            type of its column.
    """
    kinds = {join.settings.name: join.kind for join in joins if join.kind}
    return tuple(
        replace(
            field, decoder=_decoder(field, kinds[field.name], decode, transforms)
        ).with_fitted_default(transforms, npy_type(kinds[field.name]))
        if field.name in kinds
        else field
        for field in fields
    )


def _decoder(
    field: Field, kind: str, decode: Mapping[str, Any], transforms: Mapping[str, Transform]
) -> Any:
    if field.name not in decode and not takes_bytes(transforms.get(field.name)):
        return NPY if npy_type(kind) else kind
    if kind not in _OF_BYTES:
        raise ConfigError(
            f"join {field.name!r}: its column holds numbers ({kind}), and a decoder takes bytes; "
            f"leave {field.name!r} out of decode, and take no transform for it that decodes"
        )
    return field.decoder


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
        self._joins, self._cache = joined.joins, cache
        self._kept_joins = KeptJoins(index, cache, store, joined.component)
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
            with without_copies(self._joins, self._cache):
                opened = {each.settings.name: self._kept_joins.open(each) for each in self._joins}
            self.kept = opened
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
