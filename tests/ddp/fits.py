"""What `rank.py` runs: fits of a small network that writes down all it sees."""

import json
import os
import time
import warnings
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn

from lightning_shards import (
    DataThroughputMonitor,
    EpochDigest,
    LoaderConfig,
    SetEpoch,
    ShardDataModule,
    SplitConfig,
)
from lightning_shards.system.process import take_from
from lightning_shards.workers.fork_server import fork_server

HARMLESS = [
    "You defined a `validation_step` but have no `val_dataloader`",  # true of cases without val
    "`isinstance.treespec, LeafSpec.` is deprecated",  # Lightning 2.6.6 with torch 2.13
]


def number_of_this_rank() -> int:
    return int(os.environ.get("LOCAL_RANK", "0"))


class Record:
    """The file of one case and rank."""

    def __init__(self, folder: Path, case: str) -> None:
        self.folder = folder
        self._path = folder / f"{case}-{number_of_this_rank()}.jsonl"
        self._path.touch()

    def __call__(self, kind: str, **values: Any) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps({"kind": kind} | values) + "\n")


class FailOnRank1:
    """A transform; picklable."""

    def __call__(self, label: int) -> int:
        if number_of_this_rank() == 1:
            raise ArithmeticError("the transform does not like this rank")
        return label


class Saver(ModelCheckpoint):
    """Leaves no trace in its checkpoints: Lightning asks for callbacks that have a state."""

    def state_dict(self) -> dict[str, Any]:
        return {}


class Module(pl.LightningModule):
    """Trains, and writes down the ids of every batch."""

    def __init__(self, record: Record) -> None:
        super().__init__()
        self.record = record
        self.layer = nn.Linear(16, 10)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        ids = batch["__id__"].tolist()
        self.record("train", epoch=self.current_epoch, step=batch_idx, ids=ids)
        return nn.functional.cross_entropy(
            self.layer(batch["image"].flatten(1).float()), batch["label"] % 10
        )

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        self.record(
            "val",
            epoch=self.current_epoch,
            step=batch_idx,
            loader=dataloader_idx,
            sanity=self.trainer.sanity_checking,
            ids=batch["__id__"].tolist(),
            weights=batch["__weight__"].tolist(),
        )

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.01)


class StallsAfterSomeBatches:
    """A transform that waits for ever, as readers wait for a server."""

    def __init__(self, told: Path) -> None:
        self.told, self.samples = told, 0

    def __call__(self, label: int) -> int:
        self.samples += 1
        if self.samples > 6:  # three batches of two
            self.told.touch()
            take_from(SimpleQueue[None]())
        return label


def make_data(case: dict[str, Any], folder: Path) -> ShardDataModule:
    rank = number_of_this_rank()

    def as_configs(splits: dict[str, Any]) -> dict[str, SplitConfig]:
        return {
            name.format(rank=rank): SplitConfig(split["urls"].format(rank=rank), **split["options"])
            for name, split in splits.items()
        }

    splits: dict[str, Any] = as_configs(case["splits"])
    if "val_sets" in case:
        splits["val_sets"] = as_configs(case["val_sets"])
    options = {"fields": {"image": "png", "label": "cls"}, "decode": {"image": "gray"}}
    options |= case.get("data", {})
    if case.get("seed_is_rank"):
        options["seed"] = rank
    if case.get("fail_on_rank_1"):
        options["transforms"] = {"label": FailOnRank1()}
    if case.get("stalled") == rank:
        options["transforms"] = {"label": StallsAfterSomeBatches(folder / "stalled")}
    loader = LoaderConfig(cache_dir=f"{folder}/cache-{rank}", **case.get("loader", {}))
    return ShardDataModule(**splits, **options, loader=loader)


def fit(case: dict[str, Any], record: Record) -> None:
    data = make_data(case, record.folder)
    callbacks: list[Any] = [SetEpoch(), EpochDigest(), DataThroughputMonitor()]
    if case.get("bare"):
        callbacks = []
    if "save_every" in case:
        folder = record.folder / "saved"
        callbacks.append(
            Saver(folder, "{step}", every_n_train_steps=case["save_every"], save_top_k=-1)
        )
    options: dict[str, Any] = {"max_epochs": 2, "enable_progress_bar": False, "logger": False}
    trainer = pl.Trainer(
        strategy="ddp",
        accelerator="cpu",
        devices=2,
        callbacks=callbacks,
        enable_checkpointing="save_every" in case,
        enable_model_summary=False,
        default_root_dir=record.folder,
        **options | case.get("trainer", {}),
    )
    model, resume = Module(record), case.get("resume")
    if "place" in case:  # of a loader that is passed by hand
        trainer.fit(model, data.loader("train", **case["place"]))
        return
    trainer.fit(model, data, ckpt_path=resume)
    loader: Any = trainer.train_dataloader
    record(
        "end",
        length=len(loader),
        num_training_batches=trainer.num_training_batches,
        num_val_batches=trainer.num_val_batches,
        global_step=trainer.global_step,
    )


def fit_all(folder: Path) -> None:
    """Run all cases; an error is a record too, and ends them unless its case says it fails."""
    warnings.simplefilter("error")
    for message in HARMLESS:
        warnings.filterwarnings("ignore", message=message)
    fork_server.end_unused = lambda: (
        None
    )  # one for all fits, since each takes half a second of a core to start
    for case in json.loads((folder / "cases.json").read_text()):
        record = Record(folder, case["name"])
        begin = time.perf_counter()
        try:
            fit(case, record)
        except Exception as error:
            seconds = time.perf_counter() - begin
            record(
                "error",
                type=type(error).__name__,
                message=str(error),
                seconds=seconds,
            )
            if not case.get("fails"):
                raise
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()  # its threads may not meet the end of the program
