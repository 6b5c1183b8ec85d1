"""Measurement of a loader alone, a trainer alone on one batch in memory, and both together.

A measurement begins after the first batches: by then workers have started, the batches that they
kept ready are used up, and kernels are chosen. It ends after a set time and leaves nothing running.
"""

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import lightning.pytorch as pl
import torch
from lightning.pytorch.utilities import CombinedLoader
from lightning.pytorch.utilities.data import extract_batch_size
from torch.utils._pytree import tree_map_only

from lightning_shards.datamodule import ShardDataModule
from lightning_shards.errors import ConfigError
from lightning_shards.profiling.rates import TimeTotals
from lightning_shards.progress import train_loaders
from lightning_shards.samples.stage_clock import LoaderTimes
from lightning_shards.workers.pool import Pool, PoolDescription

_UNKNOWN_LENGTH = 1000
"""Length of an epoch of `OneBatch` if the loader does not know its own length."""


@dataclass(frozen=True, slots=True)
class Timing:
    """The length of a measurement and of its warm-up.

    Attributes:
        seconds: Length of the measurement itself.
        warm_up_s: Shortest warm-up, in seconds after the first batch.
        warm_up_limit_s: Longest warm-up, even if batches that workers kept ready are left.
    """

    seconds: float
    warm_up_s: float
    warm_up_limit_s: float

    @classmethod
    def of(cls, seconds: float) -> "Timing":
        """A warm-up of a fifth of the time, and at most three times the time."""
        return cls(seconds, seconds / 5, 3 * seconds)


class Measurement(NamedTuple):
    """The totals of a measurement, and the workers' seconds by stage if they are known."""

    totals: TimeTotals
    stages: dict[str, float]


@dataclass(frozen=True)
class Fit:
    """The model, data and trainer of a configuration.

    Attributes:
        model: The model.
        data: The data module.
        make_trainer: Makes a trainer of one rank that has only these callbacks and writes nothing.
        device: The device that it trains on.
    """

    model: pl.LightningModule
    data: pl.LightningDataModule
    make_trainer: Callable[[list[pl.Callback]], pl.Trainer]
    device: str


@dataclass
class TimedLoader:
    """A wrapper that gives any loader the time counters of `ShardLoader`."""

    loader: Any
    times: LoaderTimes = field(default_factory=LoaderTimes)

    def __post_init__(self) -> None:
        """Combine several loaders as a Trainer does."""
        if type(self.loader) in (list, tuple, dict):
            self.loader = CombinedLoader(self.loader, "max_size_cycle")

    def __len__(self) -> int:
        """Length of the loader; TypeError if it has none."""
        if isinstance(self.loader, CombinedLoader):
            iter(self.loader)  # its length is unknown before
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        """Batches of the loader, counted and timed."""
        is_combined = isinstance(self.loader, CombinedLoader)
        begin = time.perf_counter()
        for item in self.loader:
            batch: Any = item[0] if is_combined else item
            self.times.wait_s += time.perf_counter() - begin
            self.times.batches += 1
            self.times.samples += extract_batch_size(batch)
            yield batch
            begin = time.perf_counter()


@dataclass
class OneBatch:
    """A loader that gives one batch over and over and takes no time.

    Attributes:
        batch: The batch.
        samples: Its size.
        length: Batches of an epoch.
    """

    batch: Any
    samples: int
    length: int
    times: LoaderTimes = field(default_factory=LoaderTimes)

    def __len__(self) -> int:
        """Batches of an epoch."""
        return self.length

    def __iter__(self) -> Iterator[Any]:
        """The batch, `length` times."""
        for _ in range(self.length):
            self.times.batches += 1
            self.times.samples += self.samples
            yield self.batch


def take_batch(data: pl.LightningDataModule) -> OneBatch:
    """The first batch of the train loader and the loader's length, for `measure_trainer`.

    Raises:
        ShardError: No batch can be made.
    """
    loader = _open_loader(data)
    with _closed(loader), closing(_endless(loader)) as batches:
        batch = next(batches)
    try:
        length = len(loader)
    except TypeError:
        length = _UNKNOWN_LENGTH
    return OneBatch(batch, loader.times.samples, length)


def measure_loader(data: pl.LightningDataModule, span: Timing) -> Measurement:
    """Measure the train loader alone, from epoch to epoch without a break.

    Raises:
        ShardError: No batch can be made, or not with these settings.
    """
    loader = _open_loader(data)
    meter = _Meter(loader, span)
    with _closed(loader), closing(_endless(loader)) as batches:
        while not meter.ends_with_this():
            next(batches)
    return meter.window()


