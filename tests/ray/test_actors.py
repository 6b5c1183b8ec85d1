"""What actors guarantee, in the names of its tests: the batches of the trainer, whatever dies.

All tests share one cluster on this machine, which the pool has started itself.
"""

import os
import pickle
from dataclasses import replace
from itertools import islice
from pathlib import Path
from threading import RLock

import psutil
import pytest

from lightning_shards import Place, RayConfig
from lightning_shards.errors import ConfigError, ShardNotFoundError, WorkerError
from lightning_shards.samples.generators import are_same
from tests.ray.actor_samples import (
    ACTORS,
    endless,
    joined_table,
    made_here,
    make_module,
    mix_of,
    running_actors,
)
from tests.ray.actor_transforms import end_at_seven, raise_at_seven
from tests.ray.local_clusters import NEEDS_RAY, local_cluster

pytestmark = [
    NEEDS_RAY,
    pytest.mark.slow,
    pytest.mark.ddp,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # sockets and processes that Ray drops
    pytest.mark.filterwarnings(  # Lightning 2.6.6 with torch 2.13
        "ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning"
    ),
]

BATCHES = 12


@pytest.fixture(scope="module", autouse=True)
def cluster():
    """A local cluster, which ends with the module."""
    with local_cluster():
        yield


@pytest.fixture(scope="module")
def urls(tmp_path_factory, pack_into):
    return pack_into(tmp_path_factory.mktemp("ray"), [9, 14, 17])


KINDS = ("crops, tensors, draws from globals", "mixture, keep, join, substitutes", "stream")


def settings_of(kind, folder, urls):
    """The settings of a data module of this kind; the paths in them are relative."""
    train = {"urls": list(map(os.path.relpath, urls))}
    if kind == KINDS[0]:
        return {"train": train}
    if kind == "stream":
        stream = {"reader": "stream", "sampling": "resampled", "shuffle_buffer": 5}
        return {"train": train | stream}
    keep = {"keep": {"hash_of": "key", "of": 4, "parts": [0, 1, 2]}}
    train = mix_of(train["urls"], **keep, join=joined_table(folder))
    train |= {"max_bad": 9, "on_bad_sample": "substitute"}
    return {"train": train, "transforms": {"label": raise_at_seven}}


@pytest.mark.parametrize("kind", KINDS)
def test_batches_are_those_of_the_trainers_own_thread(kind, urls, tmp_path):
    """In one case the actors die in the middle."""
    settings = settings_of(kind, tmp_path, urls)
    with make_module(tmp_path, loader=ACTORS, **settings).loader("train") as loader:
        loader.pool = replace(loader.pool, prefetch_factor=1, batches_per_call=2)
        stream = endless(loader)
        made = list(islice(stream, BATCHES // 2))
        for actor in running_actors() if kind == KINDS[0] else ():
            actor.kill()
        made += islice(stream, BATCHES - BATCHES // 2)
        actors = running_actors()
        assert repr(loader).endswith("made by 2 actors")
        expected = made_here(loader.source, 2 if kind == "stream" else 1, BATCHES)
    assert are_same(made, expected)
    assert actors
    assert psutil.wait_procs(actors, timeout=10)[1] == []


def test_a_sample_that_kills_its_actor_is_an_error_that_names_the_batch(urls, tmp_path):
    settings = {"train": {"urls": urls, "sampling": "sequential"}, "num_workers": 1}
    settings["transforms"] = {"label": end_at_seven}
    with make_module(tmp_path, loader=ACTORS, **settings).loader("train") as loader:
        loader.pool = replace(loader.pool, most_retries=1, batches_per_call=1)
        stream = iter(loader)
        assert [batch["label"].tolist() for batch in islice(stream, 2)] == [[0, 1], [2, 3]]
        with pytest.raises(WorkerError, match=r"actor 0 of rank 0 .* positions .* of epoch 0"):
            list(stream)


def test_actors_that_the_cluster_has_no_room_for_are_an_error_with_what_it_has(
    urls, tmp_path, monkeypatch
):
    monkeypatch.setattr("lightning_shards.workers.ray.pool._PLACED_S", 1.0)
    many = replace(ACTORS, ray=RayConfig(cpus_per_worker=1000))
    said = r"2 of 2 actors with 1000 CPUs .* cluster has \d+ CPUs, of which [\d.]+ are free: add"
    with (
        make_module(tmp_path, loader=many, train={"urls": urls}).loader("train") as loader,
        pytest.raises(ConfigError, match=said),
    ):
        next(iter(loader))


def test_a_source_that_cannot_be_sent_names_the_field(urls, tmp_path):
    transforms = {"label": RLock().acquire}
    module = make_module(tmp_path, loader=ACTORS, train={"urls": urls}, transforms=transforms)
    with (
        module.loader("train") as loader,
        pytest.raises(ConfigError, match=r"of 'label' is RLock\.acquire, which cannot be sent"),
    ):
        next(iter(loader))


@pytest.mark.parametrize(
    ("address", "ranks", "joined"),
    [
        ("auto", 1, ["auto", "local"]),
        ("local", 1, ["local"]),
        ("auto", 2, r"2 ranks needs a cluster that they share; run `ray start --head`"),
        ("head:6379", 2, "no Ray cluster answers at ray.address='head:6379'"),
    ],
)
def test_where_no_cluster_runs_a_single_rank_starts_one(monkeypatch, address, ranks, joined):
    from lightning_shards.workers.ray import cluster as module

    tried = []

    def init(address, **_):
        tried.append(address)
        if address != "local":
            raise ConnectionError("none")

    monkeypatch.setattr(module.ray, "init", init)
    if isinstance(joined, list):
        module._join(address, ranks, 0.5)
        assert tried == joined
    else:
        with pytest.raises(ConfigError, match=joined):
            module._join(address, ranks, 0.5)


def test_a_node_without_the_shards_is_named_with_the_remedy(pack_into, tmp_path):
    from lightning_shards.workers.ray import maker, pool

    urls = pack_into(tmp_path / "shards", [3])
    with make_module(tmp_path, loader=ACTORS, train={"urls": urls}).loader("train") as loader:
        packed = maker.packed_source(loader.source)
    Path(urls[0]).unlink()
    made = maker.BatchMaker(Place(), None)
    made._source = pickle.loads(packed)
    sent = made.try_node([], Place())
    remedy = "let all nodes reach the shards, by s3:// or a shared file system"
    with pytest.raises(
        ShardNotFoundError, match=rf"node far cannot make the first sample: .*{urls[0]}.*{remedy}"
    ):
        pool._raise_of_node("far", pool._unpacked(sent)[0].error)
