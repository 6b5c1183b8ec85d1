"""A transport of objects whose version is known by their stamp alone, as member tables have it.

A stamp is the size of a shard and a number made from its version. So the pieces of an object have
their names before anything was asked of its store.
"""

from collections.abc import Callable
from functools import lru_cache

from lightning_shards.errors import IndexMismatchError
from lightning_shards.shards.remote.connections import TransportCounts
from lightning_shards.shards.remote.transport import Body, Transport
from lightning_shards.shards.urls import redact


@lru_cache(maxsize=1024)
def version_of_stamp(stamp: tuple[int, int]) -> str:
    """How a `StampedTransport` names the version of a shard with this stamp."""
    size, number = stamp
    return f"{size}-{number}"


class StampedTransport(Transport):
    """Reads by another transport, which is told the version as soon as the first answer shows it.

    Args:
        transport: What makes the requests; it is closed with this one.
        number_of: The number of a version, as it is in stamps; pickled.
    """

    def __init__(self, transport: Transport, number_of: Callable[[str], int]) -> None:
        self._transport, self._number_of = transport, number_of
        self._seen: dict[tuple[str, str], str] = {}  # by URL and stamp

    def __reduce__(self) -> tuple[type["StampedTransport"], tuple[Transport, Callable[[str], int]]]:
        """Pickle what it was made of."""
        return StampedTransport, (self._transport, self._number_of)

    def read(self, url: str, begin: int, end: int, version: str | None = None) -> Body:
        """As of `Transport`, with versions as `version_of_stamp` names them."""
        seen = None if version is None else self._seen.get((url, version))
        body = self._transport.read(url, begin, end, seen)
        found = version_of_stamp((body.size, self._number_of(body.version)))
        if version not in (None, found):
            raise IndexMismatchError(
                f"{redact(url)} is another version than when its members were listed: size and "
                f"number were {version}, now they are {found}; start the run anew"
            )
        self._seen[url, found] = body.version
        return body._replace(version=found)

    def size_of(self, url: str) -> int:
        """Bytes of an object, asked anew; errors as of `read`."""
        return self._transport.size_of(url)

    def write(self, url: str, data: bytes) -> None:
        """Put a whole object; errors as of `Transport`."""
        self._transport.write(url, data)

    def close(self) -> None:
        """Let go of all connections of this process."""
        self._transport.close()

    @property
    def counts(self) -> TransportCounts:
        """Those of the other transport."""
        return self._transport.counts
