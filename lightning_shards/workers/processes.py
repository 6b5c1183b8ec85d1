"""The pool of worker processes: the trainer asks them one after the other, in step order."""

import multiprocessing
import signal
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from itertools import cycle
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from typing import Any, Literal, cast

from lightning_shards.errors import ShardError, WorkerError
from lightning_shards.plan.place import Cursor, Place
from lightning_shards.readers.source import Source
from lightning_shards.samples.stage_clock import stage_of
from lightning_shards.samples.tensors import default_dtype_name, load_torch
from lightning_shards.system.guard import GuardedName, kill
from lightning_shards.system.process import Cancellable
from lightning_shards.workers.connection import TrainerEnd, new_buffers
from lightning_shards.workers.fork_server import fork_server
from lightning_shards.workers.messages import pinned
from lightning_shards.workers.pool import (
    WORKER_TIMEOUT_S,
    BatchStream,
    Failure,
    PoolDescription,
    Received,
    WorkerStream,
)
from lightning_shards.workers.threads import AheadThread, end_threads
from lightning_shards.workers.worker import WorkerShare, run_worker
from lightning_shards.workers.worker_imports import (
    MAIN_NAMES,
    modules_to_preload,
    require_sendable,
)

_END_S = 3.0
"""Seconds to wait for workers whose stream is closed: for the message that they are making (a wait
for a server ends at once), then, if they are killed, for their end, which comes at once unless they
wait for a disk."""

_PINNED_AHEAD = 2
"""Messages in page-locked memory that are ready for the trainer."""

_SIGN_OF_DEATH_S = 1.0
"""Seconds; the connection to a worker that dies breaks a moment before its exit status is known."""


@dataclass(frozen=True)
class ProcessPool:
    """Runs the source in `num_workers` processes.

    Attributes:
        num_workers: Processes per rank.
        prefetch_factor: Messages that each process keeps ready. One message holds several batches
            if they are small.
        start_method: `forkserver` by default, because a fork of a rank that has gloo and autograd
            threads can deadlock.
        pin_memory: Whether a thread copies batches into page-locked memory.
        threads: Threads in each process.
        batch_bytes: Size of one batch on its way to the trainer; 0: unknown.
        worker_timeout_s: Seconds that the trainer waits for a message, also for the first one,
            before it ends the workers. 0: there is no limit.
    """

    num_workers: int
    prefetch_factor: int = 2
    start_method: Literal["forkserver", "spawn", "fork"] = "forkserver"
    pin_memory: bool = False
    threads: int = 1
    batch_bytes: int = 0
    worker_timeout_s: float = WORKER_TIMEOUT_S

    def describe(self) -> PoolDescription:
        """A description in which each thread of each process is a worker."""
        num_workers = self.num_workers * self.threads
        return PoolDescription("processes", num_workers, self.prefetch_factor, threads=self.threads)

    def start(self, source: Source, place: Place, cursor: Cursor) -> BatchStream:
        """Start the workers at the cursor.

        Raises:
            ConfigError: A transform or a stage cannot be sent to them.
            WorkerError: They cannot be started, or would import a main script without a main guard.
        """
        modules = set[str]() if self.start_method == "fork" else require_sendable(source)
        device = None
        if self.pin_memory and load_torch().cuda.is_available():
            device = load_torch().cuda.current_device()  # before workers run, as CUDA may refuse
        context: Any = multiprocessing.get_context(self.start_method)
        name = GuardedName(imports_main=not MAIN_NAMES.isdisjoint(modules))
        workers: list[BaseProcess] = []
        ends: list[TrainerEnd] = []
        try:
            if self.start_method == "forkserver":
                fork_server.start(modules_to_preload(source, modules))
            for number in range(self.num_workers):
                connection, its_end = multiprocessing.Pipe()
                buffers = new_buffers(self.prefetch_factor)
                ends.append(TrainerEnd(connection, buffers))
                own_place = place.with_worker(number, self.num_workers)
                settings = (self.prefetch_factor, self.threads, self.batch_bytes)
                dtype = default_dtype_name()
                share = WorkerShare(source, own_place, cursor, *settings, dtype, buffers)
                with its_end:
                    given = (share, its_end)
                    workers.append(
                        context.Process(name=name, target=run_worker, args=given, daemon=True)
                    )
                    workers[-1].start()
        except BaseException as error:
            _end_workers([], workers, ends)
            if isinstance(error, OSError | EOFError):
                raise WorkerError(_not_started(error)) from error
            raise
        return _ProcessStream(workers, ends, self.worker_timeout_s, device)


