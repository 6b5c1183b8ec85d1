"""What throughput guarantees, in the names of its tests: rates, who waits, and what to change."""

import math
from typing import Any

import pytest

from lightning_shards.measure.rates import (
    RunContext,
    Throughput,
    TimeTotals,
    find_slow_rank,
    in_lockstep,
)
from lightning_shards.measure.report import write_report


def totals(
    samples: float = 100, wall_s: float = 10, wait_s: float = 0, produce_s: float = 5
) -> TimeTotals:
    """Of a CPU: all waiting is lost."""
    return TimeTotals(20, samples, wall_s, wait_s, starved_s=wait_s, produce_s=produce_s)


def context(num_workers: int = 2, **options: Any) -> RunContext:
    return RunContext(
        **{"num_workers": num_workers, "cores": 8, "world_size": 1, "device": "cpu"} | options
    )


def throughput(sums: TimeTotals, num_workers: int = 1, world_size: int = 1) -> Throughput:
    return Throughput(sums, context(num_workers, world_size=world_size))


def test_rates_are_of_the_whole_job() -> None:
    """100 samples in 10 s of which 4 s were waited, 20 s of workers; 3 ranks of 2 workers."""
    rates = throughput(totals(wait_s=4, produce_s=20), num_workers=2, world_size=3)
    assert (rates.trained, rates.trainer, rates.loader) == (30, 50, 30)
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
    metrics = throughput(spent).metrics()
    assert metrics["data/transfer_fraction"] == 0.2
    shares = {"open": 0.05, "read": 0.1, "decode": 0.5, "transform": 0, "collate": 0.15}
    for stage, share in (shares | {"other": 0.2}).items():
        assert metrics[f"data/loader_{stage}_fraction"] == pytest.approx(share)


def test_a_wait_that_the_device_did_not_notice_does_not_make_the_trainer_faster() -> None:
    """8 of 10 s waited, in all but 5 of which the device had work."""
    rates = throughput(TimeTotals(10, 100, 10, 8, starved_s=5, produce_s=1))
    assert rates.trainer == 20
    assert (rates.fraction("wait"), rates.fraction("starved")) == (0.8, 0.5)


@pytest.mark.parametrize(
    ("wait_s", "produce_s", "side", "headroom"),
    [
        (8, 10, "loader-bound", 5),
        (0, 10 / 1.11, "trainer-bound", 1.11),
        (0, 10 / 1.09, "balanced", 1.09),
        (0, 10 * 1.09, "balanced", 1.09),
        (0, 10 * 1.11, "loader-bound", 1.11),
    ],
)
def test_the_slower_side_is_named_unless_they_are_within_ten_percent(
    wait_s: float, produce_s: float, side: str, headroom: float
) -> None:
    rates = throughput(totals(wait_s=wait_s, produce_s=produce_s))
    assert (rates.side, rates.headroom) == (side, pytest.approx(headroom))


@pytest.mark.parametrize(
    "sums", [TimeTotals(), TimeTotals(samples=8), totals(8, 1, 1, 1), totals(8, 1, 0, 0)]
)
def test_zeros_give_finite_rates(sums: TimeTotals) -> None:
    rates = throughput(sums)
    assert all(math.isfinite(value) and value >= 0 for value in rates.metrics().values())
    assert 1 <= rates.headroom < math.inf


def test_ranks_in_lockstep_go_at_the_pace_of_the_slowest_loader_and_the_longest_wait() -> None:
    """Rank 0 computes for 9 s and is held for 3 more by rank 1, which came so much later."""
    ranks = [totals(10, 12, 0, 4), totals(8, 12, 3, 6)]
    job = throughput(in_lockstep(ranks), world_size=2)
    assert job.totals == TimeTotals(20, 9, 12, 3, 3, 6, 0)
    assert (job.trained, job.trainer, job.loader) == (1.5, 2, 3)  # 18 samples in 12 s, 9 s, 6 s


def waits(*seconds: float) -> list[TimeTotals]:
    return [totals(wall_s=100, wait_s=wait_s) for wait_s in seconds]


