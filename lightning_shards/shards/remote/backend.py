"""One request to a store: the protocol of a backend, its answer, and why one failed.

Options say how a store is reached, and never a secret.
A configuration is saved beside checkpoints and logged by experiment trackers, so passwords and keys
stay where the tools of each provider keep them.
"""

import re
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, Literal, NamedTuple, Protocol, cast

from lightning_shards.errors import ConfigError
from lightning_shards.shards.scheme_table import FURTHER, SCHEMES

FailureKind = Literal["again", "busy", "denied", "absent", "changed", "beyond", "final"]
"""What is to be done: try again; try again with fewer connections; try once more with fresh
credentials; nothing, as there is no such object, it is another version, the range begins behind its
end, or trying again would not help."""

_AGAIN: Final = frozenset({408, 425, 500, 502, 504, *range(520, 528), 529})
_BUSY: Final = frozenset({429, 503})
_DENIED: Final = frozenset({401, 403, 407})
_ABSENT: Final = frozenset({404, 410})
_CHANGED: Final = 412
_BEYOND: Final = 416


class RequestFailure(Exception):  # noqa: N818 it never leaves this folder
    """Why a request failed.

    Attributes:
        what: One clause for a message. It holds nothing that a store said in its own words, because
            stores repeat signatures and keys.
        kind: What is to be done.
        retry_after_s: Seconds that the server asks to wait.
        remedy: What the user can do.
        version: The version that was found, of kind `changed`.
        used: The credentials that it was made with, as its backend knows them; None if it has none
            of which fresh ones can be had.
    """

    def __init__(
        self,
        what: str,
        kind: FailureKind = "again",
        *,
        retry_after_s: float | None = None,
        remedy: str = "",
        version: str | None = None,
    ) -> None:
        super().__init__(what)
        self.what = what
        self.kind: FailureKind = kind
        self.retry_after_s = retry_after_s
        self.remedy = remedy
        self.version = version
        self.used: object = None


@dataclass(frozen=True, slots=True)
class RangeAnswer:
    """What a store answers to the request for a range, before its bytes come.

    Attributes:
        begin: Offset of the first byte that comes.
        stop: Offset behind the last one.
        size: Bytes of the whole object.
        version: Its ETag; time of change and size where that is none, or proves no equal bytes.
        chunks: The bytes; it raises RequestFailure where they break off.
        has_ranges: Whether the store sent this range, and not the whole object, out of which the
            range is cut.
        arrived: Bytes of the body that have come so far, where more of it comes than the range;
            they show that the store is at work. None: those of the range are all.
    """

    begin: int
    stop: int
    size: int
    version: str
    chunks: Iterable[bytes | memoryview]
    has_ranges: bool = True
    arrived: Callable[[], int] | None = None


class RequestBackend(Protocol):
    """Makes single requests, without retries; any thread may call any method."""

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

    def refresh(self, url: str, used: object) -> None:
        """Forget the credentials that a failed request used, so that the next looks for fresh ones.

        Fresh ones that another thread has found since are kept.
        """

    def close(self) -> None:
        """Close all connections that are not in use, and open no new ones."""


def closed_failure() -> RequestFailure:
    """Why a request is not made, or goes on no more, when its backend was closed."""
    return RequestFailure("the connections were closed", "final")


class StatusLine(NamedTuple):
    """A status with its phrase; the server's own phrase is never shown."""

    status: int

    def __str__(self) -> str:
        known = self.status in set(HTTPStatus)
        return f"{self.status} {HTTPStatus(self.status).phrase}" if known else str(self.status)


def failure_of_status(
    status: int, *, retry_after_s: float | None = None, remedy: str = ""
) -> RequestFailure:
    """Why a request failed that was answered by this status."""
    kind: FailureKind = "final"
    if status in _AGAIN:
        kind = "again"
    elif status in _BUSY:
        kind = "busy"
    elif status in _DENIED:
        kind = "denied"
    elif status in _ABSENT:
        kind = "absent"
    elif status == _CHANGED:
        kind = "changed"
    elif status == _BEYOND:
        kind = "beyond"
    what = f"the server answers {StatusLine(status)}"
    return RequestFailure(what, kind, retry_after_s=retry_after_s, remedy=remedy)


def version_of(etag: str | None, changed: object, size: int, number: str | None = None) -> str:
    """The version of an object by what its store says of it.

    Args:
        etag: Its ETag.
        changed: Its time of change.
        size: Its bytes.
        number: What the store counts up when the object is written again.

    Raises:
        RequestFailure: The store says none of these, so that a replaced object could not be
            recognised.

    >>> version_of('"a1"', None, 3), version_of(None, "Sun, 22 Nov 2026 20:00:00 GMT", 3)
    ('"a1"', 'Sun, 22 Nov 2026 20:00:00 GMT, 3 bytes')
    >>> version_of('W/"a1"', None, 3), version_of(None, None, 3, number="7")
    ('W/"a1", 3 bytes', 'number 7, 3 bytes')
    """
    if etag is not None and is_exact(etag):
        return etag
    known = [etag, str(changed or ""), f"number {number}" if number else ""]
    if not any(known):
        raise RequestFailure(
            "its server tells neither ETag nor Last-Modified, so that a replaced shard could not "
            "be recognised",
            "final",
            remedy="let the server send one of the two headers, or copy the shards to a disk",
        )
    return ", ".join([*filter(None, known), f"{size} bytes"])


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
    require_no_secret(scheme, options)
    known = SCHEMES.get(scheme, FURTHER).options
    if known is None:
        return
    for name, value in options.items():
        if name not in known:
            there = ", ".join(known) or "none"
            raise ConfigError(f"storage_options of {scheme} have no {name!r}; there are {there}")
        if type(value) is not known[name]:
            raise ConfigError(
                f"storage_options of {scheme}: {name} must be a {known[name].__name__}, "
                f"got a {type(value).__name__}"
            )


def require_no_secret(scheme: str, options: Mapping[str, Any]) -> None:
    """Check that no option looks like a secret, by its name or by its value.

    Raises:
        ConfigError: One does; the message says where it belongs, and not what it is.
    """
    for name, value in options.items():
        for inner in _mappings_in(value):
            require_no_secret(scheme, inner)
        if isinstance(value, Mapping):
            continue
        if _SECRET_NAME.search(str(name)) or _SECRET_VALUE.search(str(value)):
            kept = SCHEMES.get(scheme, FURTHER).secrets_in
            raise ConfigError(
                f"storage_options of {scheme}: {name!r} looks like a secret, and configurations "
                f"are saved and logged; leave it out, and keep it in {kept}"
            )


def _mappings_in(value: object) -> list[Mapping[str, Any]]:
    """The mapping that a value is, or those in a list."""
    if isinstance(value, Mapping):
        return [cast("Mapping[str, Any]", value)]
    listed = cast("list[Any]", value) if isinstance(value, (list, tuple)) else []
    return [inner for inner in listed if isinstance(inner, Mapping)]
