"""Joins: tables matched with the keys of samples by pyarrow, kept for a node, and mapped.

A table is Parquet files, or tars. The crc32 of its files decides what is kept of it; it is kept
itself, under a name made of the path or URL, the size and the version of the file. A remote file is
fetched whole, once, and its copy lies in the cache until that is cleared.

A join is one Arrow IPC file in the folder `joins` of the cache. It has the value of each sample as
bytes, in their order, and its size, which is -1 where there is none. Its name has all that it
depends on: the contents of the table, the shards, and their stamps.

The kind of a column is the name of the decoder of `samples.decoders` that turns the bytes into
values again: texts and bytes stay what they are, numbers become their digits, lists of numbers the
bytes of an array, and all else JSON.
"""

import json
import logging
import mmap
from collections.abc import Callable, Generator, Mapping
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from hashlib import sha256
from importlib import import_module
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, BinaryIO, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lightning_shards.errors import (
    ConfigError,
    FileAccessError,
    IndexMismatchError,
    ShardNotFoundError,
    count_of,
    errors_about,
    require_library,
)
from lightning_shards.plan.draws import FileOrder
from lightning_shards.shards.files import CacheFolder, crc32, new_file
from lightning_shards.shards.index import ShardIndex
from lightning_shards.shards.joins.settings import JOIN_PREFIX, JoinSettings
from lightning_shards.shards.made_files import digest_with_shards, made_once
from lightning_shards.shards.members import ENCODING, MemberTable, ShardReader
from lightning_shards.shards.patterns import expand_urls, require_local_shards
from lightning_shards.shards.progress_line import progress_bar
from lightning_shards.shards.storage.protocol import shard_stat
from lightning_shards.shards.storage.schemes import MakeStorage, Storages
from lightning_shards.shards.tables import TableStore
from lightning_shards.shards.urls import (
    is_local,
    redact,
    redact_pattern,
    split_url,
    without_credentials,
)

_log = logging.getLogger(__name__)

Arrow: TypeAlias = Any
"""What pyarrow has no types for: its module, schemas, and arrays."""

_Ints = NDArray[np.int64]

_READ_BYTES: Final = 1 << 22
_STAMPS: Final = b"stamps"


def load_arrow() -> Arrow:
    """The module pyarrow.

    Raises:
        ConfigError: It is not installed.
    """
    require_library("a join", "pyarrow", "pyarrow", "table")
    import_module("pyarrow.compute")
    return import_module("pyarrow")


@dataclass(frozen=True, slots=True)
class TableFile:
    """One file of a table as it was when its checksum was taken.

    Attributes:
        path: Where it lies: an absolute path, or a URL with what may be secret in it.
        size: bytes of it.
        crc32: Of all its bytes.
        local: Path of the file itself, or of the copy of a remote one on this node.
    """

    path: str = field(repr=False)
    size: int
    crc32: int
    local: str = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Join:
    """One join of a split, whose table has been looked at.

    Attributes:
        settings: As they were given.
        files: The files of the table, with their checksums.
        column: The column whose values are taken; of tars the suffix.
        kind: How the values of a Parquet table are kept, see above; empty for tars.
        storages: What reads remote files, by scheme.
    """

    settings: JoinSettings
    files: tuple[TableFile, ...]
    column: str
    kind: str
    storages: Mapping[str, MakeStorage] | None = field(default=None, compare=False, repr=False)

    @property
    def digest(self) -> str:
        """16 hex digits over sizes and checksums of the files; where they lie does not count."""
        texts = (f"{file.size} {file.crc32:08x}\n" for file in self.files)
        return sha256("".join(texts).encode()).hexdigest()[:16]

    @property
    def where(self) -> str:
        """Its table, for messages."""
        return redact_pattern("::".join(self.settings.table))


