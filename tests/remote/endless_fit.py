"""python tests/remote/endless_fit.py JOB.json: a fit from remote shards that only a signal ends.

For each batch the file `steps` in the folder of the job grows by a byte.
"""

import json
import sys
import warnings
from pathlib import Path

import lightning.pytorch as pl
import torch

from lightning_shards import LoaderConfig, ShardDataModule, SplitConfig


class Counter(pl.LightningModule):
    def __init__(self, folder):
        super().__init__()
        self.layer, self.steps = torch.nn.Linear(1, 1), (folder / "steps").open("a")

    def training_step(self, batch, batch_idx):
        print(end=".", file=self.steps, flush=True)
        return self.layer(batch["label"][:, None].float()).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)


def data_of(urls, num_workers, loader):
    return ShardDataModule(
        SplitConfig(urls, sampling="shuffled", shuffle_run=2, shuffle_block=4),
        fields={"image": "png", "label": "cls"},
        batch_size=2,
        num_workers=num_workers,
        loader=LoaderConfig(**loader),
    )


def main(path):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    off = dict.fromkeys(
        ["enable_checkpointing", "logger", "enable_progress_bar", "enable_model_summary"], False
    )
    trainer = pl.Trainer(accelerator="cpu", devices=1, max_epochs=-1, **off)
    trainer.fit(Counter(path.parent), data_of(**json.loads(path.read_text())))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
