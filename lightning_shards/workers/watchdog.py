"""The watchdog of workers: it measures how long the trainer waits for a batch and says why.

A thread, or the trainer itself, cannot be ended; a warning shows its stack. Worker processes are
ended (`ProcessWatch`), and the trainer gets an error.
"""

import logging
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, cast

from lightning_shards.errors import WorkerError
from lightning_shards.samples.stage_clock import stage_of
from lightning_shards.system.guard import kill
from lightning_shards.workers.connection import TrainerEnd

WORKER_TIMEOUT_S = 300.0
"""Seconds; longer than the slowest batch takes, and longer than workers take to start."""

_log = logging.getLogger(__name__)

_LOOK_S = 1.0
"""Seconds between two looks."""

_SIGN_OF_DEATH_S = 1.0
"""Seconds; the connection to a worker that dies breaks a moment before its exit status is known."""


class Watchdog:
    """A context manager for waiting, and a thread that measures how long the waiting takes.

    Time is counted in looks of the thread: it does not look while the whole job is stopped (Ctrl-Z,
    a scheduler), so that time is not counted.

    Args:
        timeout_s: Seconds after which `on_late` is called, and called again each time; 0: never.
        on_late: Gets the seconds, and the number of the thread that waits.
        on_look: Called first at each look.
    """

    def __init__(
        self,
        timeout_s: float,
        on_late: Callable[[float, int], None],
        on_look: Callable[[], None] | None = None,
    ) -> None:
        self._timeout_s, self._on_late, self._on_look = timeout_s, on_late, on_look
        self._interval_s = min(_LOOK_S, timeout_s / 4) if timeout_s else _LOOK_S
        self._moves = 0  # odd while a thread waits
        self._waiter = 0
        self._seen, self._looks = 0, 0
        self._is_stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watchdog of workers", daemon=True)
        if timeout_s or on_look:
            self._thread.start()

    def __enter__(self) -> None:
        self._waiter = threading.get_ident()
        self._moves += 1

    def __exit__(self, *exception: object) -> None:
        self._moves += 1

    def stop(self) -> None:
        """End the thread; it is gone when this returns."""
        self._is_stopped.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def look(self) -> None:
        """Look once, as the thread does."""
        if self._on_look:
            self._on_look()
        moves = self._moves
        self._looks = self._looks + 1 if moves == self._seen else 0
        self._seen = moves
        waited_s = self._looks * self._interval_s
        if moves % 2 and self._timeout_s and waited_s >= self._timeout_s:
            self._on_late(waited_s, self._waiter)
            self._looks = 0  # so it is called again after as many seconds

    def _run(self) -> None:
        while not self._is_stopped.wait(self._interval_s):
            self.look()


def warn_with_stacks(waited_s: float, threads: Sequence[int]) -> None:
    """Log the stacks of these threads."""
    frames = cast("Any", sys)._current_frames()  # noqa: SLF001 there is no other way
    stacks = [
        f"thread {ident}:\n{''.join(traceback.format_stack(frames[ident]))}"
        for ident in threads
        if ident in frames
    ]
    _log.warning(
        "a batch is waited for since %g s (LoaderConfig.worker_timeout_s). Its maker stands "
        "here, and cannot be ended; worker processes could:\n%s",
        waited_s,
        "\n".join(stacks),
    )


class ProcessWatch:
    """Watches the processes of a stream, and ends all of them if one ends or gives no batch.

    Args:
        workers: The processes.
        ends: The trainer's ends of the connections to them.

    Attributes:
        worker: Number of the worker whose batch the trainer waits for.
    """

    def __init__(self, workers: Sequence[BaseProcess], ends: Sequence[TrainerEnd]) -> None:
        self.worker = 0
        self._workers, self._ends = workers, ends
        self._ended: list[BaseProcess] = []
        self._late = ""

    def look(self) -> None:
        """End all processes if one has ended."""
        if not self._ended and self._find_ended(0):
            self.kill()

    def late(self, waited_s: float, _thread: int) -> None:
        """End all processes, because one gives no batch."""
        pid = self._workers[self.worker].pid
        stage = stage_of(self._ends[self.worker].stage)
        self._late = (
            f"worker process {self.worker} (pid {pid}) has given no batch for {waited_s:g} s"
            f", the worker_timeout_s of LoaderConfig; it {_state(pid)}, and the stage that "
            f"it began last is {stage!r}. Likely causes: a file system or server that does not "
            "answer, a transform that waits for ever, a process that was stopped. If "
            "batches do take longer, set a larger worker_timeout_s, or 0 for none"
        )
        self.kill()

    def kill(self) -> None:
        """End the workers and the programs that they run, and the trainer's waiting for them."""
        for worker in self._workers:
            if worker not in self._ended and worker.pid is not None:
                kill(worker.pid)
        for end in self._ends:
            end.shut()

    def error(self) -> WorkerError | None:
        """The reason why there are no more batches; None if no process is the cause."""
        if self._late:
            return WorkerError(self._late)
        if not self._ended and not self._find_ended(_SIGN_OF_DEATH_S):
            return None
        ended = ", ".join(f"pid {worker.pid}: {_end(worker.exitcode)}" for worker in self._ended)
        return WorkerError(
            f"a worker process ended without being asked to ({ended}). Likely causes: out of "
            "memory (SIGKILL: fewer workers, a smaller prefetch_factor), a crash in a decoder "
            "(SIGSEGV), or a file that was cut while it was read through a map (SIGBUS); "
            "num_workers=0 shows the crash itself"
        )

    def _find_ended(self, timeout_s: float) -> bool:
        sentinels = {worker.sentinel: worker for worker in self._workers}
        self._ended = [sentinels[sentinel] for sentinel in wait(list(sentinels), timeout_s)]  # type: ignore[index]  sentinels are ints
        return bool(self._ended)


def _end(code: int | None) -> str:
    if code is None:  # other code of this process has fetched it
        return "exit status unknown"
    return signal.Signals(-code).name if code < 0 else f"exit status {code}"


_STATES = {
    "T": "was stopped by a signal",
    "D": "waits for a disk or a file server",
    "R": "is running",
    "S": "is waiting",
}


def _state(pid: int | None) -> str:
    """The state of a process, as the system reports it."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "is in a state that is not known"
    return _STATES.get(state, f"is in state {state}")
