"""Predictions as CSV: a column for each value, `__id__` as SHARD:SAMPLE, UTF-8."""

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np

from lightning_shards.errors import ConfigError, count_of
from lightning_shards.predictions.rows import ColumnTypes, PredictedRows


class _Lines:
    """Ends rows with a line feed alone.

    The csv module quotes a lone carriage return only if its own rows end with one.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def write(self, row: str) -> None:
        # keys may hold bytes that are not UTF-8, as surrogates
        self._file.write(row.removesuffix("\r\n").encode("utf-8", "backslashreplace") + b"\n")


class CsvPredictions:
    """Writes rows to an open file, which the caller closes; a row is the bytes of its lines.

    Raises:
        ConfigError: A value has more than one number per sample.
    """

    def __init__(self, file: BinaryIO, types: ColumnTypes) -> None:
        for name, kind in types.items():
            if kind.ndim:
                raise ConfigError(
                    f"{name!r} has {count_of(kind.ndim, 'dimension')} per sample, and CSV holds "
                    "one value per column: return a dict with an entry for each value, or take "
                    "the format parquet or tar"
                )
        self._file, self._names = file, list(types)
        self._rows = csv.writer(_Lines(file), lineterminator="\r\n")
        self._rows.writerow(["__id__", "__key__", *types])

    def write(self, rows: PredictedRows) -> None:
        """Add the rows of a batch; numbers have as many digits as their type needs."""
        ids = [f"{shard}:{sample}" for shard, sample in rows.ids.tolist()]
        columns = [
            column.astype(str).tolist() if isinstance(column, np.ndarray) else column
            for column in map(rows.columns.__getitem__, self._names)
        ]
        self._rows.writerows(zip(ids, rows.keys, *columns, strict=True))

    def write_row(self, row: object) -> None:
        """Add a row that `read` gave."""
        self._file.write(cast("bytes", row))

    def finish(self) -> None:
        """Do nothing: a CSV has no end mark."""

    @staticmethod
    def read(path: Path) -> Iterator[tuple[tuple[int, int], bytes]]:
        """The id and the bytes of each row, in the order of the file."""
        with path.open("rb") as file:
            for number, record in enumerate(_records(file)):
                if number:  # the first one is the header
                    shard, _, sample = record.partition(b",")[0].partition(b":")
                    yield (int(shard), int(sample)), record


def _records(file: BinaryIO) -> Iterator[bytes]:
    """Lines that belong together: quotes are doubled inside of a cell, so they are even."""
    record = b""
    for line in file:
        record += line
        if record.count(b'"') % 2 == 0:
            yield record
            record = b""
