"""`lightning-shards cache`: what a run finds after a fill, and what the tool refuses."""

import json

import pytest
import yaml
from fault_server import Fault
from waiting import wait_for

from lightning_shards.plan.place import Cursor, Place
from lightning_shards.tools import cache
from tests.remote.published import batches, module

pytestmark = [pytest.mark.network, pytest.mark.usefixtures("quick")]


@pytest.fixture
def config(published_shards, tmp_path):
    """A configuration of the shards on our server."""

    def write(loader=None, trainer=None, **train):
        data = {
            "train": {"urls": published_shards, "sampling": "shuffled", "shuffle_run": 2} | train,
            "fields": {"image": "png", "label": "cls"},
            "batch_size": 2,
            "num_workers": 0,
            "loader": {"cache_dir": str(tmp_path / "cache"), "cache_gib": 1} | (loader or {}),
        }
        path = tmp_path / "config.yaml"
        path.write_text(yaml.safe_dump({"trainer": {"devices": 1} | (trainer or {}), "data": data}))
        return str(path)

    return write


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


@pytest.fixture
def run_document(run):
    return lambda *arguments: json.loads(run(*arguments, "--json")[1])


def shards_asked(server):
    asked = [each for each in server.asked if each.path.partition("?")[0].endswith(".tar")]
    return [each for each in asked if each.headers["range"] != "bytes=0-0"]


def test_a_run_after_a_fill_fetches_no_byte_of_a_shard(
    config, run_document, published_shards, local, server, tmp_path
):
    filled = run_document("fill", "--config", config(shuffle_run=0))
    sizes = [len(server.objects[f"data/shard-{shard:06d}.tar"]) for shard in range(3)]
    assert filled["pieces"] > 0
    assert 0.5 * sum(sizes) < filled["size_bytes"] == filled["fetched_bytes"] < sum(sizes)
    assert not filled["is_full"]
    server.asked.clear()
    remote = batches(module(published_shards, tmp_path, loader={"cache_gib": 1}, shuffle_run=0))
    assert remote == batches(module(local, tmp_path, shuffle_run=0))
    assert not shards_asked(server)
    again = run_document("fill", "--config", config(shuffle_run=0))
    assert again == filled | {"fetched_bytes": 0}


def test_of_strands_each_node_fills_its_own(config, run_document, server):
    strands = {"shuffle_strands": 2, "shuffle_width": 2, "shuffle_block": 8}
    path = config(trainer={"num_nodes": 2}, **strands)
    first, second = (run_document("fill", "--config", path, "--node", node) for node in range(2))
    sizes = [len(server.objects[f"data/shard-{shard:06d}.tar"]) for shard in range(3)]
    assert first["fetched_bytes"] == first["size_bytes"] < 0.6 * sum(sizes)
    assert second["fetched_bytes"] == second["size_bytes"] < 0.6 * sum(sizes)
    assert run_document("fill", "--config", path)["fetched_bytes"] == 0


def test_a_fill_that_was_interrupted_goes_on(config, run, run_document, server, tmp_path):
    written = config(loader={"connections": 1})
    whole = run_document("fill", "--config", written)
    server.asked.clear()
    run("clear", "--cache-dir", tmp_path / "cache")
    run("fill", "--config", written)
    before = len(server.asked) - 2
    run("clear", "--cache-dir", tmp_path / "cache")
    server.faults = [*[None] * before, Fault("status", 404)]
    status, told = run("fill", "--config", written)
    assert status == 2
    assert "s3cr3t" not in told
    server.faults = []
    rest = run_document("fill", "--config", written)
    assert 0 < rest["fetched_bytes"] < whole["size_bytes"] / 2
    assert rest == whole | {"fetched_bytes": rest["fetched_bytes"]}


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


def test_an_empty_cache_is_no_error(run, tmp_path):
    folder = tmp_path / "nothing"
    assert run("list", "--cache-dir", folder) == (
        0,
        f"cache_dir: {folder}\nfolders: none\nmade: none\n",
    )
    assert run("clear", "--cache-dir", folder)[0] == 0
    assert not folder.exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["fill", "--config", "no.yaml"], "no.yaml"),
        (["fill", "--config", "CONFIG", "--split", "test"], "there is no 'test' split"),
        (["fill", "--config", "CONFIG", "--node", "-1"], "--node must be at least 0, got -1"),
        (["fill", "--config", "CONFIG", "--node", "1"], "rank"),
        (["list", "--node", "1"], "--node is for `cache fill`"),
        (["fill", "--config", "CONFIG", "--cache-dir", "."], "and no --cache-dir"),
        (["clear", "--config", "CONFIG"], "--config is for `cache fill`"),
    ],
)
def test_what_makes_no_sense_is_refused(config, run, arguments, said):
    written = config()
    status, told = run(*(written if word == "CONFIG" else word for word in arguments))
    assert status == 2
    assert said in told


def test_what_is_not_kept_is_not_filled(config, run, local):
    for settings, said in (
        ({"sampling": "sequential"}, "reads shards in the order of the files"),
        ({"reader": "stream"}, "these shards are streamed"),
        ({"urls": local}, "these shards are not remote"),
    ):
        status, told = run("fill", "--config", config(**settings))
        assert status == 2
        assert said in told
