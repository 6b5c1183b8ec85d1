"""Listing of the samples in the rows of a table: CSV, TSV, JSON lines or Parquet (`parquet`)."""

import csv
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

from lightning_shards.dataprep.writing.catalog import CatalogBuilder
from lightning_shards.dataprep.writing.class_files import number_classes
from lightning_shards.dataprep.writing.keys import check_new_field, escape_key, key_of_path
from lightning_shards.dataprep.writing.listing import Listing
from lightning_shards.dataprep.writing.parquet import parquet_rows, require_different
from lightning_shards.errors import ConfigError, SampleError
from lightning_shards.shards.classes import CLASS_SUFFIX, ClassNames
from lightning_shards.shards.files import open_regular

TABLE_SUFFIXES: Final = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet")

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """The meaning of the columns of a table.

    Attributes:
        files: Fields by columns that name files, below `root` unless the path is absolute. An empty
            field stands for the file's own suffix.
        values: Fields by columns with contents: text is stored as it is, other values as JSON.
        key: The column of the keys, which are escaped; None: the path of the first file, without
            `/` and `..` at its beginning.
        class_name: A column with names of classes, which are numbered as field `cls`.
        split: The column with the split of each sample.
        root: The folder of the files.
    """

    files: Mapping[str, str] = field(default_factory=dict[str, str])
    values: Mapping[str, str] = field(default_factory=dict[str, str])
    key: str | None = None
    class_name: str | None = None
    split: str | None = None
    root: str = "."

    def __post_init__(self) -> None:
        """Refuse columns without contents or without keys, and fields that would not be found."""
        if not (self.files or self.values):
            raise ConfigError("no column has contents: name columns of files or of values")
        if not (self.files or self.key):
            raise ConfigError("samples without files need a column of keys; name it")
        for name in (*filter(None, self.files.values()), *self.values.values()):
            check_new_field(name)

    @property
    def names(self) -> list[str]:
        """All columns that are read."""
        others = (self.key, self.class_name, self.split)
        return [*self.files, *self.values, *(name for name in others if name is not None)]


def list_table(path: str, columns: Columns, given: ClassNames | None = None) -> Listing:
    """One sample for each row of a table; an empty value gives no member.

    Args:
        path: The table.
        columns: The meaning of its columns.
        given: The numbers of classes, in place of new ones.

    Raises:
        ShardNotFoundError: A file that a row names does not exist.
        ConfigError: The table cannot be read, or a row lacks a column.
        SampleError: A row does not give a sample.
    """
    try:
        return list_rows(read_rows(path, columns.names), columns, given)
    except (ConfigError, SampleError) as error:
        raise type(error)(f"{path}, {error}") from error


def list_rows(rows: Iterable[Row], columns: Columns, given: ClassNames | None = None) -> Listing:
    """One sample for each row, as in `list_table`; messages count rows from 1."""
    builder = CatalogBuilder()
    labels: list[str] = []
    for number, row in enumerate(rows, 1):
        missing = [name for name in columns.names if name not in row]
        if missing:
            raise ConfigError(f"row {number} has no column {missing[0]!r}, but {', '.join(row)}")
        try:
            _add_row(builder, row, columns)
        except SampleError as error:
            raise SampleError(f"row {number}: {error}") from error
        if columns.class_name:
            labels.append(_required(row, columns.class_name))
    catalog = builder.build()
    if not columns.class_name:
        return Listing(catalog)
    classes = number_classes(labels, given)
    values = [str(classes[label]).encode() for label in labels]
    return Listing(catalog.with_field(CLASS_SUFFIX, values), classes=classes)


def read_rows(path: str, names: Iterable[str]) -> Iterator[Row]:
    """The rows of a table, by the suffix of its name; of Parquet the columns of these names.

    Raises:
        ConfigError: The file is not a table, or cannot be read as one.
        FileAccessError: It is not a regular file, or this user may not read it.
    """
    suffix = Path(path).suffix.lower()
    if suffix == ".parquet":
        os.close(open_regular(path))
        yield from parquet_rows(path, names)
        return
    if suffix not in TABLE_SUFFIXES:
        raise ConfigError(f"it is no table: their names end in {', '.join(TABLE_SUFFIXES)}")
    try:
        with os.fdopen(open_regular(path), encoding="utf-8-sig", newline="") as file:
            if suffix in (".csv", ".tsv"):
                yield from _csv_rows(file, "," if suffix == ".csv" else "\t")
            else:
                yield from _json_rows(file)
    except UnicodeDecodeError as error:
        raise ConfigError(f"it cannot be read: {error}") from error


