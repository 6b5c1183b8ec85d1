"""The retry policy: which failures are tried again, how often, how long, and the final error."""

import zlib
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Final

import numpy as np

from lightning_shards.errors import (
    FileAccessError,
    IndexMismatchError,
    ShardError,
    ShardNotFoundError,
    StorageError,
)
from lightning_shards.shards.remote.backend import RequestFailure

PROGRESS: Final = 1 << 20
"""Bytes by which a request that broke off has shown that the server works."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long and how often a range is asked for.

    Attributes:
        tries: Requests for one range that may fail.
        total_s: Seconds from the first request, or from the last one that brought a mebibyte, in
            which the last one must have ended even if it stalls.
        first_pause_s: The shortest pause between two tries.
        longest_pause_s: The longest one that we choose.
        longest_retry_after_s: The longest one that a server may ask for by `Retry-After`.
        connect_s: Seconds in which a connection must be made.
        stall_s: Seconds without a byte, or with fewer than `least_rate` bytes/s, after which a
            request is given up.
        least_rate: In bytes/s.
        relief_s: Seconds for which a process halves its connections when a server is busy.
    """

    tries: int = 10
    total_s: float = 180.0
    first_pause_s: float = 0.1
    longest_pause_s: float = 15.0
    longest_retry_after_s: float = 60.0
    connect_s: float = 10.0
    stall_s: float = 30.0
    least_rate: int = 1024
    relief_s: float = 10.0

    def longest_s(self, size: int) -> float:
        """Seconds in which so many bytes come at the least rate, and the wait for the first one."""
        return self.stall_s + size / self.least_rate

    def scaled(self, factor: float) -> "RetryPolicy":
        """The same policy with all times multiplied, for tests."""
        times = [field.name for field in fields(self) if field.name.endswith("_s")]
        return replace(self, **{name: getattr(self, name) * factor for name in times})


LOOK_UP: Final = RetryPolicy(total_s=60.0, longest_pause_s=5.0)
"""How often is asked for counts and tables before a run: someone waits for the answer. An outage of
20 s is survived, as in a run, and a store that is not there is an error within half a minute."""

_LEAST_GROWTH: Final = 2.0
_MOST_GROWTH: Final = 3.0
"""The next pause is so many times as long as the last one. Ten tries with pauses from 0.1 to 15 s
then last 40 s or more, whatever is drawn: a store that is started again needs half of it. Of pauses
drawn between 0.1 s and three times the last one, 5 % of the ranges had used up all tries in 2.7 s.
"""


class Tries:
    """The tries of one range: counted, and with growing random pauses between them.

    The pauses are drawn from a stream of what is read, so that ranges do not wait in step and each
    range waits the same in every run.

    Args:
        policy: Limits.
        what: Says what is read, for the stream of random numbers.
        now: A clock, in seconds.
        sleep: Waits for some seconds.

    Attributes:
        failed: Tries that failed.
        limit: Tries that there may be.
    """

    def __init__(
        self,
        policy: RetryPolicy,
        what: Callable[[], str],
        now: Callable[[], float],
        sleep: Callable[[float], object],
    ) -> None:
        self.failed = 0
        self.limit = policy.tries
        self._policy = policy
        self._what = what
        self._now = now
        self._sleep = sleep
        self._began = now()
        self._pause_s = policy.first_pause_s
        self._was_denied = False
        self._draws: np.random.Generator | None = None

    def go_on(self, failure: RequestFailure, gained: int) -> bool:
        """Count a failure, and wait if there is to be another try.

        Args:
            failure: Why the last try failed.
            gained: Bytes that it brought.
        """
        self.failed += 1
        if gained >= PROGRESS:
            self._began = self._now()
        if failure.kind == "denied":
            is_first, self._was_denied = not self._was_denied, True
            if not is_first:
                return False
        elif failure.kind not in ("again", "busy"):
            return False
        pause_s = self._pause(failure.retry_after_s)
        policy = self._policy
        latest = self._began + policy.total_s - policy.stall_s
        if self.failed >= policy.tries or self._now() + pause_s > latest:
            return False
        self._sleep(pause_s)
        return True

    def _pause(self, retry_after_s: float | None) -> float:
        """Two to three times the last pause; the first one has a wider jitter of its own."""
        policy = self._policy
        least = _LEAST_GROWTH * self._pause_s
        if self._draws is None:
            self._draws = np.random.default_rng(zlib.crc32(self._what().encode()))
            least = self._pause_s
        drawn = self._draws.uniform(least, _MOST_GROWTH * self._pause_s)
        self._pause_s = min(float(drawn), policy.longest_pause_s)
        asked_for = min(retry_after_s or 0.0, policy.longest_retry_after_s)
        return max(self._pause_s, asked_for)


def error_of(failure: RequestFailure, what: str, tries: Tries) -> ShardError:
    """The error that users see.

    Args:
        failure: Why the last try failed.
        what: What could not be done, with a URL that holds no secret.
        tries: How often it was tried.
    """
    reason = f"{what}: {failure.what}"
    if failure.kind == "absent":
        remedy = failure.remedy or "check the URL, the bucket, and the numbers in its braces"
        return ShardNotFoundError(f"{reason}; {remedy}")
    if failure.kind == "denied":
        remedy = failure.remedy or "check who may read it, and whether its signature has expired"
        return FileAccessError(
            f"{reason}, also with credentials that were looked up anew; {remedy}"
        )
    if failure.kind == "changed":
        return IndexMismatchError(f"{reason}; {failure.remedy or 'start the run anew'}")
    count = f"try {tries.failed} of {tries.limit}"
    remedy = failure.remedy or "check the network and the server, and start again"
    error = StorageError(f"{reason} ({count}); {remedy}")
    error.is_final = failure.kind not in ("again", "busy")
    return error
