"""Transforms that actors import, the data modules that the pools of these tests run, a cluster."""

import hashlib
import os
import random
import signal
import threading
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from lightning_shards import (
    Cursor,
    DecodeRandomResizedCrop,
    LoaderConfig,
    Place,
    RayConfig,
    ShardDataModule,
)
from lightning_shards.samples.tensors import with_tensors

NEEDS_RAY = pytest.mark.skipif(
    os.environ.get("CI") != "true" and find_spec("ray") is None,
    reason="Ray is not installed; pip install 'lightning-shards[ray]'",
)
ACTORS = LoaderConfig(pool="ray", ray=RayConfig(cpus_per_worker=0.5))
SHARED = replace(ACTORS, ray=replace(ACTORS.ray, share="search"))


class DrawsFromAll:
    """A tensor of draws from all global generators."""

    def __call__(self, label):
        drawn = random.random() + np.random.random()  # noqa: NPY002
        return torch.rand(3, dtype=torch.float64) + drawn + label


class Locked:
    """A transform that holds what cannot be pickled."""

    deterministic = True

    def __init__(self):
        self.lock = threading.Lock()

    def __call__(self, label):
        return label


class ByProcess:
    """A transform of which actors have another version."""

    deterministic = True

    def __call__(self, label):
        return label + ("ray::" in " ".join(psutil.Process().cmdline()))


def raise_at_seven(label):
    if label == 7:
        raise ValueError("a seven")
    return label


def end_at_seven(label):
    """A decoder that crashes in actors."""
    if label == 7 and "ray::" in " ".join(psutil.Process().cmdline()):
        os.kill(os.getpid(), signal.SIGKILL)
    return label


raise_at_seven.deterministic = end_at_seven.deterministic = True


def make_module(folder, *, loader, train, **settings):
    """A module of images and labels, two samples a batch."""
    given = {
        "fields": {"image": "png", "label": "cls"},
        "transforms": {"image": DecodeRandomResizedCrop(size=4), "label": DrawsFromAll()},
        "batch_size": 2,
        "num_workers": 2,
        "seed": 5,
    }
    cached = LoaderConfig(**{**loader.__dict__, "cache_dir": str(folder / "cache")})
    return ShardDataModule({"sampling": "shuffled"} | train, loader=cached, **given | settings)


@contextmanager
def shared_loader(folder, urls, most_kept=100, **settings):
    """The loader of a trainer that shares actors, which count their samples in a file `noted`."""
    transforms = {"image": DecodeRandomResizedCrop(size=4), "label": Counted(folder / "noted")}
    settings |= {"train": {"urls": urls}, "transforms": transforms}
    with make_module(folder, loader=SHARED, **settings).loader("train") as loader:
        loader.pool = replace(loader.pool, prefetch_factor=1, batches_per_call=2)
        loader.pool = replace(loader.pool, most_kept=most_kept)
        yield loader


def hash_of(batch):
    """A hash of the bytes of a batch of images and labels."""
    content = [np.asarray(batch[name]).tobytes() for name in ("image", "label", "__id__")]
    return hashlib.sha256(b"".join(content)).hexdigest()


def mix_of(urls):
    """Two components."""
    parts = {"large": {"urls": urls, "weight": 3}, "small": {"urls": urls[:1], "weight": 1}}
    return {"mix": parts, "round": 4, "dataset_size": 24}


def endless(loader):
    """Batches over the ends of epochs."""
    while True:
        yield from loader


def made_here(source, num_workers, number):
    """So many batches of the workers in turn, made by this process."""
    places = [Place().with_worker(worker, num_workers) for worker in range(num_workers)]
    workers = [source.batches(place, Cursor()) for place in places]
    batches = (next(workers[step % num_workers]).batch for step in range(number))
    return list(map(with_tensors, batches))


def joined_table(folder):
    """A Parquet table with a number for each key, at a relative path."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    keys = [f"{number:06d}" for number in range(40)]
    table = pa.table({"__key__": keys, "score": [float(key) / 4 for key in keys]})
    pq.write_table(table, folder / "scores.parquet")
    return {"score": {"table": os.path.relpath(folder / "scores.parquet"), "key": "__key__"}}


def actors_of(loader):
    """The pids of the actors of a loader's open stream."""
    return [found.pid for found in loader._open.stream._where]


@contextmanager
def ended_processes():
    """All processes that are started in the context below this one end with it.

    What they are is known by now and then asking; what the context leaves is killed by its number.
    """
    before, started = children(), {}
    try:
        yield lambda: started.update({each.pid: each for each in children() - before})
    finally:
        started.update({each.pid: each for each in children() - before})
        _, alive = psutil.wait_procs(list(started.values()), timeout=1)
        for process in alive:
            with suppress(psutil.NoSuchProcess):
                process.kill()


def children():
    return set(psutil.Process().children(recursive=True))


def relative(urls):
    return [os.path.relpath(Path(url)) for url in urls]


class Counted:
    """A transform that adds a byte to a file for each sample that an actor makes."""

    deterministic = True

    def __init__(self, path):
        self.path = path

    def __call__(self, label):
        if "ray::" in " ".join(psutil.Process().cmdline()):
            with self.path.open("ab") as file:
                file.write(b".")
        return label
