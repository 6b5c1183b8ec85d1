"""The requests of a process: how many are under way, and counts of those that were made.

Fewer are under way for a while when a server says that it is busy.
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from threading import Condition, Lock
from typing import NamedTuple


class Connections:
    """A limit on the requests of a process.

    Args:
        limit: Requests at once, at least 1.
        relief_s: Seconds for which a halved limit holds.
        now: A clock, in seconds.
    """

    def __init__(self, limit: int, relief_s: float, now: Callable[[], float]) -> None:
        self._full = max(1, limit)
        self._halved = self._full
        self._halved_at = -float("inf")
        self._relief_s = relief_s
        self._now = now
        self._busy = 0
        self._freed = Condition()

    @property
    def limit(self) -> int:
        """Requests that may be under way now."""
        is_relieved = self._now() - self._halved_at < self._relief_s
        return self._halved if is_relieved else self._full

    @contextmanager
    def one(self) -> Generator[None, None, None]:
        """Wait for a free place, and hold it."""
        with self._freed:
            while self._busy >= self.limit:
                self._freed.wait()  # whoever holds one of the places notifies
            self._busy += 1
        try:
            yield
        finally:
            with self._freed:
                self._busy -= 1
                self._freed.notify_all()

    def halve(self, began: float) -> None:
        """Halve the limit, unless that was done since `began`, when the busy answer's request was.

        So the many refusals of one moment count as one.
        """
        with self._freed:
            if began >= self._halved_at:
                self._halved = max(1, self.limit // 2)
                self._halved_at = self._now()


class TransportCounts(NamedTuple):
    """What a process has asked for so far.

    Attributes:
        requests: Requests for ranges and writes, repeated ones included.
        repeated: Requests that were made because one before them had failed.
        bytes: Bytes of ranges that were read to their end.
    """

    requests: int
    repeated: int
    bytes: int


class RequestCounter:
    """Counts what one process asks for, in any of its threads.

    Attributes:
        counts: What it has asked for so far.
    """

    def __init__(self) -> None:
        self.counts = TransportCounts(0, 0, 0)
        self._lock = Lock()

    def add(self, *, requests: int = 0, repeated: int = 0, size: int = 0) -> None:
        """Add to the counts."""
        added = (requests, repeated, size)
        with self._lock:
            self.counts = TransportCounts(*map(int.__add__, self.counts, added))
