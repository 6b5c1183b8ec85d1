"""What this process shares: processors, open files, signals, its stage, and waits called off.

Nothing ends the wait of another thread, and a server may not answer for minutes. So whoever asks a
thread for batches gives it a check, which raises when it wants no more. A wait for bytes, for a
batch or for a process calls the checks of its thread every quarter of a second.
"""

import os
import resource
import secrets
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from functools import cache
from queue import Empty, SimpleQueue
from time import perf_counter
from types import FrameType
from typing import Final, Self, TypeVar

_T = TypeVar("_T")

FETCH_THREAD: Final = "lightning-shards-fetch"
"""The name of threads that make requests and read no batches."""

CHECK_S: Final = 0.25
"""Seconds between two calls of the checks."""


class _OfThread(threading.local):
    checks: tuple[Callable[[], None], ...] = ()


_here = _OfThread()


class Cancellable:
    """A context in which waits of this thread call a check, beside those of contexts around it.

    Args:
        check: Raises if what the thread does is not wanted any more.
    """

    __slots__ = ("_before", "_check")

    def __init__(self, check: Callable[[], None]) -> None:
        self._check = check

    def __enter__(self) -> None:
        self._before = _here.checks
        _here.checks = (*self._before, self._check)

    def __exit__(self, *exception: object) -> None:
        _here.checks = self._before


def raise_if_cancelled() -> None:
    """Call the checks of this thread.

    Raises:
        BaseException: What one of them raises.
    """
    for check in _here.checks:
        check()


def wait_for_event(event: threading.Event, timeout_s: float) -> bool:
    """Wait for an event; whether it is set in time. Raises what a check does."""
    until = perf_counter() + timeout_s
    while not event.wait(max(0.0, min(CHECK_S, until - perf_counter()))):
        if perf_counter() >= until:
            return False
        raise_if_cancelled()
    return True


def take_from(queue: "SimpleQueue[_T]") -> _T:
    """Wait for the next item of a queue; raises what a check does."""
    while True:
        try:
            return queue.get(timeout=CHECK_S)
        except Empty:
            raise_if_cancelled()


def result_of(future: "Future[_T]") -> _T:
    """Wait for the result of a future; raises its error, or what a check does."""
    while wait([future], CHECK_S).not_done:
        raise_if_cancelled()
    return future.result()


_OTHER_FILES: Final = 1024
"""Descriptors for all else, such as sockets, pipes, shared memory and what the trainer has open: as
many as a process may have by default, so that shards take nothing away from it."""

_SPARE_FILES: Final = 16
"""Descriptors that are left for all else where the limit is low: pipes, shared memory, tables."""


def allow_open_files(number: int) -> None:
    """Let this process have so many open files beside its others, as far as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = number + _OTHER_FILES
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def files_allowed() -> int:
    """More files that this process may open, as far as its limit goes, but for a few to spare."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return sys.maxsize
    return soft - sum(1 for _ in os.scandir("/dev/fd")) - _SPARE_FILES


def num_cpus() -> int:
    """Processors that this process may use: a container may have fewer than its machine."""
    # Only Linux has sched_getaffinity.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_MEETING: Final = ("MASTER_ADDR", "MASTER_PORT")
_LAUNCHED_AS: Final = ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "SLURM_STEP_ID")


def job_name(ranks: int) -> str:
    """The name of the job of this process.

    Processes that take part in no group of several ranks have names of their own, which hold for as
    long as they live.

    Args:
        ranks: Ranks of the job on this machine, as far as they are known; 1 where they are not.
    """
    environment = os.environ  # noqa: TID251 it tells jobs apart, and changes no setting
    has_others = ranks > 1 or environment.get("WORLD_SIZE", "1") != "1"
    if has_others and "MASTER_PORT" in environment:
        return " ".join(environment.get(name, "") for name in (*_MEETING, *_LAUNCHED_AS))
    return "" if ranks > 1 else _name_of_process(os.getpid())


@cache
def _name_of_process(pid: int) -> str:
    return f"{pid} {secrets.token_hex(8)}"


class DeferredSignal:
    """A context in which a signal is only noted, and handled at its end.

    An error that leaves the context takes the place of the handler. Outside of the main thread,
    where nothing handles signals, and where the process has no handler, the context does nothing.

    Args:
        number: The signal.

    Attributes:
        is_noted: Whether it has come.
    """

    def __init__(self, number: signal.Signals) -> None:
        self.is_noted, self._number = False, number

    def __enter__(self) -> Self:
        self._handler = signal.getsignal(self._number)
        self._is_set = threading.current_thread() is threading.main_thread()
        self._is_set = self._is_set and callable(self._handler)
        if self._is_set:
            signal.signal(self._number, self._note)
        return self

    def __exit__(self, error: type[BaseException] | None, *others: object) -> None:
        if not self._is_set:
            return
        signal.signal(self._number, self._handler)
        if self.is_noted and error is None and callable(self._handler):
            self._handler(self._number, None)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.is_noted = True


FETCH_STAGE: Final = 6
"""The number of the stage in which bytes from afar are waited for."""

_published = [memoryview(bytearray(1))]


def publish_stages_in(byte: memoryview) -> None:
    """Make this process write the stage that began last into this byte from now on; 0: none."""
    _published[0] = byte


def published_byte() -> memoryview:
    """Where it is written."""
    return _published[0]


class Fetching:
    """A context in which bytes from afar are waited for; then the stage before it goes on.

    Threads that only fetch ahead of the batches publish nothing.
    """

    __slots__ = ("_before", "_byte")

    def __enter__(self) -> None:
        is_waited_for = bool(_here.checks)
        self._byte = _published[0] if is_waited_for else memoryview(bytearray(1))
        self._before = self._byte[0]
        self._byte[0] = FETCH_STAGE

    def __exit__(self, *exception: object) -> None:
        self._byte[0] = self._before
