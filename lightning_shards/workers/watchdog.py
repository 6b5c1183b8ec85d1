"""Looks how long a batch is waited for, and says who keeps the trainer waiting.

A thread or the trainer itself cannot be ended: a warning shows where it stands. Worker processes
are ended (`ProcessWatch`), and the trainer gets an error.
"""

import logging
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, cast

from lightning_shards.errors import WorkerError
from lightning_shards.guard import kill
from lightning_shards.samples.stage_clock import stage_of

WORKER_TIMEOUT_S = 300.0
"""Longer than the slowest of batches takes, and than workers take to start."""

_log = logging.getLogger(__name__)

_LOOK_S = 1.0
"""Between two looks."""

_SIGN_OF_DEATH_S = 1.0
"""A connection to a worker that dies breaks a moment before its end is known."""


class Watchdog:
    """A thread that looks, while somebody is within it, how long they are.

    Time is counted in looks: while the whole job is stopped (Ctrl-Z, a scheduler) there are none.

    Args:
        timeout_s: after so many seconds `on_late` is called, and again after as many; 0: never.
        on_late: given the seconds, and the thread that waits.
        on_look: called at each look before.
    """

    def __init__(
        self,
        timeout_s: float,
        on_late: Callable[[float, int], None],
        on_look: Callable[[], None] | None = None,
    ) -> None:
        self._timeout_s, self._on_late, self._on_look = timeout_s, on_late, on_look
        self._interval_s = min(_LOOK_S, timeout_s / 4) if timeout_s else _LOOK_S
        self._moves = 0  # odd while somebody waits
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
        """What the thread does each time."""
        if self._on_look:
            self._on_look()
        moves = self._moves
        self._looks = self._looks + 1 if moves == self._seen else 0
        self._seen = moves
        waited_s = self._looks * self._interval_s
        if moves % 2 and self._timeout_s and waited_s >= self._timeout_s:
            self._on_late(waited_s, self._waiter)
            self._looks = 0  # once more after as many seconds

    def _run(self) -> None:
        while not self._is_stopped.wait(self._interval_s):
            self.look()


def warn_with_stacks(waited_s: float, threads: Sequence[int]) -> None:
    """Say where these threads stand."""
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
    """What befalls the processes of a stream; ends all of them if one ends or stands still.

    Args:
        workers: the processes.
        stages: of each, the number of the stage that it began last.
        pipe: the trainer's own end of the pipe that batches come through. While it is open, the
            trainer would wait for the rest of a message of a worker that is gone.

    Attributes:
        turn: the worker whose batch is waited for.
    """

    def __init__(
        self, workers: Sequence[BaseProcess], stages: Sequence[int], pipe: Connection
    ) -> None:
        self.turn = 0
        self._workers, self._stages, self._pipe = workers, stages, pipe
        self._ended: list[BaseProcess] = []
        self._late = ""

    def look(self) -> None:
        """End all if one has ended."""
        if not self._ended and self._find_ended(0):
            self.kill()

    def late(self, waited_s: float, _thread: int) -> None:
        """End all, as one stands still."""
        worker = self._workers[self.turn]
        self._late = (
            f"worker process {self.turn} (pid {worker.pid}) has given no batch for {waited_s:g} s"
            f", the worker_timeout_s of LoaderConfig; it {_state(worker.pid)}, and the stage that "
            f"it began last is {stage_of(self._stages[self.turn])!r}. Likely causes: a file system "
            "or server that does not answer, a transform that waits for ever, a process that was "
            "stopped. If batches do take longer, set a larger worker_timeout_s, or 0 for none"
        )
        self.kill()

    def kill(self) -> None:
        """End the workers and the programs that they run, and who waits for them."""
        for worker in self._workers:
            if worker not in self._ended and worker.pid is not None:
                kill(worker.pid)
        self._pipe.close()

    def error(self) -> WorkerError | None:
        """Why there are no more batches; None if that is no fault of a process."""
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
        self._ended = [sentinels[each] for each in wait(list(sentinels), timeout_s)]  # type: ignore[index]  sentinels are ints
        return bool(self._ended)


def _end(code: int | None) -> str:
    if code is None:  # somebody else asked first
        return "exit status unknown"
    return signal.Signals(-code).name if code < 0 else f"exit status {code}"


_STATES = {
    "T": "was stopped by a signal",
    "D": "waits for a disk or a file server",
    "R": "is running",
    "S": "is waiting",
}


def _state(pid: int | None) -> str:
    """What the system says of a process."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "is in a state that is not known"
    return _STATES.get(state, f"is in state {state}")
