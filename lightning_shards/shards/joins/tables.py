"""The tables of joins: Parquet files, read by pyarrow of the extra `table`, or tars.

The crc32 of its files decides what is kept of a table. It is kept itself, with the columns of the
file, under a name made of its path or URL, size and version. A remote file is fetched whole, once,
and the join is made of the copy, which lies in the cache until then.

Values are kept as bytes. A kind is the name of the decoder of `samples.decoders` that turns them
into values again: texts and bytes stay what they are, single numbers become 8 bytes (a bool 1),
lists of numbers their own bytes or a .npy file, and nested values JSON. The kind of .npy files has
the dimensions and the type of the arrays after the name.
"""

import json
import os
import struct
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from importlib import import_module
from io import BytesIO
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
from lightning_shards.shards.hosts import file_name, require_hosts
from lightning_shards.shards.joins.settings import JoinSettings
from lightning_shards.shards.members import MemberTable, ShardReader, scan_members
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.progress_line import bytes_bar
from lightning_shards.shards.storage.protocol import ShardStat, shard_stat
from lightning_shards.shards.storage.schemes import MakeStorage, Storages, has_ranges
from lightning_shards.shards.tables import TableStore
from lightning_shards.shards.urls import (
    expand_urls,
    is_local,
    redact,
    require_local_shards,
    without_credentials,
)

Arrow: TypeAlias = Any
"""What pyarrow has no types for: its module, schemas, and arrays."""

RAW_LISTS: Final = frozenset(
    ("uint8", "uint16", "int16", "int32", "int64", "float16", "float32", "float64")
)
"""Kinds of lists of numbers whose bytes a decoder reads as they are."""

