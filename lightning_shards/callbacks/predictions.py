"""What `predict_step` returned as rows, the files that hold them, and merging those files."""

import csv
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from importlib import import_module
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple, TypeAlias, cast

import numpy as np
import torch

from lightning_shards.errors import ConfigError, FileAccessError, SampleError, count_of
from lightning_shards.shards.files import new_file, not_written

PredictionFormat: TypeAlias = Literal["parquet", "csv"]
"""A format by its name, which is also the suffix of its files."""

TEXT = "text"
"""The dtype of a column of texts."""

COLUMN = "prediction"
"""Name of the column of a prediction that is a single tensor."""

_Array: TypeAlias = np.ndarray[Any, Any]

PredictedColumn: TypeAlias = _Array | list[str] | list[_Array]
"""One value for each row: an array of shape (rows, ...), texts, or arrays of several shapes."""

_STEM = "predictions"
_NUMBERS = (bool, int, float, np.number, np.bool_)
_WIDEST = 8  # bytes of a number that files hold
_RESERVED = ("__key__", "__id__")
_GROUP_BYTES = 2**24  # a row group of a Parquet file is held in memory
_GROUP_ROWS = 2**14


class ColumnType(NamedTuple):
    """The type of a column, the same in all batches and on all ranks.

    Attributes:
        dtype: Name of the numpy type, or `TEXT`.
        ndim: Dimensions of the value of one sample.
    """

    dtype: str
    ndim: int


ColumnTypes: TypeAlias = dict[str, ColumnType]
"""The types of all columns but `__key__` and `__id__`, by name and in order."""


class BatchSamples(NamedTuple):
    """The samples of a batch.

    Attributes:
        keys: Their `__key__`.
        ids: Their `__id__`: int64, shape (samples, 2), shard number and sample number in it.
        rows: Numbers of the samples that count; others only fill a place (`__weight__` 0).
    """

    keys: list[str]
    ids: _Array
    rows: list[int]


class PredictedRows(NamedTuple):
    """The predictions for the samples of a batch that count.

    Attributes:
        keys: Their `__key__`.
        ids: Their `__id__`, as in `BatchSamples`.
        columns: The predicted values by name.
        types: The types of the columns, known even if there is no row.
    """

    keys: list[str]
    ids: _Array
    columns: dict[str, PredictedColumn]
    types: ColumnTypes


def samples_of(batch: Any) -> BatchSamples:
    """The samples of a batch, by its entries `__key__`, `__id__` and, if it has one, `__weight__`.

    Raises:
        ConfigError: The batch does not say which samples it holds.
    """
    entries: dict[str, Any] = dict(batch) if _is_mapping(batch) else {}
    if not entries.keys() >= {*_RESERVED}:
        has = f"has {sorted(map(str, entries))}" if entries else f"is a {type(batch).__name__}"
        raise ConfigError(
            "predictions are written by `__key__` and `__id__` of their batch, and this one "
            f"{has}; set batch_format='dict' in the data module, name both in its batch_keys if "
            "that is given, and let hooks and collate_fn keep these two entries"
        )
    keys: list[str] = list(entries["__key__"])
    ids: _Array = torch.as_tensor(entries["__id__"], device="cpu").numpy()
    weights: Any = torch.as_tensor(entries.get("__weight__", [1.0] * len(keys)), device="cpu")
    if ids.shape != (len(keys), 2) or weights.shape != (len(keys),):
        raise ConfigError(
            f"a batch has {len(keys)} keys, `__id__` of shape {ids.shape} and `__weight__` of shape"
            f" {tuple(weights.shape)}: a hook changed one of them; keep them as they came"
        )
    return BatchSamples(keys, ids, [row for row, weight in enumerate(weights.tolist()) if weight])


