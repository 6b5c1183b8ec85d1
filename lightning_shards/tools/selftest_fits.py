"""The checks of `selftest` that are real fits: what the monitor reports, and rates."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import lightning.pytorch as pl
import numpy as np
import torch
from lightning.pytorch.loggers.logger import Logger
from torch import nn

from lightning_shards.callbacks.digest import EpochDigest
from lightning_shards.callbacks.resume import ExactResume
from lightning_shards.callbacks.throughput import DataThroughputMonitor
from lightning_shards.profiling import measuring
from lightning_shards.profiling.rates import rate_text
from lightning_shards.tools.selftest_checks import (
    IMAGE_SHAPE,
    NUM_CLASSES,
    NUM_SAMPLES,
    Check,
    FailedError,
    SkippedError,
    Subject,
    is_first_rank,
    require,
)

_STEPS = 16
_LARGEST_BATCH = 16
_LOADER_S = 0.04
"""Seconds that a slow loader takes for a batch, with all its workers."""
_MODEL_S = 0.03
"""Seconds that a slow model sleeps in each step."""
_WAITS = {"wait_fraction", "starved_fraction"}
_LEAST_WAIT = 0.3
"""Least share of its time that a fit with a slow loader waits, on any machine."""
_ROUNDING = 0.01


@dataclass(frozen=True)
class SlowTransform:
    """A transform that takes its time and changes nothing."""

    seconds: float

    def __call__(self, image: np.ndarray) -> np.ndarray:
        """The image, later."""
        time.sleep(self.seconds)
        return image


class TinyModel(pl.LightningModule):
    """One linear layer, which sleeps in each step to be as slow as it is wanted."""

    def __init__(self, step_s: float = 0.0) -> None:
        super().__init__()
        self._step_s = step_s
        self._layer = nn.Linear(int(np.prod(IMAGE_SHAPE)), NUM_CLASSES)

    def training_step(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """The loss of one batch."""
        time.sleep(self._step_s)
        logits = self._layer(batch["image"].flatten(1))
        return nn.functional.cross_entropy(logits, batch["label"])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Plain gradient descent."""
        return torch.optim.SGD(self.parameters(), 1e-3)


class FigureLogger(Logger):
    """Keeps the figures that the monitor logs at the end of a fit."""

    def __init__(self) -> None:
        super().__init__()
        self.figures: dict[str, float] = {}

    @property
    def name(self) -> str:
        """A name, which Lightning asks for."""
        return "figures"

    @property
    def version(self) -> str:
        """No version."""
        return ""

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Keep the figures of the whole run."""
        prefix = "data/run/"
        self.figures |= {
            name.removeprefix(prefix): value
            for name, value in metrics.items()
            if name.startswith(prefix)
        }

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing."""


def scale(image: torch.Tensor) -> torch.Tensor:
    """The image as floats from 0 to 1; it runs on the device."""
    return image.float() / 255


def fit_with_slow_loader(subject: Subject) -> str:
    """The report of a fit whose loader is slow says so, and adds up."""
    seconds = _LOADER_S * max(1, subject.num_workers) / _batch_size(subject)
    data = _fit_data(subject, transforms={"image": SlowTransform(seconds)})
    figures = _fit(subject, data, TinyModel())
    if figures and subject.world_size == 1:  # the network may be slower than the loader
        _require_side(figures, "loader", "trainer")
        for name in _WAITS & figures.keys():
            share = figures[name]
            require(share > _LEAST_WAIT, f"{name} is {share:.2f} although the loader was slow")
    return _describe(figures)


def fit_with_slow_model(subject: Subject) -> str:
    """The report of a fit whose model is slow says so, and adds up."""
    figures = _fit(subject, _fit_data(subject), TinyModel(_MODEL_S))
    if figures and subject.world_size == 1:
        _require_side(figures, "trainer", "loader")
    return _describe(figures)


def measure_rates(subject: Subject) -> str:
    """Rates as `bench` measures them, with and without pinned batches."""
    if subject.world_size > 1:
        raise SkippedError("measures one rank: leave out --devices and --num-nodes")
    span = measuring.Timing.of(subject.seconds)
    is_cuda = subject.device.type == "cuda"
    data = subject.data(device_transforms={"image": scale})
    fit = _measured_fit(subject, data)
    seen = {
        "loader alone": measuring.measure_loader(data, span),
        "trainer alone": measuring.measure_trainer(fit, measuring.take_batch(data), span),
    }
    for name, pin_memory in {"both, pinned": True, "both": False}.items():
        if is_cuda or not pin_memory:
            data = subject.data(device_transforms={"image": scale}, pin_memory=pin_memory)
            seen[name] = measuring.measure_both(_measured_fit(subject, data), span)
    rates = {name: seen.totals.samples / seen.totals.wall_s for name, seen in seen.items()}
    require(all(rates.values()), f"nothing was measured: {rates}")
    return ", ".join(f"{name} {rate_text(rate)}" for name, rate in rates.items()) + " samples/s"


