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
from torch import nn

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
    """Those that `ShardCLI` adds."""
    return [SetEpoch(), ExactResume(), EpochDigest(), DataThroughputMonitor()]


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

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 10)
        self.learning_rate = 0.01
        names = ("train", "val", "sanity", "test", "workers")
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

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.seen["workers"] = children()
        self.seen["test"].append(ids_of(batch))

    def predict_step(self, batch: Any, batch_idx: int) -> Any:
        return {name: batch[name].tolist() for name in ("__id__", "__weight__", "label")}

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), self.learning_rate)

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
