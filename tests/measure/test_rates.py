"""The arithmetic: rates of a job, ranks in lockstep, who holds all others, and lost waits."""

import math

import pytest
import torch

from lightning_shards.measure.rates import (
    RunContext,
    Throughput,
    TimeTotals,
    WaitClock,
    find_slow_rank,
    in_lockstep,
)


def totals(
    samples: float = 100, wall_s: float = 10, wait_s: float = 0, produce_s: float = 5
) -> TimeTotals:
    """Of a CPU: all waiting is lost."""
    return TimeTotals(20, samples, wall_s, wait_s, starved_s=wait_s, produce_s=produce_s)


def throughput(sums: TimeTotals, num_workers: int, world_size: int) -> Throughput:
    return Throughput(sums, RunContext(num_workers, 8, world_size, "cpu"))


def test_rates_are_of_the_whole_job() -> None:
    """100 samples in 10 s of which 4 s were waited, 20 s of workers; 3 ranks of 2 workers."""
    rates = throughput(totals(wait_s=4, produce_s=20), num_workers=2, world_size=3)
    assert rates.trained == 30
    assert rates.trainer == 50
    assert rates.loader == 30
    assert rates.fraction("wait") == 0.4
    assert rates.metrics() == {
        "data/samples_per_s": 30,
        "data/loader_samples_per_s": 30,
        "data/trainer_samples_per_s": 50,
        "data/wait_fraction": 0.4,
        "data/transfer_fraction": 0.0,
    }
    assert rates.metrics("data/run/")["data/run/samples_per_s"] == 30


def test_the_time_of_the_workers_is_shared_out_among_stages() -> None:
    spent = TimeTotals(
        10, 100, 10, 4, 4, 20, transfer_s=2, open_s=1, read_s=2, decode_s=10, collate_s=3
    )
    metrics = throughput(spent, num_workers=2, world_size=3).metrics()
    assert metrics["data/transfer_fraction"] == 0.2
    shares = {
        name.split("_")[1]: share
        for name, share in metrics.items()
        if name.startswith("data/loader_") and name.endswith("_fraction")
    }
    assert shares == pytest.approx(
        {"open": 0.05, "read": 0.1, "decode": 0.5, "transform": 0, "collate": 0.15, "other": 0.2}
    )


def test_a_wait_that_the_device_did_not_notice_does_not_make_the_trainer_faster() -> None:
    """8 of 10 s waited, in all but 5 of which the device had work."""
    rates = throughput(TimeTotals(10, 100, 10, 8, starved_s=5, produce_s=1), 1, 1)
    assert rates.trainer == 20
    assert (rates.fraction("wait"), rates.fraction("starved")) == (0.8, 0.5)


@pytest.mark.parametrize(
    ("wait_s", "produce_s", "side", "headroom"),
    [
        (8, 10, "loader-bound", 5),
        (0, 2.5, "trainer-bound", 4),
        (0, 10 / 1.11, "trainer-bound", 1.11),
        (0, 10 / 1.09, "balanced", 1.09),
        (0, 10, "balanced", 1),
        (0, 10 * 1.09, "balanced", 1.09),
        (0, 10 * 1.11, "loader-bound", 1.11),
    ],
)
def test_the_slower_side_is_named_unless_they_are_within_ten_percent(
    wait_s: float, produce_s: float, side: str, headroom: float
) -> None:
    rates = throughput(totals(wait_s=wait_s, produce_s=produce_s), num_workers=1, world_size=1)
    assert (rates.side, rates.headroom) == (side, pytest.approx(headroom))


@pytest.mark.parametrize(
    "sums",
    [
        TimeTotals(),
        TimeTotals(wall_s=3, wait_s=3, starved_s=3),
        TimeTotals(samples=8),
        totals(8, 1, 1, 1),
        totals(8, 1, 0, 0),
    ],
    ids=["nothing", "only time", "no time", "all time waited", "no work"],
)
def test_zeros_give_finite_rates(sums: TimeTotals) -> None:
    rates = throughput(sums, num_workers=2, world_size=2)
    assert all(math.isfinite(value) and value >= 0 for value in rates.metrics().values())
    assert math.isfinite(rates.headroom)
    assert rates.headroom >= 1


def test_ranks_in_lockstep_go_at_the_pace_of_the_slowest_loader_and_the_longest_wait() -> None:
    """Rank 0 computes for 9 s and is held for 3 more by rank 1, which came so much later."""
    ranks = [totals(10, 12, 0, 4), totals(8, 12, 3, 6)]
    job = throughput(in_lockstep(ranks), num_workers=1, world_size=2)
    assert job.totals == TimeTotals(20, 9, 12, 3, 3, 6, 0)
    assert job.trained == 1.5  # 18 samples in 12 s
    assert job.trainer == 2  # in 9 s
    assert job.loader == 3
    assert in_lockstep(ranks[1:]) == ranks[1]


# --- which rank -----------------------------------------------------------------------------------


def waits(*seconds: float) -> list[TimeTotals]:
    return [totals(wall_s=100, wait_s=wait_s) for wait_s in seconds]


@pytest.mark.parametrize(
    ("ranks", "slow"),
    [
        (waits(2, 1, 30, 4), 2),
        (waits(2, 30), 1),
        (waits(80, 81, 82, 83), None),
        (waits(50), None),
        (waits(40, 60, 40), None),  # all of them are slow
        (waits(1, 1, 5.9, 1), None),
        (waits(1, 1, 6.1, 1), 2),
        ([TimeTotals(20, 1, 10, wait_s) for wait_s in (0, 9, 0)], None),  # no device noticed
        ([rank._replace(batches=19) for rank in waits(2, 30)], None),  # too few steps
        ([TimeTotals(), TimeTotals()], None),
    ],
)
def test_the_rank_that_costs_all_others_more_than_five_percent_is_named(
    ranks: list[TimeTotals], slow: int | None
) -> None:
    assert find_slow_rank(ranks) == slow


# --- what a device lost ---------------------------------------------------------------------------


class FakeEvent:
    """As a CUDA event: it is reached once the device has done what was queued before it."""

    is_reached = True

    def record(self) -> None:
        self.is_reached = False

    def query(self) -> bool:
        return self.is_reached


def test_a_device_has_lost_the_waits_at_whose_end_it_had_ended_its_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    event = FakeEvent()
    monkeypatch.setattr("torch.cuda.Event", lambda: event)
    clock = WaitClock(torch.device("cuda"))
    for step in range(4):
        clock.step_ended()
        event.is_reached = step in (1, 3)
        clock.batch_came(10.0**step)
    assert clock.starved_s == 10 + 1000


@pytest.mark.parametrize("name", ["cpu", "mps", "xpu"])
def test_all_waiting_for_data_is_lost_on_other_devices(name: str) -> None:
    clock = WaitClock(torch.device(name))
    for waited_s in (1.0, 2.0):
        clock.batch_came(waited_s)
        clock.step_ended()
    assert clock.starved_s == 3
