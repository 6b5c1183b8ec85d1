"""One request to a store: what answers it, why it failed, and how long it is asked for."""

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from http.client import responses
from typing import Any, Final, Literal, NamedTuple, Protocol

Chunk = bytes | memoryview


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long and how often a range is asked for.

    Attributes:
        tries: Requests for one range that may fail.
        total_s: Seconds from the first request, or from the last mebibyte that came, in which the
            last one must have ended even if it stalls.
        first_pause_s: The shortest pause between two tries; each further one is twice as long.
        longest_pause_s: The longest one that we choose.
        longest_retry_after_s: The longest one that a server may ask for by `Retry-After`.
        connect_s: Seconds in which a connection must be made.
        stall_s: Seconds without a byte after which a request is given up.
    """

    tries: int = 10
    total_s: float = 180.0
    first_pause_s: float = 0.1
    longest_pause_s: float = 15.0
    longest_retry_after_s: float = 60.0
    connect_s: float = 10.0
    stall_s: float = 30.0


LOOK_UP: Final = RetryPolicy(total_s=60.0, longest_pause_s=5.0)
"""How often is asked for counts and tables before a run: someone waits for the answer. An outage of
20 s is survived, as in a run, and a store that is not there is an error within half a minute."""


@dataclass(frozen=True, slots=True)
class TransportSettings:
    """What a transport is made of, and all that travels to another process.

    Attributes:
        options: By scheme, how its store is reached, as the table of schemes says. No secrets.
        connections: Requests that a process has under way at most.
        policy: What is tried again, how often and how long.
        cache_dir: Where signed locations of `hf://` are kept, in files of this user alone.
            Default: ~/.cache/lightning_shards.
        indexes: By the folder of remote shards (`split_url`), the folder of this machine that has
            the files which else lie beside them.
    """

    options: Mapping[str, Mapping[str, Any]] = field(
        default_factory=dict[str, Mapping[str, Any]], repr=False
    )
    connections: int = 64
    policy: RetryPolicy = field(default_factory=RetryPolicy)
    cache_dir: str | None = None
    indexes: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)


UNKNOWN_SIZE: Final = 1 << 62
"""Of an object that a server sends without saying how long it is."""


class RangeAnswer(NamedTuple):
    """What a store answers to the request for a range, before its bytes come.

    Attributes:
        begin: Offset of the first byte that comes.
        stop: Offset behind the last one; of a store without ranges the size.
        size: Bytes of the whole object, or UNKNOWN_SIZE.
        version: Its ETag, or its time of change.
        chunks: The bytes, perhaps with more behind them; it raises RequestFailure where they break
            off.
    """

    begin: int
    stop: int
    size: int
    version: str
    chunks: Iterable[Chunk]


class RangeClient(Protocol):
    """Makes single requests; any thread may call any method."""

    @abstractmethod
    def get(self, url: str, begin: int, end: int) -> AbstractContextManager[RangeAnswer]:
        """Ask for a range that is not empty.

        A range that begins at the object's end or beyond gives an answer without bytes.

        Raises:
            RequestFailure: There is no such answer.
        """
        ...

    @abstractmethod
    def put(self, url: str, data: bytes) -> None:
        """Write a whole object.

        Raises:
            RequestFailure: It is not written.
        """
        ...

    def refresh(self, url: str) -> None:
        """Forget the credentials of an object, so that the next request looks for fresh ones."""


FailureKind = Literal["again", "denied", "absent", "changed", "final"]
"""What is to be done: try again; try once more with fresh credentials; nothing, as there is no such
object, it is another version, or trying again would not help."""

_KINDS: Final[Mapping[int, FailureKind]] = {
    **dict.fromkeys((408, 425, 429), "again"),
    **dict.fromkeys((401, 403, 407), "denied"),
    **dict.fromkeys((404, 410), "absent"),
}
_FIRST_OF_SERVERS: Final = 500


class RequestFailure(Exception):  # noqa: N818 it never leaves this folder
    """Why a request failed.

    Attributes:
        what: One clause for a message. It holds nothing that a store said in its own words, because
            stores repeat signatures and keys.
        kind: What is to be done.
        remedy: What the user can do.
        retry_after_s: Seconds that the server asks to wait.
    """

    def __init__(
        self, what: str, kind: FailureKind = "again", remedy: str = "", retry_after_s: float = 0.0
    ) -> None:
        super().__init__(what)
        self.what, self.kind, self.remedy = what, kind, remedy
        self.retry_after_s = retry_after_s


def failure_of_status(status: int, retry_after_s: float = 0.0) -> RequestFailure:
    """Why a request failed that was answered by this status; the server's phrase is not shown."""
    kind = _KINDS.get(status, "again" if status >= _FIRST_OF_SERVERS else "final")
    what = f"the server answers {status} {responses.get(status, '')}".rstrip()
    return RequestFailure(what, kind, retry_after_s=retry_after_s)


def version_of(etag: str | None, changed: object) -> str:
    """The version of an object by its ETag, or by its time of change if the store says no ETag.

    Raises:
        RequestFailure: The store says neither, so that a replaced object could not be recognised.

    >>> version_of('"a1"', None), version_of(None, "Sun, 22 Nov 2026 20:00:00 GMT")
    ('"a1"', 'Sun, 22 Nov 2026 20:00:00 GMT')
    """
    if not etag and not changed:
        raise RequestFailure(
            "its server tells neither ETag nor Last-Modified, so that a replaced shard could not "
            "be recognised",
            "final",
            "let the server send one of the two headers, or copy the shards to a disk",
        )
    return etag or str(changed)