@pytest.mark.parametrize(
    ("ranks", "slow"),
    [
        (waits(2, 1, 30, 4), 2),
        (waits(2, 30), 1),
        (waits(50), None),
        (waits(40, 60, 40), None),  # all of them are slow
        (waits(1, 1, 5.9, 1), None),
        (waits(1, 1, 6.1, 1), 2),
        ([TimeTotals(20, 1, 10, wait_s) for wait_s in (0, 9, 0)], None),  # no device noticed
        ([rank._replace(batches=19) for rank in waits(2, 30)], None),  # too few steps
    ],
)
def test_the_rank_that_costs_all_others_more_than_five_percent_is_named(
    ranks: list[TimeTotals], slow: int | None
) -> None:
    assert find_slow_rank(ranks) == slow


# --- the line at the end of a fit -----------------------------------------------------------------


def rank(wait_s: float, produce_s: float) -> TimeTotals:
    """1000 samples in 100 steps and 10 s."""
    return TimeTotals(100, 1000, 10, wait_s, wait_s, produce_s)


def advice(ranks: list[TimeTotals], situation: RunContext) -> str:
    return write_report(ranks, situation).split("; to change: ")[1]


def test_the_report_is_a_verdict_its_figures_and_one_change() -> None:
    slow = rank(4, 20)._replace(read_s=2.4, decode_s=14.2, collate_s=0.8, transfer_s=1)
    assert write_report([slow], context(2, cores=2)) == (
        "data throughput: loader-bound: the trainer could take 1.7x what the loader gives "
        "(trained 100 samples/s, loader alone 100, trainer alone 167, waited for data 40.0% of "
        "the time; the loader's time: decode 71%, other 13%, read 12%); to change: make samples "
        "cheaper to load (decode takes 71% of their time): 4 workers a rank would do, and 2 "
        "already fill its 2 cores"
    )


def test_a_verdict_after_few_steps_is_unsure() -> None:
    few = write_report([rank(4, 20)._replace(batches=19)], context())
    assert few.startswith(
        "data throughput: unsure (19 of at least 20 steps), perhaps loader-bound: the trainer could"
    )
    assert "to change" not in few


TWOS = context(4, threads_per_worker=2)  # two processes of two threads each
REMOTE = rank(4, 20)._replace(
    fetch_s=12, decode_s=6, requests=1000, repeated=3, fetched_bytes=500e6, read_bytes=1000e6
)
HELD = [rank(0, 5), rank(3, 5), rank(0.1, 5)]


@pytest.mark.parametrize(
    ("ranks", "situation", "said"),
    [
        ([rank(4, 20)], context(2), "set num_workers to 4 (now 2)"),  # 2 x 10 / 6
        ([rank(8, 20)], context(2, cores=4), "set num_workers to 4, all cores of a rank: 10 would"),
        ([rank(8, 20)], context(2, cores=1), "make samples cheaper to load: 10 workers a rank wo"),
        ([rank(4, 40)], TWOS, "set num_workers to 4 (now 2)"),
        ([rank(8, 40)], TWOS._replace(cores=7), "set num_workers to 3, all cores of a rank: 10 w"),
        ([rank(8, 8)], context(0), "set num_workers to 4 (now 0: the trainer's own thread makes"),
        ([rank(2, 5)], context(2), "raise prefetch_factor: the workers are fast enough, but their"),
        ([rank(0.5, 5)], context(2), "nothing in the loader: more workers change nothing, only"),
        ([rank(0, 20)], context(2), "nothing: neither waits for the other; a faster model will"),
        (HELD, context(world_size=3), "find out what slows the loader of rank 1, which holds all"),
        ([rank(4, 20), rank(6, 20), rank(4, 20)], context(world_size=3), "set num_workers to 5 (n"),
        ([REMOTE], context(), "let `lightning-shards cache fill` fetch the shards before the fit"),
        ([REMOTE._replace(fetch_s=2, decode_s=14)], context(), "set num_workers to 4 (now 2)"),
    ],
)
def test_the_change_to_make_follows_from_the_figures(
    ranks: list[TimeTotals], situation: RunContext, said: str
) -> None:
    assert advice(ranks, situation).startswith(said)


def test_what_ranks_fetched_is_added_up_and_their_times_are_not() -> None:
    job = in_lockstep([REMOTE, REMOTE._replace(requests=1, fetched_bytes=0, fetch_s=1)])
    assert (job.requests, job.fetched_bytes, job.read_bytes) == (1001, 500e6, 2000e6)
    assert (job.fetch_s, job.cached_fraction) == (12, 0.75)
