"""Who waits for whom: when the clock runs, what is logged, and what ranks tell each other."""

import copy
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from lightning_shards import DataThroughputMonitor, Place, ShardLoader
from lightning_shards.callbacks import starvation, throughput
from lightning_shards.workers.inline import InlinePool
from lightning_shards.workers.processes import ProcessPool


class Clock:
    """Stands still until it is told to go on."""

    now_s = 100.0

    def perf_counter(self) -> float:
        return self.now_s


class FakeFit:
    """Calls the hooks of a monitor as a fit does; its clock and its loader do as they are told."""

    def __init__(self, clock: Clock, world_size: int = 1, pool: Any = None) -> None:
        self.clock = clock
        place = Place(0, world_size)
        self.loader = ShardLoader(cast("Any", None), pool or InlinePool(), place)
        self.logged: list[tuple[int, dict[str, float]]] = []
        self.reported: list[str] = []
        self.gathered: list[torch.Tensor] = []
        self.others: list[torch.Tensor] = []
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
            strategy=SimpleNamespace(root_device=torch.device("cpu"), all_gather=self.all_gather),
        )

    def all_gather(self, own: torch.Tensor) -> torch.Tensor:
        """As one device does, or as several ranks do."""
        self.gathered.append(own)
        return torch.stack([own, *self.others]) if self.others else own

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

    def step(
        self,
        *,
        wait_s: float,
        busy_s: float,
        samples: int = 8,
        start_s: float = 0.0,
        forward_s: float = 0.0,
    ) -> None:
        """One step: the loader is waited for, then the trainer is busy."""
        times = self.loader.times
        self.clock.now_s += wait_s + start_s
        times.wait_s += wait_s
        times.start_s += start_s
        times.produce_s += wait_s
        times.samples += samples
        times.batches += 1
        self.monitor.on_train_batch_start(self.trainer, None, None, 0)
        self.clock.now_s += forward_s
        self.monitor.on_before_backward(self.trainer, None, None)
        self.clock.now_s += busy_s - forward_s
        self.monitor.on_train_batch_end(self.trainer, None, None, None, 0)
        self.trainer.fit_loop.epoch_loop._batches_that_stepped += 1

    def validate(self, seconds: float) -> None:
        self.monitor.on_validation_start(self.trainer, None)
        self.clock.now_s += seconds
        self.monitor.on_validation_end(self.trainer, None)

    def end(self) -> None:
        self.monitor.on_train_end(self.trainer, None)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(throughput, "time", clock)
    monkeypatch.setattr(starvation, "time", clock)
    return clock


