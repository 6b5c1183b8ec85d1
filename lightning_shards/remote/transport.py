"""What can be fetched from afar: ranges of bytes of remote objects, whatever store holds them.

A transport knows neither shards nor samples. One object serves all threads of a process. It opens
connections at the first use in each process, and a pickled one is its settings alone.

What clients and their libraries do not do is done here: an answer is held against the version and
the range that were asked for, a range goes on behind the last byte that came, and all requests for
it have one limit of time.
"""

import os
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from hashlib import sha256
from threading import Event, get_ident
from time import perf_counter
from typing import Final, NamedTuple

import numpy as np

from lightning_shards.errors import (
    ConfigError,
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
from lightning_shards.shards.urls import redact, scheme_of

_PROGRESS: Final = 1 << 20
"""Bytes by which a request has shown that the server works."""


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


@dataclass(frozen=True)
class Body:
    """A range of an object.

    Attributes:
        chunks: Its bytes as they came; fewer than asked for if the object ends before.
        version: By what an unchanged object is recognised, see `version_of_stamp`.
        size: Bytes of the whole object.
        has_ranges: Whether the store sent this range alone. One that knows no ranges sends the
            whole object each time, which is better read by `read_forward`.
    """

    chunks: list[Chunk]
    version: str
    size: int
    has_ranges: bool = True

    @cached_property
    def data(self) -> bytes:
        """Its bytes in one piece."""
        return b"".join(self.chunks)


class RemoteTransport:
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
        self._now, self._sleep = now, sleep
        self._closed = Event()
        self._clients: dict[tuple[int, str], RangeClient] = {}  # by process and scheme
        self._etags: dict[tuple[str, str], str] = {}  # by URL and version
        # By process and thread, each of which changes its own: a lock could be inherited held
        self._counted: dict[tuple[int, int], TransportCounts] = {}

    def __reduce__(self) -> tuple[type["RemoteTransport"], tuple[TransportSettings]]:
        """Pickle the settings alone."""
        return RemoteTransport, (self._settings,)

    def __repr__(self) -> str:
        """The settings, without the options of the stores."""
        return f"{type(self).__name__}({self._settings!r})"

    @property
    def counts(self) -> TransportCounts:
        """What this process has asked for, in all its threads."""
        pid = os.getpid()
        counted = [each for (process, _), each in tuple(self._counted.items()) if process == pid]
        return TransportCounts(*map(sum, zip((0, 0, 0), *counted, strict=True)))

    def read(self, url: str, begin: int, end: int, version: str | None = None) -> Body:
        """One range of bytes, fetched by as many requests as its retries need.

        Args:
            url: The object, with whatever credentials and query belong to its URL.
            begin: Offset of the first byte, at least 0; it may be at the object's end or beyond.
            end: Offset behind the last byte, at least `begin`. An empty range gives no bytes, but
                version and size.
            version: What the object must be, as a body or `version_of_stamp` has it; None: any.

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
        if not 0 <= begin <= end:
            raise ValueError(f"bytes {begin} to {end} are no range")
        reading = _Reading(url, begin, max(end, begin + 1), version)
        chunks = list(self._arriving(reading))
        chunks = chunks if end > begin else []
        return Body(chunks, reading.version or "", reading.size, reading.has_ranges)

    def read_forward(self, url: str, first: Body) -> Generator[Chunk]:
        """All bytes of an object in order, by one request that is read as fast as they are taken.

        It is for stores that know no ranges. After a break the object is sent again, and what was
        taken before is passed over. The request is under way until the caller closes the generator.

        Args:
            url: The object.
            first: Its beginning, as `read` has given it.

        Raises:
            ShardError: As of `read`.
        """
        yield from self._arriving(_Reading(url, 0, first.size, first.version, has_ranges=False))

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
        """Let go of all connections of this process.

        Reads under way in other threads end with a StorageError, at the end of their read timeout
        at the latest. A later call opens connections again.
        """
        self._closed.set()
        self._closed, self._clients = Event(), {}

    def _arriving(self, reading: "_Reading") -> Generator[Chunk]:
        """What arrives while a store is asked until the whole range has come.

        Raises:
            ShardError: The last failure.
        """
        url = reading.url
        client, tries = self._client(url), self._tries()
        while not reading.is_whole:
            failure, came = None, reading.came
            repeated = int(tries.failed > 0)
            etag = self._etags.get((url, reading.version or ""))
            try:
                tries.arrived(0, is_paced=False)
                for chunk in reading.once(client, etag):
                    yield chunk
                    if not reading.is_whole:
                        tries.arrived(len(chunk), is_paced=not reading.has_ranges)
            except RequestFailure as error:
                failure = error
            finally:
                self._count(1, repeated, reading.came - came)
            if reading.etag:
                self._etags[url, reading.version or ""] = reading.etag
            if failure is not None:  # outside of `except`, so that nothing is its context
                tries.wait_after(failure, reading.failed(), client, url)

    def _client(self, url: str) -> RangeClient:
        """What asks for it in this process; `setdefault` keeps that of the first thread."""
        key = os.getpid(), scheme_of(url)
        return self._clients.get(key) or self._clients.setdefault(
            key, make_client(key[1], self._settings)
        )

    def _tries(self) -> "_Tries":
        return _Tries(self._settings.policy, self._now, self._sleep, self._closed)

    def _count(self, *added: int) -> None:
        key = os.getpid(), get_ident()
        before = self._counted.get(key, (0, 0, 0))
        self._counted[key] = TransportCounts(*map(int.__add__, before, added))


class _Tries:
    """The tries of one range, counted, with one limit of time that each mebibyte extends.

    Attributes:
        failed: How many have failed.
    """

    def __init__(
        self,
        policy: RetryPolicy,
        now: Callable[[], float],
        sleep: Callable[[float], object] | None,
        closed: Event,
    ) -> None:
        self.failed = 0
        self._policy, self._now, self._sleep, self._closed = policy, now, sleep, closed
        self._was_denied, self._arrived = False, 0
        self._latest = now() + policy.total_s - policy.stall_s

    def arrived(self, size: int, *, is_paced: bool) -> None:
        """Note that so many bytes have arrived; the time of a paced reading is that of its reader.

        Raises:
            RequestFailure: They come too slowly, or all was closed.
        """
        self._arrived += size
        if self._arrived >= _PROGRESS or is_paced:
            self._arrived = 0
            self._latest = self._now() + self._policy.total_s - self._policy.stall_s
        if self._closed.is_set():
            raise RequestFailure("the connections were closed", "final")
        if size and self._now() > self._latest:
            raise RequestFailure("it comes too slowly")

    def wait_after(self, failure: RequestFailure, what: str, client: RangeClient, url: str) -> None:
        """Wait until the next try.

        Raises:
            ShardError: There is none, as trying again would not help or took too long.
        """
        policy, drawn = self._policy, np.random.default_rng().uniform(1.0, 1.5)
        pause_s = min(policy.first_pause_s * 2**self.failed, policy.longest_pause_s) * drawn
        pause_s = max(pause_s, min(failure.retry_after_s, policy.longest_retry_after_s))
        self.failed += 1
        can_help = failure.kind == "again" or (failure.kind == "denied" and not self._was_denied)
        is_in_time = self.failed < policy.tries and self._now() + pause_s <= self._latest
        if not can_help or not is_in_time:
            raise error_of(failure, url, what, f"try {self.failed} of {policy.tries}")
        (self._sleep or self._closed.wait)(pause_s)
        if failure.kind == "denied":
            self._was_denied = True
            client.refresh(url)


class _Reading:
    """A range that is being read: its bytes in order, each given once, all of one version.

    Args:
        url: The object.
        begin: Offset of the first byte.
        end: Offset behind the last one, beyond `begin`; the object may end before.
        version: What the object must be; None: what the first answer says.
        has_ranges: Whether the last answer was a range, and not the whole object.

    Attributes:
        given: Bytes that were given so far.
        came: Bytes that came for it, also those that were passed over.
        size: Bytes of the object; -1 before the first answer.
        etag: The ETag of the object, if it proves that all bytes are the same.
    """

    def __init__(
        self, url: str, begin: int, end: int, version: str | None, *, has_ranges: bool = True
    ) -> None:
        self.url, self.begin, self.end, self.version = url, begin, end, version
        self.given, self.came, self.size, self.etag = 0, 0, -1, ""
        self.has_ranges = has_ranges

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

    def once(self, client: RangeClient, etag: str | None) -> Iterator[Chunk]:
        """What one request brings of it; it begins behind the last byte, where there are ranges.

        Raises:
            RequestFailure: The answer is no such range, or it broke off.
        """
        first = self.begin + self.given
        asked = first if self.has_ranges else self.begin
        with client.get(self.url, asked, self.end, etag) as answer:
            self._accept(answer, asked)
            at, stop = answer.begin, min(answer.stop, self.stop)
            for chunk in answer.chunks if first < stop else ():
                self.came += len(chunk)
                new = chunk[max(0, first - at) : max(0, stop - at)]
                at += len(chunk)
                self.given += len(new)
                if new:  # to readers, no bytes are the end
                    yield new
                if at >= stop:
                    return
            if self.size == UNKNOWN_SIZE:
                self.size = at
            elif at < stop:
                raise RequestFailure(f"the answer ends {stop - at:,} bytes too early")

    def _accept(self, answer: RangeAnswer, begin: int) -> None:
        """Take version and size from the answer, and refuse one of another object or range."""
        version = version_of_stamp((answer.size, version_number(answer.version)))
        if self.version not in (None, version):
            raise RequestFailure(
                "it is another version: size and number of version were expected to be "
                f"{self.version}, and are {version}",
                "changed",
            )
        stop = max(begin, min(self.end, answer.size))
        is_range = begin < answer.stop <= stop or begin == answer.stop == stop
        if answer.has_ranges and (answer.begin != begin or not is_range):
            raise RequestFailure(
                f"the server answers with bytes {answer.begin:,} to {answer.stop:,} of "
                f"{answer.size:,} instead of {begin:,} to {stop:,}"
            )
        self.version, self.size, self.has_ranges = version, answer.size, answer.has_ranges
        if answer.version.startswith('"'):  # a weak one starts with W/
            self.etag = answer.version


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
        ConfigError: Its package is not installed, its options cannot work, or the scheme names no
            store that ranges could be fetched from.
    """
    row = SCHEMES.get(scheme, FURTHER)
    if row.reading != "ranges":
        raise ConfigError(f"{scheme or 'local'} shards are not fetched by ranges")
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
def version_of_stamp(stamp: tuple[int, int]) -> str:
    """The version of an object by its size and the number of its version, as tables have them."""
    size, number = stamp
    return f"{size}-{number}"


@lru_cache(maxsize=1024)
def version_number(version: str) -> int:
    """A hash of what a store calls a version that fits where a file has its time of change."""
    return int.from_bytes(sha256(version.encode()).digest()[:8], "big") >> 1
