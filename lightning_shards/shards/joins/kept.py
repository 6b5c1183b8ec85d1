"""What is kept of joins: made once for a node by pyarrow, and mapped to be read.

A join is one Arrow IPC file in the folder `joins` of the cache. Its one column has the value of
each sample as bytes, in their order, and null where there is none. Its name has all that it depends
on: the contents of the table, the shards, and their stamps.
"""

import json
import logging
import mmap
import os
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lightning_shards.errors import ConfigError, count_of
from lightning_shards.shards.files import new_file, not_written
from lightning_shards.shards.index import ShardIndex, digest_with_shards
from lightning_shards.shards.joins.settings import JOIN_PREFIX
from lightning_shards.shards.joins.tables import (
    Arrow,
    Join,
    JoinTable,
    alone,
    binary_array,
    load_arrow,
    look_at,
    open_join_table,
    replaced,
    table_keys,
)
from lightning_shards.shards.members import ENCODING, MemberTable
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.progress_line import progress_bar
from lightning_shards.shards.storage.schemes import Storages
from lightning_shards.shards.tables import TableStore, release_pages
from lightning_shards.shards.urls import is_local, split_url

_Ints = NDArray[np.int64]

_FETCHED_TOGETHER: Final = 256
_FACTS: Final = b"join"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Joined:
    """Shards of a split whose samples have joins: all of them, or those of a component of a mix.

    Attributes:
        joins: Of these shards.
        index: These shards, with their counts.
        first_shard: The number that the first of them has in the split.
        component: Its name, for messages; empty if they are all shards of the split.
    """

    joins: tuple[Join, ...]
    index: ShardIndex
    first_shard: int = 0
    component: str = ""

    def identity(self) -> dict[str, str]:
        """The contents of the tables, by names that begin with `JOIN_PREFIX`."""
        of = f"{self.component}." if self.component else ""
        return {f"{JOIN_PREFIX}{of}{join.settings.name}": join.digest for join in self.joins}

    def opened(self, cache: CacheFolder, store: TableStore) -> "JoinedValues":
        """The values of the joins, which are kept in this cache."""
        return JoinedValues(self, cache, store)


