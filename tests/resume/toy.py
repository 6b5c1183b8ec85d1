"""Fits that know what they were trained on: sample number i of an epoch is its position i.

The ledger is a part of the model's own state: it is saved with the weights and restored with them.
So after any chain of fits it says what the weights were trained on, whatever the loader believes.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Checkpoint, ModelCheckpoint
from torch import nn

from lightning_shards import ExactResume, ShardDataModule, SplitConfig
from lightning_shards.plan.epoch import EpochSchedule
from lightning_shards.readers.source import SourceDescription, shard_identity
from lightning_shards.samples.collate import LoadedBatch

IGNORED = [  # what Lightning 2.6 says of what tests do, and its own use of torch 2.13
    "`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning",
    "Be aware that when using `ckpt_path`, callbacks used",
    "Checkpoint directory .* exists and is not empty",
    "`.fit.ckpt_path=None.` was called without a model",
    ".fit.ckpt_path=.last.. is set, but there is no last",
    "You defined a `validation_step` but have no `val_datal",
]
SAMPLES = 26
VAL_SAMPLES = 5


@dataclass(frozen=True)
class ToyIndex:
    """Stands for shards that nobody has to read."""

    samples: int
    num_shards: int = 1

    def fingerprint(self) -> str:
        return f"toy-{self.samples}"


@dataclass(frozen=True)
class ToySource:
    """Batches of (epoch, position) pairs, a pure function of place and cursor."""

    index: ToyIndex
    epochs: EpochSchedule
    seed: int = 0

    def identity(self) -> dict[str, int | str]:
        shards: Any = self.index
        return shard_identity("toy", "shuffled", self.seed, shards, {})

    def describe(self) -> SourceDescription:
        return SourceDescription("toy", "shuffled")

    def with_epochs(self, epochs: EpochSchedule) -> "ToySource":
        return replace(self, epochs=epochs)

    def first_sample(self, place: Any) -> Any:
        return LoadedBatch({})

    def batches(self, place: Any, cursor: Any, arena: Any = None) -> Iterator[Any]:
        for worker_epoch in self.epochs.worker_epochs(place, cursor):
            for step in worker_epoch.own_steps():
                start, stop = worker_epoch.plan.rank_span(step, worker_epoch.place.rank)
                pairs = [
                    (worker_epoch.epoch, p) for p in range(start, stop) if p < self.epochs.samples
                ]
                yield LoadedBatch({"pairs": pairs, "x": torch.ones(stop - start, 1)})


class ToyData(ShardDataModule):
    """The real data module over toy sources."""

    def __init__(
        self,
        batch_size: int = 4,
        samples: int = SAMPLES,
        val_samples: int = VAL_SAMPLES,
        val_sets: Sequence[int] = (),
        remainder: Any = "drop",
        seed: int = 0,
    ) -> None:
        sets = {f"val/{number}": count for number, count in enumerate(val_sets)}
        val = SplitConfig("val.tar") if val_samples and not sets else None
        super().__init__(
            SplitConfig("train.tar", remainder=remainder),
            val,
            val_sets={name.removeprefix("val/"): SplitConfig("val.tar") for name in sets},
            fields={"x": "cls"},
            batch_size=batch_size,
            num_workers=0,
            seed=seed,
        )
        self.samples = {"train": samples, "val": val_samples, **sets}

    def prepare_data(self) -> None:
        pass

    def _index(self, split: Any) -> Any:
        return ToyIndex(self.samples[split])

    def source(self, split: Any, index: Any = None) -> Any:
        is_train, index = split == "train", index or self._index(split)
        remainder = self._config(split).remainder
        batch_size = self.batch_size if is_train else 2
        epochs = EpochSchedule(index.samples, batch_size, remainder, pinned=not is_train)
        return ToySource(index, epochs, seed=self.seed)


class Ledger(pl.LightningModule):
    """Keeps what it was trained on, validated after and told, and saves it with its weights."""

    def __init__(
        self, *, estimates: bool = False, schedule: str = "", manual: bool = False
    ) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)
        self.estimates, self.schedule = estimates, schedule
        self.automatic_optimization = not manual
        self.window: list[Any] = []  # batches whose optimiser step is still to come
        self.steps: list[Any] = []  # [epoch, [pairs of one step of the optimiser], learning rate]
        # [epoch, optimiser steps before, samples: two decimal digits for each evaluation set]
        self.validations: list[Any] = []
        self.epoch_ends: list[int] = []
        self.validated = 0

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loop = self.trainer.fit_loop.epoch_loop
        assert loop._batches_that_stepped == self.global_step, "the x axis of loggers"
        assert {epoch for epoch, _ in batch["pairs"]} <= {self.current_epoch}
        self.window += batch["pairs"]
        loss = self.layer(batch["x"]).mean()
        if not self.automatic_optimization:
            optimizer: Any = self.optimizers()
            self.manual_backward(loss)
            optimizer.step()
            self._close_window()
        return loss

    def optimizer_step(self, *arguments: Any, **options: Any) -> None:
        super().optimizer_step(*arguments, **options)
        if self.automatic_optimization:
            self._close_window()

    def _close_window(self) -> None:
        rate = self.trainer.optimizers[0].param_groups[0]["lr"]
        self.steps.append([self.current_epoch, [p for _, p in self.window], rate])
        self.window = []

    def on_validation_epoch_start(self) -> None:
        self.validated = 0

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        self.validated += len(batch["pairs"]) * 100**dataloader_idx
        self.log("val", 1.0, sync_dist=True)

    def on_validation_epoch_end(self) -> None:
        if not self.trainer.sanity_checking:
            self.validations.append([self.current_epoch, self.global_step, self.validated])

    def on_train_epoch_end(self) -> None:
        self.epoch_ends.append(self.current_epoch)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), 1.0)
        if self.estimates:
            assert self.trainer.estimated_stepping_batches > 0
        if self.schedule == "step":
            by_step = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
            return [optimizer], [{"scheduler": by_step, "interval": "step"}]
        if self.schedule == "epoch":
            return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)]
        if self.schedule == "plateau":
            plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
            return [optimizer], [{"scheduler": plateau, "monitor": "val"}]
        return optimizer

    def told(self) -> dict[str, list[Any]]:
        """All that is kept, in plain values."""
        kept = ("steps", "validations", "epoch_ends")
        return {name: list(getattr(self, name)) for name in kept}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["ledger"] = self.told()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        for name, value in checkpoint["ledger"].items():
            setattr(self, name, list(value))


def positions_of(steps: list[Any]) -> dict[int, list[int]]:
    """The positions that each epoch was trained on, in the order of training."""
    found: dict[int, list[int]] = {}
    for epoch, positions, _ in steps:
        found.setdefault(epoch, []).extend(positions)
    return found


class StopHereError(Exception):
    """Ends a fit that has saved what it was to save."""


class Snapshots(Checkpoint):
    """Saves a checkpoint at every hook of a fit, as one that came by chance would.

    With `stop` it saves only there, and ends the fit: (name of the hook, which of its calls).
    """

    HOOKS = (
        "on_train_start", "on_train_epoch_start", "on_train_batch_start", "on_before_zero_grad",
        "on_train_batch_end", "on_validation_start", "on_validation_batch_end",
        "on_validation_epoch_end", "on_validation_end", "on_train_epoch_end",
    )  # fmt: skip

    def __init__(self, folder: Path, stop: tuple[str, int] | None = None) -> None:
        self.folder, self.stop = folder, stop
        self.calls = dict.fromkeys(self.HOOKS, 0)
        self.saved: dict[str, Path] = {}
        for hook in self.HOOKS:
            setattr(self, hook, self._saver(hook))

    def _saver(self, hook: str) -> Callable[..., None]:
        def save(trainer: pl.Trainer, *arguments: Any) -> None:
            if trainer.sanity_checking:
                return
            number = self.calls[hook]
            self.calls[hook] += 1
            if self.stop not in (None, (hook, number)):
                return
            path = self.folder / f"{hook}-{number}.ckpt"
            trainer.save_checkpoint(path)
            self.saved[path.stem] = path
            if self.stop:
                raise StopHereError(hook, number)

        return save


def end(trainer: pl.Trainer) -> None:
    trainer.should_stop = True


class StopsAt(pl.Callback):
    """Stops a fit as (name of the hook, which of its calls) says; `how` gets the trainer."""

    def __init__(self, stop: tuple[str, int], how: Callable[[pl.Trainer], None] = end) -> None:
        hook, self.calls_before = stop
        self.how = how
        setattr(self, hook, self._count)

    def _count(self, trainer: pl.Trainer, *arguments: Any) -> None:
        if not trainer.sanity_checking:
            self.calls_before -= 1
            if self.calls_before == -1:
                self.how(trainer)


def make_trainer(
    folder: Path, callbacks: Sequence[Any] = (), *, allow_new_data: bool = False, **options: Any
) -> pl.Trainer:
    """A trainer of one rank with `ExactResume`, which says and writes nothing by itself."""
    defaults: dict[str, Any] = {
        "accelerator": "cpu",
        "devices": 1,
        "logger": False,
        "enable_checkpointing": bool(callbacks),
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "default_root_dir": folder,
    }
    if not {"max_epochs", "max_steps"} & options.keys():
        defaults["max_epochs"] = 3
    resume = ExactResume(allow_new_data=allow_new_data)
    return pl.Trainer(callbacks=[resume, *callbacks], **(defaults | options))


def saved_by_step(
    folder: Path,
    model: Any = None,
    data: ToyData | None = None,
    *,
    every: int = 1,
    make: Callable[..., pl.Trainer] = make_trainer,
    callbacks: Sequence[Any] = (),
    **options: Any,
) -> dict[int, Path]:
    """The checkpoints of a fit by their global steps: one after every so many steps."""
    saver = ModelCheckpoint(folder, "{step}", every_n_train_steps=every, save_top_k=-1)
    make(folder, callbacks=[*callbacks, saver], **options).fit(model or Ledger(), data or ToyData())
    return {int(path.stem.removeprefix("step=")): path for path in folder.glob("step=*.ckpt")}


def bare_trainer(folder: Path, **options: Any) -> pl.Trainer:
    """A trainer without ExactResume."""
    trainer: Any = make_trainer(folder, **options)
    trainer.callbacks = [each for each in trainer.callbacks if not isinstance(each, ExactResume)]
    return trainer


def resumed(
    folder: Path,
    checkpoint: Any,
    data: ToyData | None = None,
    model: Any = None,
    make: Callable[..., pl.Trainer] = make_trainer,
    **options: Any,
) -> Any:
    """The model, a new `Ledger` if there is none, of a fit that has gone on from a checkpoint."""
    model = model or Ledger()
    make(folder, **options).fit(model, data or ToyData(), ckpt_path=checkpoint)
    return model


class SeenSamples(pl.LightningModule):
    """Keeps what it was trained on with its weights; `training_step` is what differs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)
        self.seen: list[Any] = []

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.01)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["seen"] = list(self.seen)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.seen = list(checkpoint["seen"])
