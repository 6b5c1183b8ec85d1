"""A server that sends neither ETag nor Last-Modified: what is kept of it serves one run alone."""

import pickle
import tarfile
from pathlib import Path

import pytest
from fault_server import Fault

from lightning_shards.errors import IndexMismatchError
from lightning_shards.shards.filters import applying
from lightning_shards.shards.filters.kept_files import stamps_of
from lightning_shards.shards.index import ShardIndex, share_index, shared_index
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.remote.providers.undated import (
    forget_run_number,
    run_number,
    take_over_run_number,
)
from lightning_shards.shards.remote.transport import TransportSettings
from lightning_shards.shards.storage.remote import version_number
from lightning_shards.shards.storage.schemes import MakeRemoteStorage, Storages
from lightning_shards.shards.tables import TableStore
from tests.shards.remote.conftest import options_of
from tests.shards.remote.published import batches, module, publish, server_put

pytestmark = [pytest.mark.network, pytest.mark.usefixtures("quick")]


@pytest.fixture
def undated(published_shards, server):
    server.has_etags = server.has_dates = False
    return published_shards


@pytest.fixture
def replace_all(local, server, tmp_path):
    """Replaces all shards by others of the same sizes: each label is another digit."""

    def replace():
        for path in map(Path, local):
            with tarfile.open(path) as tar:
                offsets = [each.offset_data for each in tar if each.name.endswith(".cls")]
            data = bytearray(path.read_bytes())
            for offset in offsets:
                data[offset] ^= 1
            path.write_bytes(data)
        publish(local, server_put(server), tmp_path)

    return replace


def warnings_of(caplog):
    return [each for each in caplog.records if "neither ETag nor" in each.message]


COUNTED = Fault("headers", headers=(("Ais-Version", "1"), ("Ais-Checksum-Value", "0f")))
"""Headers of an AIStore; the checksum may be that of the range."""


@pytest.mark.parametrize("always", [None, COUNTED], ids=["nothing", "a number"])
def test_shards_that_were_replaced_by_some_of_their_size_are_read_anew_by_the_next_run(
    always, undated, local, replace_all, server, tmp_path, caplog
):
    server.always = always
    before = batches(module(undated, tmp_path))
    assert before == batches(module(local, tmp_path, cache="local"))
    assert len(warnings_of(caplog)) == 1
    assert "s3cr3t" not in caplog.text
    replace_all()
    forget_run_number()  # as the next run
    after = batches(module(undated, tmp_path))
    assert after == batches(module(local, tmp_path, cache="other"))
    assert after != before
    assert len(warnings_of(caplog)) == 2


def test_tables_serve_all_processes_of_a_run_and_no_other_run(undated, server, tmp_path):
    url, cache = f"{server.url}/data/shard-000000.tar", CacheFolder(tmp_path / "kept")

    def tables():
        return TableStore(cache, storages=Storages(make_storages(server)))

    first = tables().table_of(url)
    server.asked.clear()
    assert tables().missing([url]) == []
    assert tables().table_of(url).stamp == first.stamp
    assert not server.asked
    forget_run_number()
    assert tables().missing([url]) == [url]
    assert tables().kept_table(url) is None
    second = tables().table_of(url)
    assert server.asked
    assert second.has_same_members(first)
    assert second.stamp != first.stamp


def make_storages(server):
    return {"http": MakeRemoteStorage(TransportSettings(options_of(server)))}


def test_a_filter_is_applied_anew_by_the_next_run(undated, tmp_path, monkeypatch):
    chosen = {"exclude": {"hash_of": "key", "of": 3, "parts": [0]}}
    apply, applied = applying._applied, []

    def counted(*args):
        applied.append(args)
        return apply(*args)

    monkeypatch.setattr(applying, "_applied", counted)
    for _ in range(2):
        assert batches(module(undated, tmp_path, **chosen))
    assert len(applied) == 1
    forget_run_number()
    assert batches(module(undated, tmp_path, **chosen))
    assert len(applied) == 2


def test_what_a_filter_left_is_not_known_by_the_tables_of_another_run(undated, server, tmp_path):
    url, cache = f"{server.url}/data/shard-000000.tar", CacheFolder(tmp_path / "kept")
    index = ShardIndex((url,), None)
    TableStore(cache, storages=Storages(make_storages(server))).table_of(url)
    assert stamps_of(index, cache)[0, 1] == run_number()
    forget_run_number()
    assert stamps_of(index, cache).max() < 0


def test_a_replaced_one_of_another_size_is_noticed_within_a_run(undated, server):
    storage = MakeRemoteStorage(TransportSettings(options_of(server)))()
    url = f"{server.url}/data/shard-000000.tar"
    stat = storage.stat(url)
    server.objects["data/shard-000000.tar"] += b"more"
    with pytest.raises(IndexMismatchError):
        storage.read(url, 0, 9, stat)
    storage.close_all()


def test_one_of_another_number_is_noticed_within_a_run(undated, server):
    server.always = COUNTED
    storage = MakeRemoteStorage(TransportSettings(options_of(server)))()
    url = f"{server.url}/data/shard-000000.tar"
    stat = storage.stat(url)
    assert storage.read(url, 0, 9, stat)
    server.always = Fault("headers", headers=(("Ais-Version", "2"),))
    with pytest.raises(IndexMismatchError):
        storage.read(url, 0, 9, stat)
    storage.close_all()


def test_the_number_of_a_run_goes_to_its_workers_and_ranks_which_warn_no_more(
    undated, server, tmp_path, caplog
):
    pickled, number = pickle.dumps(make_storages(server)["http"]), run_number()
    pickled_storage = pickle.dumps(make_storages(server)["http"]())
    cache = CacheFolder(tmp_path)
    share_index(ShardIndex((undated,), None), cache, "all")

    def worker():
        return pickle.loads(pickled)

    def rank():
        assert shared_index((undated,), cache, "all") is not None
        return make_storages(server)["http"]

    def process_of_a_tool():
        return lambda: pickle.loads(pickled_storage)

    for start in (worker, rank, process_of_a_tool):
        forget_run_number()
        storage = start()()
        assert storage.stat(f"{server.url}/data/shard-000000.tar").version == number
        storage.close_all()
    assert not warnings_of(caplog)


def test_what_has_a_date_or_an_etag_is_known_in_each_run():
    versions = ["Sun, 22 Nov 2026, 9 bytes", '"a"', 'W/"a", no date, 9 bytes']
    numbers = list(map(version_number, versions))
    undated = version_number("no date, 9 bytes")
    assert version_number("no date, 9 bytes") == undated < 0
    forget_run_number()
    assert list(map(version_number, versions)) == numbers
    assert version_number("no date, 9 bytes") != undated


@pytest.mark.parametrize("number", [0, 7, -1, -(10**9) - 1, -(10**19), 1.5, "-1000000000", None])
def test_what_is_no_number_of_a_run_is_refused(number):
    with pytest.raises(ValueError, match="is no number of a run"):
        take_over_run_number(number)
