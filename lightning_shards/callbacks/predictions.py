"""The callback that writes what `predict_step` returns: rows by key and id, one file per rank.

What was returned for a batch becomes columns (`rows_of`), which a file of each rank and data loader
holds (`_RankFile`), in one of two formats. Rank 0 merges the files of all ranks on demand.
"""

import csv
import io
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from reprlib import repr as short_repr
from typing import Any, BinaryIO, Literal, NamedTuple, TypeAlias, cast

import lightning.pytorch as pl
import numpy as np
import torch
from lightning.pytorch.utilities import rank_zero_info

from lightning_shards.callbacks.set_epoch import labels_of, require_own_places
from lightning_shards.collectives import agree, gather
from lightning_shards.errors import ConfigError, FileAccessError, require_choice
from lightning_shards.progress import evaluation_loaders, place_of
from lightning_shards.shards.files import make_folder, new_file, not_written

PredictionFormat: TypeAlias = Literal["parquet", "csv"]
"""A format by its name, which is also the suffix of its files."""

_Array: TypeAlias = np.ndarray[Any, Any]

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
    """Keys, ids and predicted values of the samples that count; types are known without a row.

    A value is a text, or an array of shape () or any other.
    """

    keys: list[str]
    ids: _Array
    columns: dict[str, list[Any]]
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
    columns: dict[str, list[Any]] = {}
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
        entries, types[name] = _entries(name, value)
        columns[name] = [entries[row] for row in samples.rows]
    keys = [_text(samples.keys[row]) for row in samples.rows]
    return PredictedRows(keys, samples.ids[samples.rows], columns, types)


def _is_mapping(batch: object) -> bool:
    return isinstance(batch, Mapping)


def _is_array(value: object) -> bool:
    return isinstance(value, torch.Tensor | np.ndarray)


def _text(value: object) -> str:
    # Keys may hold bytes that are not UTF-8, as surrogates, which no file could hold.
    return str(value).encode("utf-8", "backslashreplace").decode()


def _entries(name: str, value: Any) -> tuple[list[Any], str]:
    """The value of each sample, and the type of all."""
    if not _is_array(value) and all(isinstance(entry, str) for entry in value):
        return list(map(_text, value)), "text"
    if _is_array(value) or all(isinstance(entry, _NUMBERS) for entry in value):
        value = _as_array(name, value)
    arrays = [_as_array(name, entry) for entry in value]
    types = sorted({array.dtype.name + "[]" * array.ndim for array in arrays})
    if len(types) > 1:
        raise _not_held(name, " and ".join(types))
    return arrays, types[0]


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


class WrittenFile(NamedTuple):
    """The name of a file that a rank writes, the number of its rows and their types.

    There are no types and no file until the loader has given a batch.
    """

    name: str
    rows: int
    types: _Types


class _RankFile:
    """Writes the predictions of one rank and one loader; the file appears when it is closed."""

    def __init__(self, path: Path) -> None:
        self._path, self._stack = path, ExitStack()
        self.written = WrittenFile(path.name, 0, {})

    def write(self, rows: PredictedRows) -> None:
        """Add the rows of a batch.

        Raises:
            ConfigError: The columns are not those of the batches before, or the format cannot hold
                them.
            FileAccessError: The file cannot be written.
        """
        name, number, types = self.written
        if not types:
            types = rows.types
            self._file = self._stack.enter_context(new_file(self._path))
            self._begin(types)
        if rows.types != types:
            raise ConfigError(
                f"predict_step returned {_described(rows.types)}, and for the batches before "
                f"{_described(types)}; return the same names and types for all batches"
            )
        self.written = WrittenFile(name, number + len(rows.keys), types)
        try:
            self._add(rows)
        except OSError as error:
            raise not_written(self._path, error) from error

    def close(self) -> None:
        """Write the end of the file, and give it its name."""
        with self._stack:
            if self.written.types:
                self._end()

    def discard(self) -> None:
        """Remove the file, unless it is closed."""
        with suppress(Exception):  # of a full disk, or as it failed before
            self._end()  # pyarrow would do so later, when the file is closed
        self._stack.__exit__(ConfigError, ConfigError("given up"), None)

    def _begin(self, types: _Types) -> None:
        raise NotImplementedError

    def _add(self, rows: PredictedRows) -> None:
        raise NotImplementedError

    def _end(self) -> None:
        """Do nothing: the file has no end mark."""

    @staticmethod
    def merge(paths: Sequence[Path], target: BinaryIO) -> None:
        """Write the rows of these files in order of their ids."""
        raise NotImplementedError