def rows_of(prediction: Any, samples: BatchSamples) -> PredictedRows:
    """The rows of one batch; samples of weight 0 have none.

    Floating-point numbers of fewer than 32 bits become float32, which holds them exactly.

    Args:
        prediction: A tensor or array of shape (samples, ...), or a dict of these and of lists with
            one entry per sample: texts, numbers, or tensors of one type, whose shapes may differ.
        samples: The samples that were predicted.

    Raises:
        ConfigError: It is anything else.
    """
    values: Any = {COLUMN: prediction} if _is_array(prediction) else prediction
    count = len(samples.keys)
    if not isinstance(values, dict) or not values:
        raise _refused("", prediction, count)
    columns: dict[str, PredictedColumn] = {}
    types: ColumnTypes = {}
    for name, value in cast("dict[object, Any]", values).items():
        if not isinstance(name, str) or not name or name in _RESERVED:
            raise ConfigError(
                f"predict_step returned a dict with the entry {name!r}; names are texts, and "
                "`__key__` and `__id__` are written from the batch: rename it, or leave it out"
            )
        if (value.ndim == 0 if _is_array(value) else not _is_list(value)) or len(value) != count:
            raise _refused(f" for {name!r}" if name != COLUMN else "", value, count)
        columns[name], types[name] = _column(name, value, samples.rows)
    keys = [samples.keys[row] for row in samples.rows]
    return PredictedRows(keys, samples.ids[samples.rows], columns, types)


def _is_mapping(batch: object) -> bool:
    return isinstance(batch, Mapping)


def _is_list(value: object) -> bool:
    return isinstance(value, list | tuple)


def _is_array(value: object) -> bool:
    return isinstance(value, torch.Tensor | np.ndarray)


def _column(name: str, value: Any, rows: list[int]) -> tuple[PredictedColumn, ColumnType]:
    """The values of these rows, and the type of all."""
    if not _is_array(value) and all(isinstance(entry, str) for entry in value):
        return [str(value[row]) for row in rows], ColumnType(TEXT, 0)
    if _is_array(value) or all(isinstance(entry, _NUMBERS) for entry in value):
        array = _as_array(name, value)
        return array[rows], ColumnType(array.dtype.name, array.ndim - 1)
    arrays = [_as_array(name, entry) for entry in value]
    kinds = {ColumnType(array.dtype.name, array.ndim) for array in arrays}
    if len(kinds) > 1:
        found = " and ".join(sorted(f"{kind.dtype} of {kind.ndim} dimensions" for kind in kinds))
        raise ConfigError(
            f"the entries of {name!r} that predict_step returned are {found}; return tensors of "
            "one type and one number of dimensions, an empty one as torch.zeros(0, 4) for instance"
        )
    kind, kept = kinds.pop(), [arrays[row] for row in rows]
    if not kept:
        return np.empty((0,) * (1 + kind.ndim), kind.dtype), kind
    return np.stack(kept) if len({array.shape for array in kept}) == 1 else kept, kind


def _as_array(name: str, value: Any) -> _Array:
    """A tensor, array or list of numbers as an array of native numbers of 4 or 8 bytes, or less."""
    try:
        array: _Array = _of_tensor(value) if isinstance(value, torch.Tensor) else np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise _no_numbers(name, error) from error
    if array.dtype.kind not in "buif" or array.dtype.itemsize > _WIDEST:
        raise _no_numbers(name, array.dtype)
    dtype = np.dtype(np.float32) if array.dtype.name == "float16" else array.dtype
    return array.astype(dtype.newbyteorder("="), copy=False)


def _of_tensor(tensor: torch.Tensor) -> _Array:
    is_short = tensor.is_floating_point() and tensor.dtype != torch.float64
    return (tensor.float() if is_short else tensor).detach().cpu().resolve_neg().numpy()


def _no_numbers(name: str, what: object) -> ConfigError:
    return ConfigError(
        f"predict_step returned values for {name!r} that no file holds ({what}): return real "
        "numbers in dense tensors, or a list with one text, number or tensor per sample"
    )


def _refused(where: str, value: Any, count: int) -> ConfigError:
    if _is_array(value):
        what = f"a tensor of shape {tuple(value.shape)}"
    elif type(value) in {list, tuple, dict}:
        what = f"a {type(value).__name__} of {len(value)} entries"
    else:
        what = "None" if value is None else f"a value of type {type(value).__name__}"
    return ConfigError(
        f"predict_step returned {what}{where} for a batch of {count} samples; ShardPredictionWriter"
        " wants a tensor with one row per sample along dimension 0, or a dict of such tensors or "
        "of lists with one entry per sample"
    )


