"""One fresh process: `python -m benchmarks.remote.child JOB RESULT`, both as the driver says."""

import gc
import importlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from benchmarks.peers.child import check_batch
from benchmarks.remote.job import (
    FAST,
    LINKS,
    LITDATA,
    LOCAL,
    LONG,
    MOSAIC,
    OURS,
    TIMES,
    WEBDATASET_LONG,
    RemoteJob,
)
from benchmarks.remote.loaders import LOADERS, close, litdata, mosaic
from benchmarks.remote.server import ask

Result = dict[str, Any]

FIRST_BATCH = 256
LATE = 0.95
_CONVERTED = {MOSAIC: "mosaic_shards", LITDATA: "litdata_chunks"}


def epochs(job: RemoteJob) -> Result:
    """The first epoch of each loader behind each link, with an empty cache."""
    return {
        f"{name}, {link}": _epoch(job.behind(link), name, LINKS[link])
        for link in job.links
        for name in job.loaders
        if name != LOCAL or link == FAST
    }


def _epoch(job: RemoteJob, name: str, rate: float) -> Result:
    with scratch() as cache:
        ask(job.control, rate=rate)
        before = ask(job.control, mark=True)
        loader = LOADERS[name](_as(job, name), cache)
        ask(job.control, mark=True)
        beside = _drained(job) if name == LOCAL else None
        is_long = name in (LONG, WEBDATASET_LONG)
        counted = Epoch(
            replace(job, seconds=TIMES * job.seconds) if is_long else job, loader, beside
        )
        after = ask(job.control)
        if beside is not None:
            beside.kill()
        result = counted.result(None if name == LOCAL else after["first"])
        for what in ("bytes", "requests", "connections"):
            result[what] = after[what] - before[what]
        close(loader)
        del loader
        gc.collect()
        return result


class Epoch:
    """One epoch, or as much of it as the job has seconds for.

    Args:
        job: What is read.
        loader: Of it.
        beside: Is told the bytes of each batch.
    """

    def __init__(
        self, job: RemoteJob, loader: Any, beside: "subprocess.Popen[str] | None" = None
    ) -> None:
        self._job, self.batches = job, 0
        self.begun = self.first = self.last = perf_counter()
        line = f"{job.batch * job.sample_bytes}\n"
        for batch in iter(loader):
            self.last = perf_counter()
            if not self.batches:
                self.first = self.last
                check_batch(batch, job)
            self.batches += 1
            if beside is not None and beside.stdin is not None:
                beside.stdin.write(line)
                beside.stdin.flush()
            if self.last - self.first > job.seconds:
                break

    def result(self, asked: float | None = None) -> Result:
        """The rate from the first request on, or from the first batch on where there is none."""
        samples = self._job.batch * self.batches
        counted = samples - (self._job.batch if asked is None else 0)
        return {
            "samples": samples,
            "samples_per_s": counted / (self.last - (self.first if asked is None else asked)),
            "steady_per_s": (samples - self._job.batch) / max(self.last - self.first, 1e-9),
            "first_ms": 1000 * (self.first - self.begun),
        }


def firsts(job: RemoteJob) -> Result:
    """Milliseconds from the construction of the loader to its first batch, the cache empty."""
    big = replace(job, batch=FIRST_BATCH)
    result: Result = {}
    for link in job.links:
        part = big.behind(link)
        ask(job.control, rate=LINKS[link])
        late = int(LATE * part.data.samples / FIRST_BATCH)
        for name in job.loaders:
            for position in (0, late) if name == OURS else (0,):
                at = f"{name}, {link}, {'95 %' if position else '0 %'}"
                result[at] = _first(replace(part, position=position), name)
    return result


def _first(job: RemoteJob, name: str) -> float:
    with scratch() as cache:  # imports, also those of the fork server: as after `setup` of a fit
        loader = LOADERS[name](job, cache)
        next(iter(loader))
        close(loader)
    with scratch() as cache:
        begun = perf_counter()
        loader = LOADERS[name](job, cache)
        iterator = iter(loader)
        batch = next(iterator)
        seconds = perf_counter() - begun
        check_batch(batch, job)
        close(loader)
        del loader, iterator
        gc.collect()
        return 1000 * seconds


def half_cached(job: RemoteJob) -> Result:
    """Bytes of two epochs of a peer whose cache holds half of its data."""
    (name,) = job.loaders
    part = _as(job.behind(FAST), name)
    ask(job.control, rate=LINKS[FAST])
    sizes = [path.stat().st_size for path in part.own.rglob("*") if path.is_file()]
    half = sum(sizes) // 2
    with scratch() as cache:
        if name == MOSAIC:  # it refuses less than four of its shards, which is more of tiny data
            loader = mosaic(part, cache, cache_limit=max(half, 5 * max(sizes)))
        else:
            loader = litdata(part, cache, max_cache_size=half)
        told = [ask(job.control)["bytes"]]
        for _ in range(2):
            Epoch(part, loader)
            told.append(ask(job.control)["bytes"])
    return {"first_bytes": told[1] - told[0], "second_bytes": told[2] - told[1]}


def _as(job: RemoteJob, name: str) -> RemoteJob:
    return replace(job, peer=_CONVERTED.get(name, ""))


def _drained(job: RemoteJob) -> "subprocess.Popen[str]":
    """What moves the bytes of each batch through the proxy to nowhere."""
    path = job.local_shards[0]
    program = Path(__file__).with_name("drain.py")
    size = Path(path).stat().st_size
    return subprocess.Popen(  # noqa: S603
        [sys.executable, "-S", str(program), str(job.shaped), f"/{job.key_of(path)}", str(size)],
        stdin=subprocess.PIPE, text=True,
    )  # fmt: skip


@contextmanager
def scratch() -> Iterator[str]:
    """An empty folder for a cache."""
    folder = tempfile.mkdtemp(prefix="remote-")
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _action(name: str) -> Callable[[RemoteJob], Result]:
    """A function of this module, or `run` of the module that has the action's name."""
    own = {"epochs": epochs, "firsts": firsts, "half_cached": half_cached}
    return own.get(name) or importlib.import_module(f"benchmarks.remote.{name}").run


def main() -> None:
    """Do the job, write the result, and end without waiting for anybody's threads."""
    job = RemoteJob.from_json(sys.argv[1])
    torch.set_num_threads(1)
    result = _action(job.action)(job)
    Path(sys.argv[2]).write_text(json.dumps(result))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
