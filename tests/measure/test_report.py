"""The line at the end of a fit, and the one change to make."""

from typing import Any

import pytest

from lightning_shards.measure.rates import RunContext, TimeTotals, in_lockstep
from lightning_shards.measure.report import write_report


def context(num_workers: int = 2, **options: Any) -> RunContext:
    return RunContext(
        **{"num_workers": num_workers, "cores": 8, "world_size": 1, "device": "cpu"} | options
    )


def rank(wait_s: float, produce_s: float) -> TimeTotals:
    """1000 samples in 100 steps and 10 s."""
    return TimeTotals(100, 1000, 10, wait_s, wait_s, produce_s)


def advice(ranks: list[TimeTotals], situation: RunContext) -> str:
    return write_report(ranks, situation).split("; to change: ")[1]


def test_the_report_is_a_verdict_its_figures_and_one_change() -> None:
    assert write_report([rank(4, 20)], context(2)) == (
        "data throughput: loader-bound: the trainer could take 1.7x what the loader gives "
        "(trained 100 samples/s, loader alone 100, trainer alone 167, waited for data 40.0% of "
        "the time); to change: set num_workers to 4 (now 2)"
    )


def test_stages_of_a_loader_are_named_and_the_longest_is_to_be_made_cheaper() -> None:
    slow = rank(4, 20)._replace(read_s=2.4, decode_s=14.2, collate_s=0.8, transfer_s=1)
    assert write_report([slow], context(2, cores=2)).endswith(
        "the time; the loader's time: decode 71%, other 13%, read 12%); to change: make samples "
        "cheaper to load (decode takes 71% of their time): 4 workers a rank would do, and 2 "
        "already fill its 2 cores"
    )


def test_the_rank_that_holds_the_others_is_to_be_looked_at() -> None:
    slow = [rank(0, 5), rank(3, 5), rank(0.1, 5)]
    assert advice(slow, context(world_size=3)) == (
        "find out what slows the loader of rank 1, which holds all others: where its machine "
        "reads from, and what else runs there"
    )


def test_a_verdict_after_few_steps_is_unsure() -> None:
    few = write_report([rank(4, 20)._replace(batches=19)], context())
    assert few.startswith(
        "data throughput: unsure (19 of at least 20 steps), perhaps loader-bound: the trainer could"
    )
    assert "to change" not in few


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
    assert advice(ranks, context(2, world_size=3)) == "set num_workers to 5 (now 2)"


# --- remote shards --------------------------------------------------------------------------------

REMOTE = TimeTotals(
    100, 1000, 10, 4, 4, 20, fetch_s=12, decode_s=6,
    requests=1000, repeated=3, fetched_bytes=500e6, read_bytes=1000e6,
)  # fmt: skip


def test_workers_that_wait_for_the_network_are_told_what_helps() -> None:
    assert advice([REMOTE], context()) == (
        "let `lightning-shards cache fill` fetch the shards before the fit, or raise cache_gib or "
        "connections: the workers wait for the network 60% of their time"
    )
    decoding = REMOTE._replace(fetch_s=2, decode_s=14)
    assert advice([decoding], context()) == "set num_workers to 4 (now 2)"


def test_what_ranks_fetched_is_added_up_and_their_times_are_not() -> None:
    job = in_lockstep([REMOTE, REMOTE._replace(requests=1, fetched_bytes=0, fetch_s=1)])
    assert (job.requests, job.fetched_bytes, job.read_bytes) == (1001, 500e6, 2000e6)
    assert (job.fetch_s, job.cached_fraction) == (12, 0.75)