def find_join(
    settings: JoinSettings, cache: CacheFolder, storages: Mapping[str, MakeStorage] | None = None
) -> Join:
    """The join with these settings; remote files of its table are read by these storages.

    Raises:
        ShardNotFoundError: A file of the table does not exist.
        FileAccessError: One cannot be read.
        IndexMismatchError: One was replaced while it was read.
        StorageError: A remote one could not be had, after all retries.
        ConfigError: A remote one can only be streamed, or a file has not the columns, or they hold
            what cannot be taken.
        UrlError: A pattern cannot be read, or names a folder.
    """
    load_arrow()
    with (
        errors_about(f"the table of join {settings.name!r}", ShardNotFoundError),
        closing(Storages(storages)) as opened,
    ):
        paths = expand_urls(settings.table)
        require_local_shards(paths)
        files = tuple(look_at(path, opened, cache) for path in paths)
    of_tars = settings.column or "", ""
    column = of_tars if settings.is_tar else _column_and_kind(settings, files[0])
    return Join(settings, files, *column, storages)


def look_at(path: str, storages: Storages, cache: CacheFolder) -> TableFile:
    """A file of a table; one that has not changed since is not read again.

    A remote one is fetched to be read.

    Raises:
        IndexMismatchError: It was replaced while it was read.
        FileAccessError: It cannot be read, or its copy cannot be written.
        StorageError: It could not be had to its end, after all retries.
    """
    path = str(Path(path).absolute()) if is_local(path) else path
    storage, file_name = storages.of(path), split_url(path)[1]
    stat = shard_stat(path, storage)
    # The name is a hash, as a URL may hold what is secret.
    named = sha256(f"{without_credentials(path)} {stat}".encode(errors="surrogateescape"))
    kept = cache.root / "joins" / f"{named.hexdigest()[:32]}.crc32"
    copy = Path(path) if is_local(path) else kept.with_suffix(Path(file_name).suffix)

    def read(kept: Path) -> int:
        copy.stat()  # one that is missing is fetched again
        return int(kept.read_bytes())

    def write(file: BinaryIO) -> None:
        checksum = size = 0
        with (
            storage.open_stream(path) as stream,
            nullcontext() if is_local(path) else new_file(copy, mode=0o600) as copied,
            progress_bar(f"read {file_name}", stat.size, "B") as step,
        ):
            while data := stream.read(_READ_BYTES):
                checksum, size = crc32(data, checksum), size + len(data)
                if copied is not None:
                    copied.write(data)
                step(len(data))
            if size != stat.size or shard_stat(path, storage) != stat:
                raise replaced(path)
        file.write(b"%d" % checksum)

    return TableFile(path, stat.size, made_once(kept, cache, read, write), str(copy))


def replaced(path: str) -> IndexMismatchError:
    """The error for a file that is not what it was."""
    return IndexMismatchError(
        f"{redact(path)} was replaced while the run looked at it; start again when it is written"
    )


@contextmanager
def _opened(join: JoinSettings, table: TableFile) -> Generator[Arrow]:
    """A Parquet file."""
    parquet: Arrow = import_module("pyarrow.parquet")
    try:
        # pages are held against their checksums where they have one
        with parquet.ParquetFile(table.local, page_checksum_verification=True) as file:
            yield file
    except (load_arrow().ArrowInvalid, NotImplementedError, OSError) as error:
        raise FileAccessError(
            f"join {join.name!r}: {redact(table.path)} cannot be read as Parquet: {error}; write "
            "it again, or name another table"
        ) from None


def _column_and_kind(settings: JoinSettings, table: TableFile) -> tuple[str, str]:
    """The column of a file whose values are taken, and how they are kept."""
    with _opened(settings, table) as file:
        schema = file.schema_arrow
    names, where = list(schema.names), f"join {settings.name!r}: {redact(table.path)}"
    others = [name for name in names if name != settings.key]
    column = settings.column or (settings.name if settings.name in others else "")
    if not column and len(others) == 1:
        column = others[0]
    for setting, given in (("key", settings.key), ("column", column)):
        if names.count(given) != 1:
            raise ConfigError(
                f"{where} has {names.count(given)} columns {given!r} where one is needed; name one "
                f"of {names} in `{setting}`"
            )
    return column, _kind_of(schema.field(column).type)