@pytest.fixture
def make_fit(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Any:
    def made(world_size: int = 1, pool: Any = None) -> FakeFit:
        fit = FakeFit(clock, world_size, pool)
        monkeypatch.setattr(throughput, "rank_zero_info", fit.reported.append)
        return fit

    return made


@pytest.fixture
def fake_fit(make_fit: Any) -> FakeFit:
    return make_fit()


# --- the clock ------------------------------------------------------------------------------------


def test_the_clock_starts_after_the_first_batch_which_starts_workers_and_compiles(
    fake_fit: FakeFit,
) -> None:
    fake_fit.begin()
    fake_fit.step(wait_s=0, busy_s=50, samples=2, start_s=30)
    assert fake_fit.logged == []
    fake_fit.step(wait_s=1, busy_s=3)
    assert fake_fit.windows("samples_per_s") == [pytest.approx(2)]
    assert fake_fit.windows("wait_fraction") == [pytest.approx(0.25)]


def test_each_log_is_of_the_time_since_the_one_before(fake_fit: FakeFit) -> None:
    fake_fit.begin()
    fake_fit.step(wait_s=0, busy_s=1)
    for wait_s in (1, 3):
        fake_fit.step(wait_s=wait_s, busy_s=1)
    assert [step for step, _ in fake_fit.logged] == [1, 2]
    assert fake_fit.windows("wait_fraction") == pytest.approx([0.5, 0.75])
    assert fake_fit.windows("trainer_samples_per_s") == pytest.approx([8, 8])


def test_validation_is_not_counted(fake_fit: FakeFit) -> None:
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
    assert row(fake_fit, "trained, samples/s") == ["4", "4"]


def test_workers_that_start_again_are_not_counted(fake_fit: FakeFit) -> None:
    fake_fit.begin()
    fake_fit.step(wait_s=0, busy_s=1)
    fake_fit.step(wait_s=1, busy_s=1, start_s=1000)
    assert fake_fit.windows("samples_per_s") == [pytest.approx(4)]
    assert fake_fit.windows("wait_fraction") == [pytest.approx(0.5)]


def test_what_the_clock_of_the_device_saw_is_what_the_trainer_lost(
    fake_fit: FakeFit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device that had work queued in each second step."""

    class Clock(starvation.HostClock):
        def batch_came(self, waited_s: float) -> None:
            super().batch_came(waited_s / 2)

    monkeypatch.setattr(throughput, "make_clock", lambda _device: Clock())
    fake_fit.trainer.strategy.root_device = SimpleNamespace(type="cuda")
    fake_fit.begin()
    fake_fit.step(wait_s=0, busy_s=1)
    fake_fit.step(wait_s=4, busy_s=4)
    assert fake_fit.windows("wait_fraction") == [0.5]
    assert fake_fit.windows("starved_fraction") == [0.25]
    assert fake_fit.windows("trainer_samples_per_s") == [pytest.approx(8 / 6)]


# --- the report -----------------------------------------------------------------------------------


def row(fit: FakeFit, name: str) -> list[str]:
    """The values in one row of the table."""
    [found] = [line for line in fit.reported[-1].splitlines() if line.strip().startswith(name)]
    return found.replace(name, "").split()


def test_the_report_is_of_the_whole_run_and_of_its_last_epoch(fake_fit: FakeFit) -> None:
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
    assert row(fake_fit, "waited for data") == ["75.0%", "83.3%"]
    assert row(fake_fit, "headroom") == ["3.0x", "5.0x"]
    assert row(fake_fit, "trained, samples/s") == ["2", "1"]


def test_the_last_epoch_has_a_column_of_its_own_only_where_it_is_not_the_whole_run(
    fake_fit: FakeFit,
) -> None:
    fake_fit.begin()
    fake_fit.step(wait_s=0, busy_s=1)
    fake_fit.step(wait_s=3, busy_s=1)
    fake_fit.end()
    assert row(fake_fit, "waited for data") == ["75.0%"]
    assert "last epoch" not in fake_fit.reported[0]


def test_the_figures_of_the_whole_run_are_logged_at_its_end(fake_fit: FakeFit) -> None:
    fake_fit.begin()
    fake_fit.step(wait_s=0, busy_s=1)
    fake_fit.step(wait_s=1, busy_s=1)
    fake_fit.step(wait_s=5, busy_s=1)
    fake_fit.end()
    step, metrics = fake_fit.logged[-1]
    assert step == 3
    assert metrics == {
        "data/run/samples_per_s": pytest.approx(2),
        "data/run/loader_samples_per_s": pytest.approx(16 / 6),
        "data/run/trainer_samples_per_s": pytest.approx(8),
        "data/run/wait_fraction": pytest.approx(0.75),
    }


@pytest.mark.parametrize(
    ("pool", "said"),
    [
        (InlinePool(), "to 4 (now 0: the trainer's own thread makes the batches)"),
        (ProcessPool(2, start_method="fork"), "to 4, all cores of a rank (now 2; 18 would do)"),
    ],
)
def test_the_change_to_make_knows_the_workers_and_the_cores_of_a_rank(
    make_fit: Any, monkeypatch: pytest.MonkeyPatch, pool: Any, said: str
) -> None:
    """The trainer takes in 1 s what the loader gives in 9 s."""
    monkeypatch.setattr(throughput, "_count_cores", lambda: 13)
    fit = make_fit(3, pool)
    fit.begin()
    fit.step(wait_s=0, busy_s=1)
    fit.loader.times.produce_s += (pool.num_workers - 1) * 9
    fit.step(wait_s=9, busy_s=1)
    fit.end()
    assert fit.reported[0].endswith(f"to change: set num_workers {said}")


def other_rank(own: torch.Tensor, wait_s: float = 0.0, forward_s: float = 0.0) -> torch.Tensor:
    """As far as this one, but with another wait and forward pass."""
    other = own.clone()
    other[:, 3:5], other[:, 6] = wait_s, forward_s
    return other


def fit_of_three(fit: FakeFit, **second: float) -> FakeFit:
    """Rank 0 waits 1 s and is in its forward pass for 1 s, of 10 s."""
    fit.begin()
    fit.step(wait_s=0, busy_s=1)
    fit.step(wait_s=1, busy_s=9, forward_s=1)
    probe = copy.copy(fit.monitor)
    probe.on_train_end(fit.trainer, None)
    own = fit.gathered.pop()
    fit.logged.clear()
    fit.reported.clear()
    fit.others = [other_rank(own, 1, 1), other_rank(own, **second)]
    fit.end()
    return fit


def test_the_rank_that_holds_all_others_by_its_loader_is_named(make_fit: Any) -> None:
    fit = fit_of_three(make_fit(3), wait_s=5, forward_s=1)
    assert "slowest rank: rank 2 holds all others by its loader: it waited" in fit.reported[0]
    assert "50.0% of the time, the median rank 10.0%" in fit.reported[0]
    assert fit.run("slowest_rank") == 2
    assert fit.run("wait_fraction") == pytest.approx(0.5)  # all of them are held by it
    assert fit.run("trainer_samples_per_s") == pytest.approx(3 * 8 / 5)


def test_the_rank_that_holds_all_others_by_its_forward_pass_is_named(make_fit: Any) -> None:
    fit = fit_of_three(make_fit(3), wait_s=1, forward_s=4)
    assert "slowest rank: rank 2 holds all others by its forward pass" in fit.reported[0]
    assert "40.0% of the time, the median rank's 10.0%" in fit.reported[0]


def test_ranks_that_are_alike_have_no_slowest_one(make_fit: Any) -> None:
    fit = fit_of_three(make_fit(3), wait_s=1, forward_s=1)
    assert "slowest rank:" not in fit.reported[0]
    assert "data/run/slowest_rank" not in fit.logged[-1][1]
    assert row(fit, "slowest rank, if over 5%") == ["none"]


def test_ranks_exchange_their_figures_once(make_fit: Any) -> None:
    fit = fit_of_three(make_fit(3), wait_s=1, forward_s=1)
    assert [gathered.shape for gathered in fit.gathered] == [(2, 7)]


def test_other_ranks_than_0_say_nothing_but_take_part_in_the_report(make_fit: Any) -> None:
    fit = make_fit(3)
    fit.trainer.is_global_zero = False
    fit.begin()
    fit.step(wait_s=0, busy_s=1)
    fit.step(wait_s=1, busy_s=1)
    fit.end()
    assert (fit.logged, fit.reported) == ([], [])
    assert len(fit.gathered) == 1


def test_a_fit_of_one_step_has_nothing_to_report(fake_fit: FakeFit) -> None:
    fake_fit.begin()
    fake_fit.step(wait_s=0, busy_s=1)
    fake_fit.end()
    assert (fake_fit.logged, fake_fit.reported) == ([], [])


def test_a_second_fit_begins_to_measure_anew(fake_fit: FakeFit) -> None:
    for wait_s in (9, 0):
        fake_fit.begin()
        fake_fit.step(wait_s=0, busy_s=1)
        fake_fit.step(wait_s=wait_s, busy_s=1)
        fake_fit.end()
    assert "waited for data 90.0% of the time" in fake_fit.reported[0]
    assert "waited for data 0.0% of the time" in fake_fit.reported[1]
    assert row(fake_fit, "waited for data") == ["0.0%"]


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