class CsvPredictions:
    """A column for each value, `__id__` as SHARD:SAMPLE, UTF-8; rows end in a line feed.

    Raises:
        ConfigError: A value has more than one number per sample.
    """

    def __init__(self, file: BinaryIO, types: ColumnTypes) -> None:
        for name, kind in types.items():
            if kind.ndim:
                raise ConfigError(
                    f"{name!r} has {count_of(kind.ndim, 'dimension')} per sample, and CSV holds "
                    "one value per column: return a dict with an entry for each value, or take "
                    "the format parquet"
                )
        # the csv module quotes a lone carriage return only if its own rows end with one
        self._rows = csv.writer(_LineFeeds(file), lineterminator="\r\n")
        self._rows.writerow(["__id__", "__key__", *types])

    def write(self, rows: PredictedRows) -> None:
        """Add the rows of a batch; numbers have as many digits as their type needs."""
        ids = [f"{shard}:{sample}" for shard, sample in rows.ids.tolist()]
        columns = [
            column.astype(str).tolist() if isinstance(column, np.ndarray) else column
            for column in rows.columns.values()
        ]
        self._rows.writerows(zip(ids, rows.keys, *columns, strict=True))

    def finish(self) -> None:
        """Do nothing: a CSV has no end mark."""

    @staticmethod
    def merge(paths: Sequence[Path], target: BinaryIO) -> _Array:
        """Write the rows of these files in order of their ids, and return the ids: (rows, 2)."""
        header, rows = b"", list[bytes]()
        for path in paths:
            with path.open("rb") as file:
                records = _records(file)
                header = next(records)
                rows += records
        texts = [row.partition(b",")[0].split(b":") for row in rows]
        ids = np.array([(int(shard), int(sample)) for shard, sample in texts]).reshape(-1, 2)
        order = _order_of(ids)
        target.write(header)
        target.writelines(rows[row] for row in cast("list[int]", order.tolist()))
        return ids[order]


class _LineFeeds:
    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def write(self, row: str) -> None:
        # keys may hold bytes that are not UTF-8, as surrogates
        self._file.write(row.removesuffix("\r\n").encode("utf-8", "backslashreplace") + b"\n")


def _records(file: BinaryIO) -> Iterator[bytes]:
    """Lines that belong together: quotes are doubled inside of a cell, so they are even."""
    record = b""
    for line in file:
        record += line
        if record.count(b'"') % 2 == 0:
            yield record
            record = b""


