"""The data modules that the pools of these tests run, and what they give."""

import os

import psutil

from lightning_shards import (
    Cursor,
    DecodeRandomResizedCrop,
    LoaderConfig,
    Place,
    RayConfig,
    ShardDataModule,
)
from lightning_shards.samples.tensors import with_tensors
from tests.ray.actor_transforms import DrawsFromAll

ACTORS = LoaderConfig(pool="ray", ray=RayConfig(cpus_per_worker=0.5))


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


def mix_of(urls, **settings):
    """Two components with these settings."""
    parts = {"large": {"urls": urls, "weight": 3}, "small": {"urls": urls[:1], "weight": 1}}
    parts = {name: part | settings for name, part in parts.items()}
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


def running_actors():
    """The processes of all actors of this program."""
    processes = psutil.Process().children(recursive=True)
    return [each for each in processes if "ray::BatchMaker" in " ".join(each.cmdline())]
