"""The tables of joins: Parquet files, read by pyarrow of the extra `table`, or tars.

The crc32 of its files decides what is kept of a table. It is kept itself, with the columns of the
file, under a name made of its path or URL, size and version. A remote file is fetched whole, once,
and the join is made of the copy, which lies in the cache until then.

Values are kept as bytes. A kind is the name of the decoder of `samples.decoders` that turns them
into values again: texts and bytes stay what they are, single numbers become 8 bytes (a bool 1),
lists of numbers their own bytes or a .npy file, and nested values JSON. The kind of .npy files has
the type of the arrays after the name.
"""

import json
import os
import struct
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from importlib import import_module
from io import BytesIO
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
from lightning_shards.shards.members import MemberTable, ShardReader, scan_members
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

_RAW_LISTS: Final = frozenset(
    ("uint8", "uint16", "int16", "int32", "int64", "float16", "float32", "float64")
)
"""Kinds of lists of numbers whose bytes a decoder reads as they are."""

_SCALARS: Final = {"one int64": "<q", "one float64": "<d", "one bool": "?"}
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
    """

    path: str = field(repr=False)
    size: int
    crc32: int

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
    with closing(Storages(storages)) as opened:
        try:
            paths = expand_urls(settings.table)
            require_local_shards(paths)
            known = [look_at(path, settings, opened, cache) for path in paths]
        except ShardNotFoundError as error:
            raise ShardNotFoundError(f"the table of join {settings.name!r}: {error}") from error
    files = tuple(file for file, _ in known)
    if settings.is_tar:
        return Join(settings, files, settings.column or "", "", storages)
    columns = [_column_and_kind(settings, file.name, schema) for file, schema in known]
    for file, column in zip(files, columns, strict=True):
        if column != columns[0]:
            raise ConfigError(
                f"join {settings.name!r}: column {column[0]!r} of {file.name} holds other values "
                f"than column {columns[0][0]!r} of {files[0].name}; write both files with one "
                "schema"
            )
    return Join(settings, files, *columns[0], storages)


def look_at(
    path: str, settings: JoinSettings, storages: Storages, cache: CacheFolder
) -> tuple[TableFile, Arrow]:
    """A file of a table and its schema; one that has not changed since is not read again.

    A remote one is fetched to be read.
    """
    arrow, stat = load_arrow("parquet"), shard_stat(path, storages.of(path))
    kept = _path_of(path, stat, cache).with_suffix(".table")
    with alone(kept, cache):
        schema = _kept_schema(kept, cache, arrow)
        if schema is None:
            copy = _local_copy(path, stat, storages, cache)
            schema = arrow.schema([])
            if not settings.is_tar:
                with _opened(copy, settings, redact(path)) as file:
                    schema = file.schema_arrow.remove_metadata()
            schema = schema.with_metadata({"crc32": str(_crc32_of(copy))})
            if shard_stat(path, storages.of(path)) != stat:
                raise changed(path)
            cache.write(kept, schema.serialize().to_pybytes(), outlives_power=False)
    return TableFile(path, stat.size, int(schema.metadata[b"crc32"])), schema


def _local_copy(path: str, stat: ShardStat, storages: Storages, cache: CacheFolder) -> str:
    """The path of a local file itself, or of a copy of a remote one in the cache.

    Raises:
        IndexMismatchError: It was replaced while it was fetched.
        FileAccessError: The copy cannot be written.
        StorageError: The file could not be had to its end, after all retries.
    """
    copy = _path_of(path, stat, cache).with_suffix(".copy")
    if is_local(path) or copy.exists():
        return path if is_local(path) else str(copy)
    storage = storages.of(path)
    with (
        new_file(copy, mode=0o600) as file,
        storage.open_stream(path) as stream,
        progress_bar(f"fetched {file_name(path)}", stat.size, "B") as step,
    ):
        while data := stream.read(_READ_BYTES):
            file.write(data)
            step(len(data))
        if file.tell() != stat.size or storage.stat(path) != stat:
            raise changed(path)
    return str(copy)


def changed(path: str) -> IndexMismatchError:
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


def _path_of(path: str, stat: ShardStat, cache: CacheFolder) -> Path:
    """A path without a suffix, named by a hash, as a URL may hold what is secret."""
    place = os.path.abspath(path) if is_local(path) else without_credentials(path)  # noqa: PTH100
    name = sha256(os.fsencode(place)).hexdigest()[:24]
    return cache.root / "joins" / f"{name}-{stat.size:x}-{stat.version:x}"


def _kept_schema(path: Path, cache: CacheFolder, arrow: Arrow) -> Arrow:
    """The columns of a file, with its crc32; None if they are not kept, or damaged."""
    opened = cache.open(path)
    if opened is None:
        return None
    with os.fdopen(opened, "rb") as file, suppress(arrow.ArrowException, OSError):
        return arrow.ipc.read_schema(arrow.py_buffer(file.read()))
    return None


def _crc32_of(path: str) -> int:
    checksum = 0
    with os.fdopen(open_regular(path), "rb", buffering=0) as file:
        while data := file.read(_READ_BYTES):
            checksum = crc32(data, checksum)
    return checksum


@contextmanager
def _opened(path: str, settings: JoinSettings, name: str) -> Generator[Arrow]:
    """A Parquet file; what is wrong with it is told under this name."""
    arrow = load_arrow("parquet")
    try:
        # pages are held against their checksums where they have one
        with arrow.parquet.ParquetFile(path, page_checksum_verification=True) as file:
            yield file
    except (arrow.ArrowInvalid, OSError, UnicodeDecodeError) as error:
        if isinstance(error, ShardError):
            raise
        raise FileAccessError(
            f"join {settings.name!r}: {name} cannot be read as Parquet: "
            f"{str(error).replace(path, name)}; write it again, or name another table"
        ) from None


def _column_and_kind(settings: JoinSettings, name: str, schema: Arrow) -> tuple[str, str]:
    """The column of a file whose values are taken, and how they are kept."""
    names, where = list(schema.names), f"join {settings.name!r}: {name}"
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
    if is_list and (dtype := _dtype(kind.value_type)):
        return dtype if dtype in _RAW_LISTS else f"npy {dtype}"
    tests = {
        "raw": (types.is_binary, types.is_large_binary, types.is_fixed_size_binary),
        "text": (types.is_string, types.is_large_string),
        "one bool": (types.is_boolean,),
        "one int64": (types.is_integer,),
        "one float64": (types.is_floating,),
        "json": (types.is_nested, types.is_null),
    }
    return next((name for name, which in tests.items() if any(is_(kind) for is_ in which)), None)


def _dtype(kind: Arrow) -> str:
    """The name that numpy has for numbers of this type; empty if it is another one."""
    types = load_arrow().types
    is_number = types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)
    return np.dtype(kind.to_pandas_dtype()).name if is_number else ""


def _value_bytes(column: Arrow, kind: str) -> Arrow:
    """The values in an Arrow array as `large_binary`.

    Raises:
        ValueError: One has no such bytes.
        TypeError: One holds what JSON has not.
    """
    arrow = load_arrow()
    if arrow.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if kind in ("text", "raw"):
        return column.cast(arrow.large_binary())
    if kind == "json" or kind in _SCALARS:
        rows = column.to_pylist()
    else:
        if column.flatten().null_count:
            raise ValueError("has lists in which numbers are null; fill these in")
        rows = column.to_numpy(zero_copy_only=False)
    made = [None if row is None else _bytes_of_row(row, kind) for row in rows]
    return arrow.array(made, arrow.large_binary())


def _bytes_of_row(value: Any, kind: str) -> bytes:
    if kind == "json":
        return json.dumps(value, ensure_ascii=False).encode()
    if kind.startswith("npy "):
        file = BytesIO()
        np.save(file, value)
        return file.getvalue()
    if kind not in _SCALARS:
        return value.tobytes()
    try:
        return struct.pack(_SCALARS[kind], value)
    except struct.error:
        raise ValueError(f"holds {value}, which fits no int64; write it as text") from None


def _key_bytes(column: Arrow) -> Arrow:
    """The keys in an Arrow array as `large_binary`."""
    arrow = load_arrow()
    if arrow.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if arrow.types.is_integer(column.type):
        column = column.cast(arrow.string())
    return column.cast(arrow.large_binary())


def binary_array(data: object, starts: NDArray[np.int64], are_there: object = None) -> Arrow:
    """An array of `large_binary`: value i lies in `data` from starts[i] to starts[i + 1].

    `are_there` has a bit for each value, the lowest first; None: none is null.
    """
    arrow = load_arrow()
    buffers = [
        each if each is None else arrow.py_buffer(each) for each in (are_there, starts, data)
    ]
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


@contextmanager
def open_join_table(
    join: Join, storages: Storages, cache: CacheFolder, store: TableStore
) -> Generator[JoinTable]:
    """The table of a join; copies of remote files are removed at the end.

    Raises:
        ConfigError: A value cannot be taken, or no member of any tar has the suffix.
        ShardError: A file is damaged or cannot be read.
    """
    paths = list[str]()
    for file in join.files:
        stat = shard_stat(file.path, storages.of(file.path))
        paths.append(_local_copy(file.path, stat, storages, cache))
    yield _tar_table(join, paths, store) if join.settings.is_tar else _parquet_table(join, paths)
    for file, path in zip(join.files, paths, strict=True):
        if path != file.path:  # another process that has it open goes on reading it
            Path(path).unlink(missing_ok=True)


def _parquet_table(join: Join, paths: Sequence[str]) -> JoinTable:
    arrow, settings, column = load_arrow(), join.settings, join.column
    keys, pieces, of_none = list[Arrow](), list[Arrow](), arrow.array([], arrow.large_binary())
    for file, path in zip(join.files, paths, strict=True):
        of_file = [of_none]
        with _opened(path, settings, file.name) as parquet:
            wanted = list(dict.fromkeys([settings.key, column]))
            for batch in parquet.iter_batches(_ROWS, columns=wanted, use_threads=False):
                of_file.append(_key_bytes(batch.column(settings.key)))
                try:
                    pieces.append(_value_bytes(batch.column(column), join.kind))
                except (TypeError, ValueError) as error:
                    where = f"join {settings.name!r}: column {column!r} of {file.name}"
                    raise ConfigError(f"{where} {error}") from error
        keys.append(arrow.concat_arrays(of_file))
    whole = arrow.concat_arrays([of_none, *pieces])

    def values(rows: _Ints) -> Iterator[Arrow]:
        for first in range(0, len(rows), _ROWS):
            part = rows[first : first + _ROWS]
            yield whole.take(arrow.array(part, mask=part < 0))

    return JoinTable(join, keys, values)


def _tar_table(join: Join, paths: Sequence[str], store: TableStore) -> JoinTable:
    """The samples of tars, whose members are read one by one through their member tables."""
    suffix, files = join.column.lower(), join.files
    tables = [
        store.table_of(path) if path == file.path else scan_members(path)
        for file, path in zip(files, paths, strict=True)
    ]
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
            with ShardReader(paths[file], table) as reader:
                for row in group:
                    sample = row - int(joined.starts[file])
                    is_there = row >= 0 and table.find(sample, suffix) is not None
                    value = reader.read(sample, suffix) if is_there else None
                    yield load_arrow().array([value], load_arrow().large_binary())

    joined = JoinTable(join, list(map(table_keys, tables)), values)
    return joined
