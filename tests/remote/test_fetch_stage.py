"""What a loader counts of the network: requests, bytes, and the time that batches waited."""

import pickle

import pytest
from fault_server import Fault

from lightning_shards.build import sources
from lightning_shards.plan.place import Cursor, Place
from lightning_shards.remote.backend import RetryPolicy
from lightning_shards.samples.collate import LoadedBatch
from lightning_shards.samples.stage_clock import stage_of
from lightning_shards.shards.storage.protocol import FetchTotals
from lightning_shards.system import process
from lightning_shards.system.process import Cancellable
from lightning_shards.workers.messages import put_together, taken_apart
from tests.remote.published import module

pytestmark = [pytest.mark.network, pytest.mark.usefixtures("quick")]

ROOMY = {"cache_gib": 1}


@pytest.mark.parametrize("loader", [{}, ROOMY], ids=["exactly", "cached"])
def test_each_request_and_byte_of_an_epoch_is_counted(
    published_shards, server, tmp_path, loader, monkeypatch
):
    monkeypatch.setattr(sources, "RetryPolicy", RetryPolicy)  # patient: nothing is repeated
    data = module(published_shards, tmp_path, num_workers=2, loader=loader | {"pool": "threads"})
    data.source("train")
    server.asked.clear()
    with data.loader("train") as made:
        for _ in made:
            pass
        times = made.times
    fetched = times.fetched
    assert 0 < fetched.requests <= len(server.asked)  # batches that were not handed out have some
    assert fetched.repeated == 0
    assert fetched.fetched_bytes > 0
    sizes = [len(server.objects[f"data/shard-{shard:06d}.tar"]) for shard in range(3)]
    assert 0 < fetched.read_bytes <= sum(sizes)
    assert 0 < times.stages["fetch"] <= times.produce_s
    assert times.stages["fetch"] == pytest.approx(fetched.wait_s, abs=1e-3)
    assert all(seconds >= 0 for seconds in times.stages.values())


@pytest.mark.parametrize("settings", [{"loader": ROOMY}, {"reader": "stream"}], ids=str)
def test_a_process_that_waits_for_a_server_says_that_it_fetches(
    published_shards, server, tmp_path, settings
):
    source = module(published_shards, tmp_path, **settings).source("train")
    stream = source.batches(Place(), Cursor())
    seen, before, byte = [], process.published_byte(), memoryview(bytearray(1))

    def check():
        seen.append(stage_of(byte[0]))
        if len(seen) == 3:
            raise KeyboardInterrupt

    process.publish_stages_in(byte)
    server.always = Fault("stall", 3)
    with pytest.raises(KeyboardInterrupt), Cancellable(check):
        next(stream)
    process.publish_stages_in(before)
    stream.close()
    assert seen == ["fetch"] * 3


def test_totals_travel_in_messages_and_local_ones_cost_one_byte():
    totals = FetchTotals(1, 2, 3, 4, 5.0, 6.0)
    (received,) = put_together(taken_apart([LoadedBatch({"a": [1]}, fetched=totals)]))
    assert received.fetched == totals
    local = LoadedBatch({"a": [1]})
    assert len(pickle.dumps(local)) == len(pickle.dumps(local._replace(fetched=0))) - 1
