"""Shards with samples that cannot be served, and what a reader made of them."""

import io
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from webdataset.writer import TarWriter

from lightning_shards import LoaderConfig, ShardDataModule, SplitConfig
from lightning_shards.plan.place import Cursor, Place
from lightning_shards.samples.tensors import with_tensors
from lightning_shards.shards.files import CacheFolder
from lightning_shards.shards.members import scan_members
from lightning_shards.shards.tables import write_table

COUNTS = (5, 0, 9, 3, 12, 1)
NUM_SAMPLES = sum(COUNTS)
IDS = [(shard, number) for shard, count in enumerate(COUNTS) for number in range(count)]
BAD = {
    0: "image",  # the first sample
    3: "field",
    4: "image",  # two in a row, up to a shard's end
    14: "image",
    15: "crc32",
    16: "field",  # all of a shard
    20: "transform",
    29: "transform",  # the last sample
}
"""What is wrong with which sample of the data set."""
REASONS = {
    "image": "SampleError",
    "field": "MissingFieldError",
    "transform": "TransformError",
    "crc32": "DamagedShardError",
}
STREAM_BAD = {number: "image" if kind == "crc32" else kind for number, kind in BAD.items()}
"""A stream has no crc32 to hold a member against."""


SAMPLINGS = ["shuffled", "sequential", "resampled"]
REMAINDERS = ["drop", "pad", "balanced"]
READERS = ["indexed", "stream"]


@dataclass(frozen=True)
class Picky:
    """A transform that cannot bear some labels; a label is the sample's number in the data set."""

    refused: frozenset[int]

    def __call__(self, label: int) -> int:
        if label in self.refused:
            raise RuntimeError(f"cannot bear {label}")
        return label


def jitter(image: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
    return image + torch.from_numpy(rng.random(tuple(image.shape)))


def png(value: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.full((2, 2), value, np.uint8)).save(file, "PNG")
    return file.getvalue()


def write_shards(folder: Path, kinds: dict[int, str], counts=COUNTS) -> list[str]:
    """Shards whose sample number i has the label i, spoilt as `kinds` says."""
    folder.mkdir(parents=True)
    urls = [str(folder / f"shard-{shard}.tar") for shard in range(len(counts))]
    number = 0
    for url, count in zip(urls, counts, strict=True):
        with TarWriter(url) as writer:
            for _ in range(count):
                kind = kinds.get(number)
                image = b"no image" if kind == "image" else png(number)
                sample = {"__key__": f"{number:04d}", "png": image}
                writer.write(sample if kind == "field" else sample | {"cls": str(number)})
                number += 1
    return urls


def flip_byte(url: str, cache_dir: Path, number: int) -> None:
    """Change a label on the disk, behind the back of a table that has its crc32."""
    path, table = Path(url), scan_members(url, with_crc32=True)
    cache = CacheFolder(cache_dir)
    write_table(cache.sidecar_of(url), table, cache)
    data, stamp = bytearray(path.read_bytes()), path.stat()
    offset, _, _ = table.find(number, "cls")
    data[offset] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))


@dataclass(frozen=True)
class Data:
    urls: list[str]
    cache: Path
    bad: dict[int, str]

    def module(self, *, batch_size=2, num_workers=0, clean=False, **split):
        refused = frozenset(n for n, kind in self.bad.items() if kind == "transform" and not clean)
        chosen = {"sampling": "shuffled", "shuffle_run": 2, "shuffle_block": 8} | split
        if not clean:
            max_bad = max(len(self.bad), 1)
            chosen = {"on_bad_sample": "substitute", "max_bad": max_bad} | chosen
        return ShardDataModule(
            train=SplitConfig(self.urls, **chosen),
            fields={"image": "png", "label": "cls"},
            decode={"image": "gray"},
            transforms={"image": jitter, "label": Picky(refused)},
            batch_size=batch_size,
            num_workers=num_workers,
            seed=7,
            loader=LoaderConfig(cache_dir=str(self.cache)),
        )

    @property
    def bad_ids(self):
        return {IDS[number]: REASONS[kind] for number, kind in self.bad.items()}


def rows_of(batch):
    ids, weights = batch["__id__"].tolist(), batch["__weight__"].tolist()
    return [(tuple(each), weight) for each, weight in zip(ids, weights, strict=True)]


def as_bytes(batch):
    parts = [batch[name].numpy().tobytes() for name in ("image", "label", "__id__", "__weight__")]
    return [*parts, ",".join(batch["__key__"])]


def made_by_workers(module, place, num_workers, num_batches):
    """What a pool of so many workers gives, from one process."""
    source = module.loader("train", rank=place.rank, world_size=place.world_size).source
    places = [place.with_worker(worker, num_workers) for worker in range(num_workers)]
    shares = [source.batches(each, Cursor()) for each in places]
    made = [next(shares[step % num_workers]) for step in range(num_batches)]
    return [each._replace(batch=with_tensors(each.batch)) for each in made]


def epoch_of(module, world_size, num_workers=1):
    """All ranks' batches of one epoch: `made[rank][step]`, and the plan."""
    plan = module.loader("train", rank=0, world_size=world_size).plan
    ranks = [
        made_by_workers(module, Place(rank, world_size), num_workers, plan.steps)
        for rank in range(world_size)
    ]
    return ranks, plan


def require_lockstep(ranks, plan):
    for rank, made in enumerate(ranks):
        assert [len(each.batch["label"]) for each in made] == [
            plan.size(step, rank) for step in range(plan.steps)
        ]


def counted(bad):
    """Without the messages: Pillow puts addresses into them."""
    return [each[:3] for each in bad]


def all_rows(ranks):
    return [row for made in ranks for each in made for row in rows_of(each.batch)]


def all_bad(ranks):
    return [bad for made in ranks for each in made for bad in each.bad]


def data_of(request, reader):
    return request.getfixturevalue("indexed_data" if reader == "indexed" else "stream_data")
