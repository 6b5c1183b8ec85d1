"""Bodies that are being read, a range or a whole object, and how they go on after a break.

A whole object is read forward from a store that knows no ranges.
"""

from collections.abc import Callable, Iterator

from lightning_shards.shards.checksums import crc32
from lightning_shards.shards.remote.backend import (
    RangeAnswer,
    RequestBackend,
    RequestFailure,
    closed_failure,
    is_exact,
)
from lightning_shards.shards.remote.retries import RetryPolicy

_SHOWN = 80  # characters of a version


class PartialBody:
    """The bytes of a range as they arrive; those of different versions are never mixed.

    Args:
        url: The object.
        begin: Offset of the first byte.
        end: Offset behind the last one, beyond `begin`; the object may end before.
        version: What the object must be; None: what the first answer says.

    Attributes:
        data: The bytes; not all of them are there before `is_whole`.
        is_whole: Whether all bytes have arrived that the object has in this range.
        version: What the object is.
        size: Its bytes; -1 before the first answer.
        has_ranges: Whether the last answer was a range, and not the whole object.
    """

    def __init__(self, url: str, begin: int, end: int, version: str | None) -> None:
        self.data = bytearray()
        self.version: str | None = version
        self.size = -1
        self.has_ranges = True
        self._url = url
        self._begin = begin
        self._end = end
        self.is_whole = False
        self._arrived = 0
        self._arrived_before = 0

    def fill(
        self,
        backend: RequestBackend,
        policy: RetryPolicy,
        now: Callable[[], float],
        is_closed: Callable[[], bool] = bool,
    ) -> None:
        """Ask once for what is missing, and keep what arrives until `is_closed`.

        Raises:
            RequestFailure: The answer is no such range, or it broke off.
        """
        begin = self._begin + self._arrived
        try:
            self._fill(backend, begin, Flow(policy, now), is_closed)
        except RequestFailure as failure:
            if failure.kind != "changed":
                raise
            found = failure.version
        else:
            return
        raise other_version(self.version, found or version_now(backend, self._url, self._begin))

    def _fill(
        self, backend: RequestBackend, begin: int, flow: "Flow", is_closed: Callable[[], bool]
    ) -> None:
        with backend.get(self._url, begin, self._end, self.version) as answer:
            self._accept(answer, begin)
            for size in self._arriving(answer):
                if is_closed():
                    raise closed_failure()
                flow.count(size, is_last=self._arrived == len(self.data))
            missing = answer.stop - self._begin - self._arrived
            if missing > 0:
                raise RequestFailure(f"the answer ends {missing:,} bytes too early")
            self.is_whole = self._arrived == len(self.data)

    def restart_or_keep(self) -> int:
        """Prepare for the next request after a failed one.

        Without an ETag nothing proves that the rest would belong to the bytes that are there, so
        they are dropped.

        Returns:
            Bytes that the failed request brought.
        """
        gained = max(0, self._arrived - self._arrived_before)
        if not is_exact(self.version):
            self._arrived = 0
        self._arrived_before = self._arrived
        return gained

    def _accept(self, answer: RangeAnswer, begin: int) -> None:
        """Take version and size from the answer, and refuse one of another object or range."""
        is_other_size = self.size >= 0 and answer.size != self.size
        if (self.version is not None and answer.version != self.version) or is_other_size:
            found = f"{answer.version}, {answer.size} bytes" if is_other_size else answer.version
            raise RequestFailure("another version", "changed", version=found)
        stop = max(min(self._end, answer.size), self._begin)
        is_range = begin < answer.stop <= stop or begin == answer.stop == stop
        if answer.begin != begin or not is_range:
            raise RequestFailure(
                f"the server answers with bytes {answer.begin:,} to {answer.stop:,} of "
                f"{answer.size:,} instead of {begin:,} to {stop:,}"
            )
        self.version, self.has_ranges = answer.version, answer.has_ranges
        if self.size < 0:
            self.size = answer.size
            self.data = bytearray(stop - self._begin)

    def _arriving(self, answer: RangeAnswer) -> Iterator[int]:
        """Keep what arrives, and give the number of bytes that came, kept or not, each time."""
        before = 0
        for chunk in answer.chunks:
            self._append(chunk, answer.stop)
            came = before + len(chunk) if answer.arrived is None else answer.arrived()
            yield came - before
            before = came

    def _append(self, chunk: bytes | memoryview, answered_stop: int) -> None:
        stop = self._arrived + len(chunk)
        if stop > answered_stop - self._begin:
            self._arrived = self._arrived_before = 0  # which of them are right is unknown
            self.size = -1
            raise RequestFailure("the answer holds more bytes than its range")
        self.data[self._arrived : stop] = chunk
        self._arrived = stop


