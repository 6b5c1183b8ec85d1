"""Measures a loader alone, a trainer alone on one batch in memory, and both together.

A measurement begins when the first batches are through: workers have started, what they had kept
ready is used up, kernels are chosen. It ends after so many seconds, and nothing is left running.
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
from lightning_shards.loader import LoaderTimes
from lightning_shards.profiling.rates import TimeTotals
from lightning_shards.progress import train_loaders

_UNKNOWN_LENGTH = 1000
"""Batches of an epoch of one batch, where the loader does not know its own length."""


@dataclass(frozen=True, slots=True)
class Timing:
    """How long a measurement takes.

    Attributes:
        seconds: of the measurement itself.
        warm_up_s: seconds after the first batch that are left out at least.
        warm_up_limit_s: likewise at most, if what workers had kept ready is not used up before.
    """

    seconds: float
    warm_up_s: float
    warm_up_limit_s: float

    @classmethod
    def of(cls, seconds: float) -> "Timing":
        """A fifth of the time to warm up, at most three times as long as it."""
        return cls(seconds, seconds / 5, 3 * seconds)


class Measurement(NamedTuple):
    """What was measured, and the workers' seconds by stage where they are known."""

    totals: TimeTotals
    stages: dict[str, float]


@dataclass(frozen=True)
class Fit:
    """What a configuration trains.

    Attributes:
        model: the model.
        data: the data module.
        make_trainer: a new trainer of one rank, with these callbacks alone, that writes nothing.
        device: what it trains on.
    """

    model: pl.LightningModule
    data: pl.LightningDataModule
    make_trainer: Callable[[list[pl.Callback]], pl.Trainer]
    device: str


@dataclass
class TimedLoader:
    """Any loader, with times like those of `ShardLoader`."""

    loader: Any
    times: LoaderTimes = field(default_factory=LoaderTimes)

    def __post_init__(self) -> None:
        """Combine several as a Trainer does."""
        if type(self.loader) in (list, tuple, dict):
            self.loader = CombinedLoader(self.loader, "max_size_cycle")

    def __len__(self) -> int:
        """Its own length; TypeError if it has none."""
        if isinstance(self.loader, CombinedLoader):
            iter(self.loader)  # its length is not known before
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        """Its batches, counted."""
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
    """One batch over and over: a loader that takes no time.

    Attributes:
        batch: the batch.
        samples: its size.
        length: batches of an epoch.
    """

    batch: Any
    samples: int
    length: int
    times: LoaderTimes = field(default_factory=LoaderTimes)

    def __len__(self) -> int:
        """Batches of an epoch."""
        return self.length

    def __iter__(self) -> Iterator[Any]:
        """An epoch of it."""
        for _ in range(self.length):
            self.times.batches += 1
            self.times.samples += self.samples
            yield self.batch


def take_batch(data: pl.LightningDataModule) -> OneBatch:
    """The first batch, and the length of its loader: what `measure_trainer` wants.

    Raises:
        ShardError: no batch can be made.
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
    """The loader of `train` alone, over the ends of epochs.

    Raises:
        ShardError: no batch can be made, or not with these settings.
    """
    loader = _open_loader(data)
    meter = _Meter(loader, span)
    with _closed(loader), closing(_endless(loader)) as batches:
        while not meter.ends_with_this():
            next(batches)
    return meter.window()


def measure_trainer(fit: Fit, batch: OneBatch, span: Timing) -> Measurement:
    """A fit on a batch that needs no loading; it is copied to the device at each step."""
    stop_watch = _StopWatch(span)
    trainer = fit.make_trainer([stop_watch])
    if trainer.strategy.root_device.type == "cuda":
        # copies from page-locked memory are the fastest
        pinned = tree_map_only(torch.Tensor, torch.Tensor.pin_memory, batch.batch)
        batch = replace(batch, batch=pinned)
    with _serving(fit.data, lambda: batch):
        trainer.fit(fit.model, datamodule=fit.data)
    return stop_watch.window()


def measure_both(fit: Fit, span: Timing) -> Measurement:
    """A fit as it is, without validation."""
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
    """Tells, batch by batch, where the measurement begins and ends."""

    def __init__(
        self, loader: Any, span: Timing, await_device: Callable[[], object] = lambda: None
    ) -> None:
        self._times: LoaderTimes = loader.times
        pool = getattr(loader, "pool", None)
        self._stock = 1 + getattr(pool, "lanes", 0) * getattr(pool, "prefetch_factor", 1)
        self._span, self._await_device = span, await_device
        self._first_at: float | None = None
        self._began: Measurement | None = None
        self._ended: Measurement | None = None

    def ends_with_this(self) -> bool:
        """Whether enough was measured; to be asked after each batch."""
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
        """What was measured between beginning and end."""
        assert self._began is not None  # it ended, see callers
        assert self._ended is not None
        earlier = self._began.stages
        stages = {name: spent - earlier[name] for name, spent in self._ended.stages.items()}
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
        return Measurement(totals, dict(times.stages))


class _StopWatch(pl.Callback):
    """Ends a fit when enough was measured."""

    def __init__(self, span: Timing) -> None:
        self._span = span
        self._meter: _Meter | None = None

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Find the loader; schedulers that wait for a validation's metric do without it."""
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
        """Look at the clock."""
        assert self._meter is not None  # on_train_start came first
        if self._meter.ends_with_this():
            trainer.should_stop = True

    def window(self) -> Measurement:
        """What was measured."""
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
    """Put another loader in the place of the data module's own; its hooks stay."""
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
