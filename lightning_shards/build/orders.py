"""What orders ask of the samples: their classes (`balance`), and their sizes (`batch_alike`).

Each label is read once. What was found is kept in the cache: the samples sorted by class as a .npy
file that each process maps, and the names of the classes and where each begins as JSON, which is
written last. The name of both has all that labels depend on, such as the stamps of the shards.
"""

import hashlib
import json
import operator
import os
from array import array
from collections.abc import Collection, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO

import numpy as np

from lightning_shards.errors import ConfigError, count_of
from lightning_shards.plan.balanced_order import BalancedOrder
from lightning_shards.plan.draws import FileOrder
from lightning_shards.plan.kept_order import HeldNumbers
from lightning_shards.readers.open_shards import OpenShards, read_sample
from lightning_shards.samples.fields import Field
from lightning_shards.samples.member_bytes import Ints
from lightning_shards.shards.files import CacheFolder, new_file
from lightning_shards.shards.filters.applying import digest_of_predicate
from lightning_shards.shards.index import ShardIndex
from lightning_shards.shards.joins.kept import Join, Joined
from lightning_shards.shards.made_files import MappedNumbers, digest_with_shards, made_once
from lightning_shards.shards.progress_line import progress_bar
from lightning_shards.shards.storage.schemes import MakeStorage, Storages
from lightning_shards.shards.tables import TableStore
from lightning_shards.shards.urls import is_local, redact

_FETCHED_TOGETHER = 16
"""Tables of remote shards that one process fetches at once before it looks for those of others."""


@dataclass(frozen=True)
class ClassLabels:
    """Where the label of each sample comes from.

    Attributes:
        index: The shards and their counts.
        field: Its values are the labels.
        joins: The join that the field is of; empty if it is of members.
        cache: Where tables, joins and what is found are kept.
        storages: What reads remote shards.
    """

    index: ShardIndex
    field: Field
    joins: tuple[Join, ...]
    cache: CacheFolder
    storages: Mapping[str, MakeStorage] | None

    def order(self, weights: Mapping[str, float], seed: int) -> BalancedOrder:
        """The draws of classes with these weights; those that are left out have the weight 1.

        Raises:
            ConfigError: A label is none, a class with a weight has no sample, or labels would have
                to be read from remote shards.
            ShardError: A label cannot be read.
        """
        remote = [url for url in self.index.urls if not is_local(url)]
        if remote and not self.joins:
            raise ConfigError(
                f"balance={self.field.name!r} would read the label of each sample of "
                f"{count_of(len(remote), 'remote shard')}, first {redact(remote[0])}, one by one; "
                "take labels from a table by `join`, or copy the shards to this machine"
            )
        with closing(Storages(self.storages)) as storages:
            tables = TableStore(self.cache, storages=storages)
            name = digest_with_shards(self._digest(), self.index, self.cache, tables)
        path = self.cache.root / "balance" / f"{name}.json"
        names, starts, digest = made_once(path, self.cache, _read, partial(self._write, path))
        numbers = MappedNumbers(path.with_suffix(".npy"))
        known: Collection[str] = self.field.classes.numbers if self.field.classes else ()
        absent = sorted({*known, *weights} - {*names})
        absent = [name for name in absent if weights.get(name, 1) or name not in known]
        of_classes = tuple(float(weights.get(name, 1)) for name in names)
        if absent or not any(of_classes):
            raise ConfigError(
                f"balance={self.field.name!r} draws each class with a weight above 0, at least "
                f"one: of {absent[:10]} there is no sample, and samples are of {len(names)} "
                f"classes, such as {names[:10]}; correct balance_weights (0: not drawn)"
            )
        sorted_by_class = numbers, HeldNumbers(np.array(starts))
        return BalancedOrder(self._file_order, *sorted_by_class, digest, of_classes, seed)

    @property
    def _file_order(self) -> FileOrder:
        assert self.index.counts is not None  # the choice of the reader sees to it
        return FileOrder(self.index.counts)

    def _digest(self) -> str:
        field, kept, classes = self.field, self.index.kept, self.field.classes
        decoding = (field.suffixes, field.decoder, field.is_optional, field.default)
        of_labels = (digest_of_predicate(decoding), classes and classes.digest(), self.joins)
        return repr((of_labels, kept and kept.identity))

    def _write(self, path: Path, file: BinaryIO) -> None:
        """Read all labels and write what `_read` gives. It takes 50 bytes a sample."""
        index = self.index
        joined = [Joined(self.joins, index)] if self.joins else []
        # numbers: of the samples that are left; codes: their classes, numbered as they come.
        # Both of shape (samples that are left,).
        numbers, classes, codes = index.kept_numbers, dict[str, int](), array("I")
        with (
            OpenShards(index, self.cache, storages=self.storages, joined=joined) as shards,
            progress_bar(f"labels {self.field.name!r}", len(numbers), " samples") as step,
        ):
            for shard, sample in map(np.ndarray.tolist, self._file_order.ids(numbers)):
                codes.append(classes.setdefault(self._label(shards, shard, sample), len(classes)))
                step()
        by_class = numbers[np.argsort(np.array(codes), kind="stable")]
        starts, names = np.append(0, np.cumsum(np.bincount(codes))), list(classes)
        begins = [0, *self._file_order.ends.tolist()]
        digest = hashlib.sha256(json.dumps([names, begins]).encode() + starts.tobytes())
        digest.update(by_class.tobytes())
        with new_file(path.with_suffix(".npy"), mode=0o600) as samples_file:
            np.save(samples_file, by_class)
        file.write(json.dumps([names, starts.tolist(), digest.hexdigest()[:16]]).encode())

    def _label(self, shards: OpenShards, shard: int, sample: int) -> str:
        made, classes = read_sample(shards, [self.field], shard, sample), self.field.classes
        value = made[self.field.name]
        if isinstance(value, str):
            return value.strip()
        try:
            number = str(operator.index(value))
        except TypeError:
            raise ConfigError(
                f"balance={self.field.name!r} needs one int or the name of a class, and sample "
                f"{made['__key__']!r} of {redact(made['__url__'])} has {str(value)[:80]!r}; name "
                "another field, or leave such samples out by `keep` or `exclude`"
            ) from None
        return (classes and classes.name_of(number)) or number


def _read(path: Path) -> tuple[list[str], list[int], str]:
    """Names of classes, where the samples of each begin, and a digest of all that."""
    names, starts, digest = json.loads(path.read_bytes())
    if len(MappedNumbers(path.with_suffix(".npy")).values()) != starts[len(names)]:
        raise ValueError("it has other samples")
    return names, starts, digest


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
