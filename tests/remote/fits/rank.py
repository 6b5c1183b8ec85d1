"""python tests/remote/fits/rank.py JOB.json: one rank of a fit from remote shards.

For each batch a line goes to `rows-RANK.jsonl` in the job's folder: epoch, step, and its rows.
"""

import json
import os
import signal
import sys
import warnings
from pathlib import Path

import lightning.pytorch as pl
import torch
from batch_rows import rows_of
from lightning.pytorch.callbacks import ModelCheckpoint

from lightning_shards import (
    EpochDigest,
    ExactResume,
    LoaderConfig,
    ShardDataModule,
    SplitConfig,
)
from lightning_shards.build import reader_choice
from lightning_shards.remote.backend import RetryPolicy


class Recorder(pl.LightningModule):
    """Writes down all batches, and is killed within a step if its job says so."""

    def __init__(self, job):
        super().__init__()
        self.job, self.layer = job, torch.nn.Linear(1, 1)
        rank = os.environ.get("LOCAL_RANK", "0")
        self.told = (Path(job["folder"]) / f"rows-{rank}.jsonl").open("a")

    def training_step(self, batch, batch_idx):
        rows = rows_of({name: value for name, value in batch.items() if name != "__weight__"})
        line = {"epoch": self.current_epoch, "step": batch_idx, "rows": rows}
        print(json.dumps(line), file=self.told, flush=True)
        if self.global_step == self.job.get("killed_at"):
            os.kill(os.getpid(), signal.SIGKILL)
        return self.layer(batch["label"][:, None].float()).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)


BY_RUNS = {"sampling": "shuffled", "shuffle_run": 2, "shuffle_block": 12}


def main(path):
    job = json.loads(path.read_text())
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if job.get("is_quick"):
        reader_choice.LOOK_UP = RetryPolicy(total_s=9.0, first_pause_s=0.001, longest_pause_s=0.1)
    saving = ModelCheckpoint(f"{job['folder']}/saved", every_n_train_steps=1, save_top_k=-1)
    trainer = pl.Trainer(
        strategy="ddp" if job["ranks"] > 1 else "auto",
        accelerator="cpu",
        devices=job["ranks"],
        max_epochs=job["epochs"],
        callbacks=[ExactResume(), EpochDigest(), *([saving] if job["saves"] else [])],
        enable_checkpointing=job["saves"],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=job["folder"],
    )
    data = ShardDataModule(
        SplitConfig(job["urls"], **BY_RUNS | job.get("split", {})),
        fields={"image": "png", "label": "cls"},
        batch_size=job["global_batch"] // job["ranks"],
        num_workers=job.get("num_workers", 0),
        loader=LoaderConfig(**job["loader"]),
    )
    trainer.fit(Recorder(job), data, ckpt_path=job.get("checkpoint"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
