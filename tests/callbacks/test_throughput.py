"""Who waits for whom: the arithmetic, the clock, what is logged, and the verdict."""

import logging
import math
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.loggers.logger import Logger
from torch import nn
from torch.utils.data import DataLoader

from lightning_shards import (
    DataThroughputMonitor,
    LoaderConfig,
    ShardDataModule,
    ShardLoader,
    SplitConfig,
)
from lightning_shards.callbacks import throughput
from lightning_shards.callbacks.throughput import Measured, Throughput

pytestmark = pytest.mark.filterwarnings(  # lightning/pytorch/utilities/_pytree.py, torch 2.13
    "ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning"
)

METRICS = {
    "data/samples_per_s",
    "data/loader_samples_per_s",
    "data/trainer_samples_per_s",
    "data/wait_fraction",
}

# --- arithmetic -----------------------------------------------------------------------------------


def test_what_was_added_since_an_earlier_measurement_is_the_difference() -> None:
    earlier = Measured(samples=10, wall_s=1, wait_s=0.5, produce_s=2)
    now = Measured(samples=30, wall_s=4, wait_s=1, produce_s=9)
    assert now.since(earlier) == Measured(samples=20, wall_s=3, wait_s=0.5, produce_s=7)
    assert now.since(now) == Measured()


def test_rates_are_of_the_whole_job() -> None:
    """100 samples in 10 s of which 4 s were waited, 20 s of workers; 3 ranks of 2 workers."""
    rates = Throughput(Measured(100, 10, 4, 20), num_workers=2, world_size=3)
    assert rates.trained == 30
    assert rates.trainer == 50
    assert rates.loader == 30
    assert rates.wait_fraction == 0.4


def test_metrics_have_the_names_that_loggers_show() -> None:
    rates = Throughput(Measured(100, 10, 4, 20), num_workers=2, world_size=3)
    assert rates.metrics() == {
        "data/samples_per_s": 30,
        "data/loader_samples_per_s": 30,
        "data/trainer_samples_per_s": 50,
        "data/wait_fraction": 0.4,
    }


def test_a_loader_that_gives_less_than_the_trainer_takes_is_named() -> None:
    verdict = Throughput(Measured(100, 10, 8, 20), num_workers=2, world_size=1).verdict()
    assert verdict == (
        "data throughput: loader-bound: the trainer could take 5.0x what the loader gives "
        "(trained 10 samples/s, loader alone 10, trainer alone 50, waited for data 80.0% of the "
        "time)"
    )


def test_a_trainer_that_takes_less_than_the_loader_gives_is_named() -> None:
    verdict = Throughput(Measured(100, 10, 0, 5), num_workers=2, world_size=1).verdict()
    assert verdict == (
        "data throughput: trainer-bound: the loader could give 4.0x what the trainer takes "
        "(trained 10 samples/s, loader alone 40, trainer alone 10, waited for data 0.0% of the "
        "time)"
    )


@pytest.mark.parametrize(
    "measured",
    [Measured(), Measured(samples=8), Measured(8, 1, 1, 1), Measured(8, 1, 0, 0)],
    ids=["nothing", "no time", "all time waited", "no work"],
)
def test_zeros_give_finite_rates_and_a_verdict(measured: Measured) -> None:
    rates = Throughput(measured, num_workers=2, world_size=2)
    assert all(math.isfinite(value) and value >= 0 for value in rates.metrics().values())
    if measured.samples:  # the monitor reports no others
        assert rates.verdict().startswith("data throughput: ")


# --- the clock ------------------------------------------------------------------------------------


class Clock:
    """Stands still until it is told to go on."""

    now_s = 100.0

    def perf_counter(self) -> float:
        return self.now_s


