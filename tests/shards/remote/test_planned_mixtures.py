"""`lightning-shards plan` of mixtures with remote components, beside what a server is asked for."""

import json
from dataclasses import replace

import numpy as np
import pytest
import yaml

from lightning_shards.shards.remote.fetching.fetch_needs import ReadData
from lightning_shards.tools import cache, plan
from lightning_shards.tools.plan_network import FetchedPart
from tests.mixed_shards import pack_component
from tests.shards.remote.published import publish, server_put

pytestmark = [pytest.mark.network, pytest.mark.usefixtures("quick")]

COUNTS = {"web": [60], "labels": [40, 40, 40], "more": [60, 60]}
MIX = {"web": 4, "labels": 3, "more": 1}
OWN = {
    "labels": {"fields": {"image": "img.png", "label": "class.txt"}, "decode": {"label": "int"}},
    "more": {"shuffle_run": 8, "shuffle_block": 64},
}


@pytest.fixture
def config(server, tmp_path):
    """A mixture of one local component and two that lie on our server."""
    urls, counts, put = {}, {}, server_put(server)
    for name, of_shards in COUNTS.items():
        paths = pack_component(tmp_path / "shards", name, of_shards)
        urls[name] = paths
        if name != "web":
            publish(paths, put, tmp_path, counts=of_shards)
            counts |= json.loads(server.objects["data/sizes.json"])
            urls[name] = f"{server.url}/data/{name}-{{0..{len(paths) - 1}}}.tar"
    put("sizes.json", json.dumps(counts).encode())

    def write(cache_gib=1, **split):
        mix = {
            name: {"urls": urls[name], "weight": weight, **OWN.get(name, {})}
            for name, weight in MIX.items()
        }
        own = {"sampling": "shuffled", "shuffle_run": 4, "shuffle_block": 40, "round": 8}
        data = {
            "train": {"mix": mix, "dataset_size": 320, **own, **split},
            "fields": {"image": "png", "label": "cls"},
            "decode": {"image": "gray"},
            "batch_size": 8,
            "num_workers": 0,
            "loader": {"cache_dir": str(tmp_path / "cache"), "cache_gib": cache_gib},
        }
        path = tmp_path / "config.yaml"
        path.write_text(yaml.safe_dump({"data": data}))
        return str(path)

    return write


@pytest.fixture
def run(capsys):
    """What a tool prints."""

    def call(main, *arguments):
        main(list(map(str, arguments)))
        return capsys.readouterr().out

    return call


def fetched(server):
    """Requests for ranges of shards, and their bytes."""
    asked = [each for each in server.asked if each.path.endswith(".tar")]
    ranges = [each.headers["range"].removeprefix("bytes=").split("-") for each in asked]
    sizes = [int(last) - int(first) + 1 for first, last in ranges if (first, last) != ("0", "0")]
    return len(sizes), sum(sizes)


@pytest.mark.parametrize("epoch", [320, 640])
def test_what_is_fetched_of_each_remote_component_is_what_the_server_is_asked_for(
    epoch, config, run, server
):
    """A third and two thirds of `more` are passed, `labels` once and twice, and `web` is local."""
    path = config(dataset_size=epoch)
    arguments = ("--config", path, "--world-size", "1", "--json")
    document = json.loads(run(plan.main, *arguments))
    (row,) = document["epochs"]
    server.asked.clear()
    filled = json.loads(run(cache.main, "fill", "--config", path, "--json"))
    requests, size = fetched(server)
    assert (requests, size) == (filled["pieces"], filled["fetched_bytes"])
    assert row["requests"] == pytest.approx(requests, rel=0.1)
    assert row["bytes_to_fetch"] == pytest.approx(size, rel=0.1)
    assert document["network"]["pieces"] == 30 + 16  # with the one that the end of a shard cuts
    assert document["network"]["suitable"]["component"] == "labels"


def test_the_notes_say_of_what_the_figures_are(config, run):
    said = run(plan.main, "--config", config(), "--world-size", "1")
    assert "note: what is fetched is that of epoch 0, summed over the remote components" in said
    assert "a request of component labels brings 16.8 KiB" in said
    assert "6 shards, unknown, mixture" in said  # nobody has counted the bytes of the local one


def test_what_is_kept_of_a_component_is_fetched_once_in_an_epoch_of_two_passes():
    part = FetchedPart("a", ReadData(np.array([9]), 900, "shuffled", 3, 9), passes=2.0)
    assert [part.repeated(kept) for kept in (0.0, 0.5, 1.0)] == [1.0, 0.75, 0.5]
    assert replace(part, passes=0.5).repeated(1.0) == 1.0