def _kind_of(kind: Arrow) -> str:
    """How values of an Arrow type are kept; empty if there is no way."""
    types, inner = load_arrow().types, getattr(kind, "value_type", None)
    if types.is_dictionary(kind):
        return _kind_of(inner)
    are_numbers = (types.is_boolean, types.is_integer, types.is_floating)
    if inner is not None and any(is_(inner) for is_ in are_numbers):
        return f"list {np.dtype(inner.to_pandas_dtype()).name}"
    tests = {
        "raw": (types.is_binary, types.is_large_binary, types.is_fixed_size_binary),
        "text": (types.is_string, types.is_large_string),
        "int": (types.is_integer,),
        "float": (types.is_floating,),
        "json": (types.is_boolean, types.is_nested, types.is_null),
    }
    return next((name for name, which in tests.items() if any(is_(kind) for is_ in which)), "")


def _as_bytes(column: Arrow, wanted: str = "") -> Arrow:
    """The values in an Arrow array as `large_binary`.

    Raises:
        ValueError: They are not of the kind that is wanted, or one has no such bytes.
        TypeError: One holds what JSON has not.
    """
    arrow, kind = load_arrow(), _kind_of(column.type)
    if kind != (wanted or kind):
        raise ValueError(f"it holds {column.type}, and the first file other values")
    if kind in ("int", "float"):
        column = column.cast(f"{kind}64").cast(arrow.string())
    elif kind == "json":
        text_of = partial(json.dumps, ensure_ascii=False)
        rows = [row if row is None else text_of(row) for row in column.to_pylist()]
        column = arrow.array(rows, arrow.large_string())
    elif kind.startswith("list "):
        numbers = column.flatten()  # without those that some lists have where they are null
        if numbers.null_count:
            raise ValueError("numbers in its lists are null")
        numbers = numbers.to_numpy(zero_copy_only=False)
        sizes = arrow.compute.list_value_length(column).fill_null(0).to_numpy()
        starts = np.append(0, np.cumsum(sizes, dtype=np.int64)) * numbers.itemsize
        return binary_array(numbers, starts, column.is_null().to_numpy(zero_copy_only=False))
    return column.cast(arrow.large_binary())


def binary_array(data: object, starts: _Ints, is_null: NDArray[np.bool_] | None = None) -> Arrow:
    """An array of `large_binary`: value i lies in `data` from starts[i] to starts[i + 1].

    It is null where `is_null` says so.
    """
    arrow = load_arrow()
    bits = None if is_null is None else np.packbits(~is_null, bitorder="little")
    buffers = [each if each is None else arrow.py_buffer(each) for each in (bits, starts, data)]
    return arrow.LargeBinaryArray.from_buffers(arrow.large_binary(), len(starts) - 1, buffers)


def table_keys(table: MemberTable) -> Arrow:
    """The keys of the samples of a shard as `large_binary`."""
    return binary_array(table.keys.copy(), table.key_starts.copy())


_TakeRows: TypeAlias = Callable[[_Ints], Arrow]
"""Gives the values of these rows of a table as `large_binary`; of row -1 it is null."""


def _parquet_table(join: Join, *_: object) -> tuple[Arrow, _TakeRows]:
    """The keys of all rows of a table as `large_binary`, and what gives the values of some.

    Raises:
        ConfigError: A value cannot be taken.
        FileAccessError: A file is damaged or cannot be read.
    """
    arrow, key = load_arrow(), join.settings.key
    keys, values = [arrow.array([], arrow.large_binary())], [arrow.array([], arrow.large_binary())]
    columns = (key, "", keys), (join.column, join.kind, values)
    for file in join.files:
        with _opened(join.settings, file) as parquet:
            for batch in parquet.iter_batches(columns=list({key, join.column}), use_threads=False):
                for name, kind, made in columns:
                    try:
                        made.append(_as_bytes(batch.column(name), kind))
                    except (LookupError, NotImplementedError, TypeError, ValueError) as error:
                        raise ConfigError(
                            f"join {join.settings.name!r}: column {name!r} of "
                            f"{redact(file.path)} cannot be taken: {error}; write keys as texts or "
                            "whole numbers, values as texts, bytes, numbers, or lists and structs "
                            "of these, all of one type, or name another column"
                        ) from error
    whole = arrow.concat_arrays(values)
    return arrow.concat_arrays(keys), lambda rows: whole.take(arrow.array(rows, mask=rows < 0))


