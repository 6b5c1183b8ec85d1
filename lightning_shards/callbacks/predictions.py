"""The callback that writes what `predict_step` returns: rows by key and id, one file per rank.

What was returned for a batch becomes a table of pyarrow (`rows_of`), which a Parquet file of each
rank and data loader takes (`_RankFile`).
"""

from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from importlib import import_module
from pathlib import Path
from reprlib import repr as short_repr
from typing import Any, TypeAlias, cast

import lightning.pytorch as pl
import numpy as np
import torch
from lightning.pytorch.utilities import rank_zero_info

from lightning_shards.callbacks.set_epoch import labels_of, require_own_places
from lightning_shards.collectives import agree, gather
from lightning_shards.errors import ConfigError, require_library
from lightning_shards.progress import evaluation_loaders, place_of
from lightning_shards.shards.files import make_folder, new_file, not_written

_Array: TypeAlias = np.ndarray[Any, Any]

_STEM = "predictions"
_NUMBERS = (bool, int, float, np.number, np.bool_)
_WIDEST = 8  # bytes of a number that a file holds
_GROUP_BYTES = 2**24  # a row group of a Parquet file is held in memory


def rows_of(prediction: Any, batch: Any) -> Any:
    """The rows of one batch, a table of pyarrow; samples of weight 0 have none.

    Args:
        prediction: A tensor or array of shape (samples, ...), or a dict of these and of lists with
            one entry per sample: texts, numbers, or tensors of one type, whose shapes may differ.
        batch: The batch that was predicted: a dict with `__key__`, `__id__` (int64, shape (samples,
            2)) and, if it has one, `__weight__`.

    Raises:
        ConfigError: The prediction is anything else, or the batch does not say which samples it
            holds.
    """
    given, rows = _samples_of(batch)
    values: Any = {"prediction": prediction} if _is_array(prediction) else prediction
    count = len(given["__key__"])
    if not isinstance(values, dict) or not values:
        raise _refused("", prediction, count)
    columns = {name: _column(name, value, rows) for name, value in given.items()}
    for name, value in cast("dict[Any, Any]", values).items():
        if not isinstance(name, str) or not name or name in given:
            raise ConfigError(
                f"predict_step returned a dict with the entry {name!r}; names are texts, and "
                "`__key__` and `__id__` are written from the batch: rename it, or leave it out"
            )
        is_row_wise = value.ndim > 0 if _is_array(value) else isinstance(value, (list, tuple))
        if not is_row_wise or len(cast("list[Any]", value)) != count:
            raise _refused(f" for {name!r}" if values is prediction else "", value, count)
        columns[name] = _column(name, value, rows)
    return import_module("pyarrow").table(columns)


def _samples_of(batch: Any) -> tuple[dict[str, Any], list[int]]:
    """The keys and ids of the samples of a batch, and the numbers of those that count.

    Others only fill a place.
    """
    entries: dict[str, Any] = dict(batch) if isinstance(cast("object", batch), Mapping) else {}
    if not entries.keys() >= {"__key__", "__id__"}:
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
    rows = [row for row, weight in enumerate(weights.tolist()) if weight]
    return {"__key__": keys, "__id__": ids}, rows


def _is_array(value: object) -> bool:
    return isinstance(value, torch.Tensor | np.ndarray)


def _column(name: str, value: Any, rows: list[int]) -> Any:
    """These rows of a column, of a type that follows from all of them."""
    arrow: Any = import_module("pyarrow")
    if not _is_array(value) and all(isinstance(entry, str) for entry in value):
        # Keys may hold bytes that are not UTF-8, as surrogates, which no file could hold.
        texts = [value[row].encode("utf-8", "backslashreplace").decode() for row in rows]
        return arrow.array(texts, arrow.large_string())
    if _is_array(value) or all(isinstance(entry, _NUMBERS) for entry in value):
        value = _as_array(name, value)
    arrays = [_as_array(name, entry) for entry in value]
    types = sorted({array.dtype.name + "[]" * array.ndim for array in arrays})
    if len(types) > 1:
        raise _not_held(name, " and ".join(types))
    kind = arrow.from_numpy_dtype(arrays[0].dtype.name)
    for _ in range(arrays[0].ndim):
        kind = arrow.large_list(kind)
    return arrow.array([arrays[row].tolist() for row in rows], kind)


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


