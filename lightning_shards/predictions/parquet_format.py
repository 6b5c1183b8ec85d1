"""Predictions as Parquet: lists for values of several dimensions; needs the extra `table`."""

from bisect import bisect_right
from collections.abc import Iterator
from importlib import import_module
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from lightning_shards.errors import ConfigError
from lightning_shards.predictions.rows import (
    TEXT,
    ColumnType,
    ColumnTypes,
    PredictedColumn,
    PredictedRows,
)

_GROUP_BYTES = 2**24  # a row group is held in memory, when it is written and when it is merged
_GROUP_ROWS = 2**14


def require_pyarrow() -> None:
    """Check that Parquet can be written.

    Raises:
        ConfigError: Pyarrow is not installed.
    """
    try:
        import_module("pyarrow.parquet")
    except ImportError as error:
        raise ConfigError(
            "Parquet needs pyarrow, which is not installed: pip install 'lightning-shards[table]', "
            "or take the format csv or tar"
        ) from error


class ParquetPredictions:
    """Writes rows to an open file, which the caller closes; a row is a record batch.

    The row groups depend on the rows alone, not on how many come at once: as many rows as 16 MiB
    hold, at least one and at most 16,384.
    """

    def __init__(self, file: BinaryIO, types: ColumnTypes) -> None:
        self._arrow: Any = import_module("pyarrow")
        id_type = ColumnType("int64", 1)
        columns = {"__key__": ColumnType(TEXT, 0), "__id__": id_type} | types
        self._schema = self._arrow.schema(
            [(name, self._type(kind)) for name, kind in columns.items()]
        )
        parquet: Any = import_module("pyarrow.parquet")
        self._parquet = parquet.ParquetWriter(file, self._schema)
        self._batches: list[Any] = []
        self._num_rows = self._num_bytes = 0

    def write(self, rows: PredictedRows) -> None:
        """Add the rows of a batch."""
        columns = {"__key__": rows.keys, "__id__": rows.ids} | rows.columns
        arrays = [self._array(columns[field.name], field.type) for field in self._schema]
        self.write_row(self._arrow.RecordBatch.from_arrays(arrays, schema=self._schema))

    def write_row(self, row: object) -> None:
        """Add a row that `read` gave, or several."""
        batch: Any = row
        if not batch.num_rows:
            return
        self._batches.append(batch)
        self._num_rows += batch.num_rows
        self._num_bytes += batch.nbytes
        if self._num_rows >= _GROUP_ROWS or self._num_bytes > _GROUP_BYTES:
            self._write_full_groups()

    def finish(self) -> None:
        """Write the rows that are left, and the footer."""
        try:
            if self._num_rows:
                self._write_group(self._arrow.Table.from_batches(self._batches))
        finally:
            self._parquet.close()

    def _write_full_groups(self) -> None:
        """Write the rows that come, as far as they fill groups."""
        # one piece: the bytes of several would depend on how the rows came
        table = self._arrow.Table.from_batches(self._batches).combine_chunks()
        while table.num_rows >= _GROUP_ROWS or table.nbytes > _GROUP_BYTES:
            counts = range(1, min(table.num_rows, _GROUP_ROWS) + 1)
            fitting = bisect_right(
                counts, _GROUP_BYTES, key=lambda count: table.slice(0, count).nbytes
            )
            rows = max(1, fitting)
            self._write_group(table.slice(0, rows))
            table = table.slice(rows)
        self._batches = table.to_batches()
        self._num_rows, self._num_bytes = table.num_rows, table.nbytes

    def _write_group(self, table: Any) -> None:
        self._parquet.write_table(table.combine_chunks(), row_group_size=table.num_rows)

    def _type(self, kind: ColumnType) -> Any:
        if kind.dtype == TEXT:
            return self._arrow.string()
        arrow_type = self._arrow.from_numpy_dtype(np.dtype(kind.dtype))
        for _ in range(kind.ndim):
            arrow_type = self._arrow.list_(self._arrow.field("element", arrow_type))
        return arrow_type

    def _array(self, column: PredictedColumn, arrow_type: Any) -> Any:
        if isinstance(column, np.ndarray):
            return self._nested(column, arrow_type)
        if not column or isinstance(column[0], str):
            # keys may hold bytes that are not UTF-8, as surrogates
            texts = [str(text).encode("utf-8", "backslashreplace").decode() for text in column]
            return self._arrow.array(texts, arrow_type)
        parts = [self._nested(np.asarray(value)[None], arrow_type) for value in column]
        return self._arrow.concat_arrays(parts)

    def _nested(self, array: np.ndarray, arrow_type: Any) -> Any:
        """An array of shape (rows, a, b) as `rows` lists of `a` lists of `b` numbers."""
        types = [arrow_type]
        while len(types) < array.ndim:
            types.append(types[-1].value_type)
        values = self._arrow.array(array.reshape(-1), types.pop())
        for axis in range(array.ndim - 1, 0, -1):
            num_lists = prod(array.shape[:axis])
            offsets = np.arange(num_lists + 1, dtype=np.int32) * array.shape[axis]
            offsets = self._arrow.array(offsets.astype(np.int32))
            values = self._arrow.ListArray.from_arrays(offsets, values, type=types.pop())
        return values

    @staticmethod
    def read(path: Path) -> Iterator[tuple[tuple[int, int], Any]]:
        """The id of each row and the row itself, in the order of the file."""
        parquet: Any = import_module("pyarrow.parquet")
        with parquet.ParquetFile(path) as file:
            for group in range(file.num_row_groups):
                for batch in file.read_row_group(group).to_batches():
                    for row, (shard, sample) in enumerate(batch.column("__id__").to_pylist()):
                        yield (shard, sample), batch.slice(row, 1)
