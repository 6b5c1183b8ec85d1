"""What can be fetched from afar: ranges of bytes of remote objects, whatever store holds them.

A transport is below the seam `Storage`: it knows neither shards nor samples. One object serves all
threads of a process; it opens connections at the first use in each process, and a pickled one is
its settings alone. Fewer requests are under way for a while when a server says that it is busy.

A `StampedTransport` reads objects whose version is known by their stamp alone, as member tables
have it: the size of a shard and a number made from its version. So the pieces of an object have
their names before anything was asked of its store.
"""

import os
from abc import abstractmethod
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from threading import Condition, Event, Lock
from time import perf_counter
from typing import Any, NamedTuple, Protocol

from lightning_shards.errors import ConfigError, IndexMismatchError, StorageError
from lightning_shards.shards.remote.backend import RequestBackend, RequestFailure, closed_failure
from lightning_shards.shards.remote.partial_body import ForwardBody, PartialBody
from lightning_shards.shards.remote.retries import RetryPolicy, Tries, error_of
from lightning_shards.shards.scheme_table import FURTHER, SCHEMES
from lightning_shards.shards.urls import redact, scheme_of


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


class Body(NamedTuple):
    """A range of an object.

    Attributes:
        data: Its bytes, which belong to the caller; fewer than asked for if the object ends before.
        version: By what an unchanged object is recognised: its ETag as the store writes it, else
            its time of change and its size.
        size: Bytes of the whole object.
        has_ranges: Whether the store sent this range alone. One that knows no ranges sends the
            whole object each time, which is better read by `read_forward`.
    """

    data: bytearray
    version: str
    size: int
    has_ranges: bool = True


class Transport(Protocol):
    """Reads and writes remote objects; any thread may call any method at any time."""

    @abstractmethod
    def read(self, url: str, begin: int, end: int, version: str | None = None) -> Body:
        """One range of bytes, fetched by as many requests as its retries need.

        Args:
            url: The object, with whatever credentials and query belong to its URL.
            begin: Offset of the first byte, at least 0; it may be at the object's end or beyond.
            end: Offset behind the last byte, at least `begin`. An empty range gives no bytes, but
                version and size.
            version: What the object must be, from an earlier body; None: any one version.

        Returns:
            Bytes of one version of the object, with that version and the object's size.

        Raises:
            ShardNotFoundError: There is no such object or bucket.
            FileAccessError: The store refuses to give it to this user.
            IndexMismatchError: The object is another version, or was replaced while it was read.
            StorageError: The bytes could not be had, after all retries.
            ConfigError: The URL's scheme or the settings cannot work, a package is missing, or the
                process was forked from one that used this store.
        """
        ...

    def read_forward(self, url: str, first: Body) -> Generator[bytes]:
        """All bytes of an object in order, by one request that is read as fast as they are taken.

        It is for stores that know no ranges, or tell no version. After a break the object is sent
        anew. What was taken before is passed over then, if its checksum shows that it is the same.

        Args:
            url: The object.
            first: Its beginning, as `read` has given it: the version and the size that it must
                have.

        Raises:
            ShardError: As of `read`.
        """
        yield bytes(self.read(url, 0, first.size, first.version).data)

    @abstractmethod
    def size_of(self, url: str) -> int:
        """Bytes of an object, asked anew by one request for a range.

        Raises:
            ShardError: As of `read`.
        """
        ...

    @abstractmethod
    def write(self, url: str, data: bytes) -> None:
        """Put a whole object, in place of one of that name; meant for indexes, which are small.

        Args:
            url: The object.
            data: All of its bytes, sent in one request.

        Raises:
            FileAccessError: The store does not let this user write.
            StorageError: It could not be written, after all retries.
            ConfigError: As of `read`, and for `hf://`, which is written by commits.
        """
        ...

    @abstractmethod
    def close(self) -> None:
        """Let go of all connections of this process.

        Reads under way in other threads end with a StorageError, at the end of their read timeout
        at the latest. A later call opens connections again.
        """
        ...

    @property
    def counts(self) -> "TransportCounts":
        """What this process has asked for, by this one and all its copies; zeros if not counted."""
        return TransportCounts(0, 0, 0)


