"""What `run_fit.py` runs: a model that knows what its weights were trained on.

The ledger is saved with the weights and restored with them. So it says what the final weights were
trained on, whatever was killed on the way.
"""

import json
import os
import time
import warnings
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn

from lightning_shards import ExactResume, LoaderConfig, SetEpoch, ShardDataModule, SplitConfig
from lightning_shards.collectives import gather

HARMLESS = [
    "`isinstance.treespec, LeafSpec.` is deprecated",  # Lightning 2.6.6 with torch 2.13
    "Checkpoint directory .* exists and is not empty",  # a resumed fit saves where the first did
]
KEPT = ("steps", "validations")
DEFAULTS: dict[str, Any] = {
    "stop": None, "schedule": False, "saves_in_validation": False, "checkpoint": None,
}  # fmt: skip


class StopHereError(Exception):
    """Raised by all ranks at the same place."""


def write(path: Path, values: dict[str, Any]) -> None:
    """A file that is there is complete."""
    path.with_suffix(".part").write_text(json.dumps(values))
    path.with_suffix(".part").rename(path)


def of_all_ranks(ids: list[Any]) -> list[Any]:
    return [each for of_rank in gather(ids) for each in of_rank]


class Ledger(pl.LightningModule):
    """Trains, and stops where its job says: waits to be killed, or raises."""

    def __init__(self, job: dict[str, Any]) -> None:
        super().__init__()
        self.job = job
        self.layer = nn.Linear(1, 1)
        self.window: list[Any] = []  # ids of batches whose optimiser step is still to come
        self.validated: list[Any] = []
        self.steps: list[Any] = []  # [epoch, ids of one step of the optimiser, learning rate]
        self.validations: list[Any] = []  # [epoch, ids]
        self.calls = {"training_step": 0, "validation_step": 0}

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self.window += of_all_ranks(batch["__id__"].tolist())
        self._stop_if_told("training_step")
        return self.layer(batch["label"][:, None].float()).mean()

    def optimizer_step(self, *arguments: Any, **options: Any) -> None:
        rate = self.trainer.optimizers[0].param_groups[0]["lr"]
        super().optimizer_step(*arguments, **options)
        self.steps.append([self.current_epoch, self.window, rate])
        self.window = []

    def on_validation_epoch_start(self) -> None:
        self.validated = []

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        pairs = zip(batch["__id__"].tolist(), batch["__weight__"].tolist(), strict=True)
        self.validated += of_all_ranks([sample for sample, weight in pairs if weight])
        if not self.trainer.sanity_checking:
            self._stop_if_told("validation_step")

    def on_validation_batch_end(self, *given: Any, **_: Any) -> None:
        saves = self.job["saves_in_validation"] and not self.trainer.sanity_checking
        if saves and given[2] == 0:  # the number of the batch
            name = f"validating-step={self.trainer.global_step}.ckpt"
            self.trainer.save_checkpoint(f"{self.job['folder']}/saved/{name}")

    def on_validation_epoch_end(self) -> None:
        if not self.trainer.sanity_checking:
            self.validations.append([self.current_epoch, self.validated])

    def _stop_if_told(self, hook: str) -> None:
        stop, call = self.job["stop"], self.calls[hook]
        self.calls[hook] += 1
        if stop is None or (stop["hook"], stop["call"]) != (hook, call):
            return
        if stop["rank"] is None:
            raise StopHereError(hook)
        if stop["rank"] == self.global_rank:
            write(Path(self.job["folder"]) / "blocked.json", {"pid": os.getpid()})
            time.sleep(600)  # until this rank is killed; the others wait in a collective

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), 0.01)
        if not self.job["schedule"]:
            return optimizer
        steps = int(self.trainer.estimated_stepping_batches)
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, max_lr=0.1, total_steps=steps, cycle_momentum=False
        )
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["ledger"] = {name: list(getattr(self, name)) for name in KEPT}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        for name in KEPT:
            setattr(self, name, list(checkpoint["ledger"][name]))


def make_data(job: dict[str, Any]) -> ShardDataModule:
    return ShardDataModule(
        SplitConfig(**{"sampling": "shuffled", "shuffle_run": 4} | job["train"]),
        SplitConfig(job["val"]),
        fields={"label": "cls"},
        batch_size=job["batch_size"],
        num_workers=job["num_workers"],
        loader=LoaderConfig(cache_dir=f"{job['folder']}/cache"),
    )


def fit(path: Path) -> None:
    """Run the job; a warning is an error."""
    warnings.simplefilter("error")
    for message in HARMLESS:
        warnings.filterwarnings("ignore", message=message)
    torch.set_num_threads(1)
    job = DEFAULTS | json.loads(path.read_text())
    saved = f"{job['folder']}/saved"
    trainer = pl.Trainer(
        strategy="ddp",
        accelerator="cpu",
        devices=job["ranks"],
        logger=False,
        callbacks=[SetEpoch(), ExactResume(), ModelCheckpoint(saved, "{step}", **job["saving"])],
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=job["folder"],
        **job["trainer"],
    )
    model = Ledger(job)
    trainer.fit(model, make_data(job), ckpt_path=job["checkpoint"])
    told = {name: getattr(model, name) for name in KEPT}
    counters = {"global_step": trainer.global_step, "current_epoch": trainer.current_epoch}
    write(Path(job["folder"]) / f"end-{trainer.global_rank}.json", told | counters)