class Flow:
    """How fast a body arrives: one that drips is as good as none, and no read timeout ends it.

    Args:
        policy: Says how slow is too slow.
        now: Seconds that were spent waiting for bytes, from any beginning.
    """

    def __init__(self, policy: RetryPolicy, now: Callable[[], float]) -> None:
        self._policy = policy
        self._now = now
        self._began = now()
        self._bytes = 0

    def count(self, size: int, *, is_last: bool) -> None:
        """Count what arrived.

        Raises:
            RequestFailure: It was too little for too long.
        """
        self._bytes += size
        elapsed = self._now() - self._began
        if elapsed < self._policy.stall_s:
            return
        least = self._policy.least_rate
        if self._bytes < least * elapsed and not is_last:
            raise RequestFailure(
                f"fewer than {least:,} bytes/s arrived for {self._policy.stall_s:g} s"
            )
        self._began, self._bytes = self._now(), 0


def other_version(expected: str | None, found: str | None) -> RequestFailure:
    """The failure of a request that found another version of the object."""
    return RequestFailure(
        f"it is another version: {_shown(expected)} was expected, {_shown(found)} is there",
        "changed",
        version=found,
    )


def version_now(backend: RequestBackend, url: str, begin: int) -> str | None:
    """What the object is now, for a message: a refusal by If-Match does not say it."""
    try:
        with backend.get(url, begin, begin + 1, None) as answer:
            return answer.version
    except RequestFailure:
        return None


def _shown(version: str | None) -> str:
    """A version for a message: what a store chose, so printable and short."""
    if version is None:
        return "one that the store does not tell"
    return ascii(version[:_SHOWN])[1:-1]


class ForwardBody:
    """The bytes of an object in order, of which each is given once.

    After a break a store that knows no ranges sends the object from its start. What was given
    before is passed over then. Its checksum must be the same, because equal versions may be no
    more than equal dates.

    Args:
        url: The object.
        version: What it must be.
        size: Its bytes.

    Attributes:
        given: How many bytes were given so far.
    """

    def __init__(self, url: str, version: str, size: int) -> None:
        self.given = 0
        self._checksum = 0
        self._url, self._version, self._size = url, version, size

    def chunks(
        self, backend: RequestBackend, policy: RetryPolicy, now: Callable[[], float]
    ) -> Iterator[bytes]:
        """Ask once for the object, and give those bytes that were not given before.

        Raises:
            RequestFailure: It is another version, or it broke off.
        """
        try:
            yield from self._chunks(backend, policy, now)
        except RequestFailure as failure:
            if failure.kind != "changed":
                raise
            found = failure.version
        else:
            return
        raise other_version(self._version, found or version_now(backend, self._url, 0))

    def _chunks(
        self, backend: RequestBackend, policy: RetryPolicy, now: Callable[[], float]
    ) -> Iterator[bytes]:
        with backend.get(self._url, 0, self._size, self._version) as answer:
            self._require_same(answer)
            arrived, checksum = 0, 0
            for chunk in _watched(answer, policy, now):
                known = chunk[: max(0, self.given - arrived)]
                new = chunk[len(known) :]
                arrived, checksum = arrived + len(chunk), crc32(known, checksum)
                if new and checksum != self._checksum:
                    found = f"{answer.version} with another beginning"
                    raise RequestFailure("another version", "changed", version=found)
                if new:
                    self.given += len(new)
                    checksum = self._checksum = crc32(new, checksum)
                    yield new
            if arrived < self._size:
                missing = self._size - arrived
                raise RequestFailure(f"the answer ends {missing:,} bytes too early")

    def _require_same(self, answer: RangeAnswer) -> None:
        """Refuse the answer of another object, and a part of this one."""
        if (answer.version, answer.size) != (self._version, self._size):
            found = f"{answer.version}, {answer.size} bytes"
            raise RequestFailure("another version", "changed", version=found)
        if (answer.begin, answer.stop) != (0, self._size):
            raise RequestFailure("the server answers with a part of the object")


def _watched(answer: RangeAnswer, policy: RetryPolicy, now: Callable[[], float]) -> Iterator[bytes]:
    """The bytes as they arrive, at most those of the object, unless they come too slowly.

    Only the time counts that is spent waiting for them, because the caller may take its own.
    """
    waited, arrived = 0.0, 0
    flow, chunks = Flow(policy, lambda: waited), iter(answer.chunks)
    while arrived < answer.size:
        began = now()
        chunk = next(chunks, None)
        waited += now() - began
        if chunk is None:
            return
        arrived += len(chunk)
        if arrived > answer.size:
            raise RequestFailure("the answer holds more bytes than the object")
        flow.count(len(chunk), is_last=arrived == answer.size)
        yield bytes(chunk)
