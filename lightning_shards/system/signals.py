"""Signals that are noted and not handled while a thread waits."""

import signal
import threading
from types import FrameType
from typing import Self


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
