"""One fresh process: `python -m benchmarks.peers.child JOB RESULT`, both as the driver says.

The result is a JSON file, so that nothing a peer prints can spoil it.
"""

import importlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch

from benchmarks.peers.job import Job
from benchmarks.peers.memory import pss_kb
from benchmarks.peers.transforms import batch_shape

WARM_UP, TAIL = 0.1, 0.95
"""Of an epoch: batches are counted between these shares of it, workers running, queues filled."""

Result = dict[str, Any]


def rate(job: Job) -> Result:
    """Time to the first batch, then samples per second without the ends of epochs."""
    peer = _peer(job)
    imported_mb = pss_kb(os.getpid()) / 1000
    begun = perf_counter()
    loader = peer.LOADERS[job.loader](job)
    iterator = iter(loader)
    first = next(iterator)
    first_s = perf_counter() - begun
    check_batch(first, job)
    first_step, last_step = int(WARM_UP * job.data.steps) + 2, int(TAIL * job.data.steps)
    batches, counted_s = 0, 0.0
    for epoch in count():
        steps, seconds = _stretch(iterator, first_step - (not epoch), last_step, job.seconds)
        batches, counted_s = batches + steps, counted_s + seconds
        if counted_s >= job.seconds:
            break
        iterator = iter(loader)
    samples_per_s = job.batch * batches / counted_s
    return {
        "first_ms": 1000 * first_s,
        "samples_per_s": samples_per_s,
        "imported_mb": imported_mb,
    }


def _stretch(iterator: Iterator[Any], first: int, last: int, seconds: float) -> tuple[int, float]:
    """Batches counted in one epoch and their time; the epoch is finished unless time is up."""
    begun = stopped = 0.0
    counted = 0
    for step, _ in enumerate(iterator, 1):
        if step == first:
            begun = perf_counter()
        elif first < step <= last:
            counted += 1
            stopped = perf_counter()
            if stopped - begun >= seconds:
                break
    if not counted:
        raise ValueError(f"an epoch has no batch between {first} and {last}: more samples are due")
    return counted, stopped - begun


def first(job: Job) -> Result:
    """Time to the first batch after `position` batches were trained."""
    peer = _peer(job)
    begun = perf_counter()
    batch = next(iter(peer.LOADERS[job.loader](job)))
    first_s = perf_counter() - begun
    check_batch(batch, job)
    return {"first_ms": 1000 * first_s}


def prepare(job: Job) -> Result:
    """What the peer makes of the data set, if it makes anything."""
    peer = _peer(job)
    done = job.own / "done"
    if not done.exists():
        job.own.mkdir(exist_ok=True)
        peer.prepare(job)
        done.touch()
    return {}


def state(job: Job) -> Result:
    """The loader's own state after `position` batches, as a checkpoint would hold it."""
    peer = _peer(job)
    if not job.state_file.exists():
        loader = peer.LOADERS[job.loader](replace(job, position=0))
        iterator = iter(loader)
        for _ in range(job.position):
            next(iterator)
        peer.save_state(loader, job)
    return {}


def check_batch(batch: Any, job: Job) -> None:
    """See that all loaders do the same work: a batch of the right shape and type.

    Raises:
        ValueError: it is another one.
    """
    columns = batch.values() if isinstance(batch, dict) else batch
    if isinstance(batch, torch.Tensor | np.ndarray):
        columns = [batch]
    wanted = (job.batch, *batch_shape(job))
    arrays = [each for each in columns if isinstance(each, torch.Tensor | np.ndarray)]
    if not any(tuple(each.shape) == wanted for each in arrays):
        shapes = [tuple(each.shape) for each in arrays]
        raise ValueError(f"a batch of {job.loader} has {shapes}, {wanted} was wanted")


def _peer(job: Job) -> Any:
    return importlib.import_module(f"benchmarks.peers.loaders.{job.peer}")


def _actions() -> dict[str, Callable[[Job], Result]]:
    from benchmarks.peers import floor, overheads
    from benchmarks.peers.datasets import make_data

    return {"data": make_data, "floors": floor.floors} | overheads.ACTIONS


def main() -> None:
    """Do the job, write the result, and end without waiting for a peer's threads."""
    job = Job.from_json(sys.argv[1])
    torch.set_num_threads(1)
    own = {"rate": rate, "first": first, "prepare": prepare, "state": state}
    action = own.get(job.action) or _actions()[job.action]
    result = action(job)
    Path(sys.argv[2]).write_text(json.dumps(result))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
