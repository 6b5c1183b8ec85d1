"""What is measured in a fresh process, and what is made there before."""

from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from itertools import count
from multiprocessing import get_context
from multiprocessing.pool import ThreadPool
from time import perf_counter
from typing import Any

import numpy as np
import torch

from benchmarks.peers.datasets import read_members
from benchmarks.peers.job import BATCH, Job
from benchmarks.peers.processes import pss_mb
from benchmarks.peers.transforms import batch_shape, transform_of

WARM_UP, TAIL = 0.1, 0.95
"""Of an epoch: batches are counted between these shares of it, workers running, queues filled."""
BATCHES_IN_MEMORY = 16
FLOOR_WARM_UP_S = 0.3

_members: list[bytes] = []
"""What the floor transforms; forked processes have them, too."""

Result = dict[str, Any]


def rate(job: Job) -> Result:
    """Time to the first batch, then samples per second without the ends of epochs."""
    make = _peer(job).LOADERS[job.loader]
    imported_mb = pss_mb("self")[0]
    begun = perf_counter()
    loader = make(job)
    iterator = iter(loader)
    batch = next(iterator)
    first_s = perf_counter() - begun
    check_batch(batch, job)
    first_step, last_step = int(WARM_UP * job.data.steps) + 2, int(TAIL * job.data.steps)
    batches, counted_s = 0, 0.0
    for epoch in count():
        steps, seconds = _stretch(iterator, first_step - (not epoch), last_step, job.seconds)
        batches, counted_s = batches + steps, counted_s + seconds
        if counted_s >= job.seconds:
            break
        iterator = iter(loader)
    per_s = job.batch * batches / counted_s
    return {"first_ms": 1000 * first_s, "samples_per_s": per_s, "imported_mb": imported_mb}


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
    make = _peer(job).LOADERS[job.loader]
    begun = perf_counter()
    batch = next(iter(make(job)))
    first_s = perf_counter() - begun
    check_batch(batch, job)
    return {"first_ms": 1000 * first_s}


def floors(job: Job) -> Result:
    """Samples per second of the transform alone on bytes in memory: no loader can beat it."""
    _members.extend(read_members(job, BATCHES_IN_MEMORY * BATCH))
    rates: Result = {}
    for name, pool in (("processes", get_context("fork").Pool), ("threads", ThreadPool)):
        with pool(job.workers) as workers:  # the fork goes before threads
            parts = workers.map(_floor, [job] * job.workers, chunksize=1)
        rates[f"floor: transform, {job.workers} {name}"] = sum(parts)
    return rates


def _floor(job: Job) -> float:
    batches = [_members[n : n + BATCH] for n in range(0, len(_members), BATCH)]
    transform, rng = transform_of(job), np.random.default_rng()
    arguments = (rng,) if job.is_images else ()
    room = np.stack([transform(data, *arguments) for data in batches[0]])
    made, counted_from = 0, perf_counter() + FLOOR_WARM_UP_S
    for number in count():
        np.stack([transform(data, *arguments) for data in batches[number % len(batches)]], out=room)
        seconds = perf_counter() - counted_from
        made += BATCH * (seconds > 0)
        if seconds >= job.seconds:
            return made / seconds
    raise AssertionError


def prepare(job: Job) -> Result:
    """What the peer makes of the data set, if it makes anything."""
    peer, done = _peer(job), job.own / "done"
    if hasattr(peer, "prepare") and not done.exists():
        job.own.mkdir(exist_ok=True)
        peer.prepare(job)
        done.touch()
    return {}


def state(job: Job) -> Result:
    """The loader's own state after `position` batches, as a checkpoint would hold it."""
    peer = _peer(job)
    if hasattr(peer, "save_state") and not job.state_file.exists():
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
    shapes = [tuple(each.shape) for each in arrays]
    if wanted not in shapes:
        raise ValueError(f"a batch of {job.loader} has {shapes}, {wanted} was wanted")


def _peer(job: Job) -> Any:
    return import_module(f"benchmarks.peers.loaders.{job.peer}")
