"""Parallel execution of one function over many tasks, in processes that end with their parent.

`concurrent.futures` leaves its workers behind when their parent is killed: each holds both ends of
the queue and waits for itself. Here every worker has a pipe of its own, and notices when that is
closed. A guard ends it even in the middle of a task, because the next run may need its file.
"""

import os
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from functools import partial
from itertools import islice
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any, Final, TypeVar, cast

from lightning_shards.errors import ConfigError, WorkerError
from lightning_shards.system.guard import GuardedName, kill

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")

_JOIN_TIMEOUT_S = 10.0

MOST_AT_ONCE: Final = 64
_CHUNKS_PER_PROCESS = 8
"""Enough chunks that processes end at about the same time; few enough to send at no cost."""


def map_parallel(
    function: Callable[[_Task], _Result],
    items: Sequence[_Task],
    processes: int,
    at_once: int = MOST_AT_ONCE,
) -> Generator[_Result]:
    """`function(item)` for each item, in the order of the items, whatever the number of processes.

    With one process or one item, all work is done in this process. Otherwise a process gets up to
    `at_once` items together, which pays off where one takes less than a few ms. Errors as in
    `run_in_processes`.
    """
    _require_processes(processes)
    processes = min(processes, len(items))
    if processes <= 1:
        yield from map(function, items)
        return
    size = max(1, min(at_once, len(items) // (processes * _CHUNKS_PER_PROCESS)))
    chunks = enumerate(items[start : start + size] for start in range(0, len(items), size))
    done: dict[int, list[_Result]] = {}
    following = 0
    with closing(run_in_processes(partial(_map_chunk, function), chunks, processes)) as results:
        for (number, _), made in results:
            done[number] = made
            while following in done:
                yield from done.pop(following)
                following += 1


def _map_chunk(
    function: Callable[[_Task], _Result], chunk: tuple[int, Sequence[_Task]]
) -> list[_Result]:
    return [function(item) for item in chunk[1]]


def run_in_processes(
    function: Callable[[_Task], _Result], tasks: Iterable[_Task], processes: int
) -> Generator[tuple[_Task, _Result]]:
    """Each task with its result, in order of completion; close it to end the processes.

    With one process the function runs in this process. Otherwise function, tasks and results are
    pickled, and tasks are taken from the iterable when a process is free.

    Raises:
        ConfigError: `processes` is below 1.
        WorkerError: A process died, or could not start.
        Exception: An error that the function raises; the other tasks are given up.
    """
    _require_processes(processes)
    if processes == 1:
        for task in tasks:
            yield task, function(task)
        return
    remaining = iter(tasks)
    first = list(islice(remaining, processes))
    workers = [_Worker(function) for _ in first]
    try:
        for worker, task in zip(workers, first, strict=True):
            worker.start()
            worker.send(task)
        yield from _collect(workers, remaining)
    finally:
        for worker in workers:
            worker.stop()


def _require_processes(processes: int) -> None:
    if processes < 1:
        raise ConfigError(f"processes must be at least 1, got {processes}")


def _collect(workers: list["_Worker"], remaining: Iterator[Any]) -> Iterator[tuple[Any, Any]]:
    """Yield results as they come, and give each free worker a new task while there are any."""
    busy = {worker.connection: worker for worker in workers}
    while busy:
        for ready in wait(list(busy)):
            worker = busy[cast("Connection", ready)]
            done = worker.receive()
            try:
                worker.send(next(remaining))
            except StopIteration:
                del busy[worker.connection]
            yield done


class _Worker:
    """A process that runs one task at a time."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        context = get_context("spawn")
        self.connection, self._its_end = context.Pipe()
        name = GuardedName(os.getpid())
        self._process: SpawnProcess = context.Process(
            name=name, target=_work, args=(function, self._its_end), daemon=True
        )
        self._task: Any = None

    def start(self) -> None:
        self._process.start()
        self._its_end.close()

    def send(self, task: Any) -> None:
        self._task = task
        with suppress(BrokenPipeError, ConnectionResetError):  # it is dead: `receive` reports it
            self.connection.send(task)

    def receive(self) -> tuple[Any, Any]:
        try:
            is_done, result = self.connection.recv()
        except (EOFError, ConnectionResetError) as error:
            self._process.join(_JOIN_TIMEOUT_S)
            raise WorkerError(
                f"a process died with exit code {self._process.exitcode} (-9: killed, often for "
                "want of memory); run the command again to go on, with fewer processes. In a "
                "script, the call belongs under `if __name__ == '__main__':`"
            ) from error
        if not is_done:
            raise result
        return self._task, result

    def stop(self) -> None:
        """End the process, even in the middle of a task, which leaves only a temporary file."""
        self.connection.close()
        if self._process.pid is not None:
            if self._process.is_alive():
                kill(self._process.pid)
            self._process.join(_JOIN_TIMEOUT_S)


def _work(function: Callable[[Any], Any], connection: Connection) -> None:
    """Run tasks until the other end is closed."""
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            task = connection.recv()
            try:
                answer = (True, function(task))
            except Exception as error:  # noqa: BLE001 - raised again in the parent
                answer = (False, error)
            connection.send(answer)
