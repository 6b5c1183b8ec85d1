"""Fits of a monitor that need no network, and what callbacks have said."""

import logging
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from ignored_warnings import ignored_below
from toy import IGNORED

from lightning_shards import DataThroughputMonitor, Place, ShardLoader, SourceDescription
from lightning_shards.callbacks import throughput
from lightning_shards.measure.rates import TimeTotals
from lightning_shards.workers.inline import InlinePool

pytest_collection_modifyitems = ignored_below(
    __file__,
    *IGNORED,
    "The '.*_dataloader' does not have many workers",
    "You have overridden `on_after_batch_transfer`",
)


class Clock:
    """Stands still until it is told to go on."""

    now_s = 100.0

    def perf_counter(self) -> float:
        return self.now_s


class FakeFit:
    """Calls the hooks of a monitor as a fit does; its clock and its loader do as they are told."""

    def __init__(self, world_size: int = 1, pool: Any = None) -> None:
        self.clock = Clock()
        place = Place(0, world_size)
        source = SimpleNamespace(identity=dict, describe=lambda: SourceDescription("none", "none"))
        self.make_loader = lambda: ShardLoader(cast("Any", source), pool or InlinePool(), place)
        self.loader = self.make_loader()
        self.logged: list[tuple[int, dict[str, float]]] = []
        self.reported: list[str] = []
        self.gathered: list[TimeTotals] = []
        self.others: list[TimeTotals] = []
        self.monitor: Any = DataThroughputMonitor()
        self.trainer: Any = SimpleNamespace(
            fit_loop=SimpleNamespace(
                _combined_loader=SimpleNamespace(flattened=[self.loader]),
                epoch_loop=SimpleNamespace(_batches_that_stepped=0),
            ),
            _logger_connector=SimpleNamespace(should_update_logs=True),
            is_global_zero=True,
            loggers=[self],
            num_devices=world_size,
            world_size=world_size,
            distributed_sampler_kwargs={"num_replicas": world_size, "rank": 0},
            num_nodes=1,
            global_rank=0,
            strategy=SimpleNamespace(root_device=torch.device("cpu")),
        )

    def gather(self, own: TimeTotals) -> list[TimeTotals]:
        self.gathered.append(own)
        return [own, *self.others]

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        self.logged.append((step, metrics))

    def windows(self, name: str) -> list[float]:
        """The values that were logged on the way, of the one figure."""
        return [metrics[f"data/{name}"] for _, metrics in self.logged if f"data/{name}" in metrics]

    def run(self, name: str) -> float:
        """The value of the whole run, logged last."""
        return self.logged[-1][1][f"data/run/{name}"]

    def begin(self) -> None:
        self.monitor.on_train_start(self.trainer, None)
        self.begin_epoch()

    def begin_epoch(self) -> None:
        self.monitor.on_train_epoch_start(self.trainer, None)

    def reload(self) -> None:
        """Begin an epoch with another loader."""
        self.loader = self.make_loader()
        self.trainer.fit_loop._combined_loader.flattened = [self.loader]
        self.begin_epoch()

    def step(
        self,
        *,
        wait_s: float,
        busy_s: float,
        samples: int = 8,
        start_s: float = 0.0,
        transfer_s: float = 0.0,
        **stages_s: float,
    ) -> None:
        """One step: the loader is waited for, its batch is moved, then the trainer is busy."""
        times = self.loader.times
        self.clock.now_s += wait_s + start_s
        times.wait_s += wait_s
        times.start_s += start_s
        times.produce_s += wait_s
        times.handed_at = self.clock.now_s
        self.clock.now_s += transfer_s
        for stage, seconds in stages_s.items():
            times.stages[stage] += seconds
        times.samples += samples
        times.batches += 1
        self.monitor.on_train_batch_start(self.trainer, None, None, 0)
        self.clock.now_s += busy_s
        self.monitor.on_train_batch_end(self.trainer, None, None, None, 0)
        self.trainer.fit_loop.epoch_loop._batches_that_stepped += 1

    def validate(self, seconds: float) -> None:
        self.monitor.on_validation_start(self.trainer, None)
        self.clock.now_s += seconds
        self.monitor.on_validation_end(self.trainer, None)

    def end(self) -> None:
        self.monitor.on_train_end(self.trainer, None)


@pytest.fixture
def make_fit(monkeypatch: pytest.MonkeyPatch) -> Callable[..., FakeFit]:
    """A fit of a monitor with a world size and a pool; nothing runs but its hooks."""

    def made(world_size: int = 1, pool: Any = None) -> FakeFit:
        fit = FakeFit(world_size, pool)
        monkeypatch.setattr(throughput, "time", fit.clock)
        monkeypatch.setattr(throughput, "rank_zero_info", fit.reported.append)
        monkeypatch.setattr(throughput, "gather", fit.gather)
        return fit

    return made


@pytest.fixture
def fake_fit(make_fit: Callable[..., FakeFit]) -> FakeFit:
    """A fit of one rank, whose own thread makes the batches."""
    return make_fit()


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[], dict[str, str]]:
    """The lines of `EpochDigest`, by what they are about."""
    caplog.set_level(logging.INFO)
    pattern = re.compile(r"(epoch \d+|validation|test|prediction): (\d.*)")
    return lambda: {
        match[1]: match[2] for match in map(pattern.fullmatch, caplog.messages) if match
    }
