"""What the monitor says and logs at the end of a fit, and what ranks tell each other for it."""

import copy
from typing import Any

import pytest
import torch

from lightning_shards import DataThroughputMonitor
from lightning_shards.callbacks import throughput
from lightning_shards.workers.inline import InlinePool
from lightning_shards.workers.processes import ProcessPool


def test_the_report_is_of_the_whole_run(fake_fit: Any) -> None:
    fake_fit.begin()
    fake_fit.step(wait_s=0, busy_s=1)
    fake_fit.step(wait_s=1, busy_s=1)
    for wait_s in (3, 5):
        fake_fit.begin_epoch()
        fake_fit.step(wait_s=wait_s, busy_s=1)
    fake_fit.end()
    [report] = fake_fit.reported
    assert "loader-bound: the trainer could take 3.0x what the loader gives" in report
    assert "waited for data 75.0% of the time" in report
    assert fake_fit.row("waited for data") == ["75.0%"]
    assert fake_fit.row("headroom") == ["3.0x"]
    assert fake_fit.row("trained, samples/s") == ["2"]


@pytest.mark.parametrize("has_loggers", [True, False])
@pytest.mark.parametrize("steps", [2, 3, 4, 5])
def test_a_plot_has_all_windows_and_what_came_after_the_last_log(
    make_fit: Any, monkeypatch: pytest.MonkeyPatch, steps: int, *, has_loggers: bool
) -> None:
    """Steps are logged by twos, and the first one is not measured."""
    plotted: list[float] = []
    monkeypatch.setattr(
        throughput,
        "save_plot",
        lambda _, windows: plotted.extend(filter(None, (each.batches for each in windows))),
    )
    fit = make_fit()
    fit.monitor = DataThroughputMonitor(plot="wait.png")
    if not has_loggers:
        fit.trainer.loggers = []
    fit.begin()
    for step in range(steps):
        fit.trainer._logger_connector.should_update_logs = step % 2 == 0
        fit.step(wait_s=1, busy_s=1)
    fit.end()
    assert plotted == {2: [1], 3: [2], 4: [2, 1], 5: [2, 2]}[steps]


def test_the_figures_of_the_whole_run_are_logged_at_its_end(fake_fit: Any) -> None:
    fake_fit.begin()
    fake_fit.step(wait_s=0, busy_s=1)
    fake_fit.step(wait_s=1, busy_s=1)
    fake_fit.step(wait_s=5, busy_s=0.5, transfer_s=0.5, decode=3, read=1)
    fake_fit.end()
    step, metrics = fake_fit.logged[-1]
    assert step == 3
    assert metrics == {
        "data/run/samples_per_s": pytest.approx(2),
        "data/run/loader_samples_per_s": pytest.approx(16 / 6),
        "data/run/trainer_samples_per_s": pytest.approx(8),
        "data/run/wait_fraction": pytest.approx(0.75),
        "data/run/transfer_fraction": pytest.approx(0.5 / 8),
        "data/run/loader_open_fraction": 0,
        "data/run/loader_read_fraction": pytest.approx(1 / 6),
        "data/run/loader_decode_fraction": pytest.approx(3 / 6),
        "data/run/loader_transform_fraction": 0,
        "data/run/loader_collate_fraction": 0,
        "data/run/loader_other_fraction": pytest.approx(2 / 6),
    }


@pytest.mark.parametrize(
    ("pool", "said"),
    [
        (
            InlinePool(),
            (
                "num_workers to 4, all cores of a rank: 9 would do (now 0: the trainer's own "
                "thread makes the batches)"
            ),
        ),
        (
            ProcessPool(2, start_method="fork"),
            "num_workers to 4, all cores of a rank: 18 would do (now 2)",
        ),
        (
            ProcessPool(1, start_method="fork", threads=2),
            "num_workers to 2, all cores of a rank: 9 would do (now 1)",
        ),
    ],
)
def test_the_change_to_make_knows_the_workers_and_the_cores_of_a_rank(
    make_fit: Any, monkeypatch: pytest.MonkeyPatch, pool: Any, said: str
) -> None:
    """The trainer takes in 1 s what the loader gives in 9 s."""
    monkeypatch.setattr(throughput, "num_cpus", lambda: 13)
    fit = make_fit(pool=pool)
    fit.trainer.num_devices = 3
    fit.begin()
    fit.step(wait_s=0, busy_s=1)
    for _ in range(20):
        fit.loader.times.produce_s += (pool.describe().num_producers - 1) * 9
        fit.step(wait_s=9, busy_s=1)
    fit.end()
    assert fit.reported[0].endswith(f"to change: set {said}")


