"""What can be fetched from afar: ranges of bytes of remote objects, whatever store holds them.

A transport knows neither shards nor samples. One object serves all threads of a process. It opens
connections at the first use in each process.

What clients and their libraries do not do is done here: an answer is held against the version and
the range that were asked for, a range goes on behind the last byte that came, and all requests for
it have one limit of time.
"""

import os
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from hashlib import sha256
from queue import SimpleQueue
from threading import Event, RLock, Thread
from time import perf_counter
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np

from lightning_shards.errors import (
    FileAccessError,
    IndexMismatchError,
    ShardError,
    ShardNotFoundError,
    StorageError,
)
from lightning_shards.remote.backend import (
    UNKNOWN_SIZE,
    Chunk,
    RangeAnswer,
    RangeClient,
    RequestFailure,
    RetryPolicy,
    TransportSettings,
)
from lightning_shards.shards.scheme_table import FURTHER, SCHEMES, require_store_options
from lightning_shards.shards.storage.protocol import NO_FETCHES, FetchTotals, ShardStat
from lightning_shards.shards.urls import redact, scheme_of
from lightning_shards.system.process import FETCH_THREAD

_T = TypeVar("_T")

_PROGRESS: Final = 1 << 20
"""Bytes by which a request has shown that the server works."""


class Body(NamedTuple):
    """A range of an object.

    Attributes:
        chunks: Its bytes as they came; fewer than asked for if the object ends before.
        stat: Size of the whole object, and a hash of its version.
        has_ranges: Whether the store gives ranges; else it sends all of the object, always.
    """

    chunks: Sequence[Chunk]
    stat: ShardStat
    has_ranges: bool = True

    @property
    def data(self) -> bytes:
        """Its bytes in one piece."""
        return b"".join(self.chunks)


class RemoteTransport:
    """Requests to the store of each scheme, retried and held against the object's version.

    Args:
        settings: How stores are reached.
        now: A clock, in seconds.
        sleep: Waits for some seconds. Default: until `close` at the longest.

    Attributes:
        counts: What was asked for so far, in all threads, and the bytes that came, also of answers
            that broke off. What obstore repeats by itself is not in it.
    """

    def __init__(
        self,
        settings: TransportSettings | None = None,
        *,
        now: Callable[[], float] = perf_counter,
        sleep: Callable[[float], object] | None = None,
    ) -> None:
        self._settings, self._closed = settings or TransportSettings(), Event()
        policy, sleep = self._settings.policy, sleep or self._closed.wait
        self._tries = partial(_Tries, policy, now, sleep, self._closed)
        self._clients: dict[tuple[int, str], RangeClient] = {}  # by process and scheme
        self.counts, self._counting = NO_FETCHES, RLock()  # finalizers of readings count, too

    def read(self, url: str, begin: int, end: int, stat: tuple[int, int] | None = None) -> Body:
        """One range of bytes, fetched by as many requests as its retries need.

        Args:
            url: The object, with whatever credentials and query belong to its URL.
            begin: Offset of the first byte, at least 0; it may be at the object's end or beyond.
            end: Offset behind the last byte, at least `begin`. An empty range gives no bytes, but
                tells what the object is.
            stat: What the object must be; None: any.

        Raises:
            ShardNotFoundError: There is no such object or bucket.
            FileAccessError: The store refuses to give it to this user.
            IndexMismatchError: The object is another version, or was replaced while it was read.
            StorageError: The bytes could not be had, after all retries.
            ConfigError: The URL's scheme or the settings cannot work, a package is missing, or the
                process was forked from one that used this store.
        """
        reading = _Reading(url, begin, max(end, begin + 1), stat)
        chunks = list(self._arriving(reading))
        assert reading.stat is not None  # an answer has come
        stat = ShardStat(*reading.stat)
        return Body(chunks if end > begin else (), stat, reading.has_ranges)

    def chunks(
        self, url: str, begin: int, end: int, stat: tuple[int, int], *, has_ranges: bool = True
    ) -> Iterator[Chunk]:
        """The bytes of a range as they arrive, each once and in order; errors as of `read`.

        Without ranges the store sends all of the object again after a break. What came before is
        passed over.
        """
        return self._arriving(_Reading(url, begin, end, stat, has_ranges))

    def write(self, url: str, data: bytes) -> None:
        """Put a whole object, in place of one of that name; meant for indexes, which are small.

        Raises:
            FileAccessError: The store does not let this user write.
            StorageError: It could not be written, after all retries.
            ConfigError: As of `read`, and for `hf://`, which is written by commits.
        """
        client, tries = self._client(url), self._tries()
        while True:
            self._count(1, int(tries.failed > 0), 0)
            try:
                client.put(url, data)
            except RequestFailure as error:
                failure = error
            else:
                return
            tries.wait_after(failure, f"{redact(url)} cannot be written", client, url)

    def close(self) -> None:
        """Let go of all connections.

        Reads under way in other threads end with a StorageError, at the end of their read timeout
        at the latest, and all later ones at once.
        """
        self._closed.set()
        self._clients = {}

    def _arriving(self, reading: "_Reading") -> Generator[Chunk]:
        """What arrives while a store is asked until the whole range has come.

        Raises:
            ShardError: The last failure.
        """
        client, tries = self._client(reading.url), self._tries()
        while not reading.is_whole:
            failure, before, repeated = None, reading.came, int(tries.failed > 0)
            try:
                tries.arrived(0)
                for chunk in reading.once(client):
                    yield chunk
                    if not reading.is_whole:  # a shard is read at the pace of the batches
                        tries.arrived(len(chunk) if reading.has_ranges else _PROGRESS)
            except RequestFailure as error:
                failure = error
            finally:
                self._count(1, repeated, reading.came - before)
            if failure is not None:  # outside of `except`, so that nothing is its context
                tries.wait_after(failure, reading.failed(), client, reading.url)

    def _client(self, url: str) -> RangeClient:
        """What asks for it in this process; `setdefault` keeps that of the first thread."""
        key = os.getpid(), scheme_of(url)
        return self._clients.get(key) or self._clients.setdefault(
            key, make_client(key[1], self._settings)
        )

    def _count(self, *added: int) -> None:
        with self._counting:
            self.counts = self.counts.plus(FetchTotals(*added))