@dataclass(frozen=True, slots=True)
class TransportSettings:
    """What a transport is made of, and all that travels to another process.

    Attributes:
        options: By scheme, how its store is reached, as the class of its backend says. No secrets.
        connections: Requests that a process has under way at most.
        policy: What is tried again, how often and how long.
        cache_dir: Where signed locations of `hf://` are kept, in files of this user alone.
            Default: ~/.cache/lightning_shards.
    """

    options: Mapping[str, Mapping[str, Any]] = field(
        default_factory=dict[str, Mapping[str, Any]], repr=False
    )
    connections: int = 64
    policy: RetryPolicy = field(default_factory=RetryPolicy)
    cache_dir: str | None = None


class RemoteTransport(Transport):
    """Requests to the backend of each scheme, retried and held against the object's version.

    Args:
        settings: What is pickled.
        now: A clock, in seconds.
        sleep: Waits for some seconds. Default: until `close` at the longest.
    """

    def __init__(
        self,
        settings: TransportSettings | None = None,
        *,
        now: Callable[[], float] = perf_counter,
        sleep: Callable[[float], object] | None = None,
    ) -> None:
        self._settings = settings or TransportSettings()
        self._now = now
        self._sleep = sleep
        self._counters: dict[int, RequestCounter] = {}  # by process, as what follows
        self._opened: dict[int, _Opened] = {}

    def __reduce__(self) -> tuple[type["RemoteTransport"], tuple[TransportSettings]]:
        """Pickle the settings alone."""
        return RemoteTransport, (self._settings,)

    def __copy__(self) -> "RemoteTransport":
        """Another one of the same settings, with connections of its own and the same counts."""
        made = RemoteTransport(self._settings, now=self._now, sleep=self._sleep)
        made._counters = self._counters
        return made

    def __repr__(self) -> str:
        """The settings, without the options of the stores."""
        return f"{type(self).__name__}({self._settings!r})"

    @property
    def counts(self) -> TransportCounts:
        """What this process has asked for, by this transport and all its copies."""
        return self._counter().counts

    def read(self, url: str, begin: int, end: int, version: str | None = None) -> Body:
        """One range of bytes, fetched by as many requests as its retries need."""
        if not 0 <= begin <= end:
            raise ValueError(f"bytes {begin} to {end} are no range")
        partial = PartialBody(url, begin, max(end, begin + 1), version)
        self._persist(
            url,
            lambda: f"bytes {begin:,} to {end:,} of {redact(url)} cannot be read",
            lambda backend, closed: partial.fill(
                backend, self._settings.policy, self._now, closed.is_set
            ),
            partial,
        )
        data = partial.data if end > begin else bytearray()
        self._counter().add(size=len(data))
        return Body(data, partial.version or "", partial.size, partial.has_ranges)

    def read_forward(self, url: str, first: Body) -> Generator[bytes]:
        """All bytes of an object in order, by one request that is read as fast as they are taken.

        The request is one of those under way until the caller closes the generator.
        """
        opened, forward = self._of_this_process(), ForwardBody(url, first.version, first.size)
        backend = opened.backend(scheme_of(url), self._settings)
        policy, sleep = self._settings.policy, self._sleep or opened.closed.wait

        def what() -> str:
            return f"{redact(url)} cannot be read from byte {forward.given:,} on"

        tries, given = Tries(policy, what, self._now, sleep), 0
        while failure := (yield from self._forward_once(opened, backend, forward, tries)):
            gained, given = forward.given - given, forward.given
            failure = closed_failure() if opened.closed.is_set() else failure
            if not tries.go_on(failure, gained):
                raise error_of(failure, what(), tries)
            if failure.kind == "denied":
                backend.refresh(url, failure.used)

    def size_of(self, url: str) -> int:
        """Bytes of an object, asked anew by one request for a range; errors as of `read`."""
        return self.read(url, 0, 0).size

    def write(self, url: str, data: bytes) -> None:
        """Put a whole object, in place of one of that name."""
        self._persist(
            url,
            lambda: f"{redact(url)} cannot be written",
            lambda backend, _: backend.put(url, data),
            None,
        )

    def close(self) -> None:
        """Let go of all connections of this process."""
        opened = self._opened.pop(os.getpid(), None)
        if opened is not None:
            opened.close()

    def _persist(
        self,
        url: str,
        what: Callable[[], str],
        act: Callable[[RequestBackend, Event], None],
        partial: PartialBody | None,
    ) -> None:
        """Act on the backend until it is done; the last failure becomes an error of ours."""
        opened = self._of_this_process()
        backend = opened.backend(scheme_of(url), self._settings)
        sleep = self._sleep or opened.closed.wait
        tries = Tries(self._settings.policy, what, self._now, sleep)
        failure: RequestFailure | None = None
        while partial is None or not partial.is_whole:
            failure = self._attempt(opened, backend, act, is_repeated=tries.failed > 0)
            if opened.closed.is_set():  # what came meanwhile is not believed either
                failure = closed_failure()
            if failure is None:
                if partial is None:
                    return
                continue
            gained = partial.restart_or_keep() if partial else 0
            if not tries.go_on(failure, gained):
                # Outside of `except`, so that nothing foreign is its context
                raise error_of(failure, what(), tries)
            if failure.kind == "denied":
                backend.refresh(url, failure.used)

    def _attempt(
        self,
        opened: "_Opened",
        backend: RequestBackend,
        act: Callable[[RequestBackend, Event], None],
        *,
        is_repeated: bool,
    ) -> RequestFailure | None:
        with opened.connections.one():
            if opened.closed.is_set():
                return closed_failure()
            began = self._now()
            self._counter().add(requests=1, repeated=int(is_repeated))
            try:
                act(backend, opened.closed)
            except RequestFailure as failure:
                if failure.kind == "busy":
                    opened.connections.halve(began)
                return failure
        return None

    def _forward_once(
        self, opened: "_Opened", backend: RequestBackend, forward: ForwardBody, tries: Tries
    ) -> Generator[bytes, None, RequestFailure | None]:
        with opened.connections.one():
            if opened.closed.is_set():
                return closed_failure()
            self._counter().add(requests=1, repeated=int(tries.failed > 0))
            try:
                for chunk in forward.chunks(backend, self._settings.policy, self._now):
                    if opened.closed.is_set():
                        return closed_failure()
                    self._counter().add(size=len(chunk))
                    yield chunk
            except RequestFailure as failure:
                return failure
        return None

    def _counter(self) -> RequestCounter:
        pid = os.getpid()
        return self._counters.get(pid) or self._counters.setdefault(pid, RequestCounter())

    def _of_this_process(self) -> "_Opened":
        """What this process opened; `setdefault` needs no lock, which a fork could inherit held."""
        opened = self._opened.get(os.getpid())
        if opened is None:
            policy = self._settings.policy
            connections = Connections(self._settings.connections, policy.relief_s, self._now)
            opened = self._opened.setdefault(os.getpid(), _Opened(connections))
        return opened


