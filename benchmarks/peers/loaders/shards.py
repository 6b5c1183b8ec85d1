"""This package, with each of its pools, with and without crc32 of members checked."""

from functools import partial
from tempfile import mkdtemp
from typing import Any

from benchmarks.peers.job import Job
from benchmarks.peers.transforms import crop
from lightning_shards import DecodeRandomResizedCrop, LoaderConfig, ShardDataModule, SplitConfig
from lightning_shards.shards.files import CacheFolder
from lightning_shards.shards.tables import TableStore, build_tables

CACHES = {False: "tables", True: "tables-crc32"}


def prepare(job: Job) -> None:
    """List the members of the shards, as the first use would."""
    for with_crc32, name in CACHES.items():
        build_tables(job.shards, TableStore(CacheFolder(job.own / name), with_crc32=with_crc32))


def data_module(
    job: Job, split: SplitConfig, loader: LoaderConfig, transform: Any = crop
) -> ShardDataModule:
    """Of these shards, with the fields of the data set."""
    members: dict[str, Any] = {"fields": {"values": "npy"}}
    if job.is_images:
        fields = {"image": "jpg", "label": "cls"}
        members = {"fields": fields, "decode": {"image": "raw"}, "transforms": {"image": transform}}
    return ShardDataModule(
        split, batch_size=job.batch, num_workers=job.workers, loader=loader, **members
    )


def loader_at(module: ShardDataModule, job: Job) -> Any:
    """Its loader, in the middle of the epoch if the job says so."""
    loader = module.loader("train")
    if job.position:
        loader.load_state_dict(loader.state_dict() | {"samples": job.position * job.batch})
    return loader


def _made(job: Job, pool: Any, *, with_crc32: bool = False, has_own_crop: bool = False) -> Any:
    transform = DecodeRandomResizedCrop(size=224, backend="turbo") if has_own_crop else crop
    split = SplitConfig(job.shards, sampling="shuffled")
    config = LoaderConfig(pool=pool, cache_dir=str(job.own / CACHES[with_crc32]))
    return loader_at(data_module(job, split, config, transform), job)


def _first_run(job: Job) -> Any:
    """With no member tables yet: they are made before the first batch."""
    split = SplitConfig(job.shards, sampling="shuffled")
    module = data_module(job, split, LoaderConfig(cache_dir=mkdtemp(dir=job.own)))
    module.prepare_data()
    return loader_at(module, job)


def _stream(job: Job) -> Any:
    """Webdataset's pipeline, which needs no member tables."""
    split = SplitConfig(job.shards, reader="stream", dataset_size=job.data.samples)
    return data_module(job, split, LoaderConfig(cache_dir=mkdtemp(dir=job.own))).loader("train")


LOADERS = {
    "ours, processes, first run": _first_run,
    "ours, stream": _stream,
    "ours, threads, own crop": partial(_made, pool="threads", has_own_crop=True),
}
for _pool in ("processes", "threads", "inline"):
    LOADERS[f"ours, {_pool}"] = partial(_made, pool=_pool)
    LOADERS[f"ours, {_pool}, crc32"] = partial(_made, pool=_pool, with_crc32=True)
