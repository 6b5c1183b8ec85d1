"""Threads that make many requests at once, and that never keep a process from ending."""

import os
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from queue import SimpleQueue
from threading import RLock, Thread
from typing import Any, Final, TypeVar

from lightning_shards.errors import StorageError

_T = TypeVar("_T")

_CLOSED: Final = "the storage was closed while this was read; read it again"
_NO_THREAD: Final = (
    "no thread can be started for requests; raise that limit (ulimit -u), or set fewer connections "
    "in the loader"
)


class RequestThreads:
    """Daemon threads that are started as they are needed, for each process its own.

    The executor of the standard library is not used, because a program waits for its threads when
    it ends, and one of them may wait for a server that has stalled.

    Args:
        limit: Threads of a process at most, at least 1.

    Attributes:
        limit: As given.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._started: dict[int, _Threads] = {}

    def begin(self, call: Callable[[], _T]) -> "Future[_T]":
        """Call in a thread as soon as one is free; a future that is cancelled is not called.

        Where not one thread can be started, the future has a StorageError.
        """
        # `setdefault` needs no lock, which a fork could inherit held
        return self._started.setdefault(os.getpid(), _Threads(self.limit)).begin(call)

    def close(self) -> None:
        """End the threads of this process, each after the call that it is in.

        All calls end with a StorageError at once for those who wait for them, also calls that are
        under way: the client of a store may give no thread back before its read timeout. Later
        calls start new threads.
        """
        threads = self._started.pop(os.getpid(), None)
        if threads is not None:
            threads.close()


class _Threads:
    """The threads of one process."""

    def __init__(self, limit: int) -> None:
        self._limit, self._number, self._is_closed = limit, 0, False
        self._lock = RLock()  # it may be closed by a finalizer while it is held
        self._unfinished: set[Future[Any]] = set()
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()

    def begin(self, call: Callable[[], _T]) -> "Future[_T]":
        future: Future[_T] = Future()
        with self._lock:
            if self._number < min(len(self._unfinished) + 1, self._limit):
                with suppress(RuntimeError):  # others do its work where there may be no more
                    Thread(target=self._work, name="lightning-shards-fetch", daemon=True).start()
                    self._number += 1
            if self._is_closed or not self._number:
                future.set_exception(StorageError(_CLOSED if self._is_closed else _NO_THREAD))
                return future
            self._unfinished.add(future)
        self._calls.put((future, call))
        return future

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            for future in tuple(self._unfinished):
                with suppress(InvalidStateError):  # it has ended meanwhile, or was cancelled
                    future.set_exception(StorageError(_CLOSED))
            for _ in range(self._number):
                self._calls.put(None)

    def _work(self) -> None:
        while (item := self._calls.get()) is not None:
            future, call = item
            with self._lock:
                is_wanted = not self._is_closed and future.set_running_or_notify_cancel()
            if is_wanted:
                _settle(future, call)
            with self._lock:
                self._unfinished.discard(future)
            del future, call, item  # their bytes may be many, and the next call may be far


def _settle(future: Future[Any], call: Callable[[], Any]) -> None:
    """Give a future what a call gives, unless all was closed meanwhile."""
    with suppress(InvalidStateError):
        try:
            result = call()
        except BaseException as error:  # noqa: BLE001 the caller raises it
            future.set_exception(error)
        else:
            future.set_result(result)