class _Opened:
    """What one process has opened."""

    def __init__(self, connections: Connections) -> None:
        self.connections = connections
        self.closed = Event()
        self._lock = Lock()
        self._backends: dict[str, RequestBackend] = {}

    def backend(self, scheme: str, settings: TransportSettings) -> RequestBackend:
        with self._lock:
            if scheme not in self._backends:
                self._backends[scheme] = make_backend(scheme, settings)
            if self.closed.is_set():  # this one may have been made too late for `close`
                self._backends[scheme].close()
            return self._backends[scheme]

    def close(self) -> None:
        self.closed.set()
        with self._lock:
            backends = list(self._backends.values())
        for backend in backends:
            with suppress(StorageError):
                backend.close()


def make_backend(scheme: str, settings: TransportSettings) -> RequestBackend:
    """The backend of a scheme; its packages are imported here, with its first URL.

    Args:
        scheme: What its URLs begin with.
        settings: Of the transport.

    Raises:
        ConfigError: Its package is not installed, its options cannot work, or the scheme names no
            store that ranges could be fetched from.
    """
    row = SCHEMES.get(scheme, FURTHER)
    if row.reading != "ranges":
        raise ConfigError(f"{scheme or 'local'} shards are not fetched by ranges")
    options = settings.options.get(scheme, {})
    if row.client == "http":
        from lightning_shards.shards.remote.http import HttpBackend

        return HttpBackend(options, settings.policy, settings.connections)
    if row.client == "ais":
        from lightning_shards.shards.remote.http import AisBackend

        return AisBackend(options, settings.policy, settings.connections)
    if row.client == "hub":
        from lightning_shards.shards.remote.hub import HubBackend

        return HubBackend(options, settings.policy, settings.connections, settings.cache_dir)
    if row.client == "cloud":
        from lightning_shards.shards.remote.cloud import CloudBackend

        return CloudBackend(scheme, options, settings.policy)
    from lightning_shards.shards.remote.other import OtherBackend

    return OtherBackend(scheme, options)


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
