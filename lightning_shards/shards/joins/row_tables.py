"""Tables of a join: Parquet files, read by pyarrow of the extra `table`, or tars."""

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lightning_shards.errors import ConfigError, FileAccessError
from lightning_shards.shards.joins.arrow_values import as_keys, as_values, value_kind, value_type
from lightning_shards.shards.joins.settings import JoinSettings, RowNumbers, RowValues
from lightning_shards.shards.members import MemberTable, ShardReader
from lightning_shards.shards.tables import TableStore, release_pages

_CHUNK_BYTES: Final = 1 << 22
_MOST_ROWS: Final = 1 << 15
_BUFFER_BYTES: Final = 1 << 18
_DECODED_ROWS: Final = 64
"""Rows that are decoded at once. A value that repeats lies in a Parquet file once, so sizes in the
file do not bound those of rows. Of 10^6 captions 64 at once cost 0.2 s of CPU more than 32,768,
and 4 at once 3 s."""
_DECODED_LISTS: Final = 16
"""The same of lists and structs, in which many values may be one in the file."""


class ParquetFile(NamedTuple):
    """A Parquet file.

    Attributes:
        name: Of the file, for messages.
        data: Its path, or its bytes.
    """

    name: str
    data: str | bytes


class ParquetTable:
    """The rows of Parquet files, of which a few MiB are in memory at a time.

    Args:
        settings: Of the join.
        files: The files, in their order.

    Attributes:
        column: The one whose values are taken.
        kind: How its values are kept, see `arrow_values`.
        num_rows: Rows of all files.

    Raises:
        ConfigError: Pyarrow is not installed, a column is missing, or has a type that is not taken.
        FileAccessError: A file cannot be read.
    """

    def __init__(self, settings: JoinSettings, files: Sequence[ParquetFile]) -> None:
        self._settings, self._files = settings, files
        try:
            self._arrow: Any = import_module("pyarrow")
            self._parquet: Any = import_module("pyarrow.parquet")
        except ImportError as error:
            raise ConfigError(
                f"join {settings.name!r} reads Parquet, which needs pyarrow, and that is not "
                "installed: pip install 'lightning-shards[table]'"
            ) from error
        self.column, self.kind = "", ""
        self._rows_of: list[int] = []
        for each in files:
            with self._opened(each) as file:
                column, kind = self._checked(each.name, file.schema_arrow)
                self._rows_of.append(file.metadata.num_rows)
            if self.kind and (column, kind) != (self.column, self.kind):
                raise ConfigError(
                    f"join {settings.name!r}: column {column!r} of {each.name} holds other values "
                    f"than column {self.column!r} of {files[0].name}; write both files with one "
                    "schema"
                )
            self.column, self.kind = column, kind
        self.num_rows = sum(self._rows_of)

    def row_name(self, row: int) -> str:
        """The number of a row in its file, counted from 1, and the file."""
        for file, rows in zip(self._files, self._rows_of, strict=True):
            if row < rows:
                return f"row {row + 1:,} of {file.name}"
            row -= rows
        raise AssertionError(row)

    def keys(self) -> Iterator[RowValues]:
        """The keys of all rows, some at a time; None for a row without one."""
        key = self._settings.key
        for column in self._columns(key):
            with self._kept_column(key):
                keys = as_keys(column, self._arrow)
            yield keys

    def chunks(self) -> Iterator["_ArrowChunk"]:
        """All rows, some at a time."""
        for column in self._columns(self.column):
            yield _ArrowChunk(self, column)

    def values(self, column: Any) -> RowValues:
        """The values in an Arrow array of this table as bytes.

        Raises:
            ConfigError: One cannot be kept.
        """
        with self._kept_column(self.column):
            return as_values(column, self.kind, self._arrow)

    @contextmanager
    def _kept_column(self, name: str) -> Generator[None, None, None]:
        where = f"join {self._settings.name!r}: column {name!r} of {self._files[0].name}"
        try:
            yield
        except self._arrow.ArrowException as error:
            raise ConfigError(
                f"{where} has values that cannot be kept: {error}; write it as text or numbers"
            ) from error
        except ValueError as error:
            raise ConfigError(f"{where} {error}") from error

    def _checked(self, name: str, schema: Any) -> tuple[str, str]:
        """The column whose values are taken, and how they are kept."""
        settings, names, arrow = self._settings, list(schema.names), self._arrow
        where = f"join {settings.name!r}: {name}"
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
        key = value_type(schema.field(settings.key).type, arrow)
        if value_kind(key, arrow) not in {"text", "raw", "one int64"}:
            raise ConfigError(
                f"{where} has the key column {settings.key!r} of type {key}; keys of samples are "
                "texts, so write it as text or as whole numbers, or name another column in `key`"
            )
        values = value_type(schema.field(column).type, arrow)
        kind = value_kind(values, arrow)
        if kind is None:
            raise ConfigError(
                f"{where} has the column {column!r} of type {values}; write it as text, bytes, "
                "numbers, or lists and structs of texts and numbers"
            )
        return column, kind

    def _columns(self, name: str) -> Iterator[Any]:
        """The Arrow arrays of a column, some MiB each."""
        for each in self._files:
            with self._opened(each) as file:
                yield from _together(_pieces(file, name, self._arrow), self._arrow)

    @contextmanager
    def _opened(self, opened: ParquetFile) -> Generator[Any, None, None]:
        name, data = opened
        try:
            source = data if isinstance(data, str) else self._arrow.BufferReader(data)
            # pre_buffer would hold a column of a whole row group
            settings: dict[str, Any] = {"buffer_size": _BUFFER_BYTES, "pre_buffer": False}
            settings["page_checksum_verification"] = True  # of pages that have one
            with self._parquet.ParquetFile(source, **settings) as file:
                yield file
        except (self._arrow.ArrowException, OSError, UnicodeDecodeError) as error:
            raise FileAccessError(
                f"join {self._settings.name!r}: {name} cannot be read as Parquet: {error}; write "
                "it again, or name another table"
            ) from error


