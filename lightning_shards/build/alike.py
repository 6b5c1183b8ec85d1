"""The sizes by which samples are compared that come into one batch (`batch_alike`)."""

import os
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np

from lightning_shards.errors import ConfigError
from lightning_shards.samples.fields import Field
from lightning_shards.samples.member_bytes import Ints
from lightning_shards.shards.index import ShardIndex
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.storage.schemes import MakeStorage, Storages
from lightning_shards.shards.tables import TableStore

_FETCHED_TOGETHER = 16
"""Tables of remote shards that one process fetches at once before it looks for those of others."""


def suffixes_compared(name: str, fields: Sequence[Field]) -> tuple[str, ...]:
    """The suffixes of the field by whose members `batch_alike` compares samples.

    Raises:
        ConfigError: There is no such field, or it has no member, as that of a join.
    """
    suffixes = {field.name: field.suffixes for field in fields if not field.is_joined}
    if name not in suffixes:
        raise ConfigError(
            f"batch_alike compares the members of the field {name!r}, and the fields that have one "
            f"are {sorted(suffixes)}; name one of these"
        )
    return suffixes[name]


@dataclass(frozen=True)
class MemberSizes:
    """The size of one member of each sample, as the member tables say; 0 where there is none.

    Tables are opened when they are asked for, and fetched before where shards are remote.

    Attributes:
        suffixes: Of the member: the first of these that a sample has.
        index: The shards and their counts.
        cache: Folder of the tables.
        storages: By scheme, what makes the storages of remote shards; None: all are local.
    """

    suffixes: tuple[str, ...]
    index: ShardIndex
    cache: CacheFolder
    storages: Mapping[str, MakeStorage] | None

    def __call__(self, ids: Ints) -> Ints:
        """The sizes in bytes of these samples, int64 of shape (n,), by ids of shape (n, 2).

        Raises:
            ShardError: A table cannot be had, or is of another shard than was counted.
        """
        sizes, counts = np.zeros(len(ids), np.int64), self.index.counts
        assert counts is not None  # the indexed reader has them
        by_shard = np.argsort(ids[:, 0], kind="stable")
        shards, firsts = np.unique(ids[by_shard, 0], return_index=True)
        rows = dict(zip(shards.tolist(), np.split(by_shard, firsts)[1:], strict=True))
        # Processes that need the same tables begin with others, and find those of each other.
        numbers: list[int] = np.roll(shards, os.getpid() * _FETCHED_TOGETHER).tolist()
        with closing(Storages(self.storages)) as storages:
            store = TableStore(self.cache, storages=storages)
            for first in range(0, len(numbers), _FETCHED_TOGETHER):
                near = numbers[first : first + _FETCHED_TOGETHER]
                store.fetch([self.index.urls[shard] for shard in near])
                for shard in near:
                    url, count = self.index.urls[shard], int(counts[shard])
                    table, chosen = store.table_of(url, expected_samples=count), rows[shard]
                    members = table.members_with(self.suffixes)[ids[chosen, 1]]
                    sizes[chosen] = np.where(members >= 0, table.sizes[members], 0)
        return sizes
