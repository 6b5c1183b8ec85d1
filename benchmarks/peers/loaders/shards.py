"""This package, with each of its pools, with and without crc32 of members checked, and mixed."""

from tempfile import mkdtemp
from typing import Any

from benchmarks.peers.job import Job
from benchmarks.peers.transforms import crop
from lightning_shards import LoaderConfig, ShardDataModule, SplitConfig
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.tables import TableStore, build_tables

CACHES = {False: "tables", True: "tables-crc32"}


def prepare(job: Job) -> None:
    """List the members of the shards, as the first use would."""
    for with_crc32, name in CACHES.items():
        build_tables(job.shards, TableStore(CacheFolder(job.own / name), with_crc32=with_crc32))


def data_module(
    job: Job, split: SplitConfig, loader: LoaderConfig, transforms: dict[str, Any] | None = None
) -> ShardDataModule:
    """Of these shards, with the fields of the data set."""
    if job.is_images:
        members = {
            "fields": {"image": "jpg", "label": "cls"},
            "decode": {"image": "raw"},
            "transforms": transforms or {"image": crop},
        }
    else:
        members = {"fields": {"values": "npy"}}
    return ShardDataModule(
        train=split,
        batch_size=job.batch,
        num_workers=job.workers,
        loader=loader,
        **members,
    )


def loader_at(module: ShardDataModule, job: Job) -> Any:
    """Its loader, in the middle of the epoch if the job says so."""
    loader = module.loader("train")
    if job.position:
        state = loader.state_dict() | {"samples": job.position * job.batch}
        loader.load_state_dict(state)
    return loader


def _maker(pool: Any, *, with_crc32: bool = False, has_own_crop: bool = False) -> Any:
    def make(job: Job) -> Any:
        transforms: dict[str, Any] = {"image": crop}
        if has_own_crop:
            from lightning_shards.samples.crops import DecodeRandomResizedCrop

            transforms = {"image": DecodeRandomResizedCrop(size=224, backend="turbo")}
        split = SplitConfig(job.shards, sampling="shuffled")
        config = LoaderConfig(pool=pool, cache_dir=str(job.own / CACHES[with_crc32]))
        return loader_at(data_module(job, split, config, transforms), job)

    return make


def _first_run(job: Job) -> Any:
    """With no member tables yet: they are made before the first batch."""
    split = SplitConfig(job.shards, sampling="shuffled")
    config = LoaderConfig(pool="processes", cache_dir=mkdtemp(dir=job.own))
    module = data_module(job, split, config, {"image": crop})
    module.prepare_data()
    return loader_at(module, job)


def _stream(job: Job) -> Any:
    """Webdataset's pipeline, which needs no member tables."""
    config = LoaderConfig(pool="processes", cache_dir=mkdtemp(dir=job.own))
    split = SplitConfig(job.shards, reader="stream", dataset_size=job.data.samples)
    return data_module(job, split, config, {"image": crop}).loader("train")


def _mixture(job: Job, *, is_alike: bool) -> SplitConfig:
    """Both halves of the shards as two components, which are passed equally often.

    If they are not alike, a field of the second one is optional, so that its recipe is another.
    """
    half = len(job.shards) // 2
    others = {"image": "jpg", "label": "cls?"} if job.is_images else {"values": "npy?"}
    mix: dict[str, Any] = {
        "first": {"urls": job.shards[:half], "passes": 1},
        "second": {"urls": job.shards[half:], "passes": 1},
    }
    if not is_alike:
        mix["second"]["fields"] = others
    return SplitConfig(mix=mix, sampling="shuffled", round=job.batch, dataset_size=job.data.samples)


def _mixture_maker(*, is_alike: bool) -> Any:
    def make(job: Job) -> Any:
        config = LoaderConfig("threads", cache_dir=str(job.own / CACHES[False]))
        return loader_at(data_module(job, _mixture(job, is_alike=is_alike), config), job)

    return make


LOADERS = {
    "ours, processes": _maker("processes"),
    "ours, processes, crc32": _maker("processes", with_crc32=True),
    "ours, threads": _maker("threads"),
    "ours, processes, first run": _first_run,
    "ours, stream": _stream,
    "ours, threads, crc32": _maker("threads", with_crc32=True),
    "ours, inline": _maker("inline"),
    "ours, inline, crc32": _maker("inline", with_crc32=True),
    "ours, threads, mix": _mixture_maker(is_alike=True),
    "ours, threads, mix of other fields": _mixture_maker(is_alike=False),
    "ours, threads, own crop": _maker("threads", has_own_crop=True),
}
