"""The callback that writes what `predict_step` returns: rows by key and id, one file per rank."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.utilities import rank_zero_info

from lightning_shards.callbacks.predictions import (
    PREDICTION_FORMATS,
    BatchSamples,
    PredictionFormat,
    RankFile,
    WrittenFile,
    merge_files,
    merged_name,
    rank_name,
    require_no_results,
    require_pyarrow,
    rows_of,
    samples_of,
)
from lightning_shards.callbacks.set_epoch import labels_of, require_own_places
from lightning_shards.collectives import agree, gather
from lightning_shards.errors import ConfigError, require_choice
from lightning_shards.loader import ShardLoader
from lightning_shards.progress import evaluation_loaders, place_of
from lightning_shards.shards.files import make_folder


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
            require_pyarrow()
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
        _on_all_ranks(lambda: self._check_loaders(trainer))
        place = place_of(trainer)
        labels = labels_of(evaluation_loaders(trainer))
        self._names = [merged_name(label, self._format) for label in labels]
        # tensor-parallel processes share a rank, and the first one of them writes
        writes = gather(place.rank).index(place.rank) == trainer.global_rank
        names = [rank_name(name, place.rank, place.world_size) for name in self._names]
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
            shown = name if self._merge else _pattern(files)
            rank_zero_info(f"predictions: {rows:,} rows in {self._folder / shown}")

    def on_exception(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException
    ) -> None:
        """Remove the unfinished files."""
        for file in self._files:
            file.discard()
        self._files, self._samples = [], None

    def _prepare_folder(self) -> None:
        require_no_results(self._folder, self._format)
        make_folder(self._folder)

    def _check_loaders(self, trainer: pl.Trainer) -> None:
        loaders = evaluation_loaders(trainer)
        require_own_places(trainer, loaders)
        for loader in loaders:
            if not isinstance(loader, ShardLoader) or not self._merge:
                continue
            if loader.source.describe().sampling == "resampled":
                raise ConfigError(
                    "a merged file has each sample once, and sampling='resampled' draws some "
                    "several times; predict with sampling='sequential', or without merge"
                )

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


def _pattern(files: list[WrittenFile]) -> str:
    """The name of a single file, or a wildcard for those of several ranks."""
    if len(files) == 1:
        return files[0].name
    begin, _, end = files[0].name.rpartition("-00000-")
    return f"{begin}-*-{end}"