class ParquetPredictions:
    """Lists for values of several dimensions; needs the extra `table`."""

    def __init__(self, file: BinaryIO, types: ColumnTypes) -> None:
        self._arrow, self._parquet = _pyarrow()
        self._file = file
        self._writer: Any = None
        self._tables: list[Any] = []

    def write(self, rows: PredictedRows) -> None:
        """Add the rows of a batch."""
        columns = {"__key__": rows.keys, "__id__": rows.ids} | rows.columns
        arrays = {name: self._array(column) for name, column in columns.items()}
        self._tables.append(self._arrow.table(arrays))
        if self._writer is None:
            self._writer = self._parquet.ParquetWriter(self._file, self._tables[0].schema)
        if sum(table.nbytes for table in self._tables) > _GROUP_BYTES:
            self._write_group()

    def finish(self) -> None:
        """Write the rows that are left, and the footer."""
        with self._writer:
            self._write_group()

    def _write_group(self) -> None:
        if self._tables:
            self._writer.write_table(self._arrow.concat_tables(self._tables))
        self._tables = []

    def _array(self, column: PredictedColumn) -> Any:
        if isinstance(column, np.ndarray):
            return self._nested(column)
        if not column or isinstance(column[0], str):
            # keys may hold bytes that are not UTF-8, as surrogates
            texts = [str(text).encode("utf-8", "backslashreplace").decode() for text in column]
            return self._arrow.array(texts, self._arrow.large_string())
        return self._arrow.concat_arrays([self._nested(np.asarray(part)[None]) for part in column])

    def _nested(self, array: _Array) -> Any:
        """An array of shape (rows, a, b) as `rows` lists of `a` lists of `b` numbers."""
        values = self._arrow.array(array.reshape(-1))
        for axis in range(array.ndim - 1, 0, -1):
            offsets = np.arange(prod(array.shape[:axis]) + 1) * array.shape[axis]
            values = self._arrow.LargeListArray.from_arrays(offsets, values)
        return values

    @staticmethod
    def merge(paths: Sequence[Path], target: BinaryIO) -> _Array:
        """As `CsvPredictions.merge`; row groups depend on the rows alone."""
        arrow, parquet = _pyarrow()
        table = arrow.concat_tables([parquet.ParquetFile(path).read() for path in paths])
        ids = table["__id__"].combine_chunks().flatten().to_numpy().reshape(-1, 2)
        order = _order_of(ids)
        table = table.take(order).combine_chunks()
        fitting = _GROUP_BYTES * table.num_rows // max(table.nbytes, 1)
        rows = min(max(fitting, 1), _GROUP_ROWS)
        parquet.write_table(table, target, row_group_size=rows)
        return ids[order]


def _order_of(ids: _Array) -> _Array:
    return np.lexsort((ids[:, 1], ids[:, 0]))


def _pyarrow() -> tuple[Any, Any]:
    return import_module("pyarrow"), import_module("pyarrow.parquet")


def require_pyarrow() -> None:
    """Check that Parquet can be written.

    Raises:
        ConfigError: Pyarrow is not installed.
    """
    try:
        _pyarrow()
    except ImportError as error:
        raise ConfigError(
            "Parquet needs pyarrow, which is not installed: pip install 'lightning-shards[table]', "
            "or take the format csv"
        ) from error


PredictionFile: TypeAlias = ParquetPredictions | CsvPredictions

PREDICTION_FORMATS: dict[PredictionFormat, type[PredictionFile]] = {
    "parquet": ParquetPredictions,
    "csv": CsvPredictions,
}


class WrittenFile(NamedTuple):
    """A file of predictions that a rank has written, as the other ranks are told of it.

    Attributes:
        name: Its name in the folder.
        rows: Number of its rows.
        types: The types of its columns.
    """

    name: str
    rows: int
    types: ColumnTypes


class RankFile:
    """Writes the predictions of one rank and one data loader; the file appears with `publish`.

    Args:
        path: The path of the file once it is complete.
        file_format: Its format.
    """

    def __init__(self, path: Path, file_format: PredictionFormat) -> None:
        self._path, self._format = path, PREDICTION_FORMATS[file_format]
        self._context: AbstractContextManager[BinaryIO] | None = None
        self._writer: PredictionFile | None = None
        self._types: ColumnTypes = {}
        self._rows = 0

    @property
    def written(self) -> WrittenFile | None:
        """What was written; None if the loader gave no batch, and there is no file."""
        if self._writer is None:
            return None
        return WrittenFile(self._path.name, self._rows, self._types)

    def write(self, rows: PredictedRows) -> None:
        """Add the rows of a batch.

        Raises:
            ConfigError: The columns are not those of the batches before, or the format cannot hold
                them.
            FileAccessError: The file cannot be written.
        """
        if self._writer is None:
            self._types, self._context = rows.types, new_file(self._path)
            self._file = self._context.__enter__()
            self._writer = self._format(self._file, rows.types)
        if rows.types != self._types:
            raise ConfigError(
                f"predict_step returned {_described(rows.types)}, and for the batches before "
                f"{_described(self._types)}; return the same names and types for all batches"
            )
        columns = {name: rows.columns[name] for name in self._types}
        try:
            self._writer.write(rows._replace(columns=columns))
        except OSError as error:
            raise not_written(self._path, error) from error
        self._rows += len(rows.keys)

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
        """Give the file its name."""
        context, self._context = self._context, None
        if context is not None:
            context.__exit__(None, None, None)

    def discard(self) -> None:
        """Remove the file, unless it is published."""
        context, self._context = self._context, None
        if context is not None:
            with suppress(Exception):  # of a full disk, or as it failed before
                self.finish()  # pyarrow would do so later, when the file is closed
            context.__exit__(ConfigError, ConfigError("given up"), None)