class _ArrowChunk:
    def __init__(self, table: ParquetTable, column: Any) -> None:
        self._table, self._array, self.num_rows = table, column, len(column)

    def values(self, rows: RowNumbers) -> RowValues:
        """The values of these rows."""
        whole = len(rows) == self.num_rows
        return self._table.values(self._array if whole else self._array.take(rows))


def _pieces(file: Any, name: str, arrow: Any) -> Iterator[Any]:
    """The Arrow arrays of a column of a file, few rows each, with no value as a dictionary."""
    kind = file.schema_arrow.field(name).type
    decoded = _DECODED_LISTS if arrow.types.is_nested(kind) else _DECODED_ROWS
    rows = min(decoded, _rows_in_bytes(file.metadata))
    is_dictionary = arrow.types.is_dictionary(kind)
    # each array has a whole dictionary, so that it is cut afterwards
    rows_read = _MOST_ROWS if is_dictionary else rows
    for batch in file.iter_batches(rows_read, columns=[name], use_threads=False):
        column = batch.column(name)
        if not is_dictionary:
            yield column
            continue
        for start in range(0, len(column), rows):
            yield column.slice(start, rows).dictionary_decode()


def _together(pieces: Iterable[Any], arrow: Any) -> Iterator[Any]:
    """The same rows in larger arrays, so that each costs little."""
    held: list[Any] = []
    num_rows = size_bytes = 0
    for piece in pieces:
        held.append(piece)
        num_rows, size_bytes = num_rows + len(piece), size_bytes + piece.nbytes
        if num_rows >= _MOST_ROWS or size_bytes >= _CHUNK_BYTES:
            yield arrow.concat_arrays(held)
            held, num_rows, size_bytes = [], 0, 0
    if held:
        yield arrow.concat_arrays(held)


