"""Processes of a node that fetch from a server: one download each, whatever happens to them."""

import json
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from fault_server import Fault
from held_transport import cache_in, reads_of
from sharing_processes import BATCH, BLOCK, HEADER, RUN, SAMPLES, SHARDS, SIZE, shard_bytes
from waiting import wait_for

from lightning_shards.errors import IndexMismatchError, StorageError
from lightning_shards.shards.remote.cache.piece_files import Piece
from lightning_shards.shards.remote.fetcher import Fetcher
from lightning_shards.shards.remote.retries import RetryPolicy

pytestmark = pytest.mark.network

HERE = Path(__file__).parent
PIECES = SHARDS * SAMPLES // RUN
ALL_BYTES = SHARDS * SAMPLES * (SIZE + HEADER)
WITHIN_S = 10
ENDS_WITHIN_S = 5  # a second where nothing else runs; without an end it would be 30


@pytest.fixture
def run_processes(server, tmp_path):
    for shard in range(SHARDS):
        server.objects[f"data/{shard}.tar"] = shard_bytes(shard)

    def run(**settings):
        (tmp_path / "cache").mkdir(mode=0o700)
        given = {
            "folder": str(tmp_path / "cache"),
            "base_url": f"{server.url}/data",
            "processes": 2,
            "limit_bytes": 4 * ALL_BYTES,
        }
        path = os.pathsep.join([str(HERE.parents[3]), str(HERE)])
        ended = subprocess.run(
            [sys.executable, str(HERE / "sharing_processes.py"), json.dumps(given | settings)],
            env=os.environ | {"PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=False,
            timeout=100,
        )
        assert "Traceback" not in ended.stderr, ended.stderr
        *said, last = map(json.loads, ended.stdout.splitlines())
        return said, last["statuses"]

    return run


def downloads(server):
    """How often each range was asked for, beside the empty ones that tell the version."""
    ranges = Counter((each.path, each.headers["range"]) for each in server.asked)
    return Counter({key: count for key, count in ranges.items() if key[1] != "bytes=0-0"})


def test_processes_fetch_each_piece_once_and_the_share_of_one_that_is_killed(run_processes, server):
    killed_at = SHARDS + 3  # behind the requests for the versions
    said, statuses = run_processes(processes=3, kill_at=killed_at)
    assert statuses == [-9, 0, 0]
    assert len(downloads(server)) == PIECES
    assert set(downloads(server).values()) == {1}  # the killed one had not asked for its last
    assert sum(each["ahead_requests"] for each in said) == PIECES - 2  # of the killed one
    for each in said:
        assert each["exact_requests"] == 0
        assert each["cached_bytes"] == SHARDS * SAMPLES * SIZE


def test_batches_are_right_with_room_for_two_blocks_and_failing_requests(run_processes, server):
    generator = random.Random(1)
    kinds = [Fault("status", 503), Fault("status", 500), Fault("reset"), Fault("cut", 700)]
    faults = [generator.choice(kinds) if generator.random() < 0.2 else None for _ in range(5000)]
    server.faults = list(faults)
    steps = 2 * SHARDS * SAMPLES // (2 * BATCH)  # two epochs
    limit = 2 * BLOCK * (SIZE + HEADER) * 9 // 8
    said, statuses = run_processes(limit_bytes=limit, steps=steps)
    assert statuses == [0, 0]
    for each in said:
        assert each["read_bytes"] == steps * BATCH * SIZE
    failed = sum(fault is not None for fault in faults[: len(server.asked)])
    assert failed > 20
    # one that lags asks for little; of three threads each is closed before it tries again
    assert 0 <= failed - sum(each["repeated"] for each in said) <= 2 * 3
    assert sum(each["cached_bytes"] for each in said) > 0


def test_closing_ends_a_batch_that_waits_for_a_stalled_server_within_a_second(
    server, make_transport, tmp_path
):
    server.objects["data/0.tar"] = shard_bytes(0)
    transport = make_transport(RetryPolicy())
    version = transport.read(f"{server.url}/data/0.tar", 0, 0).version
    server.always = Fault("stall", 100)
    fetcher = Fetcher(transport, cache_in(tmp_path / "cache"), threads=4)
    url, errors = f"{server.url}/data/0.tar", []
    fetcher.read([])
    fetcher.fetch_ahead(
        [Piece(url, version, begin, begin + 1000) for begin in range(0, 9000, 1000)]
    )

    def read():
        try:
            fetcher.read([reads_of(url, [(50_000, 60_000)], version)])
        except StorageError as error:
            errors.append(str(error))

    reader = threading.Thread(target=read)
    reader.start()
    assert wait_for(lambda: len(server.asked) >= 5, WITHIN_S)
    began = time.perf_counter()
    fetcher.close()
    reader.join(WITHIN_S)
    assert time.perf_counter() - began < ENDS_WITHIN_S
    assert "was closed" in errors[0]


def test_an_object_that_is_replaced_meanwhile_is_an_error_with_both_versions(
    server, make_transport, tmp_path
):
    server.objects["data/0.tar"] = shard_bytes(0)
    url, transport = f"{server.url}/data/0.tar", make_transport()
    old = transport.read(url, 0, 0).version
    fetcher = Fetcher(transport, cache_in(tmp_path / "cache"), threads=2)
    fetcher.read([])
    fetcher.fetch_ahead([Piece(url, old, 0, 1000)])
    assert wait_for(lambda: fetcher.counts.ahead_requests == 1, WITHIN_S)
    server.objects["data/0.tar"] = shard_bytes(1)
    new = server.etag("data/0.tar")
    fetcher.fetch_ahead([Piece(url, old, 1000, 2000)])  # quiet
    with pytest.raises(IndexMismatchError) as raised:
        fetcher.read([reads_of(url, [(1000, 1500)], old)])
    fetcher.close()
    assert old in str(raised.value)
    assert new in str(raised.value)
