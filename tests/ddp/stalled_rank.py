"""python tests/ddp/stalled_rank.py FOLDER RANK: one of two ranks; that RANK gets no fourth batch.

Each rank writes a byte to FOLDER/steps-RANK with each step, and RANK makes FOLDER/stalled when it
begins to wait for the batch.
"""

import os
import sys
import warnings
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import lightning.pytorch as pl
import torch

from lightning_shards import LoaderConfig, ShardDataModule, SplitConfig
from lightning_shards.system.process import take_from

LAST_BATCH, BATCH_SIZE = 3, 2


class StallAfterSomeBatches:
    """A transform that waits for ever on one rank, as readers wait for a server."""

    def __init__(self) -> None:
        self.samples = 0

    def __call__(self, label: int) -> int:
        self.samples += 1
        if os.environ["LOCAL_RANK"] == sys.argv[2] and self.samples > LAST_BATCH * BATCH_SIZE:
            Path(sys.argv[1], "stalled").touch()
            take_from(SimpleQueue())
        return label


class Steps(pl.LightningModule):
    """Trains, and counts its steps."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.layer, self.path = torch.nn.Linear(1, 1), path

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        with self.path.open("ab") as file:
            file.write(b".")
        return self.layer(batch["label"][:, None].float()).sum()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.01)


def main() -> None:
    warnings.simplefilter("ignore")
    folder = Path(sys.argv[1])
    data = ShardDataModule(
        SplitConfig(f"{folder}/shard-*.tar", sampling="shuffled"),
        fields={"label": "cls"},
        transforms={"label": StallAfterSomeBatches()},
        batch_size=BATCH_SIZE,
        num_workers=0,
        loader=LoaderConfig(cache_dir=str(folder / "cache")),
    )
    trainer = pl.Trainer(
        strategy="ddp",
        accelerator="cpu",
        devices=2,
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Steps(folder / f"steps-{os.environ['LOCAL_RANK']}"), data)


if __name__ == "__main__":
    main()
