"""The callback that writes what `predict_step` returns: rows by key and id, one file per rank.

What was returned for a batch becomes columns (`rows_of`), which a file of each rank and data loader
holds (`RankFile`), in one of two formats. Rank 0 merges the files of all ranks on demand.
"""

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from importlib import import_module
from math import prod
from pathlib import Path
from reprlib import repr as short_repr
from typing import Any, BinaryIO, Literal, NamedTuple, TypeAlias, cast

import lightning.pytorch as pl
import numpy as np
import torch
from lightning.pytorch.utilities import rank_zero_info

from lightning_shards.callbacks.set_epoch import labels_of, require_own_places
from lightning_shards.collectives import agree, gather
from lightning_shards.errors import (
    ConfigError,
    FileAccessError,
    SampleError,
    count_of,
    require_choice,
)
from lightning_shards.progress import evaluation_loaders, place_of
from lightning_shards.shards.files import make_folder, new_file, not_written

PredictionFormat: TypeAlias = Literal["parquet", "csv"]
"""A format by its name, which is also the suffix of its files."""

_Array: TypeAlias = np.ndarray[Any, Any]

_Column: TypeAlias = _Array | list[str] | list[_Array]
"""One value for each row: an array of shape (rows, ...), texts, or arrays of several shapes."""

_Types: TypeAlias = dict[str, str]
"""The types of all columns but `__key__` and `__id__`, such as `text`, `int64` or `float32[][]`,
which has two dimensions per sample. They are the same in all batches and on all ranks."""

