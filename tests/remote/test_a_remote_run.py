"""What remote shards guarantee, in the names of its tests."""

import json
import logging
import pickle
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from fault_server import Fault
from real_servers import NAMES

from lightning_shards import LoaderConfig, ShardDataModule, ShardIndex, SplitConfig
from lightning_shards.errors import (
    ConfigError,
    FileAccessError,
    IndexMismatchError,
    ShardNotFoundError,
    StorageError,
)
from lightning_shards.plan.place import Cursor, Place
from tests.remote.published import (
    COUNTS,
    batches,
    module,
    publish,
    server_put,
    without_tables,
)

pytestmark = [pytest.mark.network, pytest.mark.usefixtures("quick")]


def test_two_ranks_get_what_local_shards_give(published_shards, local, server, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    data = module(published_shards, tmp_path)
    assert data.source("train").describe().reader == "indexed"
    assert "'auto' takes the indexed reader, by the member tables" in caplog.text
    assert batches(data, epochs=2) == batches(module(local, tmp_path), epochs=2)
    assert "s3cr3t" not in caplog.text + repr(data) + repr(data.source("train"))
    assert "s3cr3t" not in str(data.state_dict())
    assert not any("s3cr3t" in str(path) for path in (tmp_path / "cache").rglob("*"))


@pytest.mark.parametrize("name", NAMES)
def test_shards_in_servers_of_other_makers_are_read(name, real_store, real_server, local, tmp_path):
    store, server = real_store(name), real_server(name)
    publish(local, store.put, tmp_path)
    url = server.url_of("SHARDS").replace("SHARDS", "shard-{000000..000002}.tar")
    data = module(url, tmp_path, loader={"storage_options": dict(server.options)})
    assert batches(data) == batches(module(local, tmp_path))
    assert data.source("train").describe().reader == "indexed"
    assert "s3cr3t" not in repr(data.source("train")) + pickle.dumps(data.source("train")).hex()


@pytest.mark.parametrize("signature", ["s3cr3t-query", "another&X-Amz-Date=tomorrow"])
def test_a_second_run_fetches_no_table_and_asks_once_what_each_shard_is(
    signature, published_shards, server, tmp_path
):
    cached = {"cache_gib": 1}  # however full the disk of the machine is
    batches(module(published_shards, tmp_path, loader=cached))
    server.asked.clear()
    again = published_shards.replace("s3cr3t-query", signature)
    batches(module(again, tmp_path, loader=cached))
    assert len(server.ranges(".members")) == 1  # whether there are any: this chooses the reader
    only_versions = [name for name, *span in server.ranges() if span == [0, 0]]
    assert len(only_versions) == len(set(only_versions)) == len(COUNTS)


# --- which reader


@pytest.mark.parametrize(
    ("settings", "reader"),
    [
        ({"sampling": "sequential"}, "indexed"),
        ({"sampling": "resampled"}, "indexed"),
        ({"reader": "stream"}, "stream"),
        ({"stages": [iter]}, "stream"),
    ],
)
def test_auto_takes_the_indexed_reader_where_it_can(published_shards, tmp_path, settings, reader):
    data = module(published_shards, tmp_path, **settings)
    assert data.source("train").describe().reader == reader
    data.source("train").first_sample(Place())


def test_shards_without_tables_are_streamed(published_shards, local, server, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    without_tables(server)
    data = module(published_shards, tmp_path, sampling="sequential")
    assert data.source("train").describe().reader == "stream"
    assert "takes the stream reader, because there are no member tables" in caplog.text
    assert "`lightning-shards index" in caplog.text
    assert batches(data, 1) == batches(module(local, tmp_path, sampling="sequential"), 1)


def test_without_tables_the_indexed_reader_names_the_command(published_shards, server, tmp_path):
    del server.objects["data/shard-000000.tar.members"]
    with pytest.raises(ConfigError) as caught:
        module(published_shards, tmp_path, reader="indexed").source("train")
    command = (
        f"`lightning-shards index '{published_shards.partition('?')[0]}' --format wids,members"
    )
    assert f"make it once by {command} --output DIR`, with DIR" in str(caught.value)
    assert "s3cr3t" not in str(caught.value)


def test_a_fork_is_refused_with_the_clients_that_do_not_survive_it(tmp_path):
    def source_of(*urls):
        settings = {"num_workers": 1, "loader": {"multiprocessing_context": "fork"}}
        data = module(list(urls), tmp_path, sampling="sequential", **settings)
        return data.source("train", ShardIndex(urls, np.array([2, 2]), has_tables=True))

    with pytest.raises(ConfigError, match=r"'fork' does not go with s3://.*'forkserver'"):
        source_of("http://h/0.tar", "s3://b/0.tar")
    source_of("http://h/0.tar", "hf://d/0.tar")


# --- bad input


def test_an_object_that_is_replaced_during_a_run_ends_it(published_shards, server, tmp_path):
    source = module(published_shards, tmp_path, loader={"connections": 1}).source("train")
    stream = source.batches(Place(), Cursor())
    server.always = Fault("late", 0.05)  # so that some pieces are not in the cache yet
    next(stream)
    for name in [name for name in server.objects if name.endswith(".tar")]:
        server.objects[name] = server.objects[name][::-1]
    server.always = None
    with pytest.raises(IndexMismatchError, match=r"bytes of version \w+, .* of version") as caught:
        list(islice(stream, 50))
    assert "s3cr3t" not in str(caught.value)


def test_shards_that_were_made_anew_are_read_once_a_run_has_noticed_it(
    published_shards, server, tmp_path, pack_shards
):
    batches(module(published_shards, tmp_path))
    again = pack_shards(COUNTS[::-1])[::-1]
    renamed = [Path(path).rename(tmp_path / f"shard-{n:06d}.tar") for n, path in enumerate(again)]
    publish(renamed, server_put(server), tmp_path)
    hides = {"on_bad_sample": "substitute", "max_bad": 9}
    with pytest.raises(IndexMismatchError, match=r"bytes of version \w+, .* of version \w+"):
        batches(module(published_shards, tmp_path, **hides), world_size=1)
    found = batches(module(published_shards, tmp_path))
    assert found == batches(module(list(map(str, renamed)), tmp_path))


@pytest.mark.parametrize(("stop", "end"), [(-9, b""), (0, b"no table")], ids=["short", "other"])
def test_a_damaged_table_is_refused(published_shards, server, tmp_path, stop, end):
    name = "data/shard-000001.tar.members"
    server.objects[name] = server.objects[name][:stop] + end
    with pytest.raises(FileAccessError, match=r"000001.tar.members cannot be used: it is"):
        batches(module(published_shards, tmp_path))


def test_what_cannot_be_had_is_an_error_and_no_bad_sample(published_shards, server, tmp_path):
    data = module(published_shards, tmp_path, on_bad_sample="substitute", max_bad=9)
    source = data.source("train")
    next(source.batches(Place(), Cursor()))
    server.always = Fault("status", 500)
    with pytest.raises(StorageError, match="500 Internal Server Error"):
        next(source.batches(Place(), Cursor()))


def test_to_try_a_sample_one_table_and_one_sample_are_fetched(published_shards, server, tmp_path):
    source = module(published_shards, tmp_path, loader={"cache_gib": 1}).source("train")
    server.asked.clear()
    source.first_sample(Place())
    kinds = [Path(each.path.partition("?")[0]).suffix for each in server.asked]
    assert kinds.count(".members") <= 1
    assert kinds.count(".tar") <= 3  # its version, and each member
    assert len(kinds) <= 4


def test_a_brace_too_many_is_named(published_shards, tmp_path):
    urls = published_shards.replace("000002}", "000004}")
    with pytest.raises(ShardNotFoundError, match=r"shard-000003\.tar cannot be read"):
        module(urls, tmp_path).source("train")


def test_a_wids_json_stands_for_the_shards_that_it_lists(published_shards, server, tmp_path):
    listed = [{"url": f"shard-{n:06d}.tar", "nsamples": count} for n, count in enumerate(COUNTS)]
    wids = {"wids_version": 1, "shardlist": listed}
    server.objects["data/wids.json"] = json.dumps(wids).encode()
    given = published_shards.replace("shard-{000000..000002}.tar", "wids.json")
    assert batches(module(given, tmp_path)) == batches(module(published_shards, tmp_path, "other"))
    server.objects["data/wids.json"] = b"[]"
    with pytest.raises(ConfigError, match=r"data/wids.json lists no shards"):
        module(given, tmp_path, "third").source("train")


# --- settings


def test_connections_are_shared_out_over_the_workers(published_shards, tmp_path):
    made = module(published_shards, tmp_path, num_workers=3, loader={"connections": 10})
    sources = made.source("train"), made.loader("train", rank=1, world_size=2).source
    assert [each.storages["*"].settings.connections for each in sources] == [3, 1]
    with pytest.raises(ConfigError, match="connections must be"):
        LoaderConfig(connections=0)


def test_names_of_classes_come_from_beside_remote_shards(published_shards, server, tmp_path):
    names = {f"class {number}": number for number in range(16)}
    server.objects["data/classes.json"] = json.dumps(names).encode()
    data = ShardDataModule(
        SplitConfig(published_shards, sampling="sequential"),
        fields={"label": "cls"},
        decode={"label": "class"},
        batch_size=2,
        num_workers=0,
        loader=LoaderConfig(cache_dir=str(tmp_path / "cache")),
    )
    (field,) = data.source("train").describe().fields
    assert field.classes is not None
    assert field.classes.numbers == names
    assert field.classes.source == f"{server.url}/data/classes.json"
    assert batches(data, 1)[0]
