"""When the clock of the monitor runs, and what is logged on the way."""

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lightning_shards import DataThroughputMonitor
from lightning_shards.callbacks import throughput
from lightning_shards.samples.stage_clock import ActorTotals
from lightning_shards.shards.storage.protocol import FetchTotals
from lightning_shards.workers.inline import InlinePool
from lightning_shards.workers.processes import ProcessPool


def test_the_clock_starts_after_the_first_batch_which_starts_workers_and_compiles(
    fake_fit: Any,
) -> None:
    fake_fit.begin()
    fake_fit.step(wait_s=0, busy_s=50, samples=2, start_s=30)
    assert fake_fit.logged == []
    fake_fit.step(wait_s=1, busy_s=3)
    assert fake_fit.windows("samples_per_s") == [pytest.approx(2)]
    assert fake_fit.windows("wait_fraction") == [pytest.approx(0.25)]


def test_each_log_is_of_the_time_since_the_one_before(fake_fit: Any) -> None:
    fake_fit.begin()
    fake_fit.step(wait_s=0, busy_s=1)
    for wait_s in (1, 3):
        fake_fit.step(wait_s=wait_s, busy_s=1)
    assert [step for step, _ in fake_fit.logged] == [1, 2]
    assert fake_fit.windows("wait_fraction") == pytest.approx([0.5, 0.75])
    assert fake_fit.windows("trainer_samples_per_s") == pytest.approx([8, 8])


def test_validation_is_not_counted(fake_fit: Any) -> None:
    fake_fit.begin()
    fake_fit.validate(1000)  # as the sanity check, or before the first step of a resumed fit
    fake_fit.step(wait_s=0, busy_s=1)
    fake_fit.validate(1000)
    fake_fit.step(wait_s=1, busy_s=1)
    fake_fit.validate(1000)
    fake_fit.begin_epoch()
    fake_fit.step(wait_s=1, busy_s=1)
    fake_fit.validate(1000)
    fake_fit.end()
    assert fake_fit.windows("samples_per_s") == pytest.approx([4, 4])
    assert fake_fit.run("samples_per_s") == pytest.approx(4)
    assert fake_fit.row("trained, samples/s") == ["4"]


def test_workers_that_start_again_are_not_counted(fake_fit: Any) -> None:
    fake_fit.begin()
    fake_fit.step(wait_s=0, busy_s=1)
    fake_fit.step(wait_s=1, busy_s=1, start_s=1000)
    assert fake_fit.windows("samples_per_s") == [pytest.approx(4)]
    assert fake_fit.windows("wait_fraction") == [pytest.approx(0.5)]


def test_a_loader_that_replaces_another_one_is_measured_from_its_second_batch_on(
    fake_fit: Any,
) -> None:
    fake_fit.begin()
    fake_fit.step(wait_s=0, busy_s=1)
    fake_fit.step(wait_s=1, busy_s=1, transfer_s=1, read=1)
    fake_fit.reload()
    fake_fit.step(wait_s=0, busy_s=9, samples=2, start_s=1000)
    fake_fit.step(wait_s=1, busy_s=1, samples=2, transfer_s=2, decode=1)
    fake_fit.end()
    assert fake_fit.windows("samples_per_s") == pytest.approx([8 / 3, 2 / 4])
    assert fake_fit.windows("wait_fraction") == pytest.approx([1 / 3, 1 / 4])
    assert fake_fit.windows("transfer_fraction") == pytest.approx([1 / 3, 1 / 2])
    assert fake_fit.run("samples_per_s") == pytest.approx(2 / 4)
    assert fake_fit.run("loader_decode_fraction") == pytest.approx(1)


def test_what_the_clock_of_the_device_saw_is_what_the_trainer_lost(
    make_fit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device that had work queued in each second step."""
    told: list[Any] = []

    class Clock:
        starved_s = 0.0

        def batch_came(self, waited_s: float) -> None:
            self.starved_s += waited_s / 2
            told.append(waited_s)

        def step_ended(self) -> None:
            told.append("step ended")

    monkeypatch.setattr(throughput, "WaitClock", lambda _device: Clock())
    fit = make_fit(1)
    fit.trainer.strategy.root_device = SimpleNamespace(type="cuda")
    fit.begin()
    fit.step(wait_s=2, busy_s=1)
    fit.step(wait_s=4, busy_s=4)
    assert told == [2, "step ended", 4, "step ended"]
    assert fit.windows("wait_fraction") == [0.5]
    assert fit.windows("starved_fraction") == [0.25]
    assert fit.windows("trainer_samples_per_s") == [pytest.approx(8 / 6)]


# --- the network


def fetch(fit: Any, *totals: float) -> None:
    """The batches that come now were fetched so."""
    times = fit.loader.times
    times.fetched = times.fetched.plus(FetchTotals(*totals))


def test_figures_of_the_network_are_logged_beside_the_others(fake_fit: Any) -> None:
    fake_fit.begin()
    fake_fit.step(wait_s=0, busy_s=1)
    fetch(fake_fit, 10, 1, 300, 400)
    fake_fit.step(wait_s=3, busy_s=1, fetch=2, decode=1)
    assert fake_fit.windows("fetched_bytes_per_s") == [75]
    assert fake_fit.windows("requests_per_s") == [2.5]
    assert fake_fit.windows("repeated_requests") == [1]
    assert fake_fit.windows("cached_fraction") == [0.25]
    assert fake_fit.windows("loader_fetch_fraction") == [pytest.approx(2 / 3)]
    fake_fit.step(wait_s=3, busy_s=1, decode=1)  # nothing in this window
    assert fake_fit.windows("cached_fraction") == [0.25]


def test_what_comes_from_actors_is_logged(fake_fit: Any) -> None:
    fake_fit.begin()
    fake_fit.step(wait_s=0, busy_s=1)
    times = fake_fit.loader.times
    times.received = times.received.plus(ActorTotals(400, 1, 2))
    fake_fit.step(wait_s=3, busy_s=1)
    assert fake_fit.windows("received_bytes_per_s") == [100]
    assert fake_fit.windows("actor_restarts") == [1]
    assert fake_fit.windows("remade_batches") == [2]
    fake_fit.end()
    assert "1 restart of actors, up to 2 batches made again" in fake_fit.reported[-1]


def test_a_line_of_the_report_is_of_all_ranks(make_fit: Any) -> None:
    fit = make_fit(2)
    fetch(fit, 1000, 0, 9e9, 9e9)  # by an earlier fit
    fit.begin()
    fit.step(wait_s=0, busy_s=1)
    fetch(fit, 965, 2, 6.15e9, 11.8e9)
    fit.step(wait_s=1, busy_s=1)

    def reduce(own: torch.Tensor, reduce_op: str) -> torch.Tensor:
        return own + own.flip(0)  # the other rank has fetched as much

    fit.trainer.strategy.reduce = reduce
    fit.end()
    assert (
        "fetched 12.3 GB in 1,930 requests (4 repeated), 48 % of 23.6 GB came from the cache"
    ) in fit.reported[-1].splitlines()


# --- the end of a fit


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