_STEM = "predictions"
_NUMBERS = (bool, int, float, np.number, np.bool_)
_WIDEST = 8  # bytes of a number that both formats hold
_RESERVED = ("__key__", "__id__")
_LONGEST_TEXT = 2**31 - 1  # letters of a cell that the csv module reads; 131,072 by default
_GROUP_BYTES = 2**24  # a row group of a Parquet file is held in memory


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
    """Keys, ids and predicted values of the samples that count; types are known without a row."""

    keys: list[str]
    ids: _Array
    columns: dict[str, _Column]
    types: _Types


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

    Args:
        prediction: A tensor or array of shape (samples, ...), or a dict of these and of lists with
            one entry per sample: texts, numbers, or tensors of one type, whose shapes may differ.
        samples: The samples that were predicted.

    Raises:
        ConfigError: It is anything else.
    """
    values: Any = {"prediction": prediction} if _is_array(prediction) else prediction
    count = len(samples.keys)
    if not isinstance(values, dict) or not values:
        raise _refused("", prediction, count)
    columns: dict[str, _Column] = {}
    types: _Types = {}
    for name, value in cast("dict[Any, Any]", values).items():
        if not isinstance(name, str) or not name or name in _RESERVED:
            raise ConfigError(
                f"predict_step returned a dict with the entry {name!r}; names are texts, and "
                "`__key__` and `__id__` are written from the batch: rename it, or leave it out"
            )
        is_row_wise = value.ndim > 0 if _is_array(value) else isinstance(value, (list, tuple))
        if not is_row_wise or len(cast("list[Any]", value)) != count:
            raise _refused(f" for {name!r}" if values is prediction else "", value, count)
        columns[name], types[name] = _column(name, value, samples.rows)
    keys = [_text(samples.keys[row]) for row in samples.rows]
    return PredictedRows(keys, samples.ids[samples.rows], columns, types)


def _is_mapping(batch: object) -> bool:
    return isinstance(batch, Mapping)


def _is_array(value: object) -> bool:
    return isinstance(value, torch.Tensor | np.ndarray)


def _text(value: object) -> str:
    # Keys may hold bytes that are not UTF-8, as surrogates, which no file could hold.
    return str(value).encode("utf-8", "backslashreplace").decode()


def _column(name: str, value: Any, rows: list[int]) -> tuple[_Column, str]:
    """The values of these rows, and the type of all."""
    if not _is_array(value) and all(isinstance(entry, str) for entry in value):
        return [_text(value[row]) for row in rows], "text"
    if _is_array(value) or all(isinstance(entry, _NUMBERS) for entry in value):
        array = _as_array(name, value)
        return array[rows], _type_of(array[0]) if len(array) else _type_of(array)[:-2]
    arrays = [_as_array(name, entry) for entry in value]
    types = sorted({_type_of(array) for array in arrays})
    if len(types) > 1:
        raise _not_held(name, " and ".join(types))
    kept = [arrays[row] for row in rows]
    if not kept:
        return np.empty((0,) * (1 + arrays[0].ndim), arrays[0].dtype), types[0]
    return np.stack(kept) if len({array.shape for array in kept}) == 1 else kept, types[0]


def _type_of(array: _Array) -> str:
    return array.dtype.name + "[]" * array.ndim


def _as_array(name: str, value: Any) -> _Array:
    """A tensor, array or list of numbers as an array; short floating-point tensors as float32."""
    try:
        if isinstance(value, torch.Tensor):
            is_short = value.is_floating_point() and value.itemsize < torch.float32.itemsize
            value = (value.float() if is_short else value).numpy(force=True)
        array: _Array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise _not_held(name, error) from error
    if array.dtype.kind not in "buif" or array.dtype.itemsize > _WIDEST:
        raise _not_held(name, array.dtype)
    return array


def _not_held(name: str, what: object) -> ConfigError:
    return ConfigError(
        f"predict_step returned values for {name!r} that no file holds ({what}): return real "
        "numbers in dense tensors, or a list with one text, number or tensor per sample, tensors "
        "of one type and one number of dimensions, an empty one as torch.zeros(0, 4) for instance"
    )


def _refused(where: str, value: Any, count: int) -> ConfigError:
    what = f"a tensor of shape {tuple(value.shape)}" if _is_array(value) else short_repr(value)
    return ConfigError(
        f"predict_step returned {what}{where} for a batch of {count} samples; ShardPredictionWriter"
        " wants a tensor with one row per sample along dimension 0, or a dict of such tensors or "
        "of lists with one entry per sample"
    )


class _CsvRows:
    """A column for each value, `__id__` as SHARD:SAMPLE, in UTF-8."""

    def __init__(self, file: BinaryIO, types: _Types) -> None:
        for name, kind in types.items():
            if kind.endswith("[]"):
                raise ConfigError(
                    f"{name!r} has {count_of(kind.count('[]'), 'dimension')} per sample, and CSV "
                    "holds one value per column: return a dict with an entry for each value, or "
                    "take the format parquet"
                )
        self._file = file
        file.write(_csv_bytes([["__id__", "__key__", *types]]))

    def write(self, rows: PredictedRows) -> None:
        ids = [f"{shard}:{sample}" for shard, sample in rows.ids.tolist()]
        columns = [
            # Text of a numpy number has as many digits as its type needs.
            column.astype(str).tolist() if isinstance(column, np.ndarray) else column
            for column in rows.columns.values()
        ]
        self._file.write(_csv_bytes(zip(ids, rows.keys, *columns, strict=True)))

    def finish(self) -> None:
        """Do nothing: a CSV has no end mark."""

    @staticmethod
    def merge(paths: Sequence[Path], target: BinaryIO) -> _Array:
        """Write the rows of these files in order of their ids, and return the ids: (rows, 2)."""
        header: list[str] = []
        rows: list[list[str]] = []
        csv.field_size_limit(_LONGEST_TEXT)
        for path in paths:
            with path.open(encoding="utf-8", newline="") as file:
                header, *of_rank = csv.reader(file)
                rows += of_rank
        ids = np.array([row[0].split(":") for row in rows], np.int64).reshape(-1, 2)
        order: Any = _order_of(ids)
        target.write(_csv_bytes([header, *map(rows.__getitem__, order)]))
        return ids[order]


def _csv_bytes(rows: Iterable[Sequence[str]]) -> bytes:
    # Rows end in \r\n: with another end the csv module does not quote a lone \r in a text.
    text = io.StringIO(newline="")
    csv.writer(text).writerows(rows)
    return text.getvalue().encode()


class _ParquetRows:
    """Lists for values of several dimensions; needs the extra `table`."""

    def __init__(self, file: BinaryIO, types: _Types) -> None:
        self._arrow, self._parquet = _pyarrow()
        self._file = file
        self._writer: Any = None
        self._tables: list[Any] = []

    def write(self, rows: PredictedRows) -> None:
        columns: dict[str, _Column] = {"__key__": rows.keys, "__id__": rows.ids, **rows.columns}
        table = self._arrow.table({name: self._array(name, columns[name]) for name in columns})
        if self._writer is None:
            self._writer = self._parquet.ParquetWriter(self._file, table.schema)
        self._tables.append(table)
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

    def _array(self, name: str, column: Any) -> Any:
        try:
            if _is_array(column):
                return self._nested(column)
            if not column or isinstance(column[0], str):
                return self._arrow.array(column, self._arrow.large_string())
            return self._arrow.concat_arrays([self._nested(part[None]) for part in column])
        except self._arrow.ArrowException as error:
            raise _not_held(name, error) from error

    def _nested(self, array: Any) -> Any:
        """An array of shape (rows, a, b) as `rows` lists of `a` lists of `b` numbers."""
        values = self._arrow.array(array.reshape(-1))
        for axis in range(array.ndim - 1, 0, -1):
            offsets = np.arange(prod(array.shape[:axis]) + 1) * array.shape[axis]
            values = self._arrow.LargeListArray.from_arrays(offsets, values)
        return values

    @staticmethod
    def merge(paths: Sequence[Path], target: BinaryIO) -> _Array:
        """As `_CsvRows.merge`."""
        arrow, parquet = _pyarrow()
        table = arrow.concat_tables([parquet.ParquetFile(path).read() for path in paths])
        ids = table["__id__"].combine_chunks().flatten().to_numpy().reshape(-1, 2)
        order = _order_of(ids)
        parquet.write_table(table.take(order).combine_chunks(), target)
        return ids[order]


def _order_of(ids: _Array) -> _Array:
    return np.lexsort((ids[:, 1], ids[:, 0]))


def _pyarrow() -> tuple[Any, Any]:
    try:
        return import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError as error:
        raise ConfigError(
            "Parquet needs pyarrow, which is not installed: pip install 'lightning-shards[table]', "
            "or take the format csv"
        ) from error


PREDICTION_FORMATS: dict[PredictionFormat, type[_ParquetRows | _CsvRows]] = {
    "parquet": _ParquetRows,
    "csv": _CsvRows,
}


class WrittenFile(NamedTuple):
    """The name of a file that a rank has written, the number of its rows and their types."""

    name: str
    rows: int
    types: _Types


class RankFile:
    """Writes the predictions of one rank and one data loader; the file appears with `publish`."""

    def __init__(self, path: Path, file_format: PredictionFormat) -> None:
        self._path, self._format = path, PREDICTION_FORMATS[file_format]
        self._stack = ExitStack()
        self._writer: _ParquetRows | _CsvRows | None = None
        self._written = WrittenFile(path.name, 0, {})

    @property
    def written(self) -> WrittenFile | None:
        """What was written; None if the loader gave no batch, and there is no file."""
        return self._written if self._writer else None

    def write(self, rows: PredictedRows) -> None:
        """Add the rows of a batch.

        Raises:
            ConfigError: The columns are not those of the batches before, or the format cannot hold
                them.
            FileAccessError: The file cannot be written.
        """
        if self._writer is None:
            self._file = self._stack.enter_context(new_file(self._path))
            self._writer = self._format(self._file, rows.types)
            self._written = self._written._replace(types=rows.types)
        types = self._written.types
        if rows.types != types:
            raise ConfigError(
                f"predict_step returned {_described(rows.types)}, and for the batches before "
                f"{_described(types)}; return the same names and types for all batches"
            )
        try:
            self._writer.write(rows._replace(columns={name: rows.columns[name] for name in types}))
        except OSError as error:
            raise not_written(self._path, error) from error
        self._written = self._written._replace(rows=self._written.rows + len(rows.keys))

    def finish(self) -> None:
        """Write the end of the file, so that little can fail when it is published."""
        if self._writer is None:
            return
        try:
            self._writer.finish()
            self._file.flush()
        except OSError as error:
            raise not_written(self._path, error) from error

    def publish(self) -> None:
        """Give the file its name."""
        self._stack.close()

    def discard(self) -> None:
        """Remove the file, unless it is published."""
        with suppress(Exception):  # of a full disk, or as it failed before
            self.finish()  # pyarrow would do so later, when the file is closed
        self._stack.__exit__(ConfigError, ConfigError("given up"), None)


def _described(types: _Types) -> str:
    return ", ".join(f"{name!r} ({kind})" for name, kind in types.items())


class ShardPredictionWriter(pl.Callback):
    """Writes predictions to a folder, a row for each sample, with its `__key__` and `__id__`.

    `predict_step` returns a tensor with one row per sample along dimension 0, which becomes the
    column `prediction`, or a dict of such tensors or of lists with one entry per sample (texts,
    numbers, or tensors whose shapes may differ), each a column. All batches return the same names
    and types. float16, bfloat16 and float8 are written as float32. Samples of `__weight__` 0, which
    only fill a place or stand for a bad sample, have no row.

    Each rank writes a file, ``predictions-00000-of-00002.parquet`` for rank 0 of 2 (for the set
    ``web`` of `predict_sets` ``predictions-web-...``, for several data loaders passed by hand
    ``predictions-loader0-...``), of which some tens of megabytes are in memory. Files
    appear at the end of the prediction, whole; after a run that failed or was killed before that
    there are none under these names. Pass ``return_predictions=False`` to ``trainer.predict``, or
    Lightning keeps all predictions in memory as well; the command line does.

    =========  ====================  ===========================  =================================
    format     `__id__`              a tensor of several values   a text
    =========  ====================  ===========================  =================================
    parquet    list of two numbers   (nested) list                string
    csv        ``SHARD:SAMPLE``      refused                      cell
    =========  ====================  ===========================  =================================

    Merging makes one file, ``predictions.parquet``, which has each sample once, in order of
    `__id__`: the same bytes for any number of ranks and workers, if the model gives a sample the
    same prediction in any batch. Rank 0 merges while the other ranks wait, and then removes their
    files; it holds all rows in memory twice. The ranks must share the folder: if rank 0 does not
    see all files, an error says so on all ranks, and the files are kept. A merge that takes longer
    than the timeout of the process group (half an hour, unless the strategy is given another) ends
    the run: give ``DDPStrategy(timeout=...)`` for many millions of rows.

    Args:
        folder: A local folder, made if it is missing; one that holds predictions or other files of
            the format is refused before any batch is computed.
        file_format: ``parquet`` (needs the extra `table`) or ``csv``.
        merge: Whether to merge the files of the ranks into one.

    Raises:
        ConfigError: The folder holds other results, pyarrow is missing, a batch does not say which
            samples it holds, or `predict_step` returned something else.
        FileAccessError: The folder cannot be written, or is to be merged and is not shared.
        SampleError: A sample has two rows and is to be merged.
    """

    def __init__(
        self, folder: str, file_format: PredictionFormat = "parquet", *, merge: bool = False
    ) -> None:
        require_choice("file_format", file_format, tuple(PREDICTION_FORMATS))
        if not folder or "://" in folder:
            raise ConfigError(f"predictions are written to a local folder, not to {folder!r}")
        if file_format == "parquet":
            _pyarrow()
        self._format: PredictionFormat = file_format
        self._folder, self._merge = Path(folder), merge
        self._files: list[RankFile] = []
        self._names: list[str] = []
        self._samples: BatchSamples | None = None

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Refuse a folder with other results, on all ranks, before workers start."""
        if stage == "predict":
            facts = {"the format of predictions": self._format, "merge": int(self._merge)}
            _on_all_ranks(self._prepare_folder, facts)

    def on_predict_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Name a file for each data loader."""
        loaders = evaluation_loaders(trainer)
        _on_all_ranks(lambda: require_own_places(trainer, loaders))
        place = place_of(trainer)
        stems = [f"{_STEM}-{label}" if label else _STEM for label in labels_of(loaders)]
        self._names = [f"{stem}.{self._format}" for stem in stems]
        # tensor-parallel processes share a rank, and the first one of them writes
        writes = gather(place.rank).index(place.rank) == trainer.global_rank
        names = [_rank_name(name, place.rank, place.world_size) for name in self._names]
        self._files = [RankFile(self._folder / name, self._format) for name in names if writes]

    def on_predict_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: object, batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:  # fmt: skip
        """Note the samples of the batch, before `predict_step` can change it."""
        self._samples = samples_of(batch)

    def on_predict_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: object, batch: object,
        batch_idx: int, dataloader_idx: int = 0,
    ) -> None:  # fmt: skip
        """Write the predictions of the batch."""
        assert self._samples is not None
        rows = rows_of(outputs, self._samples)
        if self._files:
            self._files[dataloader_idx].write(rows)

    def on_predict_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Give the files their names once those of all ranks are complete, and merge them."""
        _on_all_ranks(lambda: [file.finish() for file in self._files])
        _on_all_ranks(lambda: [file.publish() for file in self._files])
        ranks: list[list[WrittenFile | None]] = gather([file.written for file in self._files])
        by_loader = zip(*filter(None, ranks), strict=True)
        written = [
            (name, [file for file in files if file is not None])
            for name, files in zip(self._names, by_loader, strict=True)
            if any(files)  # a loader without a batch has none
        ]
        self._files, self._samples = [], None
        if self._merge:
            _on_all_ranks(lambda: self._merge_all(written if trainer.is_global_zero else []))
        for name, files in written:
            rows = sum(file.rows for file in files)
            shown = name if self._merge else f"{Path(name).stem}-*.{self._format}"
            rank_zero_info(f"predictions: {rows:,} rows in {self._folder / shown}")

    def on_exception(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException
    ) -> None:
        """Remove the unfinished files."""
        for file in self._files:
            file.discard()
        self._files, self._samples = [], None

    def _prepare_folder(self) -> None:
        _require_no_results(self._folder, self._format)
        make_folder(self._folder)

    def _merge_all(self, written: list[tuple[str, list[WrittenFile]]]) -> None:
        for name, files in written:
            merge_files(self._folder, files, name, self._format)


