"""The labels of all samples, for orders that draw all classes equally often.

Each label is read once. What was found is kept in the cache: the samples sorted by class, and where
each class begins, as .npy files that each process maps; and a JSON file, which is written last. The
name of these has all that labels depend on, such as the stamps of the shards or of their tables.
"""

import hashlib
import json
import operator
import os
from array import array
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lightning_shards.errors import ConfigError
from lightning_shards.plan.balanced_order import BalancedOrder
from lightning_shards.plan.draws import FileOrder
from lightning_shards.readers.open_shards import OpenShards, read_sample
from lightning_shards.samples.fields import Field
from lightning_shards.shards.files import new_file, not_written
from lightning_shards.shards.filters.predicates import digest_of_predicate
from lightning_shards.shards.index import ShardIndex, digest_with_shards
from lightning_shards.shards.joins.kept import Joined
from lightning_shards.shards.joins.tables import Join
from lightning_shards.shards.private_files import CacheFolder, MappedNumbers
from lightning_shards.shards.progress_line import progress_line
from lightning_shards.shards.storage.schemes import MakeStorage
from lightning_shards.shards.urls import is_local, redact


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
        path = self._path()
        found = _read(path, self.cache)
        if found is None:
            index = self.index
            joined = [Joined(self.joins, index)] if self.joins else []
            with OpenShards(index, self.cache, storages=self.storages, joined=joined) as shards:
                self._require_at_hand(shards)
                shards.fetch_tables(np.arange(index.num_shards))
                path = self._path()  # the stamps of remote shards are those of their tables
                found = self._made(path, shards)
        names, digest = found
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
        numbers, starts = map(MappedNumbers, _npy_of(path))
        assert self.index.counts is not None  # the choice of the reader sees to it
        file_order = FileOrder(self.index.counts)
        return BalancedOrder(file_order, numbers, starts, digest, of_classes, seed)

    def _path(self) -> Path:
        field, kept, classes = self.field, self.index.kept, self.field.classes
        decoding = (field.suffixes, field.decoder, field.is_optional, field.default)
        of_join = [(join.digest, join.column, join.settings.key) for join in self.joins]
        of_labels = (digest_of_predicate(decoding), classes and classes.digest(), of_join)
        digest = hashlib.sha256(repr((of_labels, kept and kept.identity)).encode()).hexdigest()
        name = digest_with_shards(digest, self.index, self.cache)
        return self.cache.root / "balance" / f"{name}.json"

    def _require_at_hand(self, shards: OpenShards) -> None:
        remote = [url for url in self.index.urls if not is_local(url)]
        if remote and not self.joins:
            size = shards.storages.of(remote[0]).stat(remote[0]).size * len(remote)
            raise ConfigError(
                f"balance={self.field.name!r} needs the label of each sample, for which shards as "
                f"{redact(remote[0])} would be read, about {self.index.size_bytes or size:,} bytes "
                "in all; take labels from a table by `join`, or copy the shards to this machine"
            )

    def _made(self, path: Path, shards: OpenShards) -> tuple[list[str], str]:
        """Read all labels and write the files; what `_read` gives. It takes 50 bytes a sample."""
        # codes: the class of each sample, numbered as they come; numbers: in file order.
        # Both of shape (samples that are left,).
        classes, kept = dict[str, int](), self.index.kept
        codes, numbers, begins = array("I"), array("q"), [0]
        with progress_line("read", self.index.num_shards, f"labels {self.field.name!r}") as step:
            for shard in range(self.index.num_shards):
                total, begin = shards.reader(shard).table.num_samples, begins[-1]
                for sample in range(total) if kept is None else kept.of_shard(shard).tolist():
                    label = self._label(shards, shard, sample)
                    codes.append(classes.setdefault(label, len(classes)))
                    numbers.append(begin + sample)
                begins.append(begin + total)
                step()
        by_class = np.array(numbers)[np.argsort(np.array(codes), kind="stable")]
        starts, names = np.append(0, np.cumsum(np.bincount(codes))), list(classes)
        digest = hashlib.sha256(json.dumps([names, begins]).encode() + starts.tobytes())
        digest.update(by_class.tobytes())
        found = (names, digest.hexdigest()[:16])
        try:
            self.cache.make_folder(path.parent)
            for part, values in zip(_npy_of(path), (by_class, starts), strict=True):
                with new_file(part, mode=0o600) as file:
                    np.save(file, values)
            self.cache.write(path, json.dumps(found).encode())
        except OSError as error:
            raise not_written(path, error) from error
        return found

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


def _npy_of(path: Path) -> tuple[Path, Path]:
    """The files of the samples, and of where each class begins."""
    return path.with_suffix(".samples.npy"), path.with_suffix(".starts.npy")


def _read(path: Path, cache: CacheFolder) -> tuple[list[str], str] | None:
    """Names of classes, and a digest of them and of the samples; None if they are to be read."""
    opened = cache.open(path)
    if opened is None:
        return None
    try:
        with os.fdopen(opened, "rb") as file:
            names, digest = json.load(file)
        numbers, starts = (MappedNumbers(each).values() for each in _npy_of(path))
        return (names, digest) if starts[len(names) :].tolist() == [len(numbers)] else None
    except (OSError, EOFError, ValueError, TypeError):  # damaged
        return None
