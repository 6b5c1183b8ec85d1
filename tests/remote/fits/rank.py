"""python tests/remote/fits/rank.py JOB.json: one rank of a fit from remote shards.

For each batch a line goes to `rows-RANK.jsonl` beside the job: epoch, step, and its rows.
"""

import json
import os
import signal
import sys
import warnings
from hashlib import sha256
from pathlib import Path

import lightning.pytorch as pl
import numpy as np
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from lightning_shards import EpochDigest, ExactResume, LoaderConfig, ShardDataModule, SplitConfig
from lightning_shards.build import found_shards
from lightning_shards.remote.backend import RetryPolicy

EPOCHS, GLOBAL_BATCH = 2, 4


def rows_of(batch):
    """A digest of each row: the same for the same sample, wherever it is read from."""
    names = sorted(batch.keys() - {"__url__", "__weight__"})
    return [
        sha256(b"".join(np.asarray(batch[name][row]).tobytes() for name in names)).hexdigest()[:16]
        for row in range(len(batch["label"]))
    ]


def data_of(urls, ranks, num_workers=0, **loader):
    return ShardDataModule(
        SplitConfig(urls, sampling="shuffled", shuffle_run=2, shuffle_block=12),
        fields={"image": "png", "label": "cls"},
        batch_size=GLOBAL_BATCH // ranks,
        num_workers=num_workers,
        loader=LoaderConfig(**loader),
    )


class Recorder(pl.LightningModule):
    """Writes down all batches, and is killed within a step if its job says so."""

    def __init__(self, folder, killed_at):
        super().__init__()
        self.layer, self.killed_at = torch.nn.Linear(1, 1), killed_at
        self.told = (folder / f"rows-{os.environ.get('LOCAL_RANK', '0')}.jsonl").open("a")

    def training_step(self, batch, batch_idx):
        line = {"epoch": self.current_epoch, "step": batch_idx, "rows": rows_of(batch)}
        print(json.dumps(line), file=self.told, flush=True)
        if self.global_step == self.killed_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return self.layer(batch["label"][:, None].float()).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)


def main(path):
    job, folder = json.loads(path.read_text()), path.parent
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    found_shards.LOOK_UP = RetryPolicy(total_s=18.0, first_pause_s=0.001, stall_s=3.0)
    trainer = pl.Trainer(
        strategy="ddp" if job["ranks"] > 1 else "auto",
        accelerator="cpu",
        devices=job["ranks"],
        max_epochs=job.get("epochs", EPOCHS),
        callbacks=[
            ExactResume(),
            EpochDigest(),
            ModelCheckpoint(folder / "saved", every_n_train_steps=1, save_top_k=-1),
        ],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )
    data = data_of(job["urls"], job["ranks"], job.get("num_workers", 0), **job["loader"])
    trainer.fit(Recorder(folder, job["killed_at"]), data, ckpt_path=job["checkpoint"])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