class KeptJoin:
    """A kept join, open for reading.

    Args:
        mapped: The file.

    Attributes:
        data: The bytes of all values, uint8.
        stamps: Size and time of change of each shard then, int64 of shape (num_shards, 2).
        rows: Rows of the table.
        unmatched: Rows whose key no sample has.
    """

    def __init__(self, mapped: mmap.mmap) -> None:
        arrow, self._mapped = load_arrow(), mapped
        reader = arrow.ipc.open_file(arrow.py_buffer(mapped))
        column = reader.get_batch(0).column(0)
        are_there, starts, data = column.buffers()
        # A bit for each sample. The buffer is left out where all bits are set.
        all_set = np.full(len(column) // 8 + 1, 255, np.uint8)
        self._are_there = np.frombuffer(are_there, np.uint8) if are_there else all_set
        self._starts = np.frombuffer(starts, np.int64, len(column) + 1)
        self.data = np.frombuffer(data or b"", np.uint8)
        facts = json.loads(reader.schema.metadata[_FACTS])
        self.rows, self.unmatched = int(facts["rows"]), int(facts["unmatched"])
        self.stamps: _Ints = np.array(facts["stamps"], np.int64).reshape(-1, 2)

    def extents(self, samples: _Ints) -> tuple[_Ints, _Ints]:
        """Where in `data` the values of these samples begin, and their sizes; both -1 for none."""
        starts, stops = self._starts[samples], self._starts[samples + 1]
        has_value = self._are_there[samples >> 3] >> (samples & 7) & 1 == 1
        return np.where(has_value, starts, -1), np.where(has_value, stops - starts, -1)


class JoinedValues:
    """The values of the joins of some shards; joins are opened, or made, when one is asked for.

    Args:
        joined: The shards, by their numbers in the split, and their joins.
        cache: Where joins are kept.
        store: The member tables of the shards.

    Attributes:
        shards: The numbers of the shards.
    """

    def __init__(self, joined: Joined, cache: CacheFolder, store: TableStore) -> None:
        index, first = joined.index, joined.first_shard
        assert index.counts is not None  # the reader's choice sees to it
        self._joined, self._index, self._cache, self._store = joined, index, cache, store
        self._counts, self._stops = index.counts, np.cumsum(index.counts)
        self.shards = range(first, first + index.num_shards)
        self._told: list[Join] = []

    def prepare(self) -> None:
        """Make on this node what is kept of the joins.

        Samples without a value and rows without a sample are logged.

        Raises:
            ConfigError: Values are missing and may not, or a join cannot be made.
            ShardError: A shard or a table cannot be read.
        """
        for join in self._joined.joins:
            kept = self._kept[join.settings.name]
            if join not in self._told:
                self._tell(join, kept)

    def require_same(self, shard: int, table: MemberTable) -> None:
        """Refuse a shard that has changed since its keys were matched.

        Raises:
            IndexMismatchError: It has.
            ShardError: A join cannot be made.
        """
        for kept in self._kept.values():
            if tuple(kept.stamps[shard - self.shards.start].tolist()) != table.stamp:
                raise replaced(self._index.urls[shard - self.shards.start])

    def extents(self, ids: _Ints) -> dict[str, tuple[NDArray[np.uint8], _Ints, _Ints]]:
        """By name of the join, bytes, and where in them the values of these samples are.

        Args:
            ids: int64 of shape (n, 2).

        Returns:
            The bytes, and where each value begins and its size, int64 of shape (n,), -1 for none.
        """
        shards = ids[:, 0] - self.shards.start
        numbers = (self._stops - self._counts)[shards] + ids[:, 1]
        return {name: (kept.data, *kept.extents(numbers)) for name, kept in self._kept.items()}

    @cached_property
    def _kept(self) -> dict[str, KeptJoin]:
        """The kept joins by their names."""
        remote = [url for url in self._index.urls if not is_local(url)]
        for first in range(0, len(remote), _FETCHED_TOGETHER):  # their stamps are of the tables
            self._store.fetch(remote[first : first + _FETCHED_TOGETHER])
        kept: dict[str, KeptJoin] = {}
        for join in self._joined.joins:
            of_table = f"{join.digest} {join.settings.key!r} {join.column!r} {join.kind}"
            name = digest_with_shards(of_table, self._index, self._cache)
            path = self._cache.root / "joins" / f"{name}.values.arrow"
            with alone(path, self._cache):
                found = self._opened(join, path)
                if found is None:
                    self._make(join, path)
                    found = self._opened(join, path)
                    assert found is not None  # it was written a moment ago
                    self._tell(join, found)
            kept[join.settings.name] = found
        return kept

    def _opened(self, join: Join, path: Path) -> KeptJoin | None:
        """The kept join; None if it is absent or damaged."""
        opened = self._cache.open(path)
        if opened is None:
            return None
        try:
            with os.fdopen(opened, "rb") as file:
                return KeptJoin(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        except (load_arrow().ArrowException, ValueError, LookupError, TypeError) as error:
            _log.warning("join %r is made again: %s: %s", join.settings.name, path, error)
            return None

    def _make(self, join: Join, path: Path) -> None:
        with closing(Storages(join.storages)) as storages:
            here = replace(
                join, files=tuple(look_at(file.path, storages, self._cache) for file in join.files)
            )
        for file, before in zip(here.files, join.files, strict=True):
            if file != before:
                raise replaced(file.path)
        try:
            self._write(here, path)
        except MemoryError as error:
            raise ConfigError(
                f"join {join.settings.name!r}: {join.where} does not fit the memory, with the keys "
                f"of {count_of(int(self._counts.sum()), 'sample')}; take a machine with more, or a "
                "table of these samples alone"
            ) from error
        except OSError as error:
            raise not_written(path, error) from error

    def _write(self, join: Join, path: Path) -> None:
        arrow, stamps, keys = load_arrow("compute"), list[tuple[int, int]](), list[Arrow]()
        for url, count in zip(self._index.urls, self._counts.tolist(), strict=True):
            shard = self._store.table_of(url, expected_samples=count)
            stamps.append(shard.stamp)
            keys.append(table_keys(shard))
            release_pages(shard)
        table = open_join_table(join, self._store)
        rows = self._matched(join.settings.name, table, arrow.concat_arrays(keys), arrow)
        with progress_bar(f"join {join.settings.name!r}", len(rows), " samples") as step:
            column = _gathered(table.values(rows), path.parent, step)
        is_matched = np.zeros(len(table.keys) + 1, np.bool_)  # the last stands for row -1
        is_matched[rows] = True
        unmatched = int((~is_matched[:-1]).sum())
        facts = {"rows": len(table.keys), "unmatched": unmatched, "stamps": stamps}
        schema = arrow.schema({"value": column.type}, metadata={_FACTS: json.dumps(facts)})
        with new_file(path, mode=0o600) as file, arrow.ipc.new_file(file, schema) as writer:
            writer.write_batch(arrow.record_batch([column], schema=schema))

    def _matched(self, name: str, table: JoinTable, of_samples: Arrow, arrow: Arrow) -> _Ints:
        """The row of each sample, -1 for none."""
        of_rows = table.keys
        matches = partial(arrow.compute.index_in, value_set=of_rows, skip_nulls=True)
        # firsts: the first row with the key of each one, -1 of those without a key.
        firsts = matches(of_rows).fill_null(-1).to_numpy()
        doubled = np.flatnonzero((firsts >= 0) & (firsts != np.arange(len(firsts))))[:1].tolist()
        for row in doubled:
            raise ConfigError(
                f"join {name!r}: {table.row_name(int(firsts[row]))} and {table.row_name(row)} have "
                f"the same key {_shown_key(of_rows[row])!r}; leave one of them out of the table"
            )
        rows = matches(of_samples).fill_null(-1).to_numpy()
        if len(rows) and rows.max() < 0:
            first = f", first {_shown_key(of_rows[0])!r}," if len(of_rows) else ""
            raise ConfigError(
                f"join {name!r}: of {count_of(len(of_rows), 'row')}{first} none has the key of a "
                f"sample, first {self._name(0)}; name the column with the keys of samples in "
                "`key`, or another table"
            )
        return rows.astype(np.int64)

    def _tell(self, join: Join, kept: KeptJoin) -> None:
        """Say in one line what matches nothing; an error where samples may not lack values."""
        self._told.append(join)
        component = self._joined.component
        of = f" of component {component!r}" if component else ""
        name, remarks = f"join {join.settings.name!r}{of}", list[str]()
        numbers, left = np.arange(int(self._counts.sum())), self._index.kept
        if left is not None:
            begins = self._stops - self._counts
            of_shards = [begin + left.of_shard(shard) for shard, begin in enumerate(begins)]
            numbers = np.concatenate(of_shards)
        lacking = numbers[kept.extents(numbers)[1] < 0]
        if len(lacking):
            lack = f"{len(lacking):,} of {count_of(len(numbers), 'sample')} have no value"
            first = self._name(int(lacking[0]))
            if join.settings.missing == "raise":
                raise ConfigError(
                    f"{name}: {lack} in {join.where}, first {first}; add rows for them, or set "
                    "missing: none, which gives them None or their default"
                )
            remarks.append(f"{lack}, first {first}: they get None or the default of the field")
        if kept.unmatched:
            of = " of this component" if component else ""
            rows = count_of(kept.rows, "row")
            remarks.append(f"of {rows} {kept.unmatched:,} match no sample{of}")
        if remarks:
            _log.warning("%s with %s: %s", name, join.where, "; ".join(remarks))

    def _name(self, number: int) -> str:
        """The key and the id of a sample."""
        shard = int(np.searchsorted(self._stops, number, side="right"))
        url, sample = self._index.urls[shard], number - int((self._stops - self._counts)[shard])
        shown = self._store.table_of(url).key(sample).encode(*ENCODING).decode(errors="replace")
        return f"{shown!r} (#{split_url(url)[1]}:{sample})"


def _gathered(pieces: Iterable[Arrow], folder: Path, step: Callable[[int], object]) -> Arrow:
    """All values as one array, whose bytes lie in a file of this folder that has no name."""
    are_there, sizes = [np.empty(0, np.bool_)], [np.zeros(1, np.int64)]
    with TemporaryFile(dir=folder) as file:
        for values in pieces:
            _, starts, data = values.buffers()
            starts = np.frombuffer(starts, np.int64, len(values) + 1, values.offset * 8)
            file.write(memoryview(data or b"")[starts[0] : starts[-1]])
            sizes.append(np.diff(starts))
            are_there.append(values.is_valid().to_numpy(zero_copy_only=False))
            step(len(values))
        file.flush()
        # It is mapped as a whole. Otherwise single pages of it would be copied, and the system
        # would keep the copy in small pieces, for which readers have three times the page faults.
        flags = (mmap.MAP_SHARED | mmap.MAP_POPULATE, mmap.PROT_READ)
        mapped = mmap.mmap(file.fileno(), 0, *flags) if file.tell() else b""
    return binary_array(mapped, np.cumsum(np.concatenate(sizes)), np.concatenate(are_there))


def _shown_key(key: Arrow) -> str:
    return (key.as_py() or b"").decode(errors="replace")
