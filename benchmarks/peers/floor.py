"""What no loader can beat: the transform alone on bytes in memory, and one sequential read."""

import multiprocessing
import threading
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.peers.datasets import read_members
from benchmarks.peers.job import BATCH, Job
from benchmarks.peers.transforms import batch_shape, transform_of

BATCHES_IN_MEMORY = 16
READ_BYTES = 2**20
WARM_UP_S = 0.3


def floors(job: Job) -> dict[str, Any]:
    """Samples per second, by the name of the row."""
    members = read_members(job, BATCHES_IN_MEMORY * BATCH)
    work = _Work(job, members)
    return {
        "floor: transform, 2 processes": _by_processes(job, work),  # a fork goes before threads
        "floor: transform, 2 threads": _by_threads(job, work),
        "floor: transform, inline": work.run(),
        "floor: one sequential read": _sequential_read(job),
    }


class _Work:
    """Makes batches for a while."""

    def __init__(self, job: Job, members: list[bytes]) -> None:
        self._transform, self._seconds = transform_of(job), job.seconds
        self._batches = [members[n : n + BATCH] for n in range(0, len(members), BATCH)]
        self._shape = batch_shape(job)

    def run(self) -> float:
        """Samples per second of the one who calls; each worker has time of its own."""
        first = np.stack([self._transform(each) for each in self._batches[0]])
        rng = np.random.default_rng()
        self._for(WARM_UP_S, first, rng)
        made, seconds = self._for(self._seconds, first, rng)
        return made / seconds

    def _for(self, seconds: float, room: Any, rng: np.random.Generator) -> tuple[int, float]:
        made, begun = 0, perf_counter()
        takes_rng = len(self._shape) > 1
        while (taken := perf_counter() - begun) < seconds:
            batch = self._batches[made // BATCH % len(self._batches)]
            if takes_rng:
                np.stack([self._transform(each, rng) for each in batch], out=room)
            else:
                np.stack([self._transform(each) for each in batch], out=room)
            made += BATCH
        return made, taken


def _by_threads(job: Job, work: _Work) -> float:
    rates: list[float] = []
    threads = [
        threading.Thread(target=lambda: rates.append(work.run())) for _ in range(job.workers)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(rates)


def _by_processes(job: Job, work: _Work) -> float:
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    processes = [
        context.Process(target=lambda: queue.put(work.run()), daemon=True)
        for _ in range(job.workers)
    ]
    for process in processes:
        process.start()
    return sum(queue.get(timeout=60 + job.seconds) for _ in processes)


def _sequential_read(job: Job) -> float:
    """Reading the tars front to back, from the page cache."""
    seconds = 0.0
    for _ in range(2):  # the first fills the cache
        begun = perf_counter()
        for path in job.shards:
            with open(path, "rb", buffering=0) as file:  # noqa: PTH123 no buffer of Python's
                while file.read(READ_BYTES):
                    pass
        seconds = perf_counter() - begun
    return job.data.samples / seconds
