"""Our loader with caches of different sizes: all, half of the data, two blocks, and warm."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from benchmarks.remote.child import Epoch, Result, scratch
from benchmarks.remote.job import FAST, LINKS, TIMES, RemoteJob
from benchmarks.remote.loaders import (
    CACHE_GIB,
    close,
    ours,
    ours_local,
    recommended,
    tables_folder,
)
from benchmarks.remote.server import ask

_RUNS_IN_BLOCK = 32
"""Few, so that two blocks are a small part of the data."""

_AGAIN = 3
"""Epochs from a warm cache, and from files, because one of them is short."""

_GIB = 2**30
_ROUNDED_UP = 1.02


def run(job: RemoteJob) -> Result:
    """Rates and bytes of epochs behind the fast link."""
    job = job.behind(FAST)
    ask(job.control, rate=LINKS[FAST])
    run = recommended(job).run
    block = _RUNS_IN_BLOCK * run
    data_bytes = job.data.samples * job.sample_bytes
    tables = sum(path.stat().st_size for path in tables_folder(job).rglob("*") if path.is_file())
    two_blocks = _ROUNDED_UP * (2 * block * job.sample_bytes + tables) / _GIB
    half_gib = (data_bytes / 2 + tables) / _GIB

    def made(cache: str, cache_gib: float = CACHE_GIB) -> Any:
        return ours(job, cache, cache_gib=cache_gib, run_and_block=(run, block))

    result: Result = {"two_blocks_bytes": 2 * block * job.sample_bytes, "data_bytes": data_bytes}
    with scratch() as cache:
        loader = made(cache)
        result["all_per_s"] = _cold(job, loader)
        result["warm_per_s"] = _again(job, loader)
        close(loader)
    result["local_per_s"] = _local(job, (run, block))
    with scratch() as cache:
        loader = made(cache, two_blocks)
        result["two_blocks_per_s"] = _cold(job, loader)
        close(loader)
    for prefix, part in (("", job), ("long_", replace(job.long, seconds=TIMES * job.seconds))):
        times = part.data.samples // job.data.samples
        limit = max(times * half_gib, two_blocks)  # tiny data has few blocks
        with scratch() as cache:
            loader = ours(part, cache, cache_gib=limit, run_and_block=(run, block))
            result[f"{prefix}first_bytes"] = _bytes(job, partial(Epoch, part, loader))
            result[f"{prefix}second_bytes"] = _bytes(job, partial(Epoch, part, loader))
            close(loader)
    return result


def _cold(job: RemoteJob, loader: Any) -> float:
    ask(job.control, mark=True)
    epoch = Epoch(job, loader)
    return epoch.result(ask(job.control)["first"])["samples_per_s"]


def _again(job: RemoteJob, loader: Any) -> float:
    """Samples per second of epochs that follow the first one."""
    epochs = [Epoch(job, loader) for _ in range(_AGAIN)]
    samples = job.batch * sum(epoch.batches for epoch in epochs)
    return samples / (epochs[-1].last - epochs[0].begun)


def _local(job: RemoteJob, run_and_block: tuple[int, int]) -> float:
    loader = ours_local(job, "", run_and_block=run_and_block)
    Epoch(job, loader)
    rate = _again(job, loader)
    close(loader)
    return rate


def _bytes(job: RemoteJob, act: Callable[[], object]) -> int:
    before = ask(job.control)["bytes"]
    act()
    return ask(job.control)["bytes"] - before
