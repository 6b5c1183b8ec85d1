"""What a loader counts of the network: requests, bytes, and the time that batches waited."""

import pytest

from lightning_shards.build import sources
from lightning_shards.remote.backend import RetryPolicy
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
