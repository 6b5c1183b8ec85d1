"""What can be fetched from afar: ranges of bytes of remote objects, whatever store holds them.

A transport is below the seam `Storage`: it knows neither shards nor samples. One object serves all
threads of a process; it opens connections at the first use in each process, and a pickled one is
its settings alone.

A `StampedTransport` reads objects whose version is known by their stamp alone, as member tables
have it: the size of a shard and a number made from its version. So the pieces of an object have
their names before anything was asked of its store.
"""

import os
from abc import abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator
from functools import lru_cache
from threading import BoundedSemaphore, Event, Lock
from time import perf_counter
from typing import Final, NamedTuple, Protocol

import numpy as np

from lightning_shards.errors import ConfigError, IndexMismatchError
from lightning_shards.remote.backend import (
    UNKNOWN_SIZE,
    Chunk,
    RangeAnswer,
    RequestFailure,
    RetryPolicy,
    Store,
    TransportSettings,
    error_of,
    is_exact,
)
from lightning_shards.shards.checksums import crc32
from lightning_shards.shards.scheme_table import FURTHER, SCHEMES
from lightning_shards.shards.urls import redact, scheme_of

_PROGRESS: Final = 1 << 20
"""Bytes by which a request that broke off has shown that the server works."""

_SHOWN: Final = 80  # characters of a version


class TransportCounts(NamedTuple):
    """What a process has asked for so far.

    Attributes:
        requests: Requests for ranges and writes, repeated ones included, but for those that
            obstore repeats by itself.
        repeated: Requests that were made because one before them had failed.
        bytes: Bytes that came, also those of answers that broke off.
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

        It is for stores that know no ranges. After a break the object is sent again, and what was
        taken before is passed over. The request is one of those under way until the caller closes
        the generator.

        Args:
            url: The object.
            first: Its beginning, as `read` has given it: the version and the size that it must
                have.

        Raises:
            ShardError: As of `read`.
        """
        yield bytes(self.read(url, 0, first.size, first.version).data)

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


