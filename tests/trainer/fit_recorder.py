"""A model and a data module that write down what a fit was given."""

from pathlib import Path
from typing import Any, NamedTuple

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn

from lightning_shards import Cursor, ShardDataModule
from lightning_shards.workers.inline import InlinePool

TRAIN, VAL = [5, 9, 6], [3, 4]  # 20 samples, 10 steps of 2; 7 samples, 4 steps of 2, 2, 2, 1
STEPS, VAL_STEPS = 10, 4

Ids = list[list[int]]


def ids_of(batch: Any) -> Ids:
    """The ids of the samples in a batch that are no repeats."""
    weights = batch.get("__weight__", torch.ones(len(batch["__id__"])))
    return batch["__id__"][weights > 0].tolist()


class Recorder(pl.LightningModule):
    """Writes down what it was trained, validated, tested and asked to predict on."""

    learning_rate = 0.01

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 10)
        self.steps: list[tuple[int, int, Ids]] = []  # epoch, batch of the epoch, ids
        self.sanity: Ids = []
        self.validations: list[Ids] = []
        self.estimated: float | None = None

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self.steps.append((self.current_epoch, batch_idx, ids_of(batch)))
        return self._loss(batch)

    def on_validation_epoch_start(self) -> None:
        if not self.trainer.sanity_checking:
            self.validations.append([])

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        seen = self.sanity if self.trainer.sanity_checking else self.validations[-1]
        seen += ids_of(batch)

    def test_step(self, batch: Any, batch_idx: int) -> None:
        pass

    predict_step = test_step

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), self.learning_rate)

    def _loss(self, batch: Any) -> torch.Tensor:
        return nn.functional.cross_entropy(
            self.layer(batch["image"].flatten(1).float()), batch["label"]
        )

    def epochs(self) -> dict[int, list[Ids]]:
        """The ids of each batch, epoch by epoch."""
        found: dict[int, list[Ids]] = {}
        for epoch, _, ids in self.steps:
            found.setdefault(epoch, []).append(ids)
        return found


class Saver(ModelCheckpoint):
    """Keeps all it saves, and leaves no trace: Lightning asks for callbacks that have a state."""

    def __init__(self, folder: Path, name: str, **options: Any) -> None:
        super().__init__(folder, name, save_top_k=-1, **options)

    def state_dict(self) -> dict[str, Any]:
        return {}


class EstimatingRecorder(Recorder):
    """Asks for the number of steps where a learning rate schedule would."""

    def configure_optimizers(self) -> torch.optim.Optimizer:
        self.estimated = self.trainer.estimated_stepping_batches
        return super().configure_optimizers()


class CountingPool(InlinePool):
    """Notes where streams were started, and how many were."""

    def __init__(self, starts: list[Cursor]) -> None:
        super().__init__()
        object.__setattr__(self, "starts", starts)

    def start(self, source: Any, place: Any, cursor: Cursor) -> Any:
        self.starts.append(cursor)
        return super().start(source, place, cursor)


class CountedModule(ShardDataModule):
    """A data module whose streams are counted."""

    def __init__(self, *splits: Any, **options: Any) -> None:
        super().__init__(*splits, **options)
        self.starts: dict[str, list[Cursor]] = {"train": [], "val": []}

    def _make_loader(self, split: Any, *arguments: Any) -> Any:
        loader = super()._make_loader(split, *arguments)
        if split in self.starts:
            loader.pool = CountingPool(self.starts[split])
        return loader


def all_ids(counts: list[int]) -> Ids:
    return [[shard, sample] for shard, count in enumerate(counts) for sample in range(count)]


class TrainsOnly(Recorder):
    """Has no validation_step, as Lightning sees it."""

    validation_step = pl.LightningModule.validation_step


# name: (options of the Trainer, batches of each epoch, number of validations, optimiser steps)
SWITCHES: dict[str, tuple[dict[str, Any], list[int], int, int]] = {
    "none": ({}, [10, 10, 10], 3, 30),
    "limit_train_batches=4": ({"limit_train_batches": 4}, [4, 4, 4], 3, 12),
    "limit_train_batches=.5": ({"limit_train_batches": 0.5}, [5, 5, 5], 3, 15),
    "overfit_batches=3": ({"overfit_batches": 3}, [3, 3, 3], 3, 9),
    "fast_dev_run=2": ({"fast_dev_run": 2}, [2], 1, 2),
    "max_steps=13": ({"max_steps": 13}, [10, 3], 1, 13),
    "max_steps=20": ({"max_steps": 20}, [10, 10], 2, 20),
    "reload": ({"reload_dataloaders_every_n_epochs": 1}, [10, 10, 10], 3, 30),
    "reload, limit": (
        {"reload_dataloaders_every_n_epochs": 1, "limit_train_batches": 4}, [4, 4, 4], 3, 12,
    ),
    "val_check_interval=.5": ({"val_check_interval": 0.5}, [10, 10, 10], 6, 30),
    "val every 4 steps, over epochs": (
        {"val_check_interval": 4, "check_val_every_n_epoch": None}, [10, 10, 10], 7, 30,
    ),
    "check_val_every_n_epoch=2": ({"check_val_every_n_epoch": 2}, [10, 10, 10], 1, 30),
    "accumulate_grad_batches=3": ({"accumulate_grad_batches": 3}, [10, 10, 10], 3, 12),
}  # fmt: skip


class Run(NamedTuple):
    """A fit that has ended."""

    model: Recorder
    data: CountedModule
    trainer: pl.Trainer
