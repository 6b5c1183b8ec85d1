"""Calls of clients that know no time limits, each in a thread that is given up if nothing comes."""

import weakref
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, Final, NamedTuple, TypeVar

Result = TypeVar("Result")

Alive = Callable[[], object]
"""What a call says whenever something has come; its time begins anew then."""

_ALIVE: Final = "alive"
_CLOSED: Final = "closed"


class BoundedCalls:
    """Makes calls whose silence is waited for only so long; any thread may call any method.

    A thread makes one call after the other, because clients keep their connections by thread. One
    that is silent for too long is left alone, with its connections. It ends when its call returns,
    and keeps no process from ending, because it is a daemon.
    """

    def __init__(self) -> None:
        self._idle: deque[_Caller] = deque()
        self._under_way: set[SimpleQueue[Any]] = set()
        self._is_closed = False
        weakref.finalize(self, _end_all, self._idle).atexit = False

    def call(self, act: Callable[[Alive], Result], limit_s: float) -> Result:
        """What `act` returns.

        Args:
            act: The call. It gets a function to call whenever something has come.
            limit_s: Seconds of silence after which it is given up.

        Raises:
            TimeoutError: It was silent for so long.
            ConnectionAbortedError: `close` was called before or meanwhile.
            Exception: What `act` raised.
        """
        reports: SimpleQueue[Any] = SimpleQueue()
        self._under_way.add(reports)
        if self._is_closed:  # by a thread that may not have seen these reports
            self._under_way.discard(reports)
            raise ConnectionAbortedError("the connections were closed")
        caller = self._take()
        try:
            outcome = _outcome(caller, act, reports, limit_s)
        except BaseException:
            caller.end()  # when its call returns
            raise
        finally:
            self._under_way.discard(reports)
        self._idle.append(caller)
        if self._is_closed:
            _end_all(self._idle)
        try:
            if outcome.error is not None:
                raise outcome.error
            return outcome.result
        finally:
            del outcome  # the error's traceback would hold itself

    def close(self) -> None:
        """End all threads, and wake whoever waits for a call."""
        self._is_closed = True
        for reports in tuple(self._under_way):
            reports.put(_CLOSED)
        _end_all(self._idle)

    def _take(self) -> "_Caller":
        try:
            return self._idle.pop()
        except IndexError:
            return _Caller()


class _Outcome(NamedTuple):
    """What a call came to: a result, or the error that it raised."""

    result: Any
    error: BaseException | None


class _Caller:
    """A thread that makes calls until it is told to end."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[Any] = SimpleQueue()
        Thread(target=_work, args=(self._calls,), name="bounded calls", daemon=True).start()

    def make(self, act: Callable[[Alive], Any], reports: SimpleQueue[Any]) -> None:
        self._calls.put((act, reports))

    def end(self) -> None:
        self._calls.put(None)


def _outcome(
    caller: _Caller, act: Callable[[Alive], Any], reports: SimpleQueue[Any], limit_s: float
) -> _Outcome:
    """Wait for the outcome of a call, or raise if it is silent for too long."""
    caller.make(act, reports)
    while True:
        try:
            report = reports.get(timeout=limit_s)
        except Empty:
            raise TimeoutError(f"nothing came for {limit_s:g} s") from None
        if isinstance(report, _Outcome):
            return report
        if report == _CLOSED:
            raise ConnectionAbortedError("the connections were closed")


def _work(calls: SimpleQueue[Any]) -> None:
    while (given := calls.get()) is not None:
        act, reports = given
        reports.put(_made(act, reports))
        del given, act, reports  # what they hold is not kept while nothing is to be done


def _made(act: Callable[[Alive], Any], reports: SimpleQueue[Any]) -> _Outcome:
    try:
        return _Outcome(act(lambda: reports.put(_ALIVE)), None)
    except BaseException as error:  # noqa: BLE001 it is raised again where the call is waited for
        return _Outcome(None, error)


def _end_all(idle: deque[_Caller]) -> None:
    while idle:
        try:
            idle.pop().end()
        except IndexError:  # another thread has taken the last one
            return