def _tar_table(join: Join, store: TableStore, folder: Path) -> tuple[Arrow, _TakeRows]:
    """As of `_parquet_table` for tars, whose members are read through their member tables.

    They are put together in a file of this folder that has no name, and never in memory.

    Raises:
        ShardError: A tar is damaged or cannot be read.
    """
    suffix, files = join.column.lower(), join.files
    tables = [store.table_of(file.local) for file in files]
    starts = np.cumsum([0, *(table.num_samples for table in tables)])

    def take(rows: _Ints) -> Arrow:
        # files_of: the tar of each row; sizes: of its member, -1 for none. Both of shape (n,).
        files_of, sizes = np.searchsorted(starts, rows, side="right") - 1, np.full(len(rows), -1)
        with (
            TemporaryFile(dir=folder) as file,
            progress_bar(f"join {join.settings.name!r}", len(rows), " samples") as step,
        ):
            for number, group in groupby(np.flatnonzero(rows >= 0).tolist(), files_of.item):
                with ShardReader(files[number].local, tables[number]) as reader:
                    for place in group:
                        sample = int(rows[place] - starts[number])
                        if reader.table.find(sample, suffix) is not None:
                            sizes[place] = file.write(reader.read(sample, suffix))
                        step()
            file.flush()
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if file.tell() else b""
        return binary_array(mapped, np.append(0, np.cumsum(np.maximum(sizes, 0))), sizes < 0)

    return load_arrow().concat_arrays(list(map(table_keys, tables))), take


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