class _RankFile:
    """Writes the predictions of one rank and one loader; the file appears when it is closed."""

    def __init__(self, path: Path) -> None:
        self._path, self._stack = path, ExitStack()
        self._writer: Any = None
        self._tables: list[Any] = []
        self.rows = 0

    def write(self, table: Any) -> None:
        """Add the rows of a batch.

        Raises:
            ConfigError: The columns are not those of the batches before.
            FileAccessError: The file cannot be written.
        """
        if self._writer is None:
            file = self._stack.enter_context(new_file(self._path))
            writer = import_module("pyarrow.parquet").ParquetWriter(file, table.schema)
            self._writer = self._stack.enter_context(writer)
        if table.schema != self._writer.schema:
            raise ConfigError(
                f"predict_step returned {_described(table)}, and for the batches before "
                f"{_described(self._writer)}; return the same names and types for all batches"
            )
        self.rows += table.num_rows
        self._tables.append(table)
        if sum(table.nbytes for table in self._tables) > _GROUP_BYTES:
            self._write_group()

    def close(self) -> None:
        """Write the end of the file, and give it its name."""
        with self._stack:
            self._write_group()

    def discard(self) -> None:
        """Remove the file, unless it is closed."""
        with suppress(Exception):  # of a full disk, or as it failed before
            self._stack.__exit__(ConfigError, ConfigError("given up"), None)

    def _write_group(self) -> None:
        tables, self._tables = self._tables, []
        if tables:
            try:
                self._writer.write_table(import_module("pyarrow").concat_tables(tables))
            except OSError as error:
                raise not_written(self._path, error) from error


def _described(table: Any) -> str:
    named = zip(table.schema.names[2:], table.schema.types[2:], strict=True)
    return ", ".join(f"{name!r} ({kind})" for name, kind in named)


class ShardPredictionWriter(pl.Callback):
    """Writes predictions to a folder as Parquet, a row for each sample with its key and id.

    `predict_step` returns a tensor with one row per sample along dimension 0, which becomes the
    column `prediction`, or a dict of such tensors or of lists with one entry per sample (texts,
    numbers, or tensors whose shapes may differ), each a column. All batches return the same names
    and types. Values of several dimensions become lists of lists; float16, bfloat16 and float8 are
    written as float32. Samples of `__weight__` 0, which only fill a place or stand for a bad
    sample, have no row.

    Each rank writes a file, ``predictions-00000-of-00002.parquet`` for rank 0 of 2 (for the set
    ``web`` of `predict_sets` ``predictions-web-...``, for several data loaders passed by hand
    ``predictions-loader0-...``), of which some tens of megabytes are in memory. Files
    appear at the end of the prediction, whole; after a run that failed or was killed before that
    there are none under these names. Pass ``return_predictions=False`` to ``trainer.predict``, or
    Lightning keeps all predictions in memory as well; the command line does.

    Args:
        folder: A local folder, made if it is missing; one that holds predictions or other Parquet
            files is refused before any batch is computed.

    Raises:
        ConfigError: The folder holds other results, pyarrow is missing (extra `table`), a batch
            does not say which samples it holds, or `predict_step` returned something else.
        FileAccessError: The folder cannot be written.
    """

    def __init__(self, folder: str) -> None:
        if not folder or "://" in folder:
            raise ConfigError(f"predictions are written to a local folder, not to {folder!r}")
        require_library("ShardPredictionWriter", "pyarrow", "pyarrow", "table")
        self._folder = Path(folder)
        self._files: list[_RankFile] = []
        self._stems: list[str] = []

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Refuse a folder with other results, on all ranks, before workers start."""
        if stage == "predict":
            with _on_all_ranks():
                _require_no_results(self._folder)
                make_folder(self._folder)

    def on_predict_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Name a file for each data loader."""
        loaders = evaluation_loaders(trainer)
        with _on_all_ranks():
            require_own_places(trainer, loaders)
        place = place_of(trainer)
        self._stems = [f"{_STEM}-{label}" if label else _STEM for label in labels_of(loaders)]
        # tensor-parallel processes share a rank, and the first one of them writes
        writes = gather(place.rank).index(place.rank) == trainer.global_rank
        end = f"{place.rank:05d}-of-{place.world_size:05d}.parquet"
        self._files = [_RankFile(self._folder / f"{stem}-{end}") for stem in self._stems if writes]

    def on_predict_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any,
        batch_idx: int, dataloader_idx: int = 0,
    ) -> None:  # fmt: skip
        """Write the predictions of the batch."""
        rows = rows_of(outputs, batch)
        if self._files:
            self._files[dataloader_idx].write(rows)

    def on_predict_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Give the files their names."""
        with _on_all_ranks():
            for file in self._files:
                file.close()
        ranks: list[list[int]] = gather([file.rows for file in self._files])
        self._files = []
        for stem, *rows in zip(self._stems, *filter(None, ranks), strict=True):
            rank_zero_info(f"predictions: {sum(rows):,} rows in {self._folder / stem}-*.parquet")

    def on_exception(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException
    ) -> None:
        """Remove the unfinished files."""
        for file in self._files:
            file.discard()
        self._files = []


@contextmanager
def _on_all_ranks() -> Generator[None]:
    """Raise an error of this block on all ranks if one of them failed."""
    error = None
    try:
        yield
    except Exception as caught:  # noqa: BLE001 agree() raises it, on all ranks
        error = caught
    agree({}, error)


def _require_no_results(folder: Path) -> None:
    """Refuse a folder that holds Parquet files, of predictions or others."""
    results = sorted(folder.glob("*.parquet"))
    if results:
        raise ConfigError(
            f"{folder} already holds {results[0].name}, and predictions are not mixed with other "
            "results: delete them, or name another folder"
        )