def _csv_rows(file: Iterable[str], delimiter: str) -> Iterator[Row]:
    reader = csv.DictReader(file, delimiter=delimiter, strict=True)
    try:
        require_different(filter(None, reader.fieldnames or ()))
        for row in reader:
            if None in row or None in row.values():
                raise ConfigError(f"line {reader.line_num} has not as many cells as the first one")
            yield row
    except csv.Error as error:
        line = reader.reader.line_num
        raise ConfigError(
            f"line {line} cannot be read: {error}; check its quotes, and put what is over "
            f"{csv.field_size_limit():,} characters long into a file or into JSON lines"
        ) from error


def _json_rows(file: Iterable[str]) -> Iterator[Row]:
    for number, line in enumerate(file, 1):
        if line.strip():
            try:
                row = json.loads(line, object_pairs_hook=_json_object)
            except ConfigError as error:
                raise ConfigError(f"line {number}: {error}") from error
            except json.JSONDecodeError as error:  # it counts lines, too, and has seen one
                place = f"line {number}, character {error.colno}"
                raise ConfigError(f"{place}, cannot be read: {error.msg}") from error
            except (ValueError, RecursionError) as error:
                raise ConfigError(f"line {number} cannot be read: {error}") from error
            if not isinstance(row, dict):
                raise ConfigError(f"line {number} must be a JSON object, not {line.strip()[:40]!r}")
            yield cast("Row", row)


def _json_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    require_different(name for name, _ in pairs)
    return dict(pairs)


def _add_row(builder: CatalogBuilder, row: Row, columns: Columns) -> None:
    """Add the sample of one row, without its class."""
    files: dict[str, str] = {}
    for column, name in columns.files.items():
        path = row[column]
        if not _is_empty(path):
            suffix = name or os.path.splitext(str(path))[1][1:].lower()  # noqa: PTH122
            _add_once(files, suffix, str(path))
    values = _values_of(row, columns)
    both = sorted(files.keys() & values.keys()) or ([CLASS_SUFFIX] if columns.class_name else [])
    if any(name in files or name in values for name in both):
        raise SampleError(f"two columns make the field {both[0]!r}")
    split = None if columns.split is None else _required(row, columns.split)
    builder.begin(_key_of(row, columns, files), split)
    for name, path in files.items():
        builder.add_file(name, os.path.join(columns.root, path))  # noqa: PTH118
    for name, data in values.items():
        builder.add_inline(name, data)


def _values_of(row: Row, columns: Columns) -> dict[str, bytes]:
    values: dict[str, bytes] = {}
    for column, name in columns.values.items():
        if row[column] is None or row[column] == "":
            continue
        if name in values:
            raise SampleError(f"two columns make the field {name!r}; give it one of them")
        values[name] = _contents(row[column])
    return values


def _add_once(files: dict[str, str], name: str, path: str) -> None:
    if name in files:
        raise SampleError(f"{files[name]} and {path} are both the field {name!r}; give names")
    files[name] = path


def _key_of(row: Row, columns: Columns, files: Mapping[str, str]) -> str:
    if columns.key is not None:
        return escape_key(_required(row, columns.key))
    if not files:
        raise SampleError("it names no file, and there is no column of keys")
    return key_of_path(next(iter(files.values())))


def _required(row: Row, column: str) -> str:
    value = row[column]
    if _is_empty(value):
        raise SampleError(f"the column {column!r} is empty")
    return str(value)


def _is_empty(value: object) -> bool:
    """Whether there is no text; programs for tables put NaN where they have none."""
    return value is None or value == "" or value != value  # noqa: PLR0124 NaN alone


def _contents(value: object) -> bytes:
    """The bytes that are stored for a value."""
    if isinstance(value, bytes):
        return value
    try:
        if isinstance(value, str):
            return value.encode()
        return json.dumps(value, ensure_ascii=False).encode()
    except (TypeError, ValueError) as error:
        raise SampleError(f"a value cannot be stored: {error}") from error
