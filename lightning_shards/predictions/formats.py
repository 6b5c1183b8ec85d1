"""The formats of files of predictions, and what they have in common."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal, Protocol, TypeAlias

from lightning_shards.predictions.csv_format import CsvPredictions
from lightning_shards.predictions.parquet_format import ParquetPredictions
from lightning_shards.predictions.rows import ColumnTypes, PredictedRows
from lightning_shards.predictions.tar_format import TarPredictions

PredictionFormat: TypeAlias = Literal["parquet", "csv", "tar"]
"""A format by its name, which is also the suffix of its files."""


class OpenPredictions(Protocol):
    """A file of predictions that is being written."""

    def write(self, rows: PredictedRows) -> None:
        """Add the rows of a batch."""
        ...

    def write_row(self, row: object) -> None:
        """Add a row as reading a file of this format gives it."""
        ...

    def finish(self) -> None:
        """Write what belongs at the end; the caller closes the file."""
        ...


@dataclass(frozen=True, slots=True)
class FileFormat:
    """How files of one format are written and read.

    Attributes:
        write: Makes the writer of an open file, with the types of its columns.
        read: The (shard, sample) of each row and the row, in the order of the file.
    """

    write: Callable[[BinaryIO, ColumnTypes], OpenPredictions]
    read: Callable[[Path], Iterator[tuple[tuple[int, int], object]]]


PREDICTION_FORMATS: dict[PredictionFormat, FileFormat] = {
    "parquet": FileFormat(ParquetPredictions, ParquetPredictions.read),
    "csv": FileFormat(CsvPredictions, CsvPredictions.read),
    "tar": FileFormat(TarPredictions, TarPredictions.read),
}
