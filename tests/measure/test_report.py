"""What the end of a fit says: the table, and the one change to make."""

import re
from pathlib import Path
from typing import Any

import pytest

from lightning_shards import DataThroughputMonitor
from lightning_shards.errors import ConfigError
from lightning_shards.measure.rates import (
    RunContext,
    SlowRank,
    TimeTotals,
    find_slow_rank,
    in_lockstep,
)
from lightning_shards.measure.report import save_plot, write_report


def context(num_workers: int = 2, **options: Any) -> RunContext:
    return RunContext(
        **{"num_workers": num_workers, "cores": 8, "world_size": 1, "device": "cpu"} | options
    )


def rank(wait_s: float, produce_s: float) -> TimeTotals:
    """1000 samples in 100 steps and 10 s."""
    return TimeTotals(100, 1000, 10, wait_s, wait_s, produce_s)


def advice(ranks: list[TimeTotals], situation: RunContext) -> str:
    report = write_report(ranks, situation)
    last = report.splitlines()[-1]
    assert last.startswith("to change: ")
    return last.removeprefix("to change: ")


def test_the_report_is_a_verdict_a_table_and_one_change() -> None:
    assert write_report([rank(4, 20)], context(2)).splitlines() == [
        (
            "data throughput: loader-bound: the trainer could take 1.7x what the loader gives "
            "(trained 100 samples/s, loader alone 100, trainer alone 167, waited for data 40.0% of "
            "the time)"
        ),
        "  trained, samples/s                100",
        "  loader alone, samples/s           100",
        "  trainer alone, samples/s          167",
        "  waited for data                 40.0%",
        "  from loader to step              0.0%",
        "  bottleneck                     loader",
        "  headroom                         1.7x",
        "to change: set num_workers to 4 (now 2)",
    ]


def test_stages_of_a_loader_are_named_and_the_longest_is_to_be_made_cheaper() -> None:
    slow = rank(4, 20)._replace(read_s=2.4, decode_s=14.2, collate_s=0.8, transfer_s=1)
    lines = write_report([slow], context(2, cores=2)).splitlines()
    assert "  from loader to step             10.0%" in lines
    assert lines[-2] == "the loader's time: decode 71%, other 13%, read 12%"
    assert lines[-1] == (
        "to change: make samples cheaper to load (decode takes 71% of their time): 4 workers a "
        "rank would do, and 2 already fill its 2 cores"
    )


def test_several_ranks_have_a_line_on_the_one_that_holds_the_others() -> None:
    slow = [rank(0, 5), rank(3, 5), rank(0.1, 5)]
    lines = write_report(slow, context(world_size=3)).splitlines()
    assert lines[-2] == (
        "slowest rank: rank 1 holds all others by its loader: it waited for data 30.0% of the "
        "time, the median rank 1.0%"
    )
    assert lines[-1] == (
        "to change: find out what slows the loader of rank 1: where its machine reads from, and "
        "what else runs there"
    )
    assert "slowest rank:" not in write_report([rank(0, 5)] * 3, context(world_size=3))


def test_a_verdict_after_few_steps_is_unsure() -> None:
    few = write_report([rank(4, 20)._replace(batches=19)], context())
    assert few.startswith(
        "data throughput: unsure (19 of at least 20 steps), perhaps loader-bound: the trainer could"
    )
    assert few.count("unsure") == 1
    assert "to change" not in few


def test_what_a_cuda_device_lost_has_a_row_of_its_own() -> None:
    sums = TimeTotals(100, 1000, 10, wait_s=4, starved_s=1, produce_s=20)
    assert "starved" not in write_report([sums], context())
    lines = write_report([sums], context(device="cuda")).splitlines()
    assert "  device starved, at most         10.0%" in lines


def test_what_came_from_actors_has_a_line_and_says_whether_they_or_the_network_are_slow() -> None:
    received = {"received_bytes": 3e9, "restarts": 1, "remade": 4}
    slow = rank(4, 20)._replace(**received)
    lines = write_report([slow] * 2, context(2, world_size=2, cores=10**9)).splitlines()
    assert lines[-2:] == [
        (
            "received 6 GB from actors, 300 MB/s for each rank; 2 restarts of actors, up to 8 "
            "batches made again"
        ),
        "to change: set num_workers to 4 (now 2)",
    ]
    late = rank(4, 5)._replace(**received)
    assert advice([late], context(2)) == (
        "let actors send fewer bytes a sample (uint8, smaller crops), or raise prefetch_factor: "
        "they are fast enough, and their batches come late over the network"
    )


