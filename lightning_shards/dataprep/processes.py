"""One function over many tasks in processes, which end with their parent even if it is killed."""

import os
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from multiprocessing import active_children, get_context
from typing import TypeVar

from lightning_shards.errors import ConfigError, WorkerError
from lightning_shards.system.guard import end_with, kill

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")

_CHUNKS_PER_PROCESS = 8
"""Enough chunks that processes end at about the same time; few enough to send at no cost."""


def map_parallel(
    function: Callable[[_Task], _Result],
    items: Sequence[_Task],
    processes: int,
    *,
    most_at_once: int = 64,
) -> Generator[_Result]:
    """`function(item)` for each item, in the order of the items, whatever the number of processes.

    With one process or one item, all work is done in this process. Otherwise function, items and
    results are pickled, and a process gets up to `most_at_once` items together, which pays off
    where one takes less than a few ms. Close it to end the processes.

    Raises:
        ConfigError: `processes` is below 1.
        WorkerError: A process died, or could not start.
        Exception: An error that the function raises; the other items are given up.
    """
    if processes < 1:
        raise ConfigError(f"processes must be at least 1, got {processes}")
    processes = min(processes, len(items))
    if processes <= 1:
        yield from map(function, items)
        return
    size = max(1, min(most_at_once, len(items) // (processes * _CHUNKS_PER_PROCESS)))
    with _pool(processes) as pool:
        yield from pool.map(function, items, chunksize=size)


@contextmanager
def _pool(processes: int) -> Generator[ProcessPoolExecutor]:
    """A pool whose processes are killed by an error, because a task may take minutes."""
    before = set(active_children())
    guarded = partial(ProcessPoolExecutor, initializer=end_with, initargs=(os.getpid(), None))
    try:
        with guarded(processes, get_context("spawn")) as pool:
            try:
                yield pool
            except BaseException:
                for process in set(active_children()) - before:
                    kill(process.pid or 0)
                raise
    except BrokenProcessPool as error:
        raise WorkerError(
            "a process died, often for want of memory; run the command again to go on, with fewer "
            "processes. In a script, the call belongs under `if __name__ == '__main__':`"
        ) from error
