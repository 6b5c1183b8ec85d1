"""One function over many tasks in processes, which end with their parent even if it is killed."""

import os
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import active_children, get_context
from typing import TypeVar

from lightning_shards.errors import WorkerError
from lightning_shards.system.guard import end_with, kill

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")


def map_parallel(
    function: Callable[[_Task], _Result], items: Sequence[_Task], processes: int
) -> Generator[_Result]:
    """`function(item)` for each item, in the order of the items, whatever the number of processes.

    With less than two processes or items, all work is done in this process. Otherwise function,
    items and results are pickled. Close it to end the processes.

    Raises:
        WorkerError: A process died, or could not start.
        Exception: An error that the function raises; the other items are given up.
    """
    processes = min(processes, len(items))
    if processes <= 1:
        yield from map(function, items)
        return
    before = set(active_children())
    context, guard = get_context("spawn"), (os.getpid(),)
    try:
        with ProcessPoolExecutor(processes, context, end_with, guard) as pool:
            # unlike those of `pool.map`, they are not cancelled, which a pool of 3.11 does not bear
            results = [pool.submit(function, item) for item in items]
            try:
                for result in results:
                    yield result.result()
            except BaseException:  # a task may take minutes: nobody waits for its end
                for process in set(active_children()) - before:
                    kill(process.pid or 0)
                raise
    except BrokenProcessPool as error:
        raise WorkerError(
            "a process died, often for want of memory; run the command again to go on, with fewer "
            "processes. In a script, the call belongs under `if __name__ == '__main__':`"
        ) from error
