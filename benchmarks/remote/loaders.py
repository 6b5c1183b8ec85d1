"""The loaders that are compared, each reading the same samples through the proxy.

A maker takes the job and an empty folder for its cache. webdataset pipes whole shards from curl.
MosaicML Streaming and LitData read shards of their own format by S3, from the same server.
"""

import math
from collections.abc import Callable
from typing import Any

from benchmarks.remote.job import (
    LITDATA,
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


def run_of(job: RemoteJob) -> int:
    """The `shuffle_run` that `docs/remote.md` recommends: pieces of 1 MiB or more."""
    wanted = 1 << math.ceil(math.log2(_ENOUGH / job.sample_bytes))
    in_shard = 1 << int(math.log2(job.data.samples / job.data.shards))
    return max(_DEFAULT_RUN, min(wanted, in_shard, _LONGEST_RUN))


def ours(
    job: RemoteJob, cache: str, *, block: int | None = None, cache_gib: float = CACHE_GIB
) -> Any:
    """This package, with processes, over http."""
    from benchmarks.peers.loaders.shards import data_module, loader_at
    from lightning_shards import LoaderConfig, SplitConfig

    run = run_of(job)
    block = block or max(_DEFAULT_BLOCK, 256 * run)
    split = SplitConfig(job.shards, sampling="shuffled", shuffle_run=run, shuffle_block=block)
    return loader_at(
        data_module(job, split, LoaderConfig(cache_dir=cache, cache_gib=cache_gib)), job
    )


def _ours_long(job: RemoteJob, cache: str) -> Any:
    run = run_of(job)
    return ours(job.long, cache, block=run * max(1, job.data.samples // (8 * run)))


def _webdataset(job: RemoteJob, _: str) -> Any:
    from benchmarks.peers.loaders.webdataset_tars import LOADERS as OF_WEBDATASET

    return OF_WEBDATASET[WEBDATASET](job)


def _mosaic(job: RemoteJob, cache: str) -> Any:
    """Its environment names the endpoint."""
    from benchmarks.peers.loaders.mosaic_shards import shards

    return shards(job, remote=f"s3://{job.key_of(str(job.own / 'mds'))}", local=cache)


def _litdata(job: RemoteJob, cache: str) -> Any:
    """By obstore, which it prefers over boto3."""
    from litdata.streaming import downloader
    from litdata.streaming.resolver import Dir

    from benchmarks.peers.loaders.litdata_chunks import chunks

    # it has no option for an endpoint without TLS
    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True  # noqa: SLF001
    where = Dir(path=cache, url=f"s3://{job.key_of(str(job.own / 'chunks'))}")
    store = {"endpoint_url": f"http://127.0.0.1:{job.shaped}"}
    return chunks(job, where, storage_options=store)


LOADERS: dict[str, Callable[[RemoteJob, str], Any]] = {
    OURS: ours,
    LONG: _ours_long,
    WEBDATASET: _webdataset,
    WEBDATASET_LONG: lambda job, cache: _webdataset(job.long, cache),
    MOSAIC: _mosaic,
    LITDATA: _litdata,
}
