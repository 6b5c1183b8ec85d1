"""When the clock of the monitor runs, and what is logged on the way."""

from types import SimpleNamespace
from typing import Any

import pytest

from lightning_shards.callbacks import throughput
from lightning_shards.measure import rates


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
    assert fake_fit.row("trained, samples/s") == ["4", "4"]


def test_workers_that_start_again_are_not_counted(fake_fit: Any) -> None:
    fake_fit.begin()
    fake_fit.step(wait_s=0, busy_s=1)
    fake_fit.step(wait_s=1, busy_s=1, start_s=1000)
    assert fake_fit.windows("samples_per_s") == [pytest.approx(4)]
    assert fake_fit.windows("wait_fraction") == [pytest.approx(0.5)]


def test_a_loader_that_replaces_another_one_is_measured_from_its_first_batch_on(
    fake_fit: Any,
) -> None:
    fake_fit.begin()
    fake_fit.step(wait_s=0, busy_s=1)
    fake_fit.step(wait_s=1, busy_s=1, transfer_s=1, start_s=1000, read=1)
    fake_fit.reload()
    fake_fit.step(wait_s=0, busy_s=1, samples=2, start_s=1000)  # a new stream: no wait
    fake_fit.step(wait_s=1, busy_s=1, samples=2, transfer_s=2, decode=1)
    fake_fit.end()
    assert fake_fit.windows("samples_per_s") == pytest.approx([8 / 3, 2, 2 / 4])
    assert fake_fit.windows("wait_fraction") == pytest.approx([1 / 3, 0, 1 / 4])
    assert fake_fit.windows("trainer_samples_per_s") == pytest.approx([4, 2, 2 / 3])
    assert fake_fit.windows("transfer_fraction") == pytest.approx([1 / 3, 0, 1 / 2])
    assert fake_fit.run("samples_per_s") == pytest.approx((8 + 4) / 8)
    assert fake_fit.run("transfer_fraction") == pytest.approx(3 / 8)
    assert fake_fit.run("loader_read_fraction") == pytest.approx(1 / 2)
    assert fake_fit.row("trained, samples/s") == ["1.5", "0.8"]


def test_a_loader_that_comes_back_counts_what_it_serves_from_then_on(fake_fit: Any) -> None:
    first = fake_fit.loader
    fake_fit.begin()
    fake_fit.step(wait_s=0, busy_s=1)
    for samples, loaders in ((4, []), (16, [first])):
        fake_fit.loader = first
        fake_fit.reload(*loaders)
        fake_fit.step(wait_s=1, busy_s=1, samples=samples)
    fake_fit.end()
    assert fake_fit.windows("samples_per_s") == pytest.approx([2, 8])
    assert fake_fit.windows("wait_fraction") == pytest.approx([0.5, 0.5])
    assert fake_fit.run("samples_per_s") == pytest.approx(5)


def test_a_loader_that_is_not_the_only_one_any_more_is_not_measured(fake_fit: Any) -> None:
    """And a fit that has one again is measured from there on."""
    fake_fit.begin()
    for _ in range(2):
        fake_fit.step(wait_s=0, busy_s=1)
    fake_fit.reload(fake_fit.loader, fake_fit.make_loader())
    fake_fit.step(wait_s=0, busy_s=100)
    assert fake_fit.windows("samples_per_s") == [8]
    fake_fit.reload()
    for _ in range(2):
        fake_fit.step(wait_s=1, busy_s=1)
    fake_fit.end()
    assert fake_fit.windows("samples_per_s") == [8, 4]
    assert fake_fit.run("samples_per_s") == 4


def test_what_the_clock_of_the_device_saw_is_what_the_trainer_lost(
    fake_fit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device that had work queued in each second step."""

    class Clock(rates.HostClock):
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


def test_the_clock_of_the_device_is_told_what_a_step_is_made_of(
    make_fit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []

    class Clock(rates.HostClock):
        def batch_came(self, waited_s: float) -> None:
            told.append(waited_s)

        def step_ended(self) -> None:
            told.append("step ended")

    monkeypatch.setattr(throughput, "make_clock", lambda _device: Clock())
    fit = make_fit(1)
    fit.begin()
    for wait_s in (2, 3):
        fit.step(wait_s=wait_s, busy_s=1)
    assert told == [2, "step ended", 3, "step ended"]
