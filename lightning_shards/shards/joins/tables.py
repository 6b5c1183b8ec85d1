"""The tables of joins: Parquet files, read by pyarrow of the extra `table`, or tars.

The crc32 of its files decides what is kept of a table. It is kept itself, under a name made of the
path or URL, the size and the version of the file. A remote file is fetched whole, once, and its
copy lies in the cache until that is cleared.

Values are kept as bytes. A kind is the name of the decoder of `samples.decoders` that turns them
into values again: texts and bytes stay what they are, single numbers become 8 bytes (a bool 1),
lists of numbers the bytes of an array, and nested values JSON.
"""

import json
import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from importlib import import_module
from itertools import groupby
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lightning_shards.errors import (
    ConfigError,
    FileAccessError,
    IndexMismatchError,
    ShardError,
    ShardNotFoundError,
)
from lightning_shards.shards.checksums import crc32
from lightning_shards.shards.files import locked_file, new_file, not_written, open_regular
from lightning_shards.shards.joins.settings import JoinSettings
from lightning_shards.shards.members import MemberTable, ShardReader
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.progress_line import progress_bar
from lightning_shards.shards.storage.protocol import ShardStat, shard_stat
from lightning_shards.shards.storage.schemes import MakeStorage, Storages
from lightning_shards.shards.tables import TableStore
from lightning_shards.shards.urls import (
    expand_urls,
    file_name,
    is_local,
    redact,
    require_local_shards,
    without_credentials,
)

Arrow: TypeAlias = Any
"""What pyarrow has no types for: its module, schemas, and arrays."""

_Ints = NDArray[np.int64]

_SCALARS: Final = {"one int64": "int64", "one float64": "float64", "one bool": "int8"}
"""Kinds of single numbers, and the Arrow types of them."""

_READ_BYTES: Final = 1 << 22
_ROWS: Final = 1 << 12
"""Rows whose values are decoded at once."""


def load_arrow(*modules: str) -> Arrow:
    """The module pyarrow, with these modules of it.

    Raises:
        ConfigError: It is not installed.
    """
    try:
        for name in modules:
            import_module(f"pyarrow.{name}")
        return import_module("pyarrow")
    except ImportError as error:
        raise ConfigError(
            "joins are made and read by pyarrow, which is not installed: pip install "
            "'lightning-shards[table]'"
        ) from error


@dataclass(frozen=True, slots=True)
class TableFile:
    """One file of a table as it was when its checksum was taken.

    Attributes:
        path: Where it lies: a path, or a URL with what may be secret in it.
        size: bytes of it.
        crc32: Of all its bytes.
        local: Path of the file itself, or of the copy of a remote one on this node.
    """

    path: str = field(repr=False)
    size: int
    crc32: int
    local: str = field(compare=False, repr=False)

    @property
    def name(self) -> str:
        """Its path or URL, for messages."""
        return redact(self.path)


