"""What fits guarantee, in the names of its tests: remote shards give the bytes of local ones."""

import json
from collections import defaultdict
from itertools import chain

import pytest
from fault_server import Fault

from tests.remote.conftest import SIGNED
from tests.remote.fits import rank
from tests.remote.published import publish, server_put
from tests.remote.test_remote_cache import run_need

pytestmark = [pytest.mark.network, pytest.mark.ddp]

COUNTS, NAMES = [24, 17, 31], "shard-{000000..000002}.tar"
STEPS = sum(COUNTS) // rank.GLOBAL_BATCH
KILLED_AT = STEPS + 7  # in the second epoch
A_FIFTH = [None, None, Fault("status", 503), None, None, None, None, Fault("cut", 9), None, None]


def of_all_ranks(rows):
    return {key: list(chain.from_iterable(of_ranks)) for key, of_ranks in rows.items()}


@pytest.fixture
def local_paths(pack_shards):
    return pack_shards(COUNTS)


def local_rows(paths, folder, ranks):
    """By epoch and step, what each rank gets of the files on this machine."""
    data, found = rank.data_of(paths, ranks, cache_dir=str(folder / "own")), {}
    for number in range(ranks):
        loader = data.loader("train", rank=number, world_size=ranks)
        for epoch in range(rank.EPOCHS):
            for step, batch in enumerate(loader):
                found.setdefault((epoch, step), []).append(rank.rows_of(batch))
    return found


@pytest.fixture
def fit(forked_programs, server, tmp_path):
    """Runs a fit: what each rank was given by epoch and step, what it said, how ranks ended."""

    def run(name, **job):
        folder, found = tmp_path / name, defaultdict(list)
        folder.mkdir()
        (folder / "job.json").write_text(json.dumps(job))
        server.faults = A_FIFTH * 200
        command = [rank.__file__, folder / "job.json"]
        said, statuses = forked_programs.run(command, folder, ranks=job["ranks"])
        for path in sorted(folder.glob("rows-*.jsonl")):
            for told in map(json.loads, path.read_text().splitlines()):
                found[told["epoch"], told["step"]].append(told["rows"])
        return dict(found), said, statuses

    return run


@pytest.fixture
def check(local_paths, fit, server, tmp_path):
    """Checks a fit whose ranks are killed among failing requests, and which others go on with."""

    def resumed(urls, loader, numbers_of_ranks):
        loader |= {"cache_dir": str(tmp_path / "cache"), "cache_gib": 1}
        need = run_need(rank.data_of(urls, 1, **loader))
        loader["cache_gib"] = (need.working_set_bytes + 1) / 2**30  # pieces are dropped again
        job = {"urls": urls, "loader": loader, "killed_at": None, "checkpoint": None}
        told, said, statuses = fit("killed", **job | {"ranks": 2, "killed_at": KILLED_AT})
        assert statuses == [-9, -9], said[-4000:]
        expected = local_rows(local_paths, tmp_path, 2)
        assert told == dict(list(expected.items())[: KILLED_AT + 1])
        saved = (tmp_path / "killed" / "saved").iterdir()
        last = str(max(saved, key=lambda path: path.stat().st_mtime_ns))
        for ranks in numbers_of_ranks:
            told, said, statuses = fit(f"on {ranks}", **job | {"ranks": ranks, "checkpoint": last})
            assert not any(statuses), said[-4000:]
            own = local_rows(local_paths, tmp_path, ranks)
            assert told == dict(list(own.items())[KILLED_AT:])
            assert of_all_ranks(own) == of_all_ranks(expected)
            assert said.count("as the order says (digest") == 1
        assert len(server.asked) > STEPS

    return resumed


@pytest.mark.slow
def test_two_killed_ranks_go_on_with_the_same_rows(check, local_paths, server, tmp_path):
    publish(local_paths, server_put(server), tmp_path, counts=COUNTS)
    check(f"{server.url}/data/{NAMES}{SIGNED}", {}, [2])


@pytest.mark.matrix
@pytest.mark.parametrize("scheme", ["http", "s3"])
def test_killed_ranks_go_on_with_the_same_rows_on_other_numbers_of_ranks(
    scheme, check, local_paths, server, real_store, real_server, tmp_path
):
    """S3 is moto's, with our server as a proxy before it, which makes a fifth of requests fail."""
    if scheme == "http":
        publish(local_paths, server_put(server), tmp_path, counts=COUNTS)
        check(f"{server.url}/data/{NAMES}{SIGNED}", {}, [1, 2, 4])
        return
    store, moto = real_store("moto"), real_server("moto")
    publish(local_paths, store.put, tmp_path, counts=COUNTS)
    server.upstream = f"127.0.0.1:{moto.port}"
    options = {"s3": dict(moto.options["s3"]) | {"endpoint": server.url}}
    urls = moto.url_of("SHARDS").replace("SHARDS", NAMES)
    check(urls, {"storage_options": options}, [1, 2, 4])
