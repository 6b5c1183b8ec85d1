"""When the clock of the monitor runs, and what is logged on the way."""

from types import SimpleNamespace
from typing import Any

import pytest

from lightning_shards.callbacks import throughput


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
