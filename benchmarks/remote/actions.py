"""What is measured in a fresh process behind the proxy, and what is put beside the shards."""

import gc
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

from benchmarks.peers.actions import check_batch
from benchmarks.remote.job import LINKS, LONG, WEBDATASET_LONG, RemoteJob
from benchmarks.remote.loaders import LOADERS, ours, run_of
from benchmarks.remote.server import ask

Result = dict[str, Any]

_RUNS_IN_BLOCK = 32
"""Few, so that two blocks, which a cache must hold, are a small part of the data."""


def publish(job: RemoteJob) -> Result:
    """Write member tables and `wids.json` beside the files; the mean bytes of a table."""
    from lightning_shards.tools.index import main as index

    tables = [Path(f"{path}.members") for path in job.local_shards]
    if not all(path.exists() for path in tables):
        cache = str(job.home / "tables")
        index(["--format", "wids,members", "--cache-dir", cache, *job.local_shards])
    return {"table_bytes": sum(path.stat().st_size for path in tables) / len(tables)}


class Read(NamedTuple):
    """One epoch, or as much of it as there was time for: samples, and moments of the clock."""

    samples: int
    begun: float
    first: float
    last: float


def _read(job: RemoteJob, loader: Any, seconds: float) -> Read:
    begun = first = last = perf_counter()
    batches = 0
    for batch in iter(loader):
        last = perf_counter()
        if not batches:
            first = last
            check_batch(batch, job)
        batches += 1
        if last - first > seconds:
            break
    return Read(job.batch * batches, begun, first, last)


@contextmanager
def _opened(job: RemoteJob, maker: Any = None, **options: Any) -> Iterator[Any]:
    """A loader with an empty cache."""
    cache = tempfile.mkdtemp(prefix="remote-")
    loader = (maker or LOADERS[job.loader])(job, cache, **options)
    try:
        yield loader
    finally:
        if hasattr(loader, "close"):
            loader.close()
        del loader
        gc.collect()
        shutil.rmtree(cache, ignore_errors=True)


def epoch(job: RemoteJob) -> Result:
    """The first epoch of a loader, from the first request of its workers on."""
    before = ask(job.control, rate=LINKS[job.link])
    with _opened(job) as loader:
        ask(job.control, mark=True)
        seconds = (job.long if job.loader in (LONG, WEBDATASET_LONG) else job).seconds
        read = _read(job, loader, seconds)
        after = ask(job.control)
    counted = {what: after[what] - before[what] for what in ("bytes", "requests", "connections")}
    return counted | {
        "samples": read.samples,
        "samples_per_s": read.samples / (read.last - after["first"]),
        "steady_per_s": (read.samples - job.batch) / max(read.last - read.first, 1e-9),
        "first_ms": 1000 * (read.first - read.begun),
    }


def first(job: RemoteJob) -> Result:
    """Milliseconds from the construction of the loader to its first batch, the cache empty."""
    ask(job.control, rate=LINKS[job.link])
    with _opened(job) as loader:  # does all imports, as `setup` of a fit does
        next(iter(loader))
    begun = perf_counter()
    with _opened(job) as loader:
        batch = next(iter(loader))
        seconds = perf_counter() - begun
        check_batch(batch, job)
    return {"first_ms": 1000 * seconds}


def caches(job: RemoteJob) -> Result:
    """Rates of a cold and a warm cache, and bytes of two epochs with one for half of the data."""
    ask(job.control, rate=LINKS[job.link])
    result, block = Result(), _RUNS_IN_BLOCK * run_of(job)
    with _opened(job, ours, block=block) as loader:
        for name in ("all_per_s", "warm_per_s"):
            read = _read(job, loader, job.seconds)
            result[name] = read.samples / (read.last - read.begun)
    data_bytes = job.data.samples * job.sample_bytes
    tables = sum(Path(f"{path}.members").stat().st_size for path in job.local_shards)
    two_blocks = 2 * block * job.sample_bytes
    half_gib = (1.02 * max(data_bytes / 2, two_blocks) + tables) / 2**30  # tiny data has few blocks
    with _opened(job, ours, block=block, cache_gib=half_gib) as loader:
        for name in ("first_bytes", "second_bytes"):
            before = ask(job.control)["bytes"]
            _read(job, loader, job.seconds)
            result[name] = ask(job.control)["bytes"] - before
    return result
