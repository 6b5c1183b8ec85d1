"""The pool of Ray actors gives the batches of the trainer's own thread, whatever dies.

All tests share one cluster on this machine, which the pool has started itself.
"""

import gzip
import os
import signal
from dataclasses import replace
from itertools import islice

import numpy as np
import psutil
import pytest

from benchmarks import fashion_mnist
from lightning_shards import Place
from lightning_shards.errors import TransformError, WorkerError
from lightning_shards.samples.generators import are_same
from tests.ray.actor_samples import (
    ACTORS,
    DrawsFromAll,
    actors_of,
    end_at_seven,
    ended_processes,
    endless,
    joined_table,
    made_here,
    make_module,
    mix_of,
    raise_at_seven,
    relative,
)

if os.environ.get("CI") != "true":
    pytest.importorskip("ray", reason="Ray is not installed; pip install 'lightning-shards[ray]'")

pytestmark = [
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
    """A local cluster; it ends with the module, and leaves SIGTERM to Lightning."""
    from lightning_shards.workers.ray.cluster import Joining
    from lightning_shards.workers.ray.cluster import cluster as joined

    with ended_processes() as note:
        handler = signal.getsignal(signal.SIGTERM)
        joined.hold(Joining("local"), Place())
        assert signal.getsignal(signal.SIGTERM) is handler
        note()
        yield joined
        note()
        joined.release()
        joined.leave_unused()


@pytest.fixture(scope="module")
def urls(tmp_path_factory, pack_into):
    return pack_into(tmp_path_factory.mktemp("ray"), [9, 14, 17])


KINDS = ("crops, tensors, draws from globals", "keep, join, substitutes", "mixture", "stream")


def settings_of(kind, folder, urls):
    """The settings of a data module of this kind; the paths in them are relative."""
    train = {"urls": relative(urls)}
    if kind == "mixture":
        own = {"fields": {"label": "cls"}, "transforms": {"label": DrawsFromAll()}}
        return {"train": mix_of(train["urls"]), **own}
    if kind == "stream":
        train |= {"reader": "stream", "sampling": "resampled", "shuffle_buffer": 5}
    if kind != "keep, join, substitutes":
        return {"train": train}
    train |= {"keep": {"hash_of": "key", "of": 4, "parts": [0, 1, 2]}, "max_bad": 9}
    train |= {"join": joined_table(folder), "on_bad_sample": "substitute"}
    return {"train": train, "transforms": {"label": raise_at_seven}}


@pytest.mark.parametrize("kind", KINDS)
def test_batches_are_those_of_the_trainers_own_thread(kind, urls, tmp_path):
    """In one case an actor dies in the middle."""
    settings = settings_of(kind, tmp_path, urls)
    with make_module(tmp_path, loader=ACTORS, **settings).loader("train") as loader:
        stream = endless(loader)
        made = list(islice(stream, BATCHES // 2))
        if kind == KINDS[0]:
            os.kill(actors_of(loader)[1], signal.SIGKILL)
        made += islice(stream, BATCHES - BATCHES // 2)
        actors = [psutil.Process(actors_of(loader)[0])]
        assert repr(loader).endswith("made by 2 actors")
        expected = made_here(loader.source, 2 if kind == "stream" else 1, BATCHES)
    assert are_same(made, expected)
    assert psutil.wait_procs(actors, timeout=10)[1] == []


def test_batches_before_an_error_are_delivered_and_then_the_actors_end(urls, tmp_path):
    """The error is of the type, and has the words, that it has in the trainer."""
    settings = {"train": {"urls": urls, "sampling": "sequential"}, "num_workers": 1}
    settings["transforms"] = {"label": raise_at_seven}
    with make_module(tmp_path, loader=ACTORS, **settings).loader("train") as loader:
        stream = iter(loader)
        assert [batch["label"].tolist() for batch in islice(stream, 3)] == [[0, 1], [2, 3], [4, 5]]
        actors = list(map(psutil.Process, actors_of(loader)))
        with pytest.raises(TransformError, match=r"'label' failed on sample '000007' .*a seven"):
            next(stream)
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


def test_a_hundred_steps_on_images_give_the_same_weights_to_the_bit(tmp_path):
    draws = np.random.default_rng(0)
    for name, samples in (("train", 3000), ("t10k", 200)):
        for kind, content in (
            ("images-idx3", bytes(16) + draws.bytes(784 * samples)),
            ("labels-idx1", bytes(8) + bytes(draws.integers(10, size=samples, dtype=np.uint8))),
        ):
            (tmp_path / f"{name}-{kind}-ubyte.gz").write_bytes(gzip.compress(content, 1))
    fashion_mnist.pack(tmp_path, tmp_path)
    cells = [fashion_mnist.run_cell(tmp_path, pool, 1, 4, 100) for pool in ("inline", "ray")]
    assert cells[0]["weights"] == cells[1]["weights"]
    assert cells[0]["accuracy"] == cells[1]["accuracy"]