FIT_CHECKS: Final[dict[str, Check]] = {
    "slow loader": fit_with_slow_loader,
    "slow model": fit_with_slow_model,
    "rates": measure_rates,
}


def require_sound(figures: Mapping[str, float]) -> None:
    """Check that the figures of a report agree with each other.

    Raises:
        FailedError: They do not; the message has the rule and the figures.
    """
    wait, transfer = figures["wait_fraction"], figures["transfer_fraction"]
    starved = figures.get("starved_fraction", wait)
    stages = [
        figures[name]
        for name in figures
        if name.startswith("loader_") and name.endswith("_fraction")
    ]
    rules = {
        "the shares of the loader's time add up to 1": abs(sum(stages) - 1) < _ROUNDING,
        "no share is below 0": min(wait, transfer, starved, *stages) >= 0,
        "waiting and moving take at most the whole time": wait + transfer <= 1 + _ROUNDING,
        "a device starves at most while the trainer waits": starved <= wait + _ROUNDING,
        "the fit is no faster than its trainer alone": (
            figures["samples_per_s"] <= figures["trainer_samples_per_s"] * (1 + _ROUNDING)
        ),
    }
    broken = [rule for rule, holds in rules.items() if not holds]
    if broken:
        raise FailedError(f"the report breaks a rule: {'; '.join(broken)}; it says {figures}")


def _require_side(figures: Mapping[str, float], slower: str, faster: str) -> None:
    rates = {side: figures[f"{side}_samples_per_s"] for side in (slower, faster)}
    require(
        rates[slower] < rates[faster],
        f"the {slower} was made slow, and the report says that the {faster} is: {figures}",
    )


def _describe(figures: Mapping[str, float]) -> str:
    if not figures:
        return "each sample once over all ranks; rank 0 has the report"
    starved = figures.get("starved_fraction")
    idle = "" if starved is None else f", the device idle for {starved:.1%}"
    wait, transfer = figures["wait_fraction"], figures["transfer_fraction"]
    return (
        f"each sample once; waited {wait:.1%} of the time, moved batches for {transfer:.1%}{idle}"
    )


def _batch_size(subject: Subject) -> int:
    return min(_LARGEST_BATCH, max(1, NUM_SAMPLES // (_STEPS * subject.world_size)))


def _fit_data(subject: Subject, **settings: Any) -> pl.LightningDataModule:
    given: dict[str, Any] = {
        "batch_size": _batch_size(subject),
        "device_transforms": {"image": scale},
    }
    return subject.data(**given | settings)


def _fit(subject: Subject, data: pl.LightningDataModule, model: TinyModel) -> dict[str, float]:
    """Train for `_STEPS` steps with our callbacks; what the monitor reports, on rank 0."""
    logger = FigureLogger()
    trainer = _trainer(
        subject,
        logger=logger,
        callbacks=[EpochDigest(), ExactResume(), DataThroughputMonitor()],
        limit_train_batches=_STEPS,
        devices=subject.devices,
        num_nodes=subject.num_nodes,
        strategy="ddp" if subject.world_size > 1 else "auto",
    )
    trainer.fit(model, datamodule=data)
    require(
        trainer.global_step == _STEPS, f"the fit took {trainer.global_step} steps, not {_STEPS}"
    )
    require(bool(logger.figures) or not is_first_rank(), "the monitor gave no report")
    if logger.figures:
        require_sound(logger.figures)
    return logger.figures


def _measured_fit(subject: Subject, data: pl.LightningDataModule) -> measuring.Fit:
    def make_trainer(callbacks: list[pl.Callback]) -> pl.Trainer:
        return _trainer(subject, logger=False, callbacks=callbacks, max_epochs=-1, devices=1)

    return measuring.Fit(TinyModel(), data, make_trainer, str(subject.device))


def _trainer(subject: Subject, **settings: Any) -> pl.Trainer:
    given: dict[str, Any] = {
        "accelerator": subject.device.type,
        "max_epochs": 1,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "default_root_dir": subject.folder,
    }
    return pl.Trainer(**given | settings)
