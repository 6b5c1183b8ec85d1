"""The loaders that are compared, each reading the same samples through the proxy.

A maker takes the job and an empty folder for its cache. webdataset pipes whole shards from curl.
MosaicML Streaming and LitData read shards of their own format by S3, from the same server.
"""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.peers.job import Job
from benchmarks.remote.job import (
    DEFAULT,
    LITDATA,
    LOCAL,
    LONG,
    MOSAIC,
    OURS,
    WEBDATASET,
    WEBDATASET_LONG,
    RemoteJob,
)

CACHE_GIB = 4.0
_DEFAULT_RUN, _DEFAULT_BLOCK = 64, 16_384
_LONGEST_RUN, _ENOUGH = 1 << 12, 1 << 20

Maker = Callable[[RemoteJob, str], Any]


class RunAndBlock(NamedTuple):
    """The settings `shuffle_run` and `shuffle_block`, and the pieces of all shards with them."""

    run: int
    block: int
    num_pieces: int


def recommended(job: RemoteJob) -> RunAndBlock:
    """What `docs/remote.md` recommends: pieces of 1 MiB or more, and 256 runs to a block."""
    wanted = 1 << math.ceil(math.log2(_ENOUGH / job.sample_bytes))
    in_shard = 1 << int(math.log2(job.data.samples / job.data.shards))
    run = max(_DEFAULT_RUN, min(wanted, in_shard, _LONGEST_RUN))
    per_shard, more = divmod(job.data.samples, job.data.shards)
    ends = (per_shard * shard + min(shard, more) for shard in range(1, job.data.shards))
    pieces = -(-job.data.samples // run) + sum(end % run > 0 for end in ends)
    return RunAndBlock(run, max(_DEFAULT_BLOCK, 256 * run), pieces)


def ours(
    job: RemoteJob, cache: str, *, urls: list[str] | None = None, cache_gib: float = CACHE_GIB,
    run_and_block: tuple[int, int] | None = None, **loader: Any,
) -> Any:  # fmt: skip
    """This package, with processes, over http unless other URLs are given."""
    from benchmarks.peers.loaders.shards import data_module, loader_at
    from lightning_shards import LoaderConfig, SplitConfig

    run, block = run_and_block or recommended(job)[:2]
    split = SplitConfig(
        urls or job.shards, sampling="shuffled", shuffle_run=run, shuffle_block=block
    )
    config = LoaderConfig(cache_dir=cache, cache_gib=cache_gib, **loader)
    return loader_at(data_module(job, split, config), job)


def _ours_default(job: RemoteJob, cache: str) -> Any:
    return ours(job, cache, run_and_block=(_DEFAULT_RUN, _DEFAULT_BLOCK))


def _ours_long(job: RemoteJob, cache: str) -> Any:
    run = recommended(job).run
    block = run * max(1, job.data.samples // (8 * run))
    return ours(job.long, cache, run_and_block=(run, block))


def _ours_threads(job: RemoteJob, cache: str) -> Any:
    return ours(job, cache, pool="threads")


def _ours_s3(job: RemoteJob, cache: str) -> Any:
    urls = [f"s3://{job.key_of(path)}" for path in job.local_shards]
    endpoint = f"http://127.0.0.1:{job.shaped}"
    options = {"s3": {"endpoint": endpoint, "anonymous": True, "region": "us-east-1"}}
    return ours(job, cache, urls=urls, storage_options=options)


def ours_local(job: RemoteJob, _: str, *, run_and_block: tuple[int, int] | None = None) -> Any:
    """The same settings over the files, with the same tables as those beside the shards."""
    tables = str(tables_folder(job))
    return ours(job, tables, urls=job.local_shards, run_and_block=run_and_block)


def tables_folder(job: Job) -> Path:
    """Where the member tables of the files are kept."""
    return job.home / "tables"


def _webdataset(job: RemoteJob, _: str) -> Any:
    from benchmarks.peers.loaders.webdataset_tars import fast

    return fast(job)


def _webdataset_long(job: RemoteJob, cache: str) -> Any:
    return _webdataset(job.long, cache)


def mosaic(job: RemoteJob, cache: str, **options: Any) -> Any:
    """Its environment names the endpoint; `options` limit its cache."""
    from benchmarks.peers.loaders.mosaic_shards import shards

    remote = f"s3://{job.key_of(str(job.own / 'mds'))}"
    return shards(job, remote=remote, local=cache, **options)


def litdata(job: RemoteJob, cache: str, **options: Any) -> Any:
    """By obstore, which it prefers over boto3; `options` limit its cache."""
    from litdata.streaming import downloader
    from litdata.streaming.resolver import Dir

    from benchmarks.peers.loaders.litdata_chunks import chunks

    # it has no option for an endpoint without TLS
    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True  # noqa: SLF001
    where = Dir(path=cache, url=f"s3://{job.key_of(str(job.own / 'chunks'))}")
    store = {"endpoint_url": f"http://127.0.0.1:{job.shaped}"}
    return chunks(job, where, storage_options=store, **options)


LOADERS: dict[str, Maker] = {
    OURS: ours,
    DEFAULT: _ours_default,
    LONG: _ours_long,
    "ours, threads": _ours_threads,
    "ours, s3": _ours_s3,
    LOCAL: ours_local,
    WEBDATASET: _webdataset,
    WEBDATASET_LONG: _webdataset_long,
    MOSAIC: mosaic,
    LITDATA: litdata,
}


def close(loader: Any) -> None:
    """End the workers of a loader, if it does not do so when it is dropped."""
    if hasattr(loader, "close"):
        loader.close()