class _KeptJoin(NamedTuple):
    """A kept join, mapped.

    Attributes:
        data: The bytes of all values, uint8.
        starts: Where the value of each sample begins in them, int64.
        sizes: Its size, int64, shape (num_samples,); -1 for none.
        stamps: Size and time of change of each shard then, int64 of shape (num_shards, 2).
    """

    data: NDArray[np.uint8]
    starts: _Ints
    sizes: _Ints
    stamps: _Ints

    @classmethod
    def mapped(cls, path: Path) -> "_KeptJoin":
        arrow = load_arrow()
        reader = arrow.ipc.open_file(arrow.memory_map(str(path)))
        values, sizes = reader.get_batch(0).columns
        _, starts, data = values.buffers()
        stamps = np.frombuffer(reader.schema.metadata[_STAMPS], np.int64).reshape(-1, 2)
        data, starts = np.frombuffer(data or b"", np.uint8), np.frombuffer(starts, np.int64)
        return cls(data, starts, sizes.to_numpy(), stamps)


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
        self._file_order = FileOrder(index.counts)
        self.shards, self._told = range(first, first + index.num_shards), list[Join]()

    def prepare(self) -> None:
        """Make on this node what is kept of the joins, and tell of samples without a value.

        Raises:
            ConfigError: Values are missing and may not, or a join cannot be made.
            ShardError: A shard or a table cannot be read.
        """
        for join in self._joined.joins:
            sizes = self._kept[join.settings.name].sizes
            if join not in self._told:
                self._tell(join, sizes)

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
        numbers = self._file_order.begins[ids[:, 0] - self.shards.start] + ids[:, 1]
        return {
            name: (kept.data, kept.starts[numbers], kept.sizes[numbers])
            for name, kept in self._kept.items()
        }

    @cached_property
    def _kept(self) -> dict[str, _KeptJoin]:
        """The kept joins by their names."""
        kept: dict[str, _KeptJoin] = {}
        for join in self._joined.joins:
            of_table = f"{join.digest} {join.settings.key!r} {join.column!r} {join.kind}"
            name = digest_with_shards(of_table, self._index, self._cache, self._store)
            path = self._cache.root / "joins" / f"{name}.values.arrow"
            write = partial(self._write, join)
            kept[join.settings.name] = made_once(path, self._cache, _KeptJoin.mapped, write)
        return kept

    def _write(self, join: Join, file: BinaryIO) -> None:
        with closing(Storages(join.storages)) as storages:
            files = tuple(look_at(each.path, storages, self._cache) for each in join.files)
        if files != join.files:
            raise replaced(join.where)
        try:
            self._match(replace(join, files=files), file)
        except MemoryError as error:
            raise ConfigError(
                f"join {join.settings.name!r}: {join.where} does not fit the memory, with the keys "
                f"of {count_of(self._file_order.samples, 'sample')}; take a machine with more, or "
                "a table of these samples alone"
            ) from error

    def _match(self, join: Join, file: BinaryIO) -> None:
        arrow, stamps, keys = load_arrow(), list[tuple[int, int]](), list[Arrow]()
        for url, count in zip(self._index.urls, self._file_order.counts.tolist(), strict=True):
            shard = self._store.table_of(url, expected_samples=count)
            stamps.append(shard.stamp)
            keys.append(table_keys(shard))
        open_table = _tar_table if join.settings.is_tar else _parquet_table
        of_rows, take = open_table(join, self._store, self._cache.root / "joins")
        rows = self._rows_of(join, arrow.concat_arrays(keys), of_rows)
        facts = {_STAMPS: np.array(stamps, np.int64).tobytes()}
        values = take(rows)
        sizes = arrow.compute.binary_length(values).fill_null(-1)
        if len(rows) and values.null_count == len(rows):
            first = f", first {_shown_key(of_rows[0])!r}" if len(of_rows) else ""
            raise ConfigError(
                f"join {join.settings.name!r}: {join.where} has {count_of(len(of_rows), 'row')}"
                f"{first}, and no value {join.column!r} for any sample, first {self._name(0)}; "
                "name the column with the keys of samples in `key`, another `column` or table"
            )
        self._tell(join, sizes.to_numpy())
        batch = arrow.record_batch({"value": values, "size": sizes}).replace_schema_metadata(facts)
        with arrow.ipc.new_file(file, batch.schema) as writer:
            writer.write_batch(batch)

    def _rows_of(self, join: Join, of_samples: Arrow, of_rows: Arrow) -> _Ints:
        """The row of each sample, -1 for none."""
        name, matches = join.settings.name, partial(load_arrow().compute.index_in, skip_nulls=True)
        # firsts: the first row with the key of each one, -1 of those without a key.
        firsts = matches(of_rows, value_set=of_rows).fill_null(-1).to_numpy()
        doubled = np.flatnonzero((firsts >= 0) & (firsts != np.arange(len(firsts))))
        if len(doubled):
            raise ConfigError(
                f"join {name!r}: two rows of {join.where} have the same key "
                f"{_shown_key(of_rows[doubled[0]])!r}; leave one of them out of the table"
            )
        rows = matches(of_samples, value_set=of_rows).fill_null(-1).to_numpy()
        return rows.astype(np.int64)

    def _tell(self, join: Join, sizes: _Ints) -> None:
        """Say how many samples have no value; an error where they may not lack one."""
        self._told.append(join)
        numbers = self._index.kept_numbers
        lacking = numbers[sizes[numbers] < 0]
        if not len(lacking):
            return
        component = self._joined.component and f" of component {self._joined.component!r}"
        told = (
            f"join {join.settings.name!r}{component}: {len(lacking):,} of "
            f"{count_of(len(numbers), 'sample')} have no value in {join.where}, first "
            f"{self._name(int(lacking[0]))}"
        )
        if join.settings.missing == "raise":
            raise ConfigError(
                f"{told}; add rows for them, or set missing: none, which gives them None or their "
                "default"
            )
        _log.warning("%s: they get None or the default of the field", told)

    def _name(self, number: int) -> str:
        """The key and the id of a sample."""
        shard, sample = map(int, self._file_order.ids(np.array([number]))[0])
        url = self._index.urls[shard]
        shown = self._store.table_of(url).key(sample).encode(*ENCODING).decode(errors="replace")
        return f"{shown!r} (#{split_url(url)[1]}:{sample})"


def _shown_key(key: Arrow) -> str:
    return (key.as_py() or b"").decode(errors="replace")