def _described(types: _Types) -> str:
    return ", ".join(f"{name!r} ({kind})" for name, kind in types.items())


class _CsvFile(_RankFile):
    """A column for each value, `__id__` as SHARD:SAMPLE, in UTF-8."""

    def _begin(self, types: _Types) -> None:
        for name, kind in types.items():
            if kind.endswith("[]"):
                raise ConfigError(
                    f"{name!r} has {kind.count('[]')} dimensions per sample, and CSV holds one "
                    "value per column: return a dict with an entry for each value, or take the "
                    "format parquet"
                )
        self._file.write(_csv_bytes([["__id__", "__key__", *types]]))

    def _add(self, rows: PredictedRows) -> None:
        ids = [f"{shard}:{sample}" for shard, sample in rows.ids.tolist()]
        # the text of a numpy number has as many digits as its type needs
        columns = [map(str, rows.columns[name]) for name in self.written.types]
        self._file.write(_csv_bytes(zip(ids, rows.keys, *columns, strict=True)))

    @staticmethod
    def merge(paths: Sequence[Path], target: BinaryIO) -> None:
        header: list[str] = []
        rows: list[list[str]] = []
        before = csv.field_size_limit(_LONGEST_TEXT)  # of the whole process
        try:
            for path in paths:
                with path.open(encoding="utf-8", newline="") as file:
                    header, *of_rank = csv.reader(file)
                    rows += of_rank
        finally:
            csv.field_size_limit(before)
        rows.sort(key=lambda row: tuple(map(int, row[0].split(":"))))
        target.write(_csv_bytes([header, *rows]))


def _csv_bytes(rows: Iterable[Sequence[str]]) -> bytes:
    # Rows end in \r\n: with another end the csv module does not quote a lone \r in a text.
    text = io.StringIO(newline="")
    csv.writer(text).writerows(rows)
    return text.getvalue().encode()


class _ParquetFile(_RankFile):
    """Lists for values of several dimensions; needs the extra `table`."""

    def _begin(self, types: _Types) -> None:
        arrow, parquet = _pyarrow()
        types = {"__key__": "text", "__id__": "int64[]", **types}
        self._schema = arrow.schema([(name, _arrow_type(arrow, types[name])) for name in types])
        self._writer = parquet.ParquetWriter(self._file, self._schema)
        self._tables: list[Any] = []

    def _add(self, rows: PredictedRows) -> None:
        columns = {
            name: [value if isinstance(value, str) else value.tolist() for value in column]
            for name, column in rows.columns.items()
        }
        columns |= {"__key__": rows.keys, "__id__": rows.ids.tolist()}
        self._tables.append(_pyarrow()[0].table(columns, schema=self._schema))
        if sum(table.nbytes for table in self._tables) > _GROUP_BYTES:
            self._write_group()

    def _end(self) -> None:
        with self._writer:
            self._write_group()

    def _write_group(self) -> None:
        tables, self._tables = self._tables, []
        if tables:
            self._writer.write_table(_pyarrow()[0].concat_tables(tables))

    @staticmethod
    def merge(paths: Sequence[Path], target: BinaryIO) -> None:
        arrow, parquet = _pyarrow()
        table = arrow.concat_tables([parquet.ParquetFile(path).read() for path in paths])
        ids = table["__id__"].combine_chunks().flatten().to_numpy().reshape(-1, 2)
        order = np.lexsort((ids[:, 1], ids[:, 0]))
        parquet.write_table(table.take(order).combine_chunks(), target)


def _arrow_type(arrow: Any, kind: str) -> Any:
    name = kind.replace("[]", "")
    found = arrow.large_string() if name == "text" else arrow.from_numpy_dtype(name)
    for _ in range(kind.count("[]")):
        found = arrow.large_list(found)
    return found


