"""DALI's indexes and names of classes that lie beside remote shards."""

import json
import logging
from pathlib import Path
from shutil import rmtree
from urllib.parse import quote

import pytest

from lightning_shards import LoaderConfig, ShardDataModule, SplitConfig
from lightning_shards.build.sources import find_shards
from lightning_shards.config.module import DataConfig
from lightning_shards.dataprep.indexes.idx_files import dali_index
from lightning_shards.errors import ConfigError, FileAccessError, IndexMismatchError
from lightning_shards.tools.shard_options import classes_of
from tests.shards.remote.conftest import SIGNED
from tests.shards.remote.published import batches, module

pytestmark = pytest.mark.network


@pytest.fixture
def by_dali(published_shards, local, server):
    """The shards on our server, with DALI's indexes in place of tables."""
    for path in local:
        name = path.rpartition("/")[2]
        del server.objects[f"data/{name}.members"]
        server.objects[f"data/{name.partition('.')[0]}.idx"] = dali_index(path).encode()
    return published_shards


def asked_for(server, ending):
    paths = (each.path.partition("?")[0] for each in server.asked)
    return [path.rpartition("/")[2] for path in paths if path.endswith(ending)]


def test_the_batches_by_dali_s_indexes_are_those_of_local_shards(by_dali, local, tmp_path, server):
    data = module(by_dali, tmp_path)
    assert data.source("train").describe().reader == "indexed"
    assert batches(data) == batches(module(local, tmp_path))
    found = asked_for(server, ".idx")
    assert sorted(set(found)) == [f"shard-{shard:06d}.idx" for shard in range(3)]
    server.asked.clear()
    batches(module(by_dali, tmp_path))
    assert asked_for(server, ".idx") == []  # they are kept


@pytest.mark.parametrize("name", ["a b", "ü", "100%", "a#b", "a?b", "a%20b"])
@pytest.mark.parametrize("is_escaped", [True, False])
def test_counts_name_shards_as_they_are_or_as_urls_escape_them(
    name, is_escaped, published_shards, local, server, tmp_path
):
    counted = json.loads(server.objects.pop("data/sizes.json"))
    counts = {}
    for path in map(Path, local):
        given = f"{name}{path.name}"
        for ending in ("", ".members"):
            server.objects[f"data/{given}{ending}"] = server.objects[f"data/{path.name}{ending}"]
        counts[quote(given) if is_escaped else given] = counted[path.name]
    server.objects["data/sizes.json"] = json.dumps(counts).encode()
    urls = published_shards.replace("shard-", f"{quote(name)}shard-")
    assert batches(module(urls, tmp_path)) == batches(module(local, tmp_path))


def test_an_index_without_names_is_streamed_and_it_is_said_why(by_dali, server, tmp_path, caplog):
    server.objects["data/shard-000000.idx"] = b"v1.1 5\n" + b"png 512 1\n" * 5
    data = module(by_dali, tmp_path, sampling="sequential")
    assert data.source("train").describe().reader == "stream"
    assert "shard-000000.idx cannot stand for a member table: version v1.1 has no" in caplog.text
    with pytest.raises(FileAccessError, match=r"version v1.1 has no names of members, so samples"):
        module(by_dali, tmp_path, reader="indexed").source("train")


def test_an_index_of_another_shard_is_an_error_of_its_own(by_dali, server, tmp_path):
    server.objects["data/shard-000001.idx"] = server.objects["data/shard-000002.idx"]
    with pytest.raises(FileAccessError, match=r"000001.idx cannot stand for .* would end at byte"):
        batches(module(by_dali, tmp_path))


def test_a_replaced_object_is_noticed_without_checksums(by_dali, server, tmp_path):
    batches(module(by_dali, tmp_path))
    rmtree(tmp_path / "cache" / "pieces")  # they are of the old version
    name = "data/shard-000001.tar"
    server.objects[name] = server.objects[name][:-1] + b"\1"
    with pytest.raises(IndexMismatchError, match=r"shard-000001.tar changed since it was indexed"):
        batches(module(by_dali, tmp_path))


# --- names of classes


def named(urls, tmp_path, **settings):
    return ShardDataModule(
        SplitConfig(urls, **{"sampling": "sequential"} | settings),
        fields={"label": "cls"},
        decode={"label": "class"},
        batch_size=2,
        num_workers=0,
        loader=LoaderConfig(cache_dir=str(tmp_path / "cache")),
    )


def test_names_of_classes_come_from_beside_remote_shards(published_shards, server, tmp_path):
    names = {f"class {number}": number for number in range(16)}
    server.objects["data/classes.json"] = json.dumps(names).encode()
    (field,) = named(published_shards, tmp_path).source("train").describe().fields
    assert field.classes is not None
    assert (field.classes.numbers, field.classes.source) == (
        names,
        f"{server.url}/data/classes.json",
    )
    assert batches(named(published_shards, tmp_path), 1)[0]


def test_one_process_of_a_node_asks_for_them(published_shards, server, tmp_path):
    server.objects["data/classes.json"] = b'["a", "b"]'
    config = DataConfig(
        train=SplitConfig(published_shards),
        fields={"label": "cls"},
        decode={"label": "class"},
        batch_size=2,
        loader=LoaderConfig(cache_dir=str(tmp_path / "cache")),
    )
    find_shards(config, "train")
    assert asked_for(server, "classes.json") == ["classes.json"]
    server.asked.clear()
    index = find_shards(config, "train", is_prepared=True)
    assert index.class_files == {f"{server.url}/data": '["a", "b"]'}
    assert server.asked == []


@pytest.mark.parametrize("content", [None, b"{", b"[1]", b"\xff", b'["a", "a"]'])
def test_what_cannot_be_read_there_is_an_error(published_shards, server, tmp_path, content):
    if content is not None:
        server.objects["data/classes.json"] = content
    with pytest.raises(ConfigError, match=r"/data(/classes.json| has none)") as caught:
        named(published_shards, tmp_path).source("train")
    assert "s3cr3t" not in str(caught.value)


def test_who_needs_no_names_asks_for_none(published_shards, server, tmp_path):
    server.objects["data/classes.json"] = b'["a"]'
    module(published_shards, tmp_path).source("train")
    assert asked_for(server, "classes.json") == []


def test_tools_show_them(server, capsys, caplog):
    server.objects["data/classes.json"] = b'["cat"]'
    caplog.set_level(logging.WARNING)
    names = classes_of([f"{server.url}/data/0.tar{SIGNED}"], "cls")
    assert names is not None
    assert names.name_of("0") == "cat"
    assert classes_of([f"{server.url}/other/0.tar"], "cls") is None
    assert capsys.readouterr().err == ""