@dataclass(frozen=True, slots=True)
class Join:
    """One join of a split, whose table has been looked at.

    Attributes:
        settings: As they were given.
        files: The files of the table, with their checksums.
        column: The column whose values are taken; of tars the suffix.
        kind: How the values of a Parquet table are kept, see `settings`; empty for tars.
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
        """Its files, for messages."""
        more = len(self.files) - 1
        return self.files[0].name + (f" and {more:,} more" if more else "")


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
    with closing(Storages(storages)) as opened:
        try:
            paths = expand_urls(settings.table)
            require_local_shards(paths)
            files = tuple(look_at(path, opened, cache) for path in paths)
        except ShardNotFoundError as error:
            raise ShardNotFoundError(f"the table of join {settings.name!r}: {error}") from error
    if settings.is_tar:
        return Join(settings, files, settings.column or "", "", storages)
    columns = [_column_and_kind(settings, file) for file in files]
    for file, column in zip(files, columns, strict=True):
        if column != columns[0]:
            raise ConfigError(
                f"join {settings.name!r}: column {column[0]!r} of {file.name} holds other values "
                f"than column {columns[0][0]!r} of {files[0].name}; write both files with one "
                "schema"
            )
    return Join(settings, files, *columns[0], storages)


def look_at(path: str, storages: Storages, cache: CacheFolder) -> TableFile:
    """A file of a table; one that has not changed since is not read again.

    A remote one is fetched to be read.
    """
    stat = shard_stat(path, storages.of(path))
    # The name is a hash, as a URL may hold what is secret.
    place = os.path.abspath(path) if is_local(path) else without_credentials(path)  # noqa: PTH100
    name = f"{sha256(os.fsencode(place)).hexdigest()[:24]}-{stat.size:x}-{stat.version:x}"
    kept = cache.root / "joins" / f"{name}.crc32"
    copy = kept.with_suffix(Path(file_name(path)).suffix)
    local = path if is_local(path) else str(copy)
    with alone(kept, cache):
        if not is_local(path) and not copy.exists():
            _fetch(path, copy, stat, storages)
        opened = cache.open(kept)
        if opened is None:
            checksum = _crc32_of(local)
            if shard_stat(path, storages.of(path)) != stat:
                raise replaced(path)
            cache.write(kept, f"{checksum}".encode())
        else:
            with os.fdopen(opened) as file:
                checksum = int(file.read())
    return TableFile(path, stat.size, checksum, local)


def _fetch(path: str, copy: Path, stat: ShardStat, storages: Storages) -> None:
    """Copy a remote file.

    Raises:
        IndexMismatchError: It was replaced while it was fetched; no copy is left.
        FileAccessError: The copy cannot be written.
        StorageError: The file could not be had to its end, after all retries.
    """
    with (
        new_file(copy, mode=0o600) as file,
        storages.of(path).open_stream(path) as stream,
        progress_bar(f"fetched {file_name(path)}", stat.size, "B") as step,
    ):
        while data := stream.read(_READ_BYTES):
            file.write(data)
            step(len(data))
        if file.tell() != stat.size or shard_stat(path, storages.of(path)) != stat:
            raise replaced(path)


def replaced(path: str) -> IndexMismatchError:
    """The error for a file that is not what it was."""
    return IndexMismatchError(
        f"{redact(path)} was replaced while the run looked at it; start again when it is written"
    )


@contextmanager
def alone(path: Path, cache: CacheFolder) -> Generator[None]:
    """A context in which one process or thread makes this file, which the cache can be given."""
    try:
        cache.make_folder(path.parent)
    except OSError as error:
        raise not_written(path.parent, error) from error
    with locked_file(path.with_suffix(".lock")):
        yield


def _crc32_of(path: str) -> int:
    checksum = 0
    with os.fdopen(open_regular(path), "rb", buffering=0) as file:
        while data := file.read(_READ_BYTES):
            checksum = crc32(data, checksum)
    return checksum


@contextmanager
def _opened(join: JoinSettings, table: TableFile) -> Generator[Arrow]:
    """A Parquet file."""
    arrow = load_arrow("parquet")
    try:
        # pages are held against their checksums where they have one
        with arrow.parquet.ParquetFile(table.local, page_checksum_verification=True) as file:
            yield file
    except (arrow.ArrowInvalid, OSError, UnicodeDecodeError) as error:
        if isinstance(error, ShardError):
            raise
        raise FileAccessError(
            f"join {join.name!r}: {table.name} cannot be read as Parquet: "
            f"{str(error).replace(table.local, table.name)}; write it again, or name another table"
        ) from None


def _column_and_kind(settings: JoinSettings, table: TableFile) -> tuple[str, str]:
    """The column of a file whose values are taken, and how they are kept."""
    with _opened(settings, table) as file:
        schema = file.schema_arrow
    names, where = list(schema.names), f"join {settings.name!r}: {table.name}"
    others = [name for name in names if name != settings.key]
    column = settings.column or (settings.name if settings.name in others else "")
    if not column and len(others) == 1:
        column = others[0]
    for setting, given in (("key", settings.key), ("column", column)):
        if names.count(given) != 1:
            of_name = f"{names.count(given) or 'no'} columns {given!r}"
            raise ConfigError(
                f"{where} has {of_name if given else f'{len(others)} such columns'}; name one of "
                f"{names} in `{setting}`, which must stand there once"
            )
    key, values = (schema.field(name).type for name in (settings.key, column))
    if _kind_of(key) not in {"text", "raw", "one int64"}:
        raise ConfigError(
            f"{where} has the key column {settings.key!r} of type {key}; keys of samples are "
            "texts, so write it as text or as whole numbers, or name another column in `key`"
        )
    kind = _kind_of(values)
    if kind is None:
        raise ConfigError(
            f"{where} has the column {column!r} of type {values}; write it as text, bytes, "
            "numbers, or lists and structs of texts and numbers"
        )
    return column, kind


def _kind_of(kind: Arrow) -> str | None:
    """How values of an Arrow type are kept; None if there is no way."""
    types = load_arrow().types
    if types.is_dictionary(kind):
        return _kind_of(kind.value_type)
    is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    if is_list and _kind_of(kind.value_type) in _SCALARS:
        return f"list {np.dtype(kind.value_type.to_pandas_dtype()).name}"
    tests = {
        "raw": (types.is_binary, types.is_large_binary, types.is_fixed_size_binary),
        "text": (types.is_string, types.is_large_string),
        "one bool": (types.is_boolean,),
        "one int64": (types.is_integer,),
        "one float64": (types.is_floating,),
        "json": (types.is_nested, types.is_null),
    }
    return next((name for name, which in tests.items() if any(is_(kind) for is_ in which)), None)


def _value_bytes(column: Arrow, kind: str) -> Arrow:
    """The values in an Arrow array as `large_binary`.

    Raises:
        ValueError: One has no such bytes.
        TypeError: One holds what JSON has not.
    """
    arrow = load_arrow("compute")
    if arrow.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if kind in _SCALARS:
        numbers = column.cast(_SCALARS[kind])
        column = numbers.view(arrow.binary(numbers.type.bit_width // 8))
    elif kind == "json":
        text_of = partial(json.dumps, ensure_ascii=False)
        rows = [row if row is None else text_of(row) for row in column.to_pylist()]
        column = arrow.array(rows, arrow.large_string())
    elif kind.startswith("list "):
        numbers = column.flatten()
        if numbers.null_count:
            raise ValueError("numbers in its lists are null")
        numbers = numbers.to_numpy(zero_copy_only=False)
        sizes = arrow.compute.list_value_length(column).fill_null(0).to_numpy()
        starts = np.append(0, np.cumsum(sizes, dtype=np.int64)) * numbers.itemsize
        are_there = column.is_valid().to_numpy(zero_copy_only=False)
        return binary_array(numbers, starts, are_there)
    return column.cast(arrow.large_binary())


def _key_bytes(column: Arrow) -> Arrow:
    """The keys in an Arrow array as `large_binary`."""
    arrow = load_arrow()
    if arrow.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if arrow.types.is_integer(column.type):
        column = column.cast(arrow.string())
    return column.cast(arrow.large_binary())


def binary_array(data: object, starts: _Ints, are_there: NDArray[np.bool_] | None = None) -> Arrow:
    """An array of `large_binary`: value i lies in `data` from starts[i] to starts[i + 1].

    It is null where `are_there` says so.
    """
    arrow = load_arrow()
    bits = None if are_there is None else np.packbits(are_there, bitorder="little")
    buffers = [each if each is None else arrow.py_buffer(each) for each in (bits, starts, data)]
    return arrow.LargeBinaryArray.from_buffers(arrow.large_binary(), len(starts) - 1, buffers)


def table_keys(table: MemberTable) -> Arrow:
    """The keys of the samples of a shard as `large_binary`."""
    return binary_array(table.keys.copy(), table.key_starts.copy())


class JoinTable:
    """The rows of a table, which is open.

    Args:
        join: Whose table it is.
        keys: Of all rows of each file as `large_binary`, null for a row without one.
        values: What gives the values of rows as `large_binary`, some at a time; of row -1 null.

    Attributes:
        keys: Of all rows.
        starts: The number of the first row of each file, and of all rows; int64.
    """

    def __init__(
        self, join: Join, keys: Sequence[Arrow], values: Callable[[_Ints], Iterator[Arrow]]
    ) -> None:
        self._join, self.keys, self.values = join, load_arrow().concat_arrays(keys), values
        self.starts = np.cumsum([0, *map(len, keys)])

    def file_of(self, row: int) -> int:
        """The number of the file that a row is in."""
        return int(np.searchsorted(self.starts, row, side="right")) - 1

    def row_name(self, row: int) -> str:
        """What messages call a row, counted from 1 in its file; samples of tars from 0."""
        file = self.file_of(row)
        number, name = row - int(self.starts[file]), self._join.files[file].name
        is_tar = self._join.settings.is_tar
        return f"sample {number:,} of {name}" if is_tar else f"row {number + 1:,} of {name}"


def open_join_table(join: Join, store: TableStore) -> JoinTable:
    """The table of a join, whose files were looked at on this node.

    Raises:
        ConfigError: A value cannot be taken, or no member of any tar has the suffix.
        ShardError: A file is damaged or cannot be read.
    """
    return _tar_table(join, store) if join.settings.is_tar else _parquet_table(join)


def _parquet_table(join: Join) -> JoinTable:
    arrow, settings, column = load_arrow(), join.settings, join.column
    keys, pieces, of_none = list[Arrow](), list[Arrow](), arrow.array([], arrow.large_binary())
    for file in join.files:
        of_file = [of_none]
        with _opened(settings, file) as parquet:
            wanted = list(dict.fromkeys([settings.key, column]))
            for batch in parquet.iter_batches(_ROWS, columns=wanted, use_threads=False):
                of_file.append(_key_bytes(batch.column(settings.key)))
                try:
                    pieces.append(_value_bytes(batch.column(column), join.kind))
                except (TypeError, ValueError) as error:
                    raise ConfigError(
                        f"join {settings.name!r}: column {column!r} of {file.name} cannot be "
                        f"taken: {error}; write other values, or texts"
                    ) from error
        keys.append(arrow.concat_arrays(of_file))
    whole = arrow.concat_arrays([of_none, *pieces])

    def values(rows: _Ints) -> Iterator[Arrow]:
        for first in range(0, len(rows), _ROWS):
            part = rows[first : first + _ROWS]
            yield whole.take(arrow.array(part, mask=part < 0))

    return JoinTable(join, keys, values)


def _tar_table(join: Join, store: TableStore) -> JoinTable:
    """The samples of tars, whose members are read one by one through their member tables."""
    suffix, files = join.column.lower(), join.files
    tables = [store.table_of(file.local) for file in files]
    suffixes = sorted({suffix for table in tables for suffix in table.suffixes})
    if suffix not in suffixes:
        raise ConfigError(
            f"join {join.settings.name!r}: no tar of {join.where} has members {suffix!r}; name one "
            f"of {suffixes[:50]} in `column`"
        )

    def values(rows: _Ints) -> Iterator[Arrow]:
        numbers: list[int] = rows.tolist()
        for file, group in groupby(numbers, joined.file_of):
            table = tables[file]
            with ShardReader(files[file].local, table) as reader:
                for row in group:
                    sample = row - int(joined.starts[file])
                    is_there = row >= 0 and table.find(sample, suffix) is not None
                    value = reader.read(sample, suffix) if is_there else None
                    yield load_arrow().array([value], load_arrow().large_binary())

    joined = JoinTable(join, list(map(table_keys, tables)), values)
    return joined