# --- the one change -------------------------------------------------------------------------------


TWOS = context(4, threads_per_worker=2)  # two processes of two threads each


@pytest.mark.parametrize(
    ("of_rank", "situation", "said"),
    [
        (rank(4, 20), context(2), "set num_workers to 4 (now 2)"),  # 2 x 10 / 6
        (rank(8, 20), context(2, cores=4), "set num_workers to 4, all cores of a rank: 10 would d"),
        (rank(8, 20), context(2, cores=1), "make samples cheaper to load: 10 workers a rank would"),
        (rank(4, 40), TWOS, "set num_workers to 4 (now 2)"),
        (rank(8, 40), TWOS._replace(cores=7), "set num_workers to 3, all cores of a rank: 10 woul"),
        (rank(8, 40), TWOS._replace(cores=5), "make samples cheaper to load: 10 workers a rank wo"),
        (rank(8, 8), context(0), "set num_workers to 4 (now 0: the trainer's own thread makes the"),
        (rank(3, 3), context(0), "set num_workers to 1 (now 0: "),  # they take turns
        (rank(8, 8), context(0, cores=3), "set num_workers to 3, all cores of a rank: 4 would do"),
        (rank(2, 5), context(2), "raise prefetch_factor: the workers are fast enough, but their"),
        (rank(0.5, 5), context(0), "nothing in the loader: more workers change nothing, only"),
        (rank(0.5, 5), context(2), "nothing in the loader: more workers change nothing, only"),
        (rank(0, 20), context(2), "nothing: neither waits for the other; a faster model will"),
    ],
)
def test_the_change_to_make_follows_from_the_figures(
    of_rank: TimeTotals, situation: RunContext, said: str
) -> None:
    assert advice([of_rank], situation).startswith(said)


def test_a_loader_that_is_slow_everywhere_wants_workers_though_one_rank_is_slowest() -> None:
    ranks = [rank(4, 20), rank(6, 20), rank(4, 20)]
    assert find_slow_rank(ranks) == SlowRank(1, 0.6, 0.4)
    assert advice(ranks, context(2, world_size=3)) == "set num_workers to 5 (now 2)"


# --- remote shards --------------------------------------------------------------------------------

REMOTE = TimeTotals(
    100, 1000, 10, 4, 4, 20, fetch_s=12, decode_s=6,
    requests=1000, repeated=3, fetched_bytes=500e6, read_bytes=1000e6,
)  # fmt: skip


def test_workers_that_wait_for_the_network_are_told_what_helps() -> None:
    lines = write_report([REMOTE], context()).splitlines()
    assert lines[-3] == "the loader's time: fetch 60%, decode 30%, other 10%"
    assert lines[-2] == (
        "fetched 0.5 GB in 1,000 requests (3 repeated), 50 % of 1 GB came from the cache"
    )
    assert lines[-1] == (
        "to change: let `lightning-shards cache fill` fetch the shards before the fit, or raise "
        "cache_gib or connections: the workers wait for the network 60% of their time"
    )
    decoding = REMOTE._replace(fetch_s=2, decode_s=14)
    assert advice([decoding], context()) == "set num_workers to 4 (now 2)"


def test_what_ranks_fetched_is_added_up_and_their_times_are_not() -> None:
    job = in_lockstep([REMOTE, REMOTE._replace(requests=1, fetched_bytes=0, fetch_s=1)])
    assert (job.requests, job.fetched_bytes, job.read_bytes) == (1001, 500e6, 2000e6)
    assert (job.fetch_s, job.cached_fraction) == (12, 0.75)


# --- the plot -------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".png", ".pdf", ".svg"])
def test_a_plot_is_saved_in_the_format_of_its_suffix(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / "made" / f"wait{suffix}"
    save_plot(str(path), [TimeTotals(4, 8, 2.0, 1.0), TimeTotals(), TimeTotals(1, 2, 0.1, 0.02)])
    start = {".png": b"\x89PNG", ".pdf": b"%PDF", ".svg": b"<?xml"}[suffix]
    assert path.read_bytes().startswith(start)


def test_a_plot_that_cannot_be_made_is_an_error_before_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for path in ("wait", "wait.jpeg", "", "folder/"):
        with pytest.raises(ConfigError, match=r"must be a file that ends in .*\.png"):
            DataThroughputMonitor(plot=path)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    DataThroughputMonitor()
    remedy = re.escape('pip install "lightning-shards[plot]"')
    with pytest.raises(ConfigError, match=f"plot='wait.png' needs matplotlib.*{remedy}"):
        DataThroughputMonitor(plot="wait.png")