def _on_all_ranks(act: Callable[[], Any], facts: dict[str, int | str] | None = None) -> None:
    """Do something on this rank, and raise an error on all ranks if one of them failed."""
    error = None
    try:
        act()
    except Exception as caught:  # noqa: BLE001 agree() raises it, on all ranks
        error = caught
    agree(facts or {}, error)


def _rank_name(name: str, rank: int, world_size: int) -> str:
    """The name of one rank's share of a file.

    >>> _rank_name("predictions.csv", 1, 4)
    'predictions-00001-of-00004.csv'
    """
    path = Path(name)
    return f"{path.stem}-{rank:05d}-of-{world_size:05d}{path.suffix}"


def _require_no_results(folder: Path, file_format: PredictionFormat) -> None:
    """Refuse a folder that holds predictions, or other files of this format."""
    results = sorted(
        path.name
        for path in folder.glob("[!.]*")
        if path.suffix == f".{file_format}" or path.match(f"{_STEM}*")
    )
    if results:
        raise ConfigError(
            f"{folder} already holds {results[0]}, and predictions are not mixed with other "
            "results: delete them, or name another folder"
        )


def merge_files(
    folder: Path, files: Sequence[WrittenFile], name: str, file_format: PredictionFormat
) -> None:
    """Merge the files of all ranks into one, in order of ids, and remove them.

    Raises:
        FileAccessError: A file is not in the folder of this machine.
        ConfigError: The ranks have different columns.
        SampleError: A sample has two rows.
    """
    paths = [folder / file.name for file in files]
    _require_alike(paths, files)
    with new_file(folder / name) as target:
        # ids: int64, shape (rows, 2), in order
        ids = PREDICTION_FORMATS[file_format].merge(paths, target)
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
