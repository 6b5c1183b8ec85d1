"""This package, with each of its pools, with and without crc32 of members checked."""

from typing import Any

from benchmarks.peers.job import BATCH, Job
from benchmarks.peers.transforms import crop
from lightning_shards import LoaderConfig, ShardDataModule, SplitConfig
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.tables import TableStore, build_tables

CACHES = {False: "tables", True: "tables-crc32"}


def prepare(job: Job) -> None:
    """List the members of the shards, as the first use would."""
    for with_crc32, name in CACHES.items():
        build_tables(job.shards, TableStore(CacheFolder(job.own / name), with_crc32=with_crc32))


def _module(job: Job, pool: Any, *, with_crc32: bool, transforms: dict[str, Any]) -> Any:
    cache = str(job.own / CACHES[with_crc32])
    if job.is_images:
        members = {
            "fields": {"image": "jpg", "label": "cls"},
            "decode": {"image": "raw"},
            "transforms": transforms,
        }
    else:
        members = {"fields": {"values": "npy"}}
    return ShardDataModule(
        train=SplitConfig(job.shards, sampling="shuffled"),
        batch_size=BATCH,
        num_workers=job.workers,
        loader=LoaderConfig(pool=pool, cache_dir=cache),
        **members,
    )


def _maker(pool: str, *, with_crc32: bool = False, has_own_crop: bool = False) -> Any:
    def make(job: Job) -> Any:
        transforms: dict[str, Any] = {"image": crop}
        if has_own_crop:
            from lightning_shards.samples.crops import DecodeRandomResizedCrop

            transforms = {"image": DecodeRandomResizedCrop(size=224, backend="turbo")}
        module = _module(job, pool, with_crc32=with_crc32, transforms=transforms)
        loader = module.loader("train")
        if job.position:
            state = loader.state_dict() | {"samples": job.position * BATCH}
            loader.load_state_dict(state)
        return loader

    return make


LOADERS = {
    "ours, processes": _maker("processes"),
    "ours, processes, crc32": _maker("processes", with_crc32=True),
    "ours, threads": _maker("threads"),
    "ours, threads, crc32": _maker("threads", with_crc32=True),
    "ours, inline": _maker("inline"),
    "ours, inline, crc32": _maker("inline", with_crc32=True),
    "ours, threads, own crop": _maker("threads", has_own_crop=True),
}
