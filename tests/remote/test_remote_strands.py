"""Two nodes that read strands fetch the data set once, and keep their half for all epochs."""

from itertools import islice

import pytest

from lightning_shards.build.sources import find_shards, make_source
from lightning_shards.config.loading import LoaderConfig
from lightning_shards.config.module import DataConfig
from lightning_shards.config.splits import SplitConfig
from lightning_shards.plan.place import Cursor, Place
from lightning_shards.tools.filling import fill
from tests.remote.published import publish, server_put

pytestmark = [pytest.mark.network, pytest.mark.usefixtures("quick")]

COUNTS = [64] * 4
STEPS = sum(COUNTS) // 4  # of two ranks, two samples each
SETTINGS = {"shuffle_run": 4, "shuffle_block": 16, "shuffle_strands": 2, "shuffle_width": 2}


@pytest.fixture
def urls(pack_shards, server, tmp_path):
    publish(pack_shards(COUNTS), server_put(server), tmp_path, counts=COUNTS)
    return f"{server.url}/data/shard-{{000000..000003}}.tar"


def kept(tmp_path, node):
    """The names of the pieces that a node keeps."""
    return sorted(path.name for path in (tmp_path / f"node-{node}" / "pieces").glob("*/*-*[0-9]"))


def source_of(urls, tmp_path, node, gib, **settings):
    """What a node of two reads, with so much room in its cache."""
    split = {"sampling": "shuffled"} | SETTINGS | settings
    folder = str(tmp_path / f"node-{node}")
    data = DataConfig(
        SplitConfig(urls, **split),
        fields={"image": "png", "label": "cls"},
        batch_size=2,
        num_workers=0,
        loader=LoaderConfig(cache_dir=folder, cache_gib=gib),
    )
    return make_source(data, "train", find_shards(data, "train"), nodes=2)


def filled(source, node):
    """The bytes that a node of one rank fetches for the first epoch."""
    return fill(source, Place(node, 2, num_nodes=2), 4, lambda _: None)[2]


@pytest.fixture
def size(urls, server):
    """The bytes of all shards."""
    return sum(len(data) for name, data in server.objects.items() if name.endswith(".tar"))


def test_two_nodes_fetch_the_set_once_and_keep_their_half(urls, tmp_path, size):
    fetched, of_nodes = [], []
    for node in range(2):
        # its half, two blocks of 16 of the 256 samples, and the member tables
        source = source_of(urls, tmp_path, node, gib=0.72 * size / 2**30)
        fetched.append(filled(source, node))
        pieces = kept(tmp_path, node)
        stream = source.batches(Place(node, 2, num_nodes=2), Cursor())
        of_nodes.append([each.batch["__id__"].tolist() for each in islice(stream, 3 * STEPS)])
        stream.close()
        # A batch that comes before its block was announced is fetched by itself, and is not kept.
        assert kept(tmp_path, node) == pieces, "an epoch needs pieces that the first one did not"
    assert 0.9 * size < sum(fetched) <= 1.02 * size
    for epoch in range(3):
        steps = slice(epoch * STEPS, (epoch + 1) * STEPS)
        served = [tuple(each) for node in of_nodes for batch in node[steps] for each in batch]
        assert len(set(served)) == len(served) == sum(COUNTS)