@dataclass
class _Tries:
    """The tries of one range, counted, with one limit of time that each mebibyte extends.

    Attributes:
        policy: How many there may be, and how long they may take.
        now: A clock, in seconds.
        sleep: Waits for some seconds.
        closed: Set when all is closed.
        failed: How many have failed.
    """

    policy: RetryPolicy
    now: Callable[[], float]
    sleep: Callable[[float], object]
    closed: Event
    failed: int = 0
    _was_denied: bool = False

    def __post_init__(self) -> None:
        self._extend()

    def _extend(self) -> None:
        self._arrived, self._latest = 0, self.now() + self.policy.total_s - self.policy.stall_s

    def arrived(self, size: int) -> None:
        """Note that so many bytes have arrived.

        Raises:
            RequestFailure: They come too slowly, or all was closed.
        """
        self._arrived += size
        if self._arrived >= _PROGRESS:
            self._extend()
        if self.closed.is_set():
            raise RequestFailure("the connections were closed", "final")
        if size and self.now() > self._latest:
            raise RequestFailure("it comes too slowly")

    def wait_after(self, failure: RequestFailure, what: str, client: RangeClient, url: str) -> None:
        """Wait until the next try.

        Raises:
            ShardError: There is none, as trying again would not help or took too long.
        """
        policy, drawn = self.policy, np.random.default_rng().uniform(1.0, 1.5)
        pause_s = min(policy.first_pause_s * 2**self.failed, policy.longest_pause_s) * drawn
        pause_s = max(pause_s, min(failure.retry_after_s, policy.longest_retry_after_s))
        self.failed += 1
        can_help = failure.kind == "again" or (failure.kind == "denied" and not self._was_denied)
        is_in_time = self.failed < policy.tries and self.now() + pause_s <= self._latest
        if not can_help or not is_in_time:
            raise error_of(failure, url, what, f"try {self.failed} of {policy.tries}")
        self.sleep(pause_s)
        if failure.kind == "denied":
            self._was_denied = True
            client.refresh(url)


@dataclass
class _Reading:
    """A range that is being read: its bytes in order, each given once, all of one version.

    Attributes:
        url: The object.
        at: Offset of the next byte.
        end: Offset behind the last one; the object may end before.
        stat: What the object must be; None: what the first answer says.
        has_ranges: Whether the store gives ranges; else it sends all of the object.
        is_whole: Whether all of it was given.
        came: How many bytes have come for it.
    """

    url: str
    at: int
    end: int
    stat: tuple[int, int] | None
    has_ranges: bool = True
    is_whole: bool = False
    came: int = 0

    def failed(self) -> str:
        """What could not be done, for messages."""
        return f"{redact(self.url)} cannot be read" + (f" from byte {self.at:,} on" * (self.at > 0))

    def once(self, client: RangeClient) -> Iterator[Chunk]:
        """What one request brings of it.

        Raises:
            RequestFailure: The answer is no such range, or it broke off.
        """
        with client.get(self.url, self.at if self.has_ranges else 0, self.end) as answer:
            stop, offset = self._accepted(answer), answer.begin
            last, self.is_whole = min(stop, answer.stop), self.at >= stop
            for chunk in () if self.is_whole else answer.chunks:
                new = chunk[self.at - offset : last - offset]
                self.came, offset = self.came + len(chunk), offset + len(chunk)
                self.at += len(new)
                self.is_whole = self.at >= stop
                if new:
                    yield new
                if self.at >= last:
                    return
            if answer.size == UNKNOWN_SIZE:
                self.is_whole = True
            elif self.at < last:
                raise RequestFailure(f"the answer ends {last - self.at:,} bytes too early")

    def _accepted(self, answer: RangeAnswer) -> int:
        """Where the range ends in the object; refuse an answer of another object or range."""
        stat = answer.size, version_number(answer.version)
        if self.stat not in (None, stat):
            raise RequestFailure(
                "it is another version: size and number of version were expected to be "
                f"{self.stat}, and are {stat}",
                "changed",
            )
        stop = max(self.at, min(self.end, answer.size))
        is_range = self.at < answer.stop <= stop or self.at == answer.stop == stop
        if answer.begin == 0 and answer.stop == answer.size and not (self.at and self.has_ranges):
            self.has_ranges = self.has_ranges and is_range
        elif answer.begin != self.at or not is_range:
            raise RequestFailure(
                f"the server answers with bytes {answer.begin:,} to {answer.stop:,} of "
                f"{answer.size:,} instead of {self.at:,} to {stop:,}"
            )
        self.stat = stat
        return stop


