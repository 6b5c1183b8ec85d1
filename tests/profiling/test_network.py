"""What the report says of the network, and which change it names."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from lightning_shards.profiling.network import NetworkContext
from lightning_shards.profiling.rates import TimeTotals, in_lockstep
from lightning_shards.profiling.report import RunContext, write_report
from lightning_shards.shards.remote.fetching.fetch_needs import ReadData

GIB = 2**30
SLOW = TimeTotals(
    100, 1000, 10, 4, 4, 20, fetch_s=12, decode_s=6,
    requests=1000, repeated=3, fetched_bytes=500e6, read_bytes=1000e6,
)  # fmt: skip


def network(sample_bytes: int = 100_000, **others: Any) -> NetworkContext:
    data = ReadData(np.full(100, 10_000), 10**6 * sample_bytes, "shuffled", 64, 16_384)
    given: dict[str, Any] = {"connections": 64, "sampling": "shuffled", "data": data}
    return NetworkContext(**given | {"cache_bytes": 50 * GIB} | others)


def report(found: NetworkContext | None, totals: TimeTotals = SLOW, ranks: int = 1) -> list[str]:
    context = RunContext(2, 8, 1, ranks, "cpu", network=found)
    return write_report({"whole run": [totals] * ranks}, context).splitlines()


def test_remote_shards_have_rows_of_their_own_and_a_stage() -> None:
    lines = report(network())
    assert lines[-7:-1] == [
        "  headroom                         1.7x",
        "  fetched, all ranks          50.0 MB/s",
        "  requests/s, all ranks             100",
        "  requests repeated                   3",
        "  bytes from the cache              50%",
        "the loader's time: fetch 60%, decode 30%, other 10%",
    ]
    assert not any("fetch" in line for line in report(None, TimeTotals(100, 1000, 10, 4, 4, 20)))


def test_what_ranks_fetched_is_added_up_and_their_times_are_not() -> None:
    job = in_lockstep([SLOW, replace(SLOW, requests=1, fetched_bytes=0, fetch_s=1)])
    assert (job.requests, job.fetched_bytes, job.read_bytes) == (1001, 500e6, 2000e6)
    assert (job.fetch_s, job.cached_fraction) == (12, 0.75)


WAITS = "the workers wait for the network 60% of their time"


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (
            network(sample_bytes=2_600),
            (
                "set shuffle_run to 512 and shuffle_block to 131072 (now 64 and 16384) in a new "
                f"run: {WAITS}, and a request brings 165.6 kB, of which most is waiting for the "
                "answer"
            ),
        ),
        (
            network(connections=1),
            (
                f"raise connections (now 1 a node): {WAITS}, and 50.0 MB/s are about what so many "
                "connections can bring"
            ),
        ),
        (
            network(),
            (
                f"raise cache_gib to 105 (now 50), if the disk has room: {WAITS}, and the cache "
                "does not hold the 100.0 GB that a node reads in each epoch"
            ),
        ),
        (
            network(cache_bytes=200 * GIB),
            (
                f"let `lightning-shards cache fill` fetch the shards before the fit: {WAITS}; from "
                "the second epoch on all comes from the cache"
            ),
        ),
        (
            network(data=None),
            (
                f"give cache_dir room, or raise connections (now 64 a node): {WAITS}, and nothing "
                "is fetched ahead of the batches"
            ),
        ),
        (
            network(data=None, sampling="sequential"),
            (
                f"raise connections (now 64 a node): {WAITS}, and nothing is fetched ahead of the "
                "batches"
            ),
        ),
    ],
)
def test_who_waits_for_the_network_is_told_the_one_thing_that_helps(
    found: NetworkContext, said: str
) -> None:
    assert report(found)[-1] == f"to change: {said}"


def test_more_workers_are_the_change_where_another_stage_takes_longer() -> None:
    decoding = replace(SLOW, fetch_s=2, decode_s=14)
    assert report(network(), decoding)[-1] == "to change: set num_workers to 4 (now 2)"


def test_a_trainer_that_is_the_limit_is_not_told_of_the_network() -> None:
    idle = replace(SLOW, wait_s=0, starved_s=0, produce_s=2, fetch_s=1.5, decode_s=0.2)
    assert report(network(), idle)[-1].startswith("to change: nothing in the loader")
