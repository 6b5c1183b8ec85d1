"""What is kept of joins: made once for a node by pyarrow, and mapped to be read.

A join is one Arrow IPC file in the folder `joins` of the cache. Its column is a dictionary array,
with an index for each sample in their order, which says which of the values it has. The first two
values are empty and stand for none: the key is in no row, or its row has no value. The others are
bytes, in the order of the rows. Its name is made of the contents of the
table and the list of shards. It holds while the shards have the sizes and times of change, noted
with the column, that they had when their keys were matched.
"""

import json
import logging
import mmap
import os
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryFile
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lightning_shards.errors import ConfigError, ShardError, count_of
from lightning_shards.shards.files import new_file, not_written
from lightning_shards.shards.index import ShardIndex
from lightning_shards.shards.joins.settings import JOIN_PREFIX
from lightning_shards.shards.joins.tables import (
    Arrow,
    Join,
    ParquetTable,
    TarTable,
    alone,
    binary_array,
    changed,
    load_arrow,
    local_copy,
    look_at,
    remove_copies,
    table_keys,
)
from lightning_shards.shards.members import ENCODING, MemberTable
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.progress_line import rows_bar
from lightning_shards.shards.storage.protocol import shard_stat
from lightning_shards.shards.storage.schemes import Storages
from lightning_shards.shards.tables import TableStore, release_pages
from lightning_shards.shards.urls import is_local, split_url

_Ints = NDArray[np.int64]

_FETCHED_TOGETHER: Final = 256
_FILE_MODE: Final = 0o600
_WITHOUT: Final = 2
"""Entries that stand for no value: no row has the key, or the row is null."""
_FACTS: Final = b"join"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class JoinedShards:
    """Shards of a split whose samples have joins: all of them, or those of a component of a mix.

    Attributes:
        joins: Of these shards.
        index: These shards.
        first_shard: The number that the first of them has in the split.
        component: Its name, for messages; empty if they are all shards of the split.
    """

    joins: tuple[Join, ...]
    index: ShardIndex
    first_shard: int = 0
    component: str = ""


def joins_identity(joins: Iterable[Join], component: str = "") -> dict[str, str]:
    """The contents of the tables, by names that begin with `JOIN_PREFIX`."""
    of = f"{component}." if component else ""
    return {f"{JOIN_PREFIX}{of}{join.settings.name}": join.digest for join in joins}


def prepare_joins(joined: Iterable[JoinedShards], cache: CacheFolder, store: TableStore) -> None:
    """Make on this node what is kept of these joins; raises what `KeptJoins.prepare` does."""
    shards = list(joined)
    with without_copies([join for each in shards for join in each.joins], cache):
        for each in shards:
            for join in each.joins:
                KeptJoins(each.index, cache, store, each.component).prepare(join)


@contextmanager
def without_copies(joins: Iterable[Join], cache: CacheFolder) -> Generator[None]:
    """A context at whose end the copies of remote tables are removed."""
    try:
        yield
    finally:
        files = (file for join in joins for file in join.files)
        remove_copies((file.path for file in files if not is_local(file.path)), cache)


