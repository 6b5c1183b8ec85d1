"""What the programs of this folder train: a small network that writes down all it sees."""

import json
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import psutil
import torch
from lightning.pytorch.callbacks import TQDMProgressBar
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR

from lightning_shards import (
    DataThroughputMonitor,
    EpochDigest,
    ExactResume,
    LoaderConfig,
    SetEpoch,
    ShardDataModule,
    SplitConfig,
)

HARMLESS = [
    "`isinstance.treespec, LeafSpec.` is deprecated",  # Lightning 2.6.6 with torch 2.13
]


def fail_on_warnings() -> None:
    """A warning ends the program, but for Lightning's own about what it calls in torch."""
    warnings.simplefilter("error")
    for message in HARMLESS:
        warnings.filterwarnings("ignore", message=message)


def our_callbacks() -> list[pl.Callback]:
    """Those that `ShardCLI` adds, and a progress bar whose totals are looked at."""
    return [SetEpoch(), ExactResume(), EpochDigest(), DataThroughputMonitor(), TQDMProgressBar()]


def make_data(folder: Path, reader: str, **options: Any) -> ShardDataModule:
    """The shards that `conftest.py` packed; `indexed` serves each sample once, `stream` draws."""
    sampling: Any = {"indexed": "shuffled", "stream": "resampled"}[reader]
    split = SplitConfig(f"{folder}/val-*.tar")
    return ShardDataModule(
        train=SplitConfig(f"{folder}/train-*.tar", sampling=sampling, shuffle_run=2),
        val=split,
        test=split,
        predict=split,
        fields={"image": "png", "label": "cls"},
        decode={"image": "gray"},
        loader=LoaderConfig(cache_dir=f"{folder}/cache"),
        **{"batch_size": 2, "num_workers": 0} | options,
    )


def ids_of(batch: Any) -> list[list[int]]:
    """The ids of a batch, without the repeats that fill its step."""
    weights = batch.get("__weight__", torch.ones(len(batch["__id__"])))
    return batch["__id__"][weights > 0].tolist()


def children() -> list[int]:
    """Processes that this one has started, but for Python's own servers of processes and memory."""
    found: list[int] = []
    for child in psutil.Process().children():
        command = " ".join(child.cmdline())
        if "workers.fork_serving" in command:
            found += [each.pid for each in child.children()]  # its workers look like the server
        elif child.status() != psutil.STATUS_ZOMBIE and "resource_tracker" not in command:
            found.append(child.pid)
    return found


class Recorder(pl.LightningModule):
    """Writes down what it is trained, validated and tested on, and what the trainer promised."""

    def __init__(self, one_cycle: bool = False) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 10)
        self.learning_rate = 0.01
        self.one_cycle = one_cycle
        names = ("train", "val", "sanity", "test", "bars", "workers")  # bars: of rank 0
        self.seen: dict[str, Any] = {name: [] for name in names}

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        if batch_idx == 1:
            self.seen["workers"] = children()
        self.seen["train"].append([self.current_epoch, batch_idx, ids_of(batch)])
        return self._loss(batch)

    def on_validation_epoch_start(self) -> None:
        if not self.trainer.sanity_checking:
            self.seen["val"].append([])

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        seen = self.seen["sanity"] if self.trainer.sanity_checking else self.seen["val"][-1]
        seen.append(ids_of(batch))
        self.log("score", 1.0, batch_size=len(batch["label"]), sync_dist=True)

    def on_validation_epoch_end(self) -> None:
        self._note_bar("val", "sanity" if self.trainer.sanity_checking else "val")

    def on_train_epoch_end(self) -> None:
        self._note_bar("train", "train")

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.seen["workers"] = children()
        self.seen["test"].append(ids_of(batch))

    def on_test_epoch_end(self) -> None:
        self._note_bar("test", "test")

    def on_predict_epoch_end(self) -> None:
        self._note_bar("predict", "predict")

    def predict_step(self, batch: Any, batch_idx: int) -> Any:
        return {name: batch[name].tolist() for name in ("__id__", "__weight__", "label")}

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), self.learning_rate)
        if not self.one_cycle:
            return optimizer
        self.seen["estimated"] = int(self.trainer.estimated_stepping_batches)
        schedule = OneCycleLR(optimizer, max_lr=0.1, total_steps=self.seen["estimated"])
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]

    def _note_bar(self, bar: str, name: str) -> None:
        callback: Any = self.trainer.progress_bar_callback
        if callback is not None and callback.is_enabled:
            shown = getattr(callback, f"{bar}_progress_bar")
            self.seen["bars"].append([name, shown.n, shown.total])

    def _loss(self, batch: Any) -> torch.Tensor:
        images = batch["image"].flatten(1).float() / 255
        return nn.functional.cross_entropy(self.layer(images), batch["label"])


def trainer_options(folder: Path, callbacks: Sequence[pl.Callback] = ()) -> dict[str, Any]:
    """What all trainers here have in common."""
    return {
        "accelerator": "cpu",
        "callbacks": [*our_callbacks(), *callbacks],
        "logger": False,
        "enable_checkpointing": False,
        "enable_model_summary": False,
        "default_root_dir": folder,
    }


def write(folder: Path, name: str, rank: int, record: dict[str, Any]) -> None:
    """The record of one case and rank, whole or not at all."""
    path = folder / f"{name}-{rank}.json"
    path.with_suffix(".new").write_text(json.dumps(record | {"pid": os.getpid()}))
    path.with_suffix(".new").rename(path)
