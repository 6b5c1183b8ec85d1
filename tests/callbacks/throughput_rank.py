"""python throughput_rank.py FOLDER: one of three ranks, whose rank 1 has slow samples.

What was said goes to stdout, what was logged to FOLDER/logged.
"""

import os
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.loggers import CSVLogger
from torch import nn

from lightning_shards import DataThroughputMonitor, LoaderConfig, ShardDataModule, SplitConfig

RANKS = 3
SLOW_S = 0.4  # a machine that runs other tests, too, holds a rank for a tenth of a second


def rank() -> int:
    return int(os.environ.get("LOCAL_RANK", "0"))


class SlowOn:
    """Decides nothing about a label but when it is there."""

    def __init__(self, slow_rank: int) -> None:
        self.seconds = SLOW_S / 2 if slow_rank == rank() else 0.0

    def __call__(self, label: int) -> int:
        time.sleep(self.seconds)
        return label


class Net(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Sequential(nn.BatchNorm1d(16), nn.Linear(16, 10))

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return nn.functional.cross_entropy(self.layer(batch["image"].flatten(1)), batch["label"])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.01)


def as_float(image: torch.Tensor) -> torch.Tensor:
    return image.float()


def fit(folder: Path) -> None:
    data = ShardDataModule(
        train=SplitConfig(f"{folder}/shards/*.tar"),
        fields={"image": "png", "label": "cls"},
        decode={"image": "gray"},
        transforms={"label": SlowOn(1), "image": as_float},
        batch_size=2,
        num_workers=0,
        loader=LoaderConfig(cache_dir=f"{folder}/cache-{rank()}"),
    )
    pl.Trainer(
        strategy="ddp",
        accelerator="cpu",
        devices=RANKS,
        max_epochs=3,
        log_every_n_steps=2,
        logger=CSVLogger(folder, name="logged", version=""),
        callbacks=[DataThroughputMonitor()],
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
    ).fit(Net(), data)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    fit(Path(sys.argv[1]))