def other_rank(own: torch.Tensor, number: int, wait_s: float) -> torch.Tensor:
    """As far as rank 0, but with another wait."""
    other = torch.zeros_like(own)
    other[number] = own[0]
    other[number, 3:5] = wait_s
    return other


def fit_of_three(fit: Any, wait_s: float) -> Any:
    """Ranks 0 and 1 wait 1 s of 10 s in 20 steps, and rank 2 waits so many."""
    fit.begin()
    fit.step(wait_s=0, busy_s=1)
    for _ in range(20):
        fit.step(wait_s=1 / 20, busy_s=9 / 20)
    probe = copy.copy(fit.monitor)
    probe.on_train_end(fit.trainer, None)
    own = fit.gathered.pop()
    fit.logged.clear()
    fit.reported.clear()
    fit.others = [other_rank(own, 1, 1), other_rank(own, 2, wait_s)]
    fit.end()
    return fit


def test_the_rank_that_holds_all_others_by_its_loader_is_named(make_fit: Any) -> None:
    fit = fit_of_three(make_fit(3), wait_s=5)
    assert "slowest rank: rank 2 holds all others by its loader: it waited" in fit.reported[0]
    assert "50.0% of the time, the median rank 10.0%" in fit.reported[0]
    assert fit.run("slowest_rank") == 2
    assert fit.run("wait_fraction") == pytest.approx(0.5)  # all of them are held by it
    assert fit.run("trainer_samples_per_s") == pytest.approx(3 * 20 * 8 / 5)


def test_other_ranks_than_0_say_nothing_but_take_part_in_the_report(make_fit: Any) -> None:
    fit = make_fit(3)
    fit.trainer.is_global_zero = False
    fit.begin()
    fit.step(wait_s=0, busy_s=1)
    fit.step(wait_s=1, busy_s=1)
    fit.end()
    assert (fit.logged, fit.reported) == ([], [])
    assert len(fit.gathered) == 1


def test_a_second_fit_begins_to_measure_anew(fake_fit: Any) -> None:
    for wait_s in (9, 0):
        fake_fit.begin()
        fake_fit.step(wait_s=0, busy_s=1)
        fake_fit.step(wait_s=wait_s, busy_s=1)
        fake_fit.end()
    assert "waited for data 90.0% of the time" in fake_fit.reported[0]
    assert "waited for data 0.0% of the time" in fake_fit.reported[1]
    assert fake_fit.row("waited for data") == ["0.0%"]


def test_ctrl_c_is_answered_by_rank_0_which_asks_no_other_rank(make_fit: Any) -> None:
    fit = make_fit(3)
    fit.begin()
    fit.step(wait_s=0, busy_s=1)
    fit.step(wait_s=1, busy_s=1)
    fit.monitor.on_validation_start(fit.trainer, None)
    fit.clock.now_s += 1000  # validation is where it ends
    fit.monitor.on_exception(fit.trainer, None, KeyboardInterrupt())
    [report] = fit.reported
    assert "waited for data 50.0% of the time" in report
    assert "these are the figures of rank 0 alone" in report
    assert fit.gathered == []


def test_a_rank_that_fails_says_nothing_and_asks_nobody(make_fit: Any) -> None:
    fit = make_fit(3)
    fit.begin()
    fit.step(wait_s=0, busy_s=1)
    fit.step(wait_s=1, busy_s=1)
    fit.monitor.on_exception(fit.trainer, None, ValueError("loss is nan"))
    fit.monitor.on_exception(fit.trainer, None, KeyboardInterrupt())  # of what comes after the fit
    assert (fit.reported, fit.gathered) == ([], [])