def _not_started(error: Exception) -> str:
    return (
        f"worker processes cannot be started ({type(error).__name__}: {error}). Likely causes: "
        "a module that fails where workers import it (its traceback stands above), the fork server "
        "was killed, too many processes or open files (ulimit -u, -n), out of memory; mend that, "
        "lower num_workers, or take pool='threads'"
    )


class _ProcessStream(WorkerStream):
    def __init__(
        self,
        workers: list[BaseProcess],
        ends: list[TrainerEnd],
        timeout_s: float,
        device: int | None,
    ) -> None:
        self._workers, self._ends, self._pinning = workers, ends, list[AheadThread[Received]]()
        if device is not None:
            self._pinning.append(AheadThread(_pinned_messages(ends, device), _PINNED_AHEAD))
        super().__init__(len(workers), timeout_s, _end_workers, self._pinning, workers, ends)

    def _receive(self, worker: int) -> Received:
        try:
            with Cancellable(self._look):
                return self._pinning[0].take() if self._pinning else self._ends[worker].receive()
        except ShardError:
            raise
        except Exception as error:
            # the connection to a worker that is gone breaks, which raises one of several errors
            self._look(_SIGN_OF_DEATH_S)
            raise WorkerError(
                "what a worker process sent cannot be unpickled in the trainer "
                f"({type(error).__name__}: {error}); let fields be tensors, numbers or texts, "
                "or take pool='threads' or 'inline'"
            ) from error

    def _look(self, timeout_s: float = 0.0) -> None:
        """Raise if a worker has ended; every wait for a message asks, several times a second."""
        processes = {worker.sentinel: worker for worker in self._workers}
        found = [processes[cast("int", each)] for each in wait(list(processes), timeout_s)]
        for worker in found:
            worker.join(_SIGN_OF_DEATH_S)  # so that its exit status is known
        if found:
            ended = ", ".join(f"pid {worker.pid}: {_end_of(worker.exitcode)}" for worker in found)
            raise WorkerError(
                f"a worker process ended without being asked to ({ended}). Likely causes: out of "
                "memory (SIGKILL: fewer workers, a smaller prefetch_factor), a crash in a decoder "
                "(SIGSEGV), a file that was cut while it was read through a map (SIGBUS), or a "
                "module that fails where workers import it (exit status 1: its traceback stands "
                "above); num_workers=0 shows the crash itself"
            )

    def _whereabouts(self, worker: int) -> str:
        pid, stage = self._workers[worker].pid, stage_of(self._ends[worker].stage)
        return f"the stage that its process {pid} began last is {stage!r}"


def _end_of(code: int | None) -> str:
    if code is None:  # other code of this process has fetched it
        return "exit status unknown"
    return signal.Signals(-code).name if code < 0 else f"exit status {code}"


def _end_workers(
    pinning: Sequence[AheadThread[Received]], workers: Sequence[BaseProcess], ends: list[TrainerEnd]
) -> None:
    """Close the connections, wait for the workers to end, and kill those that do not."""
    end_threads(pinning)
    for end in ends:
        end.close()
    ends.clear()  # its shared memory lives on while a tensor uses it
    until = time.perf_counter() + _END_S
    started = [worker for worker in workers if worker.pid is not None]
    for worker in started:
        worker.join(max(0.0, until - time.perf_counter()))
    for worker in started:
        if worker.is_alive():
            kill(cast("int", worker.pid))
            worker.join(_END_S)


# --- pinned memory --------------------------------------------------------------------------------


def _pinned_messages(ends: Sequence[TrainerEnd], device: int) -> Generator[Received]:
    """The messages in step order, in the page-locked memory of a GPU."""
    load_torch().cuda.set_device(device)  # otherwise memory of the first GPU would be used
    for end in cycle(ends):
        received = end.receive()
        yield [each if isinstance(each, Failure) else pinned(each) for each in received]
