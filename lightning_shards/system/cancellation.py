"""Cancellation: how a thread that waits learns that what it waits for is not wanted any more.

Nothing ends the wait of another thread, and a server may not answer for minutes. So whoever asks a
thread for batches gives it a check, which raises when it wants no more. A wait for bytes, for a
batch or for a process calls the checks of its thread every quarter of a second.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from queue import Empty, SimpleQueue
from time import perf_counter
from typing import Final, TypeVar

_T = TypeVar("_T")

CHECK_S: Final = 0.25
"""Seconds between two calls of the checks."""


class _OfThread(threading.local):
    checks: tuple[Callable[[], None], ...] = ()


_here = _OfThread()


class Cancellable:
    """A context in which waits of this thread call a check, beside those of contexts around it.

    Args:
        check: Raises if what the thread does is not wanted any more; None: it always is.
    """

    __slots__ = ("_before", "_checks")

    def __init__(self, check: Callable[[], None] | None) -> None:
        self._checks = () if check is None else (check,)

    def __enter__(self) -> None:
        self._before = _here.checks
        _here.checks = self._before + self._checks

    def __exit__(self, *exception: object) -> None:
        _here.checks = self._before


def raise_if_cancelled() -> None:
    """Call the checks of this thread.

    Raises:
        BaseException: What one of them raises.
    """
    for check in _here.checks:
        check()


def is_cancellable() -> bool:
    """Whether this thread has checks: somebody waits for what it does."""
    return bool(_here.checks)


def wait_until(condition: threading.Condition, is_reached: Callable[[], bool]) -> None:
    """Wait until something is reached, with the condition's lock; raises what a check does."""
    while not condition.wait_for(is_reached, CHECK_S):
        raise_if_cancelled()


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
