"""One request to a store: what answers it, why it failed, and how long it is asked for.

Options say how a store is reached, and never a secret.
A configuration is saved beside checkpoints and logged by experiment trackers, so passwords and keys
stay where the tools of each provider keep them.
"""

import re
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields, replace
from http.client import responses
from typing import Any, Final, Literal, NamedTuple, Protocol, cast

from lightning_shards.errors import (
    ConfigError,
    FileAccessError,
    IndexMismatchError,
    ShardError,
    ShardNotFoundError,
    StorageError,
)
from lightning_shards.shards.scheme_table import FURTHER, SCHEMES

Chunk = bytes | memoryview


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long and how often a range is asked for.

    Attributes:
        tries: Requests for one range that may fail.
        total_s: Seconds from the first request, or from the last one that brought a mebibyte, in
            which the last one must have ended even if it stalls.
        first_pause_s: The shortest pause between two tries; each further one is twice as long.
        longest_pause_s: The longest one that we choose.
        longest_retry_after_s: The longest one that a server may ask for by `Retry-After`.
        connect_s: Seconds in which a connection must be made.
        stall_s: Seconds without a byte after which a request is given up.
        request_s: Seconds in which a request must have ended. What it brought is kept.
    """

    tries: int = 10
    total_s: float = 180.0
    first_pause_s: float = 0.1
    longest_pause_s: float = 15.0
    longest_retry_after_s: float = 60.0
    connect_s: float = 10.0
    stall_s: float = 30.0
    request_s: float = 150.0

    def scaled(self, factor: float) -> "RetryPolicy":
        """The same policy with all times multiplied, for tests."""
        times = [field.name for field in fields(self) if field.name.endswith("_s")]
        return replace(self, **{name: getattr(self, name) * factor for name in times})


LOOK_UP: Final = RetryPolicy(total_s=60.0, longest_pause_s=5.0)
"""How often is asked for counts and tables before a run: someone waits for the answer. An outage of
20 s is survived, as in a run, and a store that is not there is an error within half a minute."""


@dataclass(frozen=True, slots=True)
class TransportSettings:
    """What a transport is made of, and all that travels to another process.

    Attributes:
        options: By scheme, how its store is reached, as the class of its backend says. No secrets.
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


class RangeAnswer(NamedTuple):
    """What a store answers to the request for a range, before its bytes come.

    Attributes:
        begin: Offset of the first byte that comes.
        stop: Offset behind the last one.
        size: Bytes of the whole object; `UNKNOWN_SIZE` if it is sent in parts.
        version: Its ETag; time of change and size where that is none, or proves no equal bytes.
        chunks: The bytes; it raises RequestFailure where they break off.
        has_ranges: Whether the store sent this range, and not the whole object.
    """

    begin: int
    stop: int
    size: int
    version: str
    chunks: Iterable[Chunk]
    has_ranges: bool = True


UNKNOWN_SIZE: Final = 1 << 62


class Store(Protocol):
    """Makes single requests; any thread may call any method."""

    @abstractmethod
    def get(
        self, url: str, begin: int, end: int, version: str | None
    ) -> AbstractContextManager[RangeAnswer]:
        """Ask for a range that is not empty, of this version if the store can check it.

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
    412: "changed",
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


def error_of(failure: RequestFailure, scheme: str, what: str, tries: str) -> ShardError:
    """The error that users see.

    Args:
        failure: Why the last try failed.
        scheme: Of the URL.
        what: What could not be done, with a URL that holds no secret.
        tries: How often it was tried, as in `try 1 of 10`.
    """
    reason, remedy = f"{what}: {failure.what}", failure.remedy
    if failure.kind == "absent":
        remedy = remedy or "check the URL, the bucket, and the numbers in its braces"
        return ShardNotFoundError(f"{reason}; {remedy}")
    if failure.kind == "denied":
        return FileAccessError(
            f"{reason}, also with credentials that were looked up again; check who may read it, "
            f"whether its signature has expired, and your credentials, which belong in "
            f"{SCHEMES.get(scheme, FURTHER).secrets_in}"
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


def version_of(etag: str | None, changed: object, size: int) -> str:
    """The version of an object by what its store says of it.

    Args:
        etag: Its ETag.
        changed: Its time of change.
        size: Its bytes.

    Raises:
        RequestFailure: The store says neither, so that a replaced object could not be recognised.

    >>> version_of('"a1"', None, 3), version_of(None, "Sun, 22 Nov 2026 20:00:00 GMT", 3)
    ('"a1"', 'Sun, 22 Nov 2026 20:00:00 GMT, 3 bytes')
    >>> version_of('W/"a1"', None, 3)
    'W/"a1", 3 bytes'
    """
    if etag is not None and is_exact(etag):
        return etag
    known = [str(said) for said in (etag, changed) if said]
    if not known:
        raise RequestFailure(
            "its server tells neither ETag nor Last-Modified, so that a replaced shard could not "
            "be recognised",
            "final",
            "let the server send one of the two headers, or copy the shards to a disk",
        )
    return ", ".join([*known, f"{size} bytes"])


def is_exact(version: str | None) -> bool:
    """Whether equal versions prove equal bytes: of strong ETags alone, not of dates.

    >>> [is_exact(version) for version in ('"a1"', 'W/"a1"', "Sun, 22 Nov 2026, 3 bytes", None)]
    [True, False, False, False]
    """
    return version is not None and version.startswith('"')


_SECRET_NAME = re.compile(
    r"pass(word|wd|phrase)?$|secret|token|credential|signature|authorization|cookie|access_?key|pkey"
    r"|(^|[_-])(key|sas|auth)$|api_?key",
    re.IGNORECASE,
)
_SECRET_VALUE = re.compile(
    r"-----BEGIN|(AKIA|ASIA)[0-9A-Z]{16}|\bhf_\w{16}|AccountKey=|SharedAccessSignature|[?&;]sig="
    r"|X-Amz-Signature|^(Bearer|Basic) |://[^/@]*@|://[^/?#@\[\]:]*:(?!\d*[/?#])[^@]*@",
    re.IGNORECASE,
)


def require_store_options(scheme: str, options: Mapping[str, Any]) -> None:
    """Check the options of a store against those that its scheme has.

    Raises:
        ConfigError: One is or holds a secret, is unknown, or is of another type.
    """
    _require_no_secret(scheme, options)
    known = SCHEMES.get(scheme, FURTHER).options
    if known is None:
        return
    for name, value in options.items():
        if type(value) is not known.get(name):
            there = ", ".join(f"{name}: {kind.__name__}" for name, kind in known.items())
            raise ConfigError(
                f"storage_options of {scheme} have no {name!r} that is a {type(value).__name__}; "
                f"there are {there}"
            )


def _require_no_secret(scheme: str, options: Mapping[str, Any]) -> None:
    for name, value in options.items():
        text = str(value)
        listed = cast("list[object]", value if isinstance(value, (list, tuple)) else [value])
        for inner in listed:
            if isinstance(inner, Mapping):
                _require_no_secret(scheme, cast("Mapping[str, Any]", inner))
        is_secret = _SECRET_NAME.search(str(name)) or _SECRET_VALUE.search(text)
        if is_secret and not isinstance(value, Mapping):
            kept = SCHEMES.get(scheme, FURTHER).secrets_in
            raise ConfigError(
                f"storage_options of {scheme}: {name!r} looks like a secret, and configurations "
                f"are saved and logged; leave it out, and keep it in {kept}"
            )
