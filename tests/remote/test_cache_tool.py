"""`lightning-shards cache`: what a run finds after a fill, and what the tool refuses."""

import json

import pytest
import yaml
from waiting import wait_for

from lightning_shards.plan.place import Cursor, Place
from lightning_shards.tools import cache
from tests.remote.published import batches, module

pytestmark = [pytest.mark.network, pytest.mark.usefixtures("quick")]


@pytest.fixture
def config(published_shards, tmp_path):
    """The file of a configuration of the shards on our server."""
    data = {
        "train": {"urls": published_shards, "sampling": "shuffled", "shuffle_run": 0},
        "fields": {"image": "png", "label": "cls"},
        "batch_size": 2,
        "num_workers": 0,
        "loader": {"cache_dir": str(tmp_path / "cache"), "cache_gib": 1},
    }
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump({"trainer": {"devices": 1}, "data": data}))
    return str(path)


@pytest.fixture
def run(capsys):
    """The exit status and the output of the tool."""

    def call(*arguments):
        status = 0
        try:
            cache.main(list(map(str, arguments)))
        except SystemExit as stop:
            status = stop.code
        told = capsys.readouterr()
        return status, told.out + told.err

    return call


def test_a_run_after_a_fill_fetches_no_byte_of_a_shard(
    config, run, published_shards, local, server, tmp_path
):
    command = ["fill", "--config", config, "--json"]
    filled = json.loads(run(*command)[1])
    sizes = [len(server.objects[f"data/shard-{shard:06d}.tar"]) for shard in range(3)]
    assert filled["pieces"] > 0
    assert 0.5 * sum(sizes) < filled["size_bytes"] == filled["fetched_bytes"] < sum(sizes)
    assert not filled["is_full"]
    server.asked.clear()
    remote = batches(module(published_shards, tmp_path, loader={"cache_gib": 1}, shuffle_run=0))
    assert remote == batches(module(local, tmp_path, shuffle_run=0))
    assert not [name for name, *span in server.ranges() if span != [0, 0]]
    assert json.loads(run(*command)[1]) == filled | {"fetched_bytes": 0}


def test_an_open_cache_is_listed_and_not_cleared(run, published_shards, tmp_path):
    data = module(published_shards, tmp_path, loader={"cache_gib": 1}, shuffle_run=0)
    stream = data.source("train").batches(Place(), Cursor())
    next(stream)
    folder = tmp_path / "cache"
    assert wait_for(lambda: len(list((folder / "pieces").glob("*/*-*[0-9]"))) > 1, 10)
    status, told = run("list", "--cache-dir", folder)
    assert status == 0
    assert told.splitlines()[-2].endswith("  1")  # open run
    status, told = run("clear", "--cache-dir", folder)
    assert status == 2
    assert "is open" in told
    assert run("clear", "--cache-dir", folder, "--force")[0] == 0
    assert next(stream) is not None
    stream.close()
    assert run("list", "--cache-dir", folder)[1].splitlines()[-2].endswith("  0")
    assert run("clear", "--cache-dir", folder)[1].startswith("pieces: ")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["fill", "--config", "CONFIG", "--split", "test"], "there is no 'test' split"),
        (
            ["fill", "--config", "CONFIG", "--node", "-1"],
            "--node: must be at least 0, got -1",
        ),
        (["fill", "--config", "CONFIG", "--node", "1"], "rank"),
        (["list", "--node", "1"], "--node is for `cache fill`"),
        (["fill", "--config", "CONFIG", "--cache-dir", "."], "and no --cache-dir"),
        (["clear", "--config", "CONFIG"], "--config is for `cache fill`"),
    ],
)
def test_what_makes_no_sense_is_refused(config, run, arguments, said):
    status, told = run(*(config if word == "CONFIG" else word for word in arguments))
    assert status == 2
    assert said in told