class KeptJoin:
    """A kept join, open for reading.

    Args:
        mapped: The file.

    Attributes:
        slots: Which value each sample has, int32; none below `_WITHOUT`.
        data: The bytes of all values, uint8.
        stamps: Size and time of change of each shard then, int64 of shape (num_shards, 2).
        rows: Rows of the table.
        unmatched: Rows whose key no sample has.
    """

    def __init__(self, mapped: mmap.mmap) -> None:
        arrow, self._mapped = load_arrow(), mapped
        reader = arrow.ipc.open_file(arrow.py_buffer(mapped))
        column = reader.get_batch(0).column(0)
        self.slots: NDArray[np.int32] = column.indices.to_numpy()
        self.data, self._starts = _bytes_and_starts(column.dictionary)
        facts = json.loads(reader.schema.metadata[_FACTS])
        self.rows, self.unmatched = int(facts["rows"]), int(facts["unmatched"])
        self.stamps: _Ints = np.array(facts["stamps"], np.int64).reshape(-1, 2)

    def extents(self, samples: _Ints) -> tuple[_Ints, _Ints]:
        """Where in `data` the values of these samples begin, and their sizes; both -1 for none."""
        slots = self.slots[samples]
        starts, stops = self._starts[slots], self._starts[slots + 1]
        has_value = slots >= _WITHOUT
        return np.where(has_value, starts, -1), np.where(has_value, stops - starts, -1)

    def release(self) -> None:
        """Count the pages that were read no longer as memory of this process."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self._mapped.madvise(mmap.MADV_DONTNEED)


def _bytes_and_starts(values: Arrow) -> tuple[NDArray[np.uint8], _Ints]:
    """The bytes of an array of `large_binary`; where each value begins, and the end."""
    _, starts, data = values.buffers()
    all_starts = np.frombuffer(starts, np.int64, len(values) + 1, values.offset * 8)
    return np.frombuffer(data or b"", np.uint8), all_starts


class KeptJoins:
    """What is kept of the joins of one split, or of one component of a mix.

    Args:
        index: The shards, with their counts.
        cache: Where it is kept.
        store: The member tables of the shards.
        component: The name of the component, for messages; empty for a split.
    """

    def __init__(
        self, index: ShardIndex, cache: CacheFolder, store: TableStore, component: str = ""
    ) -> None:
        assert index.counts is not None  # the reader's choice sees to it
        self._index, self._cache, self._store = index, cache, store
        self._counts, self._component = index.counts, component

    def prepare(self, join: Join) -> None:
        """Make what is kept of a join unless it is there and of these shards.

        Samples without a value and rows without a sample are logged.

        Raises:
            ConfigError: Values are missing and may not, or the join cannot be made.
            ShardError: A shard or the table cannot be read.
        """
        self._tell(join, self._opened(join, self._stamps()) or self.renewed(join))

    def open(self, join: Join) -> KeptJoin:
        """The kept join, which is made if it is not there; raises what `prepare` does."""
        kept = self._opened(join)
        if kept is None:
            kept = self.renewed(join)
            self._tell(join, kept)
        return kept

    def renewed(self, join: Join) -> KeptJoin:
        """The kept join, which is made anew unless it is of the shards as they are now."""
        path = self._path(join)
        with alone(path, self._cache):
            kept = self._opened(join, self._stamps())
            if kept is None:
                self._make(join, path)
                kept = self._opened(join)
            assert kept is not None  # it was written a moment ago
            return kept

    def _opened(self, join: Join, stamps: _Ints | None = None) -> KeptJoin | None:
        """The kept join; None if it is absent, damaged, or of shards without these stamps."""
        path = self._path(join)
        opened = self._cache.open(path)
        if opened is None:
            return None
        try:
            with os.fdopen(opened, "rb") as file:
                kept = KeptJoin(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        except (load_arrow().ArrowException, ValueError, LookupError, TypeError) as error:
            _log.warning("join %r is made again: %s: %s", join.settings.name, path, error)
            return None
        return kept if stamps is None or np.array_equal(kept.stamps, stamps) else None

    def _path(self, join: Join) -> Path:
        digest = sha256(f"{join.digest}\0{join.settings.key}\0{join.column}\0{join.kind}".encode())
        for url in self._index.urls:
            digest.update(os.fsencode(self._cache.sidecar_of(url)))
        digest.update(self._index.fingerprint().encode())
        return self._cache.root / "joins" / f"{digest.hexdigest()[:24]}.arrow"

    def _tables(self) -> Iterator[MemberTable]:
        """The member table of one shard after the other."""
        urls = self._index.urls
        for shard, (url, count) in enumerate(zip(urls, self._counts.tolist(), strict=True)):
            if shard % _FETCHED_TOGETHER == 0:
                self._store.fetch(urls[shard : shard + _FETCHED_TOGETHER])
            table = self._store.table_of(url, expected_samples=count)
            yield table
            release_pages(table)

    def _stamps(self) -> _Ints:
        return np.array([table.stamp for table in self._tables()], np.int64).reshape(-1, 2)

    def _make(self, join: Join, path: Path) -> None:
        began, name = time.monotonic(), join.settings.name
        samples = count_of(int(self._counts.sum()), "sample")
        _log.info("join %r: %s is read twice", name, join.where)
        try:
            with closing(Storages(join.storages)) as storages:
                size_bytes, rows = self._write(join, storages, path)
        except MemoryError as error:
            raise ConfigError(
                f"join {name!r}: the keys of {samples} and of the rows of {join.where} do not fit "
                "the memory; take a machine with more, or a table of these samples alone"
            ) from error
        except OSError as error:
            if isinstance(error, ShardError):
                raise
            raise not_written(path, error) from error
        what = "join %r: %s and %s matched in %.1f s; values of %s bytes are kept in %s"
        numbers = (count_of(rows, "row"), samples, time.monotonic() - began, f"{size_bytes:,}")
        _log.info(what, name, *numbers, path)

    def _table(self, join: Join, storages: Storages) -> ParquetTable | TarTable:
        """The table of a join, with copies of remote files."""
        files: list[tuple[str, str]] = []
        for file in join.files:
            stat = shard_stat(file.path, storages.of(file.path))
            files.append((file.name, local_copy(file.path, stat, storages, self._cache)))
        if join.settings.is_tar:
            return TarTable(join, files, self._store)
        return ParquetTable(join, files)

    def _write(self, join: Join, storages: Storages, path: Path) -> tuple[int, int]:
        """Write the file; the bytes of its values, and the rows of the table."""
        arrow, name, table = load_arrow("compute"), join.settings.name, self._table(join, storages)
        stamps, keys = list[tuple[int, int]](), list[Arrow]()
        for shard in self._tables():
            stamps.append(shard.stamp)
            keys.append(table_keys(shard))
        rows, num_rows = self._matched(name, table, arrow.concat_arrays(keys), arrow)
        # wanted: whether some sample has this row, shape (num_rows,). One entry more stands for the
        # samples without one, whose row is -1.
        wanted = np.zeros(num_rows + 1, np.bool_)
        wanted[rows] = True
        num_wanted = int(wanted[:-1].sum())
        with rows_bar(f"join {name!r}", num_wanted) as step:
            values, are_there = _gathered(table.values(wanted[:-1]), path.parent, step)
        slot_of_row = np.zeros(num_rows + 1, np.int32)
        slot_of_row[:-1][wanted[:-1]] = np.where(are_there, np.arange(num_wanted) + _WITHOUT, 1)
        column = arrow.DictionaryArray.from_arrays(slot_of_row[rows], values)
        facts = {"rows": num_rows, "unmatched": num_rows - num_wanted, "stamps": stamps}
        schema = arrow.schema({"value": column.type}, metadata={_FACTS: json.dumps(facts)})
        with (
            new_file(path, mode=_FILE_MODE) as file,
            arrow.ipc.new_file(file, schema) as writer,
        ):
            writer.write_batch(arrow.record_batch([column], schema=schema))
            for before in join.files:
                if look_at(before.path, join.settings, storages, self._cache)[0] != before:
                    raise changed(before.path)
        return values.nbytes, num_rows

    def _matched(
        self, name: str, table: ParquetTable | TarTable, of_samples: Arrow, arrow: Arrow
    ) -> tuple[NDArray[np.int32], int]:
        """The row of each sample, -1 for none, and how many rows there are."""
        of_files = table.keys()
        of_rows, stops = arrow.concat_arrays(of_files), np.cumsum(list(map(len, of_files)))
        matches = partial(arrow.compute.index_in, value_set=of_rows, skip_nulls=True)
        # firsts: the first row with the key of each one, -1 of those without a key.
        firsts = matches(of_rows).fill_null(-1).to_numpy()
        doubled = np.flatnonzero((firsts >= 0) & (firsts != np.arange(len(firsts))))[:1]
        if len(doubled):
            places = np.append(firsts[doubled], doubled)
            files = np.searchsorted(stops, places, side="right")
            in_file = places - np.append(0, stops)[files]
            first, second = map(table.row_name, files.tolist(), in_file.tolist())
            raise ConfigError(
                f"join {name!r}: {first} and {second} have the same key "
                f"{_shown_key(of_rows[doubled[0]])!r}; leave one of them out of the table"
            )
        rows = matches(of_samples).fill_null(-1).to_numpy()
        if len(rows) and rows.max() < 0:
            problem = f"join {name!r}: no row of its table has the key of a sample"
            if not len(of_rows):
                raise ConfigError(f"{problem}, because it has no rows; name another table")
            shard = int(np.flatnonzero(self._counts)[0])
            raise ConfigError(
                f"{problem}: the first of {count_of(len(of_rows), 'row')} has "
                f"{_shown_key(of_rows[0])!r}, the first sample {self._name(shard, 0)}; name the "
                "column with the keys of samples in `key`"
            )
        return rows, len(of_rows)

    def _tell(self, join: Join, kept: KeptJoin) -> None:
        """Say in one line what matches nothing; an error where samples may not lack values."""
        samples, (without_row, without_value), lacking = self._lacking(kept)
        of = f" of component {self._component!r}" if self._component else ""
        name, remarks = f"join {join.settings.name!r}{of}", list[str]()
        if lacking and join.settings.missing == "raise":
            raise ConfigError(
                f"{name}: {without_row + without_value:,} of {samples} have no value in "
                f"{join.where}, first {lacking}; add rows for them, or set missing: none, which "
                "gives them None or their default"
            )
        if lacking:
            remarks.append(
                f"of {samples} {without_row:,} have no row and {without_value:,} a row without a "
                f"value, first {lacking}: they get None or the default of the field"
            )
        if kept.unmatched:
            of = " of this component" if self._component else ""
            rows = count_of(kept.rows, "row")
            remarks.append(f"of {rows} {kept.unmatched:,} match no sample{of}")
        if remarks:
            _log.warning("%s with %s: %s", name, join.where, "; ".join(remarks))

    def _lacking(self, kept: KeptJoin) -> tuple[str, tuple[int, int], str]:
        """How many samples are left, and how many of them lack a row, or a value; the first one."""
        left, first, start = self._index.kept, "", 0
        counts = np.zeros(_WITHOUT, np.int64)
        for shard, total in enumerate(self._counts.tolist()):
            slots = kept.slots[start : start + total]
            numbers = np.flatnonzero(slots < _WITHOUT)
            if left is not None and len(numbers):
                numbers = np.intersect1d(numbers, left.of_shard(shard), assume_unique=True)
            counts += np.bincount(slots[numbers], minlength=_WITHOUT)
            if len(numbers) and not first:
                first = self._name(shard, int(numbers[0]))
            start += total
        samples = count_of(self._index.kept_samples or 0, "sample")
        return samples, (int(counts[0]), int(counts[1])), first

    def _name(self, shard: int, sample: int) -> str:
        """The key and the id of a sample."""
        url = self._index.urls[shard]
        shown = self._store.table_of(url).key(sample).encode(*ENCODING).decode(errors="replace")
        return f"{shown!r} (#{split_url(url)[1]}:{sample})"


def _gathered(
    pieces: Iterable[Arrow], folder: Path, step: Callable[[int], object]
) -> tuple[Arrow, NDArray[np.bool_]]:
    """All values as one array, after `_WITHOUT` empty ones; and whether each is there.

    Their bytes lie in a file of this folder that has no name.
    """
    are_there, sizes = [np.empty(0, np.bool_)], [np.zeros(1 + _WITHOUT, np.int64)]
    with TemporaryFile(dir=folder) as file:
        for values in pieces:
            data, starts = _bytes_and_starts(values)
            file.write(data[starts[0] : starts[-1]].data)
            sizes.append(np.diff(starts))
            are_there.append(values.is_valid().to_numpy(zero_copy_only=False))
            step(len(values))
        file.flush()
        # It is mapped as a whole. Otherwise single pages of it would be copied, and the system
        # would keep the copy in small pieces, for which readers have three times the page faults.
        flags = (mmap.MAP_SHARED | mmap.MAP_POPULATE, mmap.PROT_READ)
        mapped = mmap.mmap(file.fileno(), 0, *flags) if file.tell() else b""
    return binary_array(mapped, np.cumsum(np.concatenate(sizes))), np.concatenate(are_there)


def _shown_key(key: Arrow) -> str:
    return (key.as_py() or b"").decode(errors="replace")