def error_of(failure: RequestFailure, url: str, what: str, tries: str) -> ShardError:
    """The error that users see.

    Args:
        failure: Why the last try failed.
        url: The object.
        what: What could not be done, with a URL that holds no secret.
        tries: How often it was tried, as in `try 1 of 10`.
    """
    reason, remedy = f"{what}: {failure.what}", failure.remedy
    if failure.kind == "absent":
        remedy = remedy or "check the URL, the bucket, and the numbers in its braces"
        return ShardNotFoundError(f"{reason}; {remedy}")
    if failure.kind == "denied":
        secrets_in = SCHEMES.get(scheme_of(url), FURTHER).secrets_in
        return FileAccessError(
            f"{reason}, also with credentials that were looked up again; check who may read it, "
            f"whether its signature has expired, and your credentials, which belong in {secrets_in}"
        )
    if failure.kind == "changed":
        return IndexMismatchError(f"{reason}; start the run again")
    remedy = remedy or (
        "check the network and the server, and endpoint, region or host in storage_options and "
        "variables, and start again"
    )
    error = StorageError(f"{reason} ({tries}); {remedy}")
    error.is_final = failure.kind != "again"
    return error


def make_client(scheme: str, settings: TransportSettings) -> RangeClient:
    """What reads the store of a scheme; its packages are imported here, with its first URL.

    Raises:
        ConfigError: Its package is not installed, or its options cannot work.
    """
    row = SCHEMES.get(scheme, FURTHER)
    require_store_options(scheme, settings.options.get(scheme, {}))
    if row.client == "cloud":
        from lightning_shards.remote.cloud import CloudClient

        return CloudClient(scheme, settings)
    if row.client == "other":
        from lightning_shards.remote.other import OtherClient

        return OtherClient(scheme, settings)
    from lightning_shards.remote.http import HttpClient

    return HttpClient(scheme, settings)


@lru_cache(maxsize=1024)
def version_number(version: str) -> int:
    """A hash of what a store calls a version that fits where a file has its time of change."""
    return int.from_bytes(sha256(version.encode()).digest()[:8], "big") >> 1


_CLOSED: Final = "the storage was closed while this was read; read it again"
_NO_THREAD: Final = (
    "no thread can be started for requests; raise that limit (ulimit -u), or set fewer connections "
    "in the loader"
)


class RequestThreads:
    """Daemon threads that are started as they are needed.

    The executor of the standard library is not used, because a program waits for its threads when
    it ends, and one of them may wait for a server that has stalled.

    Args:
        limit: Threads at most, at least 1.

    Attributes:
        limit: As given.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._begin_process()

    def _begin_process(self) -> None:
        self._pid, self._lock = os.getpid(), RLock()  # a finalizer may close it under the lock
        self._started, self._unfinished, self._is_closed = 0, 0, False
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()

    def begin(self, call: Callable[[], _T]) -> "Future[_T]":
        """Call in a thread as soon as one is free; a future that is cancelled is not called.

        Raises:
            StorageError: All was closed, or not one thread can be started.
        """
        if self._pid != os.getpid():  # the threads are those of the process that this is a fork of
            self._begin_process()
        future: Future[_T] = Future()
        with self._lock:
            if self._is_closed:
                raise StorageError(_CLOSED)
            if self._started < min(self._unfinished + 1, self.limit):
                with suppress(RuntimeError):  # others do its work where there may be no more
                    Thread(target=self._work, name=FETCH_THREAD, daemon=True).start()
                    self._started += 1
            if not self._started:
                raise StorageError(_NO_THREAD)
            self._unfinished += 1
            self._calls.put((future, call))  # before what ends the threads
        return future

    def close(self) -> None:
        """Begin nothing new; the threads end with what was begun before."""
        with self._lock:
            self._is_closed = True
            for _ in range(self._started):
                self._calls.put(None)

    def _work(self) -> None:
        while (item := self._calls.get()) is not None:
            future, call = item
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call())
                except BaseException as error:  # noqa: BLE001 the caller raises it
                    future.set_exception(error)
            with self._lock:
                self._unfinished -= 1
            del future, call, item  # their bytes may be many, and the next call may be far
