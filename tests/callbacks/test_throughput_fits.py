"""Who waits for whom, in real fits: what is logged where, and what is said at the end."""

import logging
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from torch import nn

from lightning_shards import DataThroughputMonitor, LoaderConfig, ShardDataModule, SplitConfig
from tests.callbacks.kept_metrics import KeptMetrics

pytestmark = [
    pytest.mark.filterwarnings(  # lightning/pytorch/utilities/_pytree.py, torch 2.13
        "ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning"
    ),
    pytest.mark.usefixtures("held_fork_server"),
]

FIGURES = ("samples_per_s", "loader_samples_per_s", "trainer_samples_per_s", "wait_fraction")
METRICS = {f"data/{figure}" for figure in FIGURES}


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


class Interrupted(Net):
    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        if self.trainer.global_step == 7:
            raise KeyboardInterrupt
        return super().training_step(batch, batch_idx)


def slowly(label: int) -> int:
    time.sleep(0.02)
    return label


def fit(
    model: Net,
    data: Any,
    plot: str | None = None,
    callbacks: Sequence[pl.Callback] = (),
    **options: Any,
) -> KeptMetrics:
    logger = KeptMetrics()
    defaults: dict[str, Any] = {"max_epochs": 2, "log_every_n_steps": 4, "logger": logger}
    pl.Trainer(
        accelerator="cpu",
        devices=1,
        callbacks=[DataThroughputMonitor(plot=plot), *callbacks],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **(defaults | options),
    ).fit(model, data)
    return logger


@pytest.fixture
def reports(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], list[str]]]:
    """What was said on data throughput, each time."""

    def said() -> list[str]:
        lines = [record.getMessage() for record in caplog.records]
        return [line for line in lines if "data throughput: " in line]

    with caplog.at_level(logging.INFO):
        yield said


Reports = Callable[[], list[str]]
MakeData = Callable[..., ShardDataModule]

# --- loggers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("accumulated", [1, 3])
@pytest.mark.parametrize("every", [2, 4])
def test_the_four_figures_are_logged_when_and_where_the_module_logs_its_own(
    every: int, accumulated: int, make_data: MakeData
) -> None:
    model = Net()
    logger = fit(model, make_data(), log_every_n_steps=every, accumulate_grad_batches=accumulated)
    for name in METRICS:
        assert set(logger.steps(name)) == set(logger.steps("loss"))
    assert logger.steps("loss")
    assert model.logged == {"loss"}  # a self.log a step would cost more than the step


# --- the report -----------------------------------------------------------------------------------


def test_a_slow_loader_is_judged_loader_bound(make_data: MakeData, reports: Reports) -> None:
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


def test_a_slow_model_is_judged_trainer_bound(make_data: MakeData, reports: Reports) -> None:
    logger = fit(Net(step_s=0.05), make_data())
    [report] = reports()
    assert "trainer-bound: the loader could give" in report
    assert logger.values("data/run/wait_fraction")[-1] < 0.5
    assert logger.values("data/run/trainer_samples_per_s")[-1] < 40  # 2 samples in 50 ms


def test_workers_make_the_waiting_short_and_the_verdict_stays_the_workers_own(
    make_data: MakeData, reports: Reports
) -> None:
    """A worker makes a batch in 40 ms, the model takes 150: nobody waits for the worker."""
    loader = LoaderConfig(multiprocessing_context="fork")
    data = make_data(transforms={"label": slowly}, num_workers=1, loader=loader)
    logger = fit(Net(step_s=0.15), data, max_epochs=1)
    [report] = reports()
    assert "trainer-bound" in report
    assert logger.values("data/run/loader_samples_per_s")[-1] < 50  # it sleeps 20 ms a sample
    assert logger.values("data/run/wait_fraction")[-1] < 0.3


def test_a_plot_is_there_after_the_fit_whether_or_not_it_logs(
    make_data: MakeData, tmp_path: Path
) -> None:
    for logger in (KeptMetrics(), False):
        path = tmp_path / f"wait-{bool(logger)}.png"
        fit(Net(), make_data(), plot=str(path), logger=logger)
        assert path.read_bytes().startswith(b"\x89PNG")


def test_ctrl_c_ends_with_a_report_and_a_plot(
    make_data: MakeData, reports: Reports, tmp_path: Path
) -> None:
    on_sigint = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises(SystemExit):
            fit(Interrupted(), make_data(), plot=str(tmp_path / "wait.png"))
    finally:
        signal.signal(signal.SIGINT, on_sigint)  # Lightning has it ignored
    assert len(reports()) == 1
    assert (tmp_path / "wait.png").exists()