def _described(types: ColumnTypes) -> str:
    """The columns as '`score` (float32, 1 dimension per sample)'."""
    return ", ".join(
        f"{name!r} ({kind.dtype}, {count_of(kind.ndim, 'dimension')} per sample)"
        for name, kind in types.items()
    )


def merged_name(loader: str, file_format: PredictionFormat) -> str:
    """`predictions.csv`; for one of several data loaders `predictions-LOADER.csv`."""
    stem = f"{_STEM}-{loader}" if loader else _STEM
    return f"{stem}.{file_format}"


def rank_name(name: str, rank: int, world_size: int) -> str:
    """The name of one rank's share of a file.

    >>> rank_name("predictions.csv", 1, 4)
    'predictions-00001-of-00004.csv'
    """
    path = Path(name)
    return f"{path.stem}-{rank:05d}-of-{world_size:05d}{path.suffix}"


def require_no_results(folder: Path, file_format: PredictionFormat) -> None:
    """Refuse a folder whose files would be mixed up with the predictions.

    Raises:
        ConfigError: It holds predictions, or other files of this format.
    """
    patterns = [f"*.{file_format}", *(f"{_STEM}*.{suffix}" for suffix in PREDICTION_FORMATS)]
    results = sorted({path.name for pattern in patterns for path in folder.glob(pattern)})
    if results:
        others = f" and {len(results) - 1} more" if len(results) > 1 else ""
        raise ConfigError(
            f"{folder} already holds {results[0]}{others}, and predictions are not mixed with other"
            " results: delete them, or name another folder"
        )


def merge_files(
    folder: Path, files: Sequence[WrittenFile], name: str, file_format: PredictionFormat
) -> None:
    """Merge the files of all ranks into one, in order of ids, and remove them.

    Raises:
        FileAccessError: A file is not in the folder of this machine, or is not the one written.
        ConfigError: The ranks have different columns.
        SampleError: A sample has two rows.
    """
    paths = [folder / file.name for file in files]
    _require_alike(paths, files)
    expected = sum(file.rows for file in files)
    with new_file(folder / name) as target:
        # ids: int64, shape (rows, 2), in order
        ids = PREDICTION_FORMATS[file_format].merge(paths, target)
        if len(ids) != expected:
            raise FileAccessError(
                f"the files of the ranks in {folder} hold {count_of(len(ids), 'row')}, and "
                f"{expected:,} were written: the folder is not the one that the ranks wrote to, "
                "or a file was changed"
            )
        twice = ids[1:][(ids[1:] == ids[:-1]).all(axis=1)]
        if len(twice):
            raise SampleError(
                f"sample {twice[0, 1]} of shard {twice[0, 0]} was predicted twice, and a merged "
                "file has each sample once; predict with sampling='sequential', or without merge. "
                "The files of the ranks are kept"
            )
    for path in paths:
        path.unlink()


def _require_alike(paths: Sequence[Path], files: Sequence[WrittenFile]) -> None:
    """Check that rank 0 sees the files of all ranks, and that they have the same columns."""
    for path, file in zip(paths, files, strict=True):
        if not path.is_file():
            raise FileAccessError(
                f"{path} is not on the machine of rank 0, which merges: the ranks do not share "
                "this folder. Their files are kept, each on its own machine: copy them into one "
                "folder, or name a folder that all machines see"
            )
        if list(file.types.items()) != list(files[0].types.items()):
            raise ConfigError(
                f"{file.name} and {files[0].name} differ in the names, the order or the types of "
                "their columns and cannot be merged; let predict_step return the same on all "
                "ranks. Both files are kept"
            )