class FakeFit:
    """Calls the hooks of a monitor as a fit does; its clock and its loader do as they are told."""

    def __init__(self, loader: ShardLoader, clock: Clock) -> None:
        self.loader, self.clock = loader, clock
        self.logged: list[tuple[int, dict[str, float]]] = []
        self.reported: list[str] = []
        self.monitor: Any = DataThroughputMonitor()
        self.trainer: Any = SimpleNamespace(
            fit_loop=SimpleNamespace(
                _combined_loader=SimpleNamespace(flattened=[loader]),
                epoch_loop=SimpleNamespace(_batches_that_stepped=0),
            ),
            _logger_connector=SimpleNamespace(should_update_logs=True),
            is_global_zero=True,
            loggers=[self],
            strategy=SimpleNamespace(
                root_device=torch.device("cpu"), reduce=lambda sums, **_: sums
            ),
        )

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        self.logged.append((step, metrics))

    def begin(self) -> None:
        self.monitor.on_train_start(self.trainer, None)

    def step(self, *, wait_s: float, busy_s: float, samples: int, start_s: float = 0.0) -> None:
        """One step: the loader is waited for, then the trainer is busy."""
        times = self.loader.times
        self.clock.now_s += wait_s + start_s + busy_s
        times.wait_s += wait_s
        times.start_s += start_s
        times.produce_s += wait_s
        times.samples += samples
        times.batches += 1
        self.monitor.on_train_batch_end(self.trainer, None, None, None, 0)
        self.trainer.fit_loop.epoch_loop._batches_that_stepped += 1

    def validate(self, seconds: float) -> None:
        self.monitor.on_validation_start(self.trainer, None)
        self.clock.now_s += seconds
        self.monitor.on_validation_end(self.trainer, None)

    def end(self) -> None:
        self.monitor.on_train_end(self.trainer, None)


@pytest.fixture
def make_data(
    pack_shards: Callable[..., list[str]], tmp_path: Path
) -> Callable[..., ShardDataModule]:
    def made(**options: Any) -> ShardDataModule:
        defaults: dict[str, Any] = {
            "train": SplitConfig(pack_shards([5, 9, 6], "train")),
            "val": SplitConfig(pack_shards([3, 4], "val")),
            "fields": {"image": "png", "label": "cls"},
            "decode": {"image": "gray"},
            "batch_size": 2,
            "num_workers": 0,
            "loader": LoaderConfig(cache_dir=str(tmp_path / "cache")),
        }
        return ShardDataModule(**(defaults | options))

    return made


@pytest.fixture
def fake_fit(make_data: Callable[..., ShardDataModule], monkeypatch: pytest.MonkeyPatch) -> FakeFit:
    clock = Clock()
    monkeypatch.setattr(throughput, "time", clock)
    fit = FakeFit(make_data().loader("train"), clock)
    monkeypatch.setattr(throughput, "rank_zero_info", fit.reported.append)
    return fit


def test_the_clock_starts_after_the_first_batch_which_starts_workers_and_compiles(
    fake_fit: FakeFit,
) -> None:
    fake_fit.begin()
    fake_fit.step(wait_s=0, busy_s=50, samples=2, start_s=30)
    assert fake_fit.logged == []
    fake_fit.step(wait_s=1, busy_s=3, samples=8)
    assert fake_fit.logged[0][1]["data/samples_per_s"] == pytest.approx(2)
    assert fake_fit.logged[0][1]["data/wait_fraction"] == pytest.approx(0.25)


def test_each_log_is_of_the_time_since_the_one_before(fake_fit: FakeFit) -> None:
    fake_fit.begin()
    fake_fit.step(wait_s=0, busy_s=1, samples=2)
    for wait_s in (1, 3):
        fake_fit.step(wait_s=wait_s, busy_s=1, samples=8)
    assert [step for step, _ in fake_fit.logged] == [1, 2]
    fractions = [metrics["data/wait_fraction"] for _, metrics in fake_fit.logged]
    assert fractions == pytest.approx([0.5, 0.75])
    trainer = [metrics["data/trainer_samples_per_s"] for _, metrics in fake_fit.logged]
    assert trainer == pytest.approx([8, 8])


def test_validation_is_not_counted(fake_fit: FakeFit) -> None:
    fake_fit.begin()
    fake_fit.validate(1000)  # as the sanity check, or before the first step of a resumed fit
    fake_fit.step(wait_s=0, busy_s=1, samples=2)
    fake_fit.validate(1000)
    fake_fit.step(wait_s=1, busy_s=1, samples=8)
    fake_fit.validate(1000)
    fake_fit.step(wait_s=1, busy_s=1, samples=8)
    fake_fit.validate(1000)
    fake_fit.end()
    assert [m["data/samples_per_s"] for _, m in fake_fit.logged] == pytest.approx([4, 4])
    assert "trained 4 samples/s" in fake_fit.reported[0]


