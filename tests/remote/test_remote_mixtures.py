"""Mixtures of local and remote components: by their tables, or streamed where there are none."""

from collections import Counter

import pytest

from lightning_shards import LoaderConfig, ShardDataModule
from lightning_shards.readers.indexed import IndexedSource
from lightning_shards.readers.stream import StreamSource
from tests.mixed_shards import COUNTS, WEIGHTS, pack_component
from tests.remote.published import batches, publish, server_put, without_tables

pytestmark = [pytest.mark.network, pytest.mark.usefixtures("quick")]

NAMES = ("web", "labels", "more")
REMOTE = "labels"


@pytest.fixture
def shards(tmp_path):
    return {name: pack_component(tmp_path / "shards", name, COUNTS[name]) for name in NAMES}


@pytest.fixture
def with_remote(shards, server, tmp_path):
    """The same shards, those of one component on our server, with counts and tables."""
    publish(shards[REMOTE], server_put(server), tmp_path, counts=COUNTS[REMOTE])
    return shards | {REMOTE: f"{server.url}/data/{REMOTE}-{{0..1}}.tar"}


def module(urls, tmp_path, cache="cache", num_workers=0, **split):
    """A mix whose components have other members for the same fields, or the same ones."""
    mix = {name: {"urls": urls[name], "weight": WEIGHTS[name]} for name in NAMES}
    mix[REMOTE] |= {
        "fields": {"image": "img.png", "label": "class.txt"},
        "decode": {"image": "gray", "label": "int"},
    }
    own = {"sampling": "shuffled", "shuffle_run": 2, "round": 8, "dataset_size": 32}
    return ShardDataModule(
        {"mix": mix, **own, **split},
        fields={"image": "png", "label": "cls"},
        decode={"image": "gray"},
        batch_size=8,
        num_workers=num_workers,
        loader=LoaderConfig(cache_dir=str(tmp_path / cache)),
    )


@pytest.mark.parametrize(("sampling", "num_workers"), [("shuffled", 0), ("resampled", 1)])
def test_a_mix_with_a_remote_component_equals_the_local_one_byte_by_byte(
    with_remote, shards, tmp_path, sampling, num_workers
):
    given = {"sampling": sampling, "num_workers": num_workers}
    afar, here = module(with_remote, tmp_path, "other", **given), module(shards, tmp_path, **given)
    assert isinstance(afar.source("train"), IndexedSource)
    assert afar.source("train").identity() == here.source("train").identity()
    assert batches(afar, epochs=2) == batches(here, epochs=2)


def test_a_component_without_tables_makes_the_mix_a_stream(with_remote, server, tmp_path):
    without_tables(server)
    data = module(with_remote, tmp_path, sampling="resampled")
    assert isinstance(data.source("train"), StreamSource)
    for batch in data.loader("train"):
        assert Counter(batch["__component__"].tolist()) == dict(enumerate(WEIGHTS.values()))
