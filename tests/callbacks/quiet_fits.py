"""Fits that print nothing: a trainer, a model of one weight, and a logger that keeps all."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.loggers.logger import Logger


def quiet_trainer(folder: Path, callbacks: Sequence[pl.Callback], **options: Any) -> pl.Trainer:
    names = "logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing"
    defaults: dict[str, Any] = {"max_epochs": 1} | dict.fromkeys(names, False)
    return pl.Trainer(
        accelerator="cpu",
        devices=1,
        callbacks=list(callbacks),
        default_root_dir=folder,
        **defaults | options,
    )


class OneWeight(pl.LightningModule):
    """Trains on anything, and knows the ids of the samples that it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.ids: list[list[int]] = []

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        if isinstance(batch, dict) and "__id__" in batch:
            self.ids += batch["__id__"].tolist()
        return self.weight * 1

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


class EvaluatedWeight(OneWeight):
    """Is validated, tested and predicted with as well."""

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        pass

    test_step = validation_step

    def predict_step(self, batch: Any, batch_idx: int) -> Any:
        return batch["label"]


class KeptMetrics(Logger):
    """Keeps what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.given: list[tuple[int | None, dict[str, float]]] = []

    @property
    def name(self) -> str:
        return "kept"

    @property
    def version(self) -> int:
        return 0

    def log_hyperparams(self, *arguments: Any, **options: Any) -> None:
        pass

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.given.append((step, metrics))

    def by_step(self, word: str) -> dict[int | None, dict[str, float]]:
        """The figures whose names hold a word, by step."""
        told = {
            step: {name: value for name, value in metrics.items() if word in name}
            for step, metrics in self.given
        }
        return {step: metrics for step, metrics in told.items() if metrics}
