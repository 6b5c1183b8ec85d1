"""Counts, member tables and names of classes that lie beside remote shards."""

import json

import pytest

from lightning_shards import LoaderConfig, ShardDataModule, SplitConfig
from lightning_shards.build.sources import find_shards
from lightning_shards.config.module import DataConfig
from lightning_shards.errors import ConfigError
from tests.remote.published import batches

pytestmark = pytest.mark.network


def asked_for(server, ending):
    paths = (each.path.partition("?")[0] for each in server.asked)
    return [path.rpartition("/")[2] for path in paths if path.endswith(ending)]


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
