"""The file of one rank and one data loader: its rows so far, under a temporary name."""

import os
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

from lightning_shards.errors import ConfigError, FileAccessError, count_of
from lightning_shards.predictions.formats import (
    PREDICTION_FORMATS,
    OpenPredictions,
    PredictionFormat,
)
from lightning_shards.predictions.rows import ColumnTypes, PredictedRows
from lightning_shards.shards.atomic import new_file, not_written


class WrittenFile(NamedTuple):
    """A file of predictions that a rank has written, as the other ranks are told of it.

    Attributes:
        name: Its name in the folder.
        rows: Number of its rows.
        is_sorted: Whether its rows are in order of their ids.
        types: The types of its columns.
    """

    name: str
    rows: int
    is_sorted: bool
    types: ColumnTypes


class RankFile:
    """Writes the predictions of one rank; the file appears with `publish`, whole.

    Args:
        path: The path of the file once it is complete.
        file_format: Its format.

    Raises:
        FileAccessError: It cannot be written there.
    """

    def __init__(self, path: Path, file_format: PredictionFormat) -> None:
        self._path, self._format = path, PREDICTION_FORMATS[file_format]
        self._context: AbstractContextManager[BinaryIO] | None = new_file(path)
        self._file = self._context.__enter__()
        self._writer: OpenPredictions | None = None
        self._types: ColumnTypes = {}
        self._rows = 0
        self._last_id = (-1, -1)
        self._is_sorted = True

    @property
    def written(self) -> WrittenFile | None:
        """What was written; None if the loader gave no batch, and there is no file."""
        if self._writer is None:
            return None
        return WrittenFile(self._path.name, self._rows, self._is_sorted, self._types)

    def write(self, rows: PredictedRows) -> None:
        """Add the rows of a batch.

        Raises:
            ConfigError: The columns are not those of the batches before, or the format cannot hold
                them.
            FileAccessError: The file cannot be written.
        """
        if self._writer is None:
            self._types = rows.types
            self._writer = self._format.write(self._file, rows.types)
        if rows.types != self._types:
            raise ConfigError(
                f"predict_step returned {_described(rows.types)}, and for the batches before "
                f"{_described(self._types)}; return the same names and types for all batches"
            )
        try:
            self._writer.write(rows)
        except OSError as error:
            raise not_written(self._path, error) from error
        ids = [self._last_id, *((shard, sample) for shard, sample in rows.ids.tolist())]
        self._is_sorted = self._is_sorted and ids == sorted(ids)
        self._last_id = ids[-1]
        self._rows += len(rows)

    def finish(self) -> None:
        """Write the end of the file and sync it, so that little can fail when it is published.

        Raises:
            FileAccessError: The file cannot be written.
        """
        if self._writer is None:
            return
        try:
            self._writer.finish()
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise not_written(self._path, error) from error

    def publish(self) -> None:
        """Sync the file and give it its name; a file without any batch is discarded."""
        if self._writer is None:
            self.discard()
        elif self._context is not None:
            context, self._context = self._context, None
            context.__exit__(None, None, None)

    def discard(self) -> None:
        """Remove the file, unless it is published."""
        if self._context is not None:
            context, self._context = self._context, None
            with suppress(FileAccessError, ValueError):  # of a full disk, or as it failed before
                self.finish()  # pyarrow would do so later, when the file is closed
            error = ConfigError("given up")
            context.__exit__(type(error), error, None)


def _described(types: ColumnTypes) -> str:
    """The columns as '`score` (float32, 1 dimension per sample)'."""
    return ", ".join(
        f"{name!r} ({kind.dtype}, {count_of(kind.ndim, 'dimension')} per sample)"
        for name, kind in types.items()
    )
