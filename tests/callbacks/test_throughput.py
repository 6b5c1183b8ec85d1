"""When the clock of the monitor runs, and what is logged on the way."""

from typing import Any

import pytest
import torch

from lightning_shards.callbacks import throughput
from lightning_shards.measure.rates import TimeTotals
from lightning_shards.shards.storage.protocol import FetchTotals
from lightning_shards.workers.processes import ProcessPool


def begun(fit: Any) -> None:
    """Begin a fit, and take the first step, behind which the clock starts."""
    fit.begin()
    fit.step(wait_s=0, busy_s=1)


def test_the_clock_starts_after_the_first_batch_which_starts_workers_and_compiles(
    fake_fit: Any,
) -> None:
    fake_fit.begin()
    fake_fit.step(wait_s=0, busy_s=50, samples=2, start_s=30)
    assert fake_fit.logged == []
    fake_fit.step(wait_s=1, busy_s=3)
    assert fake_fit.windows("samples_per_s") == [pytest.approx(2)]
    assert fake_fit.windows("wait_fraction") == [pytest.approx(0.25)]


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


def test_a_loader_that_replaces_another_one_is_measured_from_its_second_batch_on(
    fake_fit: Any,
) -> None:
    begun(fake_fit)
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


class FakeEvent:
    """As a CUDA event: it is reached once the device has done what was queued before it."""

    is_reached = True

    def record(self) -> None:
        self.is_reached = False

    def query(self) -> bool:
        return self.is_reached


@pytest.mark.parametrize(("device", "lost_s"), [("cuda", 1010), ("cpu", 1111), ("mps", 1111)])
def test_a_cuda_device_has_lost_the_waits_at_whose_end_it_had_ended_its_step(
    make_fit: Any, monkeypatch: pytest.MonkeyPatch, device: str, lost_s: float
) -> None:
    event, fit = FakeEvent(), make_fit()
    monkeypatch.setattr("torch.cuda.Event", lambda: event)
    fit.trainer.strategy.root_device = torch.device(device)
    begun(fit)
    for step in range(4):
        event.is_reached = step in (1, 3)
        fit.step(wait_s=10.0**step, busy_s=1)
    fit.end()
    assert fit.run("trainer_samples_per_s") == pytest.approx(4 * 8 / (1111 + 4 - lost_s))


# --- the network


def test_figures_of_the_network_are_logged_beside_the_others(fake_fit: Any) -> None:
    begun(fake_fit)
    times = fake_fit.loader.times
    times.fetched = times.fetched.plus(FetchTotals(10, 1, 300, 400))
    fake_fit.step(wait_s=3, busy_s=1, fetch=2, decode=1)
    assert fake_fit.windows("fetched_bytes_per_s") == [75]
    assert fake_fit.windows("requests_per_s") == [2.5]
    assert fake_fit.windows("repeated_requests") == [1]
    assert fake_fit.windows("cached_fraction") == [0.25]
    assert fake_fit.windows("loader_fetch_fraction") == [pytest.approx(2 / 3)]
    fake_fit.step(wait_s=3, busy_s=1, decode=1)  # nothing in this window
    assert fake_fit.windows("cached_fraction") == [0.25]


# --- the end of a fit


def test_a_log_is_of_the_time_since_the_one_before_and_the_report_of_the_whole_run(
    fake_fit: Any,
) -> None:
    begun(fake_fit)
    for wait_s in (1, 3, 5):
        fake_fit.begin_epoch()
        fake_fit.step(wait_s=wait_s, busy_s=1)
    fake_fit.end()
    assert [step for step, _ in fake_fit.logged] == [1, 2, 3, 4]
    assert fake_fit.windows("wait_fraction") == pytest.approx([1 / 2, 3 / 4, 5 / 6])
    [report] = fake_fit.reported
    assert "loader-bound: the trainer could take 3.0x what the loader gives" in report
    assert "trained 2 samples/s" in report
    assert "waited for data 75.0% of the time" in report


def test_the_change_to_make_knows_the_workers_and_the_cores_of_a_rank(
    make_fit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trainer takes in 1 s what the loader gives in 9 s, by one process of two threads."""
    monkeypatch.setattr(throughput, "num_cpus", lambda: 13)
    fit = make_fit(pool=ProcessPool(1, start_method="fork", threads=2))
    fit.trainer.num_devices = 3
    begun(fit)
    for _ in range(20):
        fit.loader.times.produce_s += 9
        fit.step(wait_s=9, busy_s=1)
    fit.end()
    assert fit.reported[0].endswith(
        "; to change: set num_workers to 2, all cores of a rank: 9 would do (now 1)"
    )


def test_the_rank_that_holds_all_others_by_its_loader_is_named(make_fit: Any) -> None:
    """Ranks 0 and 1 wait 1 s of 10 s in 20 steps, and rank 2 waits 5 s."""
    fit = make_fit(3)
    own = TimeTotals(20, 160, 10, 1, 1, 1)
    fit.others = [own, own._replace(wait_s=5, starved_s=5)]
    begun(fit)
    for _ in range(20):
        fit.step(wait_s=1 / 20, busy_s=9 / 20)
    fit.end()
    assert fit.gathered == [pytest.approx(own)]
    assert "the loader of rank 2, which holds all others" in fit.reported[0]
    assert fit.run("slowest_rank") == 2
    assert fit.run("wait_fraction") == pytest.approx(0.5)  # all of them are held by it
    assert fit.run("trainer_samples_per_s") == pytest.approx(3 * 20 * 8 / 5)


def test_other_ranks_than_0_say_nothing_but_take_part_in_the_report(make_fit: Any) -> None:
    fit = make_fit(3)
    fit.trainer.is_global_zero = False
    begun(fit)
    fit.step(wait_s=1, busy_s=1)
    fit.end()
    assert (fit.logged, fit.reported) == ([], [])
    assert len(fit.gathered) == 1


def test_ctrl_c_is_answered_by_rank_0_which_asks_no_other_rank(make_fit: Any) -> None:
    fit = make_fit(3)
    begun(fit)
    fit.step(wait_s=1, busy_s=1)
    fit.monitor.on_validation_start(fit.trainer, None)
    fit.clock.now_s += 1000  # validation is where it ends
    fit.monitor.on_exception(fit.trainer, None, KeyboardInterrupt())
    [report] = fit.reported
    assert "waited for data 50.0% of the time" in report
    assert "(rank 0 alone: trained" in report
    assert fit.gathered == []
