"""What the programs of this folder train, and what they write down for the tests."""

import json
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import psutil
import torch
from fit_recorder import Ids, Recorder, ids_of

from lightning_shards import (
    DataThroughputMonitor,
    EpochDigest,
    ExactResume,
    LoaderConfig,
    SetEpoch,
    ShardDataModule,
    SplitConfig,
)


def fail_on_warnings() -> None:
    """A warning ends the program, but for that of Lightning 2.6.6 with torch 2.13."""
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", message="`isinstance.treespec, LeafSpec.` is deprecated")


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


class Watching(Recorder):
    """Writes down its worker processes as well, what it is tested on, and a score."""

    def __init__(self) -> None:
        super().__init__()
        self.tested: Ids = []
        self.workers: list[int] = []

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        if batch_idx == 1:
            self.workers = children()
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        super().validation_step(batch, batch_idx)
        self.log("score", 1.0, batch_size=len(batch["label"]), sync_dist=True)

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.workers = children()
        self.tested += ids_of(batch)

    def predict_step(self, batch: Any, batch_idx: int) -> Any:
        return {name: batch[name].tolist() for name in ("__id__", "__weight__", "label")}

    @property
    def seen(self) -> dict[str, Any]:
        """All of that, for a file."""
        names = ("steps", "sanity", "validations", "tested", "workers")
        return {name: getattr(self, name) for name in names}


def trainer_options(folder: Path, callbacks: Sequence[pl.Callback] = ()) -> dict[str, Any]:
    """What all trainers here have in common; the callbacks are those that `ShardCLI` adds."""
    ours = [SetEpoch(), ExactResume(), EpochDigest(), DataThroughputMonitor()]
    return {
        "accelerator": "cpu",
        "callbacks": [*ours, *callbacks],
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