def measure_trainer(fit: Fit, batch: OneBatch, span: Timing) -> Measurement:
    """Measure a fit on a batch that needs no loading, and is copied to the device at each step."""
    stop_watch = _StopWatch(span)
    trainer = fit.make_trainer([stop_watch])
    if trainer.strategy.root_device.type == "cuda":
        # Copies from page-locked memory are the fastest.
        pinned = tree_map_only(torch.Tensor, torch.Tensor.pin_memory, batch.batch)
        batch = replace(batch, batch=pinned)
    with _serving(fit.data, lambda: batch):
        trainer.fit(fit.model, datamodule=fit.data)
    return stop_watch.window()


def measure_both(fit: Fit, span: Timing) -> Measurement:
    """Measure a whole fit, without validation."""
    stop_watch = _StopWatch(span)
    trainer = fit.make_trainer([stop_watch])
    if isinstance(fit.data, ShardDataModule):
        trainer.fit(fit.model, datamodule=fit.data)
    else:
        load = fit.data.train_dataloader
        with _serving(fit.data, lambda: TimedLoader(load())):
            trainer.fit(fit.model, datamodule=fit.data)
    return stop_watch.window()


class _Meter:
    """Decides at each batch whether the measurement begins or ends."""

    def __init__(
        self, loader: Any, span: Timing, await_device: Callable[[], object] = lambda: None
    ) -> None:
        self._times: LoaderTimes = loader.times
        pool: Pool | None = getattr(loader, "pool", None)  # loaders of others have none
        description = PoolDescription("none") if pool is None else pool.describe()
        self._stock = 1 + description.num_workers * description.prefetch_factor
        self._span, self._await_device = span, await_device
        self._first_at: float | None = None
        self._began: Measurement | None = None
        self._ended: Measurement | None = None

    def ends_with_this(self) -> bool:
        """Whether the measurement ends now; to be called after each batch."""
        now = time.perf_counter()
        if not self._times.batches:
            return False
        if self._first_at is None:
            self._first_at = now
        if self._began is None:
            if self._is_warm(now - self._first_at):
                self._began = self._sums()
            return False
        if now - self._began.totals.wall_s < self._span.seconds:
            return False
        self._ended = self._sums()
        return True

    def window(self) -> Measurement:
        """The measurement between beginning and end."""
        assert self._began is not None  # callers ask only after the end
        assert self._ended is not None
        earlier = self._began.stages
        stages = {
            name: spent - earlier.get(name, 0.0) for name, spent in self._ended.stages.items()
        }
        return Measurement(self._ended.totals.since(self._began.totals), stages)

    def _is_warm(self, passed_s: float) -> bool:
        if passed_s < self._span.warm_up_s:
            return False
        return self._times.batches >= self._stock or passed_s >= self._span.warm_up_limit_s

    def _sums(self) -> Measurement:
        self._await_device()
        times = self._times
        totals = TimeTotals(
            batches=times.batches,
            samples=times.samples,
            wall_s=time.perf_counter(),
            wait_s=times.wait_s,
            produce_s=times.produce_s,
        )
        return Measurement(totals, times.measured_stages())


class _StopWatch(pl.Callback):
    """Ends a fit when the measurement is complete."""

    def __init__(self, span: Timing) -> None:
        self._span = span
        self._meter: _Meter | None = None

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Find the loader, and let schedulers do without the metric of a validation."""
        for config in trainer.lr_scheduler_configs:
            config.strict = False
        device = trainer.strategy.root_device
        on_cuda = device.type == "cuda"
        await_device = (lambda: torch.cuda.synchronize(device)) if on_cuda else (lambda: None)
        self._meter = _Meter(train_loaders(trainer)[0], self._span, await_device)

    def on_train_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: object,
        batch: object,
        batch_idx: int,
    ) -> None:
        """End the fit if the measurement is complete."""
        assert self._meter is not None  # on_train_start came first
        if self._meter.ends_with_this():
            trainer.should_stop = True

    def window(self) -> Measurement:
        """The measurement of the fit."""
        if self._meter is None:
            raise ConfigError("the fit ended before its first step: has the model training_step?")
        return self._meter.window()


def _open_loader(data: pl.LightningDataModule) -> Any:
    if isinstance(data, ShardDataModule):
        return data.loader("train")
    data.prepare_data()
    data.setup("fit")
    return TimedLoader(data.train_dataloader())


@contextmanager
def _closed(loader: Any) -> Generator[None]:
    try:
        yield
    finally:
        if not isinstance(loader, TimedLoader):
            loader.close()


@contextmanager
def _serving(data: pl.LightningDataModule, load: Callable[[], object]) -> Generator[None]:
    """Replace the train loader of a data module, whose other hooks stay."""
    vars(data)["train_dataloader"] = load
    try:
        yield
    finally:
        del vars(data)["train_dataloader"]


def _endless(loader: Any) -> Generator[Any]:
    while True:
        before = loader.times.batches
        yield from loader
        if loader.times.batches == before:
            raise ConfigError("the train loader gives no batch; look at its shards and sizes")