def _rows_in_bytes(metadata: Any) -> int:
    """How many rows have a few MiB in all columns, as far as the metadata of the file show.

    Sizes of a column would end the process where they are damaged.
    """
    groups = map(metadata.row_group, range(metadata.num_row_groups))
    mean = max((group.total_byte_size // max(1, group.num_rows) for group in groups), default=1)
    return max(1, _CHUNK_BYTES // max(1, mean))


_MOST_BYTES: Final = 1 << 22
_MOST_SAMPLES: Final = 1 << 15
_MOST_NAMED: Final = 50


class TarTable:
    """The samples of tars, of which a few MiB are in memory at a time.

    Args:
        settings: Of the join.
        paths: The tars, in their order.
        store: Lists their members.

    Attributes:
        num_rows: Samples of all tars.

    Raises:
        ConfigError: No member of any tar has the suffix.
        ShardError: A tar is damaged or cannot be read.
    """

    def __init__(self, settings: JoinSettings, paths: Sequence[str], store: TableStore) -> None:
        assert settings.column is not None  # the settings were checked
        self._suffix, self._paths, self._store = settings.column.lower(), paths, store
        self._samples_of: list[int] = []
        suffixes: set[str] = set()
        for path in paths:
            table = store.table_of(path)
            self._samples_of.append(table.num_samples)
            suffixes.update(table.suffixes)
            release_pages(table)
        self.num_rows = sum(self._samples_of)
        if self._suffix not in suffixes:
            raise ConfigError(self._without_members(settings.name, sorted(suffixes)))

    def _without_members(self, name: str, suffixes: Sequence[str]) -> str:
        more = len(self._paths) - 1
        problem = f"join {name!r}: no tar of {self._paths[0]}" + (
            f" and {more:,} more" * bool(more)
        )
        if not suffixes:
            return f"{problem} holds a member; name another table"
        return (
            f"{problem} has members {self._suffix!r}; name one of {suffixes[:_MOST_NAMED]} in "
            "`column`"
        )

    def row_name(self, row: int) -> str:
        """The number of a sample in its tar, counted from 0, and the tar."""
        for path, samples in zip(self._paths, self._samples_of, strict=True):
            if row < samples:
                return f"sample {row:,} of {path}"
            row -= samples
        raise AssertionError(row)

    def keys(self) -> Iterator[RowValues]:
        """The keys of all samples, some at a time."""
        for path in self._paths:
            yield from key_chunks(self._store.table_of(path))

    def chunks(self) -> Iterator["_TarChunk"]:
        """All samples, some at a time."""
        for path in self._paths:
            table = self._store.table_of(path)
            members = table.members_with((self._suffix,))
            # stops: bytes of the members up to each sample, itself included.
            stops = np.cumsum(np.where(members < 0, 0, table.sizes[members]))
            reader = ShardReader(path, table)
            try:
                start = 0
                while start < table.num_samples:
                    done = int(stops[start - 1]) if start else 0
                    stop = int(np.searchsorted(stops, done + _MOST_BYTES, side="right"))
                    stop = min(max(stop, start + 1), start + _MOST_SAMPLES)
                    yield _TarChunk(reader, self._suffix, start, stop, members[start:stop] >= 0)
                    start = stop
            finally:
                reader.close()


def key_chunks(table: MemberTable) -> Iterator[RowValues]:
    """The keys of all samples of a shard, some at a time."""
    for first in range(0, table.num_samples, _MOST_SAMPLES):
        starts = table.key_starts[first : first + _MOST_SAMPLES + 1]
        text = table.keys[starts[0] : starts[-1]].tobytes()
        yield [text[a:b] for a, b in pairwise((starts - starts[0]).tolist())]


class _TarChunk:
    def __init__(
        self, reader: ShardReader, suffix: str, start: int, stop: int, has_member: NDArray[np.bool_]
    ) -> None:
        self._reader, self._suffix, self._start = reader, suffix, start
        self._has_member, self.num_rows = has_member, stop - start

    def values(self, rows: RowNumbers) -> RowValues:
        """The members of these samples."""
        return [
            self._reader.read(self._start + row, self._suffix) if self._has_member[row] else None
            for row in rows.tolist()
        ]
