"""Who waits for whom, in real fits: what is logged where, and what is said at the end."""

import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from lightning_shards import DataThroughputMonitor, LoaderConfig, ShardDataModule, SplitConfig
from tests.callbacks.quiet_fits import KeptMetrics, OneWeight, quiet_trainer

FIGURES = ("samples_per_s", "loader_samples_per_s", "trainer_samples_per_s", "wait_fraction")
METRICS = {f"data/{figure}" for figure in FIGURES}


Reports = Callable[[], list[str]]
MakeData = Callable[..., ShardDataModule]
Fit = Callable[..., KeptMetrics]


@pytest.fixture
def make_data(
    pack_shards: Callable[..., list[str]], tmp_path: Path
) -> Callable[..., ShardDataModule]:
    def made(**options: Any) -> ShardDataModule:
        defaults: dict[str, Any] = {
            "train": SplitConfig(pack_shards([5, 9, 6], "train")),
            "fields": {"label": "cls"},
            "batch_size": 2,
            "num_workers": 0,
            "loader": LoaderConfig(cache_dir=str(tmp_path / "cache")),
        }
        return ShardDataModule(**(defaults | options))

    return made


class Net(OneWeight):
    """Logs its loss, and notes all that is logged through itself."""

    def __init__(self) -> None:
        super().__init__()
        self.logged: set[str] = set()

    def log(self, name: str, *arguments: Any, **options: Any) -> None:
        self.logged.add(name)
        super().log(name, *arguments, **options)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss = super().training_step(batch, batch_idx)
        self.log("loss", loss)
        return loss


def slowly(label: int) -> int:
    time.sleep(0.02)
    return label


@pytest.fixture
def fit(tmp_path: Path) -> Fit:
    def fitted(model: Net, data: Any, **options: Any) -> KeptMetrics:
        logger = KeptMetrics()
        defaults: dict[str, Any] = {"max_epochs": 2, "log_every_n_steps": 4, "logger": logger}
        monitor = DataThroughputMonitor()
        quiet_trainer(tmp_path, [monitor], **(defaults | options)).fit(model, data)
        return logger

    return fitted


@pytest.fixture
def reports(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], list[str]]]:
    """What was said on data throughput, each time."""

    def said() -> list[str]:
        lines = [record.getMessage() for record in caplog.records]
        return [line for line in lines if "data throughput: " in line]

    with caplog.at_level(logging.INFO):
        yield said


# --- loggers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("accumulated", [1, 3])
@pytest.mark.parametrize("every", [2, 4])
def test_the_four_figures_are_logged_when_and_where_the_module_logs_its_own(
    every: int, accumulated: int, make_data: MakeData, fit: Fit
) -> None:
    model = Net()
    logger = fit(model, make_data(), log_every_n_steps=every, accumulate_grad_batches=accumulated)
    for name in METRICS:
        assert set(logger.steps(name)) == set(logger.steps("loss"))
    assert logger.steps("loss")
    assert model.logged == {"loss"}  # a self.log a step would cost more than the step


# --- the report -----------------------------------------------------------------------------------


def test_a_slow_loader_is_judged_loader_bound(
    make_data: MakeData, reports: Reports, fit: Fit
) -> None:
    logger = fit(Net(), make_data(transforms={"label": slowly}))
    [report] = reports()
    assert "loader-bound: the trainer could take" in report
    assert "to change: " not in report  # after 19 steps
    assert logger.values("data/run/wait_fraction")[-1] > 0.5
    loader, trainer = (
        logger.values(f"data/run/{side}_samples_per_s")[-1] for side in ("loader", "trainer")
    )
    assert trainer > loader
    assert loader < 50  # it sleeps 20 ms a sample
