"""The pool of worker processes: the trainer asks them one after the other, in step order."""

import logging
import multiprocessing
import os
import signal
import time
import weakref
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from itertools import cycle
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Literal, TypeAlias, cast

from lightning_shards.errors import WorkerError
from lightning_shards.plan.place import Cursor, Place
from lightning_shards.readers.source import Source
from lightning_shards.samples.stage_clock import stage_of
from lightning_shards.samples.tensors import default_dtype_name, load_torch
from lightning_shards.system.guard import GuardedName, kill
from lightning_shards.system.process import Cancellable
from lightning_shards.workers.connection import TrainerEnd, new_buffers
from lightning_shards.workers.fork_server import fork_server, shared_folder
from lightning_shards.workers.messages import UNKNOWN_BYTES, BatchBytes, pinned
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
    from_main,
    modules_to_preload,
    require_sendable,
)

StartMethod: TypeAlias = Literal["forkserver", "spawn", "fork"]

_END_S = 3.0
"""Seconds to wait for workers whose stream is closed: for the message that they are making (a wait
for a server ends at once), then, if they are killed, for their end, which comes at once unless they
wait for a disk."""

_PINNED_AHEAD = 2
"""Messages in page-locked memory that are ready for the trainer."""

_SIGN_OF_DEATH_S = 1.0
"""Seconds; the connection to a worker that dies breaks a moment before its exit status is known."""

_log = logging.getLogger(__name__)


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
        batch: Size of one batch on its way to the trainer.
        worker_timeout_s: Seconds that the trainer waits for a message, also for the first one,
            before it ends the workers. 0: there is no limit.
    """

    num_workers: int
    prefetch_factor: int = 2
    start_method: StartMethod = "forkserver"
    pin_memory: bool = False
    threads: int = 1
    batch: BatchBytes = UNKNOWN_BYTES
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
        modules: dict[str, str] = {}
        if self.start_method != "fork":
            modules = require_sendable(source)
        if of_main := from_main(modules):
            _log.info(
                "worker processes import the main script, because %s is defined in it; in a module "
                "of its own, it would let them start sooner",
                of_main,
            )
        device = _device_to_pin_for(self)  # before any worker runs, as CUDA may refuse
        workers: list[BaseProcess] = []
        ends: list[TrainerEnd] = []
        try:
            if self.start_method == "forkserver":
                fork_server.start(modules_to_preload(source, modules))
            for number in range(self.num_workers):
                connection, its_end = multiprocessing.Pipe()
                with its_end:
                    share = self._share(source, place.with_worker(number, self.num_workers), cursor)
                    ends.append(TrainerEnd(connection, share.buffers))
                    workers.append(self._process(share, its_end, imports_main=bool(of_main)))
                    workers[-1].start()
        except BaseException as error:
            _end_workers(workers, ends, wait_s=0.0)
            if isinstance(error, OSError | EOFError):
                raise WorkerError(_not_started(error)) from error
            raise
        return _ProcessStream(workers, ends, self.worker_timeout_s, device)

    def _share(self, source: Source, place: Place, cursor: Cursor) -> WorkerShare:
        settings = (self.prefetch_factor, self.threads, self.batch, default_dtype_name())
        return WorkerShare(source, place, cursor, *settings, new_buffers(self.prefetch_factor))

    def _process(
        self, share: WorkerShare, its_end: Connection, *, imports_main: bool
    ) -> BaseProcess:
        name = GuardedName(os.getpid(), shared_folder(), imports_main=imports_main)
        context: Any = multiprocessing.get_context(self.start_method)
        return context.Process(name=name, target=run_worker, args=(share, its_end), daemon=True)


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
        super().__init__(len(workers), timeout_s)
        self._workers, self._ends, self._pinning = workers, ends, list[AheadThread[Received]]()
        if device is not None:
            self._pinning.append(AheadThread(_pinned_messages(ends, device), _PINNED_AHEAD))
        self._finalizer = weakref.finalize(
            self, _end_stream, os.getpid(), self._pinning, workers, ends
        )

    def _end(self) -> None:
        self._finalizer()
        self._ends.clear()  # its shared memory lives on while a tensor uses it

    def _receive(self, worker: int) -> Received:
        try:
            with Cancellable(self._look):
                return self._pinning[0].take() if self._pinning else self._ends[worker].receive()
        except WorkerError:
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


def _end_stream(
    owner_pid: int,
    pinning: Sequence[AheadThread[Received]],
    workers: Sequence[BaseProcess],
    ends: Sequence[TrainerEnd],
) -> None:
    if os.getpid() == owner_pid:  # a fork of the trainer drops its copy
        end_threads(pinning)
        _end_workers(workers, ends, wait_s=_END_S)


def _end_workers(
    workers: Sequence[BaseProcess], ends: Sequence[TrainerEnd], *, wait_s: float
) -> None:
    """Close the connections, wait for the workers to end, and kill those that do not."""
    for end in ends:
        end.close()
    until = time.perf_counter() + wait_s
    started = [worker for worker in workers if worker.pid is not None]
    for worker in started:
        worker.join(max(0.0, until - time.perf_counter()))
    for worker in started:
        if worker.is_alive():
            kill(cast("int", worker.pid))
            worker.join(_END_S)


# --- pinned memory --------------------------------------------------------------------------------


def _device_to_pin_for(pool: ProcessPool) -> int | None:
    """The GPU whose page-locked memory batches are copied to; None if they are not."""
    if not (pool.pin_memory and load_torch().cuda.is_available()):
        return None
    return load_torch().cuda.current_device()


def _pinned_messages(ends: Sequence[TrainerEnd], device: int) -> Generator[Received]:
    """The messages in step order, in the page-locked memory of a GPU."""
    load_torch().cuda.set_device(device)  # otherwise memory of the first GPU would be used
    for end in cycle(ends):
        received = end.receive()
        yield [each if isinstance(each, Failure) else pinned(each) for each in received]