_SCALARS: Final = {"one int64": "<q", "one float64": "<d", "one bool": "?"}
_READ_BYTES: Final = 1 << 22
_ROWS: Final = 1 << 12
"""Rows whose values are decoded at once."""
_FILE_MODE: Final = 0o600
_MOST_NAMED: Final = 50


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
        ConfigError: A remote one can only be streamed, a folder is named, or a file has not the
            columns, or they hold what cannot be taken.
        UrlError: A pattern cannot be read.
    """
    with closing(Storages(storages)) as opened:
        try:
            paths = _expanded(settings)
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


def _expanded(settings: JoinSettings) -> list[str]:
    """The files of a table, all of which can be read."""
    what = f"the table of join {settings.name!r}"
    for pattern in settings.table:
        if is_local(pattern) and Path(pattern).is_dir():
            files = Path(pattern) / f"*{Path(pattern).suffix}"
            raise ConfigError(
                f"{what} is the folder {pattern}; name the files in it, as in table: {files}"
            )
    paths = expand_urls(settings.table)
    require_local_shards(paths)
    for path in paths:
        if not has_ranges(path):
            raise ConfigError(
                f"{what}: {redact(path)} can only be streamed; copy it here, or to a store"
            )
    require_hosts([path for path in paths if not is_local(path)])
    return paths


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
            copy = local_copy(path, stat, storages, cache)
            schema = arrow.schema([])
            if not settings.is_tar:
                with _opened(copy, settings, redact(path)) as file:
                    schema = file.schema_arrow.remove_metadata()
            schema = schema.with_metadata({"crc32": str(_crc32_of(copy))})
            if shard_stat(path, storages.of(path)) != stat:
                raise changed(path)
            cache.write(kept, schema.serialize().to_pybytes(), outlives_power=False)
    return TableFile(path, stat.size, int(schema.metadata[b"crc32"])), schema


def local_copy(path: str, stat: ShardStat, storages: Storages, cache: CacheFolder) -> str:
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
        new_file(copy, mode=_FILE_MODE) as file,
        storage.open_stream(path) as stream,
        bytes_bar(f"fetched {file_name(path)}", stat.size) as step,
    ):
        while data := stream.read(_READ_BYTES):
            file.write(data)
            step(len(data))
        if file.tell() != stat.size or storage.stat(path) != stat:
            raise changed(path)
    return str(copy)


def remove_copies(paths: Iterable[str], cache: CacheFolder) -> None:
    """Remove the copies of remote files; a process that has one open goes on reading it."""
    for path in paths:
        for copy in (cache.root / "joins").glob(f"{_name_of(path)}-*.copy"):
            with suppress(OSError):
                copy.unlink()


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


def _name_of(path: str) -> str:
    """A hash, as a URL may hold what is secret."""
    place = os.path.abspath(path) if is_local(path) else without_credentials(path)  # noqa: PTH100
    return sha256(os.fsencode(place)).hexdigest()[:24]


def _path_of(path: str, stat: ShardStat, cache: CacheFolder) -> Path:
    return cache.root / "joins" / f"{_name_of(path)}-{stat.size:x}-{stat.version:x}"


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
        if given not in names:
            lacks = f"has no column {given!r}" if given else f"has {len(others)} such columns"
            raise ConfigError(f"{where} {lacks}; name one of {names} in `{setting}`")
        if names.count(given) > 1:
            raise ConfigError(
                f"{where} has {names.count(given)} columns {given!r}, of which `{setting}` can "
                "mean any; write the table with one name for each column"
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
    if isinstance(kind, load_arrow().FixedShapeTensorType):
        is_in_order = kind.permutation in (None, list(range(len(kind.shape))))
        dtype = _dtype(kind.value_type)
        return f"npy {len(kind.shape)} {dtype}" if is_in_order and dtype else None
    if _is_list(kind) and (dtype := _dtype(kind.value_type)):
        return dtype if dtype in RAW_LISTS else f"npy 1 {dtype}"
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


def _is_list(kind: Arrow) -> bool:
    types = load_arrow().types
    return types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)


def value_bytes(column: Arrow, kind: str) -> Arrow:
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
        shape: Sequence[int] = (-1,)
        if isinstance(column.type, arrow.FixedShapeTensorType):
            shape, column = column.type.shape, column.storage
        if column.flatten().null_count:
            raise ValueError("has lists in which numbers are null; fill these in")
        lists = column.to_numpy(zero_copy_only=False)
        rows = [None if row is None else row.reshape(shape) for row in lists]
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


def binary_array(data: object, starts: NDArray[np.int64]) -> Arrow:
    """An array of `large_binary`: value i lies in `data` from starts[i] to starts[i + 1]."""
    arrow = load_arrow()
    buffers = [None, arrow.py_buffer(starts), arrow.py_buffer(data)]
    return arrow.LargeBinaryArray.from_buffers(arrow.large_binary(), len(starts) - 1, buffers)


def table_keys(table: MemberTable) -> Arrow:
    """The keys of the samples of a shard as `large_binary`."""
    return binary_array(table.keys.copy(), table.key_starts.copy())


class ParquetTable:
    """The rows of Parquet files.

    Args:
        join: Whose table it is.
        files: What messages call each file, and its path.
    """

    def __init__(self, join: Join, files: Sequence[tuple[str, str]]) -> None:
        self._join, self._settings, self._files = join, join.settings, files

    def keys(self) -> list[Arrow]:
        """The keys of all rows of each file as `large_binary`, null for a row without one."""
        arrow, keys = load_arrow(), list[Arrow]()
        for name, path in self._files:
            with _opened(path, self._settings, name) as file:
                key = self._settings.key
                column = file.read(columns=[key], use_threads=False).column(key)
                if arrow.types.is_dictionary(column.type):
                    column = column.cast(column.type.value_type)
                if arrow.types.is_integer(column.type):
                    column = column.cast(arrow.string())
                keys.append(column.cast(arrow.large_binary()).combine_chunks())
        return keys

    def row_name(self, file: int, row: int) -> str:
        """What messages call a row of a file, counted from 1."""
        return f"row {row + 1:,} of {self._files[file][0]}"

    def values(self, wanted: NDArray[np.bool_]) -> Iterator[Arrow]:
        """The values of wanted rows, some at a time; `wanted` is about all rows of the table."""
        row, column = 0, self._join.column
        for name, path in self._files:
            with _opened(path, self._settings, name) as file:
                for batch in file.iter_batches(_ROWS, columns=[column], use_threads=False):
                    mask = wanted[row : row + len(batch)]
                    row += len(batch)
                    try:
                        yield value_bytes(batch.column(column).filter(mask), self._join.kind)
                    except (TypeError, ValueError) as error:
                        where = f"join {self._settings.name!r}: column {column!r} of {name}"
                        raise ConfigError(f"{where} {error}") from error


class TarTable:
    """The samples of tars; members are read one by one through their member tables.

    Args:
        join: Whose table it is.
        files: What messages call each tar, and its path.
        store: Member tables of the tars that are no copies of remote ones.

    Raises:
        ConfigError: No member of any tar has the suffix.
        ShardError: A tar is damaged or cannot be read.
    """

    def __init__(self, join: Join, files: Sequence[tuple[str, str]], store: TableStore) -> None:
        self._suffix, self._files = join.column.lower(), files
        self._tables = [
            store.table_of(path) if name == path else scan_members(path) for name, path in files
        ]
        suffixes = sorted({suffix for table in self._tables for suffix in table.suffixes})
        if self._suffix not in suffixes:
            more = f" and {len(files) - 1:,} more" * (len(files) > 1)
            raise ConfigError(
                f"join {join.settings.name!r}: no tar of {files[0][0]}{more} has members "
                f"{self._suffix!r}; name one of {suffixes[:_MOST_NAMED]} in `column`"
            )

    def keys(self) -> list[Arrow]:
        """The keys of the samples of each tar."""
        return list(map(table_keys, self._tables))

    def row_name(self, file: int, row: int) -> str:
        """What messages call a sample of a tar, counted from 0."""
        return f"sample {row:,} of {self._files[file][0]}"

    def values(self, wanted: NDArray[np.bool_]) -> Iterator[Arrow]:
        """The members of wanted samples, one at a time; `wanted` is about all of the table."""
        arrow, row = load_arrow(), 0
        for (_, path), table in zip(self._files, self._tables, strict=True):
            with ShardReader(path, table) as reader:
                for sample in np.flatnonzero(wanted[row : row + table.num_samples]).tolist():
                    is_there = table.find(sample, self._suffix) is not None
                    value = reader.read(sample, self._suffix) if is_there else None
                    yield arrow.array([value], arrow.large_binary())
            row += table.num_samples