def test_workers_that_start_again_are_not_counted(fake_fit: FakeFit) -> None:
    fake_fit.begin()
    fake_fit.step(wait_s=0, busy_s=1, samples=2)
    fake_fit.step(wait_s=1, busy_s=1, samples=8, start_s=1000)
    assert fake_fit.logged[0][1]["data/samples_per_s"] == pytest.approx(4)
    assert fake_fit.logged[0][1]["data/wait_fraction"] == pytest.approx(0.5)


def test_the_report_is_of_the_whole_run_whatever_was_logged(fake_fit: FakeFit) -> None:
    fake_fit.begin()
    fake_fit.step(wait_s=0, busy_s=1, samples=2)
    fake_fit.step(wait_s=1, busy_s=1, samples=8)
    fake_fit.step(wait_s=5, busy_s=1, samples=8)
    fake_fit.end()
    [line] = fake_fit.reported
    assert "loader-bound: the trainer could take 3.0x what the loader gives" in line
    assert "waited for data 75.0% of the time" in line


def test_the_report_is_the_mean_over_ranks(fake_fit: FakeFit) -> None:
    """The other rank was as far, and waited three times as long: its trainer is faster."""
    fake_fit.trainer.strategy.reduce = lambda sums, reduce_op: (
        (sums + sums * torch.tensor([1.0, 1.0, 3.0, 1.0])) / 2 if reduce_op == "mean" else None
    )
    fake_fit.begin()
    fake_fit.step(wait_s=0, busy_s=1, samples=2)
    fake_fit.step(wait_s=1, busy_s=3, samples=8)
    fake_fit.end()
    assert "waited for data 50.0% of the time" in fake_fit.reported[0]


def test_other_ranks_than_0_log_nothing_but_take_part_in_the_report(fake_fit: FakeFit) -> None:
    fake_fit.trainer.is_global_zero = False
    fake_fit.begin()
    fake_fit.step(wait_s=0, busy_s=1, samples=2)
    fake_fit.step(wait_s=1, busy_s=1, samples=8)
    fake_fit.end()
    assert fake_fit.logged == []
    assert len(fake_fit.reported) == 1  # rank_zero_info, which says nothing on another rank


def test_a_fit_of_one_step_has_nothing_to_report(fake_fit: FakeFit) -> None:
    fake_fit.begin()
    fake_fit.step(wait_s=0, busy_s=1, samples=2)
    fake_fit.end()
    assert (fake_fit.logged, fake_fit.reported) == ([], [])


def test_a_second_fit_begins_to_measure_anew(fake_fit: FakeFit) -> None:
    for wait_s in (9, 0):
        fake_fit.begin()
        fake_fit.step(wait_s=0, busy_s=1, samples=2)
        fake_fit.step(wait_s=wait_s, busy_s=1, samples=8)
        fake_fit.end()
    assert "waited for data 90.0% of the time" in fake_fit.reported[0]
    assert "waited for data 0.0% of the time" in fake_fit.reported[1]


# --- real fits ------------------------------------------------------------------------------------


