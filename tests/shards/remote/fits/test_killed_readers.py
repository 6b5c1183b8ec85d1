"""Readers that share a cache and are killed read no wrong byte and leave no temporary file."""

import json
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.shards.remote.conftest import SIGNED
from tests.shards.remote.published import publish, server_put

pytestmark = [pytest.mark.network, pytest.mark.matrix, pytest.mark.timeout(400)]

HERE = Path(__file__).parent
SHARDS, SAMPLES = 16, 256
RUN, BLOCK = 16, 256
PROCESSES, SECONDS = 32, 60


@pytest.fixture
def shards(pack_shards, server, tmp_path):
    """Paths and URLs of the shards, and their bytes."""
    counts = [SAMPLES] * SHARDS
    paths = pack_shards(counts)
    publish(paths, server_put(server), tmp_path, counts=counts)
    size = sum(Path(path).stat().st_size for path in paths)
    return paths, f"{server.url}/data/shard-{{000000..{SHARDS - 1:06d}}}.tar{SIGNED}", size


def happened(shards, forked_programs, folder, **given):
    """What readers saw with a limit of the cache in bytes."""
    paths, urls, _ = shards
    folder.mkdir(mode=0o700)
    settings = {"urls": urls, "paths": paths, "run": RUN, "block": BLOCK}
    settings |= {"cache_gib": given.pop("limit") / 2**30} | given
    command = [HERE / "killed_readers.py", folder, json.dumps(settings)]
    said, statuses = forked_programs.run(command, folder.parent, timeout_s=300)
    assert statuses == [0], said[-4000:]
    assert "Traceback" not in said, said[-4000:]
    seen = json.loads(said.splitlines()[-1])
    sys.stdout.write(f"{seen}\n")
    assert seen["wrong"] == seen["left"] == 0
    return seen


def test_32_readers_for_a_minute_with_a_cache_of_a_tenth(shards, forked_programs, tmp_path):
    size, cache = shards[2], tmp_path / "cache"
    working_set = 2 * BLOCK * size // (SHARDS * SAMPLES)
    limit = max(round(size / 10), round(1.2 * working_set))
    settings = {"processes": PROCESSES, "kills_per_s": 4, "seed": 3, "limit": limit}
    seen = happened(shards, forked_programs, cache, seconds=SECONDS, **settings)
    sizes = [
        path.stat().st_size for path in cache.glob("pieces/*/*-*") if path.parent.name != "parts"
    ]
    assert seen["largest"] <= limit + PROCESSES * max(sizes)
    assert seen["kills"] > SECONDS
    assert seen["batches"] > 100


def times_asked(server, cache):
    """How often each piece was asked for as a whole; the cache holds all that there are."""
    spans = [path.name.split("-") for path in cache.glob("pieces/*/*[0-9]-*")]
    ranges = {f"bytes={begin}-{int(end) - 1}" for begin, end in spans}
    asked = Counter((each.path, each.headers.get("range")) for each in server.asked)
    times = [count for (_, span), count in asked.items() if span in ranges]
    assert len(times) == len(spans) == SHARDS * SAMPLES // RUN
    return times


@pytest.mark.parametrize("kills_per_s", [0, 0.5])
def test_while_nothing_is_evicted_readers_of_long_streams_fetch_pieces_once(
    kills_per_s, shards, forked_programs, server, tmp_path
):
    server.asked.clear()
    settings = {"processes": 8, "kills_per_s": kills_per_s, "seed": 4, "limit": 4 * shards[2]}
    cache = tmp_path / "cache"
    seen = happened(shards, forked_programs, cache, batches=128, seconds=30, **settings)
    times = times_asked(server, cache)
    sys.stdout.write(f"{len(times)} pieces, {sum(times)} times\n")
    # a process that is killed has fetched in vain what it had under way
    assert sum(times) <= 1.05 * len(times) + seen["kills"]
