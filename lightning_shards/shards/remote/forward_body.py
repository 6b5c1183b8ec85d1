"""A whole object that is read forward from a store that knows no ranges, also after a break."""

from collections.abc import Callable, Iterator

from lightning_shards.shards.checksums import crc32
from lightning_shards.shards.remote.backend import RangeAnswer, RequestBackend, RequestFailure
from lightning_shards.shards.remote.partial_body import Flow, other_version, version_now
from lightning_shards.shards.remote.retries import RetryPolicy


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
