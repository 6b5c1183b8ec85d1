"""One function over many shards, in several processes, with the results in order."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

_MAX_CHUNK = 64
_CHUNKS_PER_PROCESS = 8
"""Enough chunks that processes end together, few enough that sending them costs nothing."""


def num_cpus() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def map_parallel(
    function: Callable[[_Item], _Result], items: Sequence[_Item], processes: int
) -> Iterator[_Result]:
    """`function(item)` for each item, in the order of the items, whatever the number of processes.

    With one process, or one item, all is done in this one. Otherwise the function, items and
    results must be picklable; the processes end when this one does, even if that is killed.
    """
    processes = min(processes, len(items))
    if processes <= 1:
        yield from map(function, items)
        return
    chunk = max(1, min(_MAX_CHUNK, len(items) // (processes * _CHUNKS_PER_PROCESS)))
    # a fork of a process with threads may deadlock
    context = multiprocessing.get_context("forkserver")
    pool = ProcessPoolExecutor(processes, mp_context=context, initializer=_end_with_parent)
    try:
        yield from pool.map(function, items, chunksize=chunk)
    finally:
        pool.shutdown(cancel_futures=True)


def _end_with_parent() -> None:
    """Leave Ctrl-C to the parent, and end when it is gone: nobody would ever fill the queue."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_wait_for_parent, daemon=True).start()


def _wait_for_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