class RemoteTransport(Transport):
    """Requests to the store of each scheme, retried and held against the object's version.

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
        reading = _Reading(url, begin, max(end, begin + 1), version)
        data, at = bytearray(), 0
        view = memoryview(data)
        for chunk in self._arriving(reading):
            if not data:
                data = bytearray(reading.stop - begin)
                view = memoryview(data)  # slices of it take bytes without another copy
            view[at : at + len(chunk)] = chunk
            at += len(chunk)
        data = data if end > begin else bytearray()
        return Body(data, reading.version or "", reading.size, reading.has_ranges)

    def read_forward(self, url: str, first: Body) -> Generator[bytes]:
        """All bytes of an object in order, by one request that is read as they are taken."""
        reading = _Reading(url, 0, first.size, first.version, first.size)
        reading.has_ranges = False
        for chunk in self._arriving(reading):
            yield bytes(chunk)

    def write(self, url: str, data: bytes) -> None:
        """Put a whole object, in place of one of that name."""
        for _ in self._arriving(_Writing(url, data)):
            pass

    def close(self) -> None:
        """Let go of all connections of this process."""
        opened = self._opened.pop(os.getpid(), None)
        if opened is not None:
            opened.closed.set()

    def _arriving(self, wanted: "_Reading | _Writing") -> Generator[Chunk]:
        """What arrives while a store is asked until all that is wanted is done.

        Raises:
            ShardError: The last failure.
        """
        opened, scheme = self._of_this_process(), scheme_of(wanted.url)
        store, policy = opened.store(scheme, self._settings), self._settings.policy
        tries = _Tries(policy, self._now)
        while not wanted.is_whole:
            failure, gained, came = None, 0, wanted.came
            with opened.places:
                latest = self._now() + policy.request_s
                try:
                    opened.require_open()
                    self._counter().add(requests=1, repeated=int(tries.failed > 0))
                    for chunk in wanted.once(store):
                        gained += len(chunk)
                        yield chunk
                        opened.require_open()
                        if self._now() > latest and wanted.has_ranges and not wanted.is_whole:
                            failure = RequestFailure("it comes too slowly")
                            break
                except RequestFailure as error:
                    failure = error
                finally:
                    self._counter().add(size=wanted.came - came)
            if failure is None:
                continue
            pause_s = tries.pause_s(failure, gained)
            if pause_s is None:  # outside of `except`, so that nothing is its context
                tried = f"try {tries.failed} of {policy.tries}"
                raise error_of(failure, scheme, wanted.failed(), tried)
            (self._sleep or opened.closed.wait)(pause_s)
            if failure.kind == "denied":
                store.refresh(wanted.url)

    def _counter(self) -> RequestCounter:
        pid = os.getpid()
        return self._counters.get(pid) or self._counters.setdefault(pid, RequestCounter())

    def _of_this_process(self) -> "_Opened":
        """What this process opened; `setdefault` needs no lock, which a fork could inherit held."""
        pid = os.getpid()
        opened = self._opened.get(pid)
        return opened or self._opened.setdefault(pid, _Opened(self._settings.connections))


class _Opened:
    """What one process has opened.

    Attributes:
        places: One for each request that may be under way.
        closed: Whether it was closed since.
    """

    def __init__(self, connections: int) -> None:
        self.places, self.closed = BoundedSemaphore(max(1, connections)), Event()
        self._lock = Lock()
        self._stores: dict[str, Store] = {}

    def store(self, scheme: str, settings: TransportSettings) -> Store:
        with self._lock:
            if scheme not in self._stores:
                self._stores[scheme] = make_store(scheme, settings)
            return self._stores[scheme]

    def require_open(self) -> None:
        if self.closed.is_set():
            raise RequestFailure("the connections were closed", "final")


class _Tries:
    """The tries of one range, counted, within the limits of a policy."""

    def __init__(self, policy: RetryPolicy, now: Callable[[], float]) -> None:
        self.failed = 0
        self._policy, self._now, self._began = policy, now, now()
        self._was_denied = False

    def pause_s(self, failure: RequestFailure, gained: int) -> float | None:
        """Seconds until the next try; None if there is none.

        Args:
            failure: Why the last one failed.
            gained: Bytes that it brought.
        """
        policy, drawn = self._policy, np.random.default_rng().uniform(1.0, 1.5)
        pause_s = min(policy.first_pause_s * 2**self.failed, policy.longest_pause_s) * drawn
        pause_s = max(pause_s, min(failure.retry_after_s, policy.longest_retry_after_s))
        self.failed += 1
        if gained >= _PROGRESS:
            self._began = self._now()
        can_help = failure.kind == "again" or (failure.kind == "denied" and not self._was_denied)
        self._was_denied |= failure.kind == "denied"
        latest = self._began + policy.total_s - policy.stall_s
        is_in_time = self.failed < policy.tries and self._now() + pause_s <= latest
        return pause_s if can_help and is_in_time else None


class _Reading:
    """A range that is being read: its bytes in order, each given once, all of one version.

    After a break it goes on behind the last byte that was given. Where no ETag proves that the rest
    would belong to it, what was given comes again and must have the same checksum.

    Args:
        url: The object.
        begin: Offset of the first byte.
        end: Offset behind the last one, beyond `begin`; the object may end before.
        version: What the object must be; None: what the first answer says.
        size: Its bytes; -1 if they are not known.

    Attributes:
        given: Bytes that were given so far.
        came: Bytes that came for it, also those that were passed over.
        has_ranges: Whether the last answer was a range, and not the whole object.
    """

    def __init__(self, url: str, begin: int, end: int, version: str | None, size: int = -1) -> None:
        self.url, self.begin, self.end, self.version, self.size = url, begin, end, version, size
        self.given, self.came, self.has_ranges = 0, 0, True
        self._checksum = 0

    @property
    def stop(self) -> int:
        """Offset behind the last byte of it that the object has; `begin` or above."""
        return max(self.begin, min(self.end, self.size))

    @property
    def is_whole(self) -> bool:
        """Whether all of it was given."""
        return self.size >= 0 and self.begin + self.given >= self.stop

    def failed(self) -> str:
        """What could not be done, for messages."""
        at = self.begin + self.given
        return f"{redact(self.url)} cannot be read" + (f" from byte {at:,} on" if at else "")

    def once(self, store: Store) -> Iterator[Chunk]:
        """What one request brings of it.

        Where the store refuses another version, it is asked once more what it has.

        Raises:
            RequestFailure: The answer is no such range, or it broke off.
        """
        try:
            yield from self._asked(store, self.version)
        except RequestFailure as failure:
            if failure.kind != "changed":
                raise
        else:
            return
        yield from self._asked(store, None)

    def _asked(self, store: Store, condition: str | None) -> Iterator[Chunk]:
        begin = self.begin + self.given * (is_exact(self.version) and self.has_ranges)
        with store.get(self.url, begin, self.end, condition) as answer:
            self._accept(answer, begin)
            first, stop = self.begin + self.given, min(answer.stop, self.stop)
            at, checksum = answer.begin, 0
            for chunk in answer.chunks if first < stop else ():
                self.came += len(chunk)
                new = chunk[max(0, first - at) : max(0, stop - at)]
                if not is_exact(self.version):
                    checksum = self._followed(
                        chunk[max(0, self.begin - at) : max(0, first - at)], checksum, new
                    )
                at += len(chunk)
                self.given += len(new)
                if new:  # to readers, no bytes are the end
                    yield new
                if at >= stop:
                    break
            if at < stop < UNKNOWN_SIZE:
                raise RequestFailure(f"the answer ends {stop - at:,} bytes too early")
            if stop >= UNKNOWN_SIZE:
                self.size = at

    def _followed(self, known: Chunk, checksum: int, new: Chunk) -> int:
        """The checksum of what came again, and of the new bytes behind it."""
        checksum = crc32(known, checksum)
        if not new:
            return checksum
        if checksum != self._checksum:
            raise self._other("one with another beginning")
        self._checksum = crc32(new, checksum)
        return self._checksum

    def _accept(self, answer: RangeAnswer, begin: int) -> None:
        """Take version and size from the answer, and refuse one of another object or range."""
        if self.size not in (-1, answer.size):
            raise self._other(f"{answer.version}, {answer.size} bytes")
        if self.version not in (None, answer.version):
            raise self._other(answer.version)
        stop = max(begin, min(self.end, answer.size))
        is_range = begin < answer.stop <= stop or begin == answer.stop == stop
        if answer.has_ranges and (answer.begin != begin or not is_range):
            raise RequestFailure(
                f"the server answers with bytes {answer.begin:,} to {answer.stop:,} of "
                f"{answer.size:,} instead of {begin:,} to {stop:,}"
            )
        self.version, self.size, self.has_ranges = answer.version, answer.size, answer.has_ranges

    def _other(self, found: str) -> RequestFailure:
        expected, there = (ascii(text[:_SHOWN])[1:-1] for text in (self.version or "", found))
        return RequestFailure(
            f"it is another version: {expected} was expected, {there} is there", "changed"
        )


class _Writing:
    """An object that is being written."""

    def __init__(self, url: str, data: bytes) -> None:
        self.url, self.data, self.came = url, data, 0
        self.is_whole = self.has_ranges = False

    def failed(self) -> str:
        """What could not be done, for messages."""
        return f"{redact(self.url)} cannot be written"

    def once(self, store: Store) -> Iterable[Chunk]:
        """Nothing comes; errors as of `Store.put`."""
        store.put(self.url, self.data)
        self.is_whole = True
        return ()


def make_store(scheme: str, settings: TransportSettings) -> Store:
    """The store of a scheme; its packages are imported here, with its first URL.

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
    if row.client == "cloud":
        from lightning_shards.remote.cloud import CloudStore

        return CloudStore(scheme, settings)
    if row.client == "other":
        from lightning_shards.remote.other import OtherStore

        return OtherStore(scheme, settings)
    from lightning_shards.remote import http

    client = http.HttpClient(scheme, settings)
    if row.client == "hub":
        hub = http.HubLocations(client, settings.cache_dir)
        return http.HttpStore(client, hub.target_of, hub)
    if row.client == "ais":
        return http.make_ais_store(client)
    return http.HttpStore(client, http.web_target)


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
