"""Shards on a server with all that training from afar needs, and the batches of them."""

import json
from pathlib import Path

import numpy as np

from lightning_shards.config.module import LoaderConfig
from lightning_shards.config.splits import SplitConfig
from lightning_shards.shards.files import CacheFolder
from lightning_shards.shards.tables import TableStore, published

COUNTS = [5, 3, 8]
DATA = np.random.default_rng(0).bytes(100_003)


def server_put(server):
    return lambda name, data: server.objects.update({f"data/{name}": data})


def publish(paths, put, tmp_path, *, counts=COUNTS):
    """Puts the shards, their tables and their counts."""
    tables = TableStore(CacheFolder(tmp_path / "making"), with_crc32=True)
    for path in map(Path, paths):
        put(path.name, path.read_bytes())
        put(f"{path.name}.members", published(tables.table_of(str(path))))
    counts = {Path(path).name: count for path, count in zip(paths, counts, strict=True)}
    put("sizes.json", json.dumps(counts).encode())


def without_tables(server):
    """Takes away the member tables beside the shards."""
    for name in [name for name in server.objects if name.endswith(".members")]:
        del server.objects[name]


def module(urls, tmp_path, cache="cache", num_workers=0, loader=None, **settings):
    from lightning_shards import ShardDataModule  # not above: this folder's others need no torch

    return ShardDataModule(
        SplitConfig(urls, **{"sampling": "shuffled", "shuffle_run": 2} | settings),
        fields={"image": "png", "label": "cls"},
        batch_size=2,
        num_workers=num_workers,
        loader=LoaderConfig(cache_dir=str(tmp_path / cache), **(loader or {})),
    )


def content(batch):
    """What is equal in batches of remote and of local shards."""
    return {name: np.asarray(value).tobytes() for name, value in batch.items() if name != "__url__"}


def batches(data, world_size=2, epochs=1):
    """What each rank gets, as bytes."""
    loaders = [data.loader("train", rank=rank, world_size=world_size) for rank in range(world_size)]
    return [[content(batch) for _ in range(epochs) for batch in loader] for loader in loaders]