def _pyarrow() -> tuple[Any, Any]:
    try:
        return import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError as error:
        raise ConfigError(
            "Parquet needs pyarrow, which is not installed: pip install 'lightning-shards[table]', "
            "or take the format csv"
        ) from error


PREDICTION_FORMATS: dict[PredictionFormat, type[_RankFile]] = {
    "parquet": _ParquetFile,
    "csv": _CsvFile,
}


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

    Merging makes one file, ``predictions.parquet``, in order of `__id__`: the same bytes for any
    number of ranks and workers, if the model gives a sample the same prediction in any batch. Rank
    0 merges while the other ranks wait, and then removes their files; it holds all rows in memory
    twice. The ranks must share the folder: if rank 0 does not see all files, an error says so on
    all ranks, and the files are kept. A merge that takes longer than the timeout of the process
    group (half an hour, unless the strategy is given another) ends the run: give
    ``DDPStrategy(timeout=...)`` for many millions of rows.

    Args:
        folder: A local folder, made if it is missing; one that holds predictions or other files of
            the format is refused before any batch is computed.
        file_format: ``parquet`` (needs the extra `table`) or ``csv``; None: ``parquet``, or ``csv``
            if pyarrow is missing, which a line of the log says.
        merge: Whether to merge the files of the ranks into one.

    Raises:
        ConfigError: The folder holds other results, pyarrow is missing, a batch does not say which
            samples it holds, or `predict_step` returned something else.
        FileAccessError: The folder cannot be written, or is to be merged and is not shared.
    """

    def __init__(
        self, folder: str, file_format: PredictionFormat | None = None, *, merge: bool = False
    ) -> None:
        require_choice("file_format", file_format, (None, *PREDICTION_FORMATS))
        if not folder or "://" in folder:
            raise ConfigError(f"predictions are written to a local folder, not to {folder!r}")
        self._format: PredictionFormat = file_format or "parquet"
        if file_format is None and find_spec("pyarrow") is None:
            self._format = "csv"
            rank_zero_info("predictions are written as csv, because pyarrow is not installed")
        elif self._format == "parquet":
            _pyarrow()
        self._folder, self._merge = Path(folder), merge
        self._files: list[_RankFile] = []
        self._stems: list[str] = []
        self._samples: BatchSamples | None = None

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Refuse a folder with other results, on all ranks, before workers start."""
        if stage == "predict":
            facts = {"the format of predictions": self._format, "merge": int(self._merge)}
            with _on_all_ranks(facts):
                _require_no_results(self._folder, self._format)
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
        end = f"{place.rank:05d}-of-{place.world_size:05d}.{self._format}"
        paths = [self._folder / f"{stem}-{end}" for stem in self._stems if writes]
        self._files = [PREDICTION_FORMATS[self._format](path) for path in paths]

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
        """Give the files their names, and merge them."""
        with _on_all_ranks():
            for file in self._files:
                file.close()
        ranks: list[list[WrittenFile]] = gather([file.written for file in self._files])
        self._files, self._samples = [], None
        for stem, *of_loader in zip(self._stems, *filter(None, ranks), strict=True):
            files = [file for file in of_loader if file.types]
            if not files:
                continue  # the loader gave no batch
            if self._merge:
                with _on_all_ranks():
                    if trainer.is_global_zero:
                        merge_files(self._folder, files, f"{stem}.{self._format}", self._format)
            shown = self._folder / f"{stem}{'' if self._merge else '-*'}.{self._format}"
            rank_zero_info(f"predictions: {sum(file.rows for file in files):,} rows in {shown}")

    def on_exception(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException
    ) -> None:
        """Remove the unfinished files."""
        for file in self._files:
            file.discard()
        self._files, self._samples = [], None


@contextmanager
def _on_all_ranks(facts: Mapping[str, int | str] | None = None) -> Generator[None]:
    """Raise an error of this block on all ranks if one of them failed."""
    error = None
    try:
        yield
    except Exception as caught:  # noqa: BLE001 agree() raises it, on all ranks
        error = caught
    agree(facts or {}, error)


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
    """
    paths = [folder / file.name for file in files]
    _require_alike(paths, files)
    with new_file(folder / name) as target:
        PREDICTION_FORMATS[file_format].merge(paths, target)
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