class FakeLogger(Logger):
    """Keeps what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.given: list[tuple[int | None, dict[str, float]]] = []

    @property
    def name(self) -> str:
        return "fake"

    @property
    def version(self) -> int:
        return 0

    def log_hyperparams(self, *arguments: Any, **options: Any) -> None:
        pass

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.given.append((step, metrics))

    def steps(self, name: str) -> list[int | None]:
        return [step for step, metrics in self.given if name in metrics]

    def values(self, name: str) -> list[float]:
        return [metrics[name] for _, metrics in self.given if name in metrics]


class Net(pl.LightningModule):
    """Logs its loss, takes its time, and notes all that is logged through itself."""

    def __init__(self, step_s: float = 0.0, val_s: float = 0.0) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 10)
        self.step_s, self.val_s = step_s, val_s
        self.logged: set[str] = set()

    def log(self, name: str, *arguments: Any, **options: Any) -> None:
        self.logged.add(name)
        super().log(name, *arguments, **options)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        time.sleep(self.step_s)
        images, labels = (batch["image"], batch["label"]) if isinstance(batch, dict) else batch
        loss = nn.functional.cross_entropy(self.layer(images.flatten(1).float()), labels)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        time.sleep(self.val_s)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.01)


def slowly(label: int) -> int:
    time.sleep(0.02)
    return label


def fit(model: Net, data: Any, **options: Any) -> FakeLogger:
    logger = FakeLogger()
    defaults: dict[str, Any] = {"max_epochs": 2, "log_every_n_steps": 4}
    pl.Trainer(
        accelerator="cpu",
        devices=1,
        callbacks=[DataThroughputMonitor()],
        logger=logger,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **(defaults | options),
    ).fit(model, data)
    return logger


def reports(caplog: pytest.LogCaptureFixture) -> list[str]:
    lines = [record.getMessage() for record in caplog.records]
    return [line for line in lines if line.startswith("data throughput: ")]


@pytest.mark.parametrize("accumulated", [1, 3])
@pytest.mark.parametrize("every", [2, 4])
def test_the_four_figures_are_logged_when_and_where_the_module_logs_its_own(
    every: int, accumulated: int, make_data: Callable[..., ShardDataModule]
) -> None:
    model = Net()
    logger = fit(model, make_data(), log_every_n_steps=every, accumulate_grad_batches=accumulated)
    for name in METRICS:
        assert set(logger.steps(name)) == set(logger.steps("loss"))
    assert logger.steps("loss")
    assert model.logged == {"loss"}  # a self.log a step would cost more than the step


def test_every_figure_is_in_its_range(make_data: Callable[..., ShardDataModule]) -> None:
    logger = fit(Net(), make_data(), log_every_n_steps=1)
    for name in METRICS:
        assert len(logger.values(name)) == 19  # all but the first step
        assert all(math.isfinite(value) and value >= 0 for value in logger.values(name))
    assert all(value <= 1 for value in logger.values("data/wait_fraction"))


def test_a_slow_loader_is_judged_loader_bound(
    make_data: Callable[..., ShardDataModule], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        logger = fit(Net(), make_data(transforms={"label": slowly}))
    [line] = reports(caplog)
    assert "loader-bound: the trainer could take" in line
    assert logger.values("data/wait_fraction")[-1] > 0.5
    loader, trainer = (
        logger.values(f"data/{side}_samples_per_s")[-1] for side in ("loader", "trainer")
    )
    assert trainer > loader
    assert loader < 50  # it sleeps 20 ms a sample


def test_a_slow_model_is_judged_trainer_bound(
    make_data: Callable[..., ShardDataModule], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        logger = fit(Net(step_s=0.05), make_data())
    [line] = reports(caplog)
    assert "trainer-bound: the loader could give" in line
    assert logger.values("data/wait_fraction")[-1] < 0.5
    assert logger.values("data/trainer_samples_per_s")[-1] < 40  # 2 samples in 50 ms


def test_workers_make_the_waiting_short_and_the_verdict_stays_the_workers_own(
    make_data: Callable[..., ShardDataModule], caplog: pytest.LogCaptureFixture
) -> None:
    """A worker makes a batch in 40 ms, the model takes 150: nobody waits for the worker."""
    loader = LoaderConfig(multiprocessing_context="fork")
    data = make_data(transforms={"label": slowly}, num_workers=1, loader=loader)
    with caplog.at_level(logging.INFO):
        logger = fit(Net(step_s=0.15), data, max_epochs=1)
    [line] = reports(caplog)
    assert "trainer-bound" in line
    assert logger.values("data/loader_samples_per_s")[-1] < 50  # it sleeps 20 ms a sample
    assert logger.values("data/wait_fraction")[-1] < 0.3


def test_time_in_validation_is_not_time_in_training(
    make_data: Callable[..., ShardDataModule], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        # 10 validations of 4 steps of 50 ms, and as many train steps that take about nothing
        fit(
            Net(val_s=0.05), make_data(), max_epochs=1, val_check_interval=1, num_sanity_val_steps=0
        )
    [line] = reports(caplog)
    trained = float(line.split("trained ")[1].split(" samples/s")[0].replace(",", ""))
    assert trained > 3 * 2 / 0.2  # with its validation a step of 2 samples takes 0.2 s


@pytest.mark.filterwarnings("ignore:The 'train_dataloader' does not have many workers")
@pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no `val_dataloader`")
def test_a_foreign_loader_is_not_measured(caplog: pytest.LogCaptureFixture) -> None:
    items: Any = [(torch.zeros(16), 1)] * 8
    with caplog.at_level(logging.INFO):
        logger = fit(Net(), DataLoader(items, batch_size=2))
    assert reports(caplog) == []
    assert {name for _, metrics in logger.given for name in metrics} == {"loss", "epoch"}
