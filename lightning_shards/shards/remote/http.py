"""Shards over http and https: single ranged GETs, and what their answers claim to be."""

import re
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from email.utils import parsedate_to_datetime
from functools import partial
from itertools import chain
from typing import Any, Final
from urllib.parse import quote, urlsplit

from urllib3.exceptions import HTTPError
from urllib3.response import BaseHTTPResponse

from lightning_shards.errors import ConfigError
from lightning_shards.shards.remote.backend import (
    RangeAnswer,
    RequestBackend,
    RequestFailure,
    failure_of_status,
    is_exact,
    require_store_options,
    version_of,
)
from lightning_shards.shards.remote.http_client import (
    HttpClient,
    HttpReply,
    HttpTarget,
    basic,
    drain,
    failure_of_http_error,
)
from lightning_shards.shards.remote.retries import RetryPolicy
from lightning_shards.shards.urls import has_broken_password, split_user

LARGEST_WHOLE: Final = 64 << 20
"""Bytes of an object of which a server that knows no ranges sends more than its beginning."""

LARGEST_IN_PARTS: Final = 4 << 20
"""Bytes of an object that is sent in parts, without its length: a wids JSON of 40,000 shards."""

RANGE_BEYOND: Final = 416
"""The status of a range that begins behind the object's end."""

_CHUNK: Final = 1 << 18
_OK, _PARTIAL = 200, 206
_NUMBER: Final = "[0-9]{1,18}"  # Python refuses to read a number of thousands of digits
_CONTENT_RANGE = re.compile(f"bytes ({_NUMBER})-({_NUMBER})/({_NUMBER})")
_PAGE = re.compile(rb"\s*<(!doctype\s+html|html|head|body)\b", re.IGNORECASE)
_AS_IT_IS: Final = frozenset({"", "identity", "aws-chunked"})  # the last one is how it was written


class HttpBackend(RequestBackend):
    """Reads http and https URLs; queries of signed ones are kept, and belong to no other URL.

    Args:
        options: None are known.
        policy: Its time limits.
        connections: Idle connections that are kept for each host.
    """

    def __init__(self, options: Mapping[str, Any], policy: RetryPolicy, connections: int) -> None:
        require_store_options("http", options)
        self._client = HttpClient(policy, connections)

    def get(
        self, url: str, begin: int, end: int, version: str | None
    ) -> AbstractContextManager[RangeAnswer]:
        """Ask for a range; a refusal of its beginning is answered by the whole object's size."""
        return answered(self._client, target_of(url), begin, end, version)

    def put(self, url: str, data: bytes) -> None:
        """Write by PUT, which few servers allow."""
        put_object(self._client, target_of(url), data)

    def close(self) -> None:
        """Close all connections that are not in use."""
        self._client.close()


def target_of(url: str) -> HttpTarget:
    """The URL without its user and password, and the header that they stand for.

    Raises:
        RequestFailure: It cannot be read.
    """
    if has_broken_password(url):
        raise RequestFailure(
            "the password holds a /, ? or #", "final", remedy="write %2F, %3F or %23 instead"
        )
    if "#" in url:
        raise RequestFailure("a # would end the name", "final", remedy="write %23 instead")
    plain, user = split_user(url)
    host = ""
    with suppress(ValueError):
        host = urlsplit(plain).hostname
    if not host:
        raise RequestFailure("the URL cannot be read", "final", remedy="check its host and port")
    return HttpTarget(plain, {"Authorization": basic(user)} if user else {})


@contextmanager
def answered(
    client: HttpClient, target: HttpTarget, begin: int, end: int, version: str | None
) -> Generator[RangeAnswer, None, None]:
    """The answer to one ranged GET.

    Raises:
        RequestFailure: There is none.
    """
    reply = client.request("GET", target, range_headers(begin, end, version))
    if reply.response.status == RANGE_BEYOND:  # which says neither version nor, often, size
        drain(reply.response)
        reply = client.request("GET", target, {})
    with read_reply(reply, begin, end) as answer:
        yield answer


@contextmanager
def read_reply(reply: HttpReply, begin: int, end: int) -> Generator[RangeAnswer, None, None]:
    """The answer that a response is; its connection is kept if the body is read to its end.

    Raises:
        RequestFailure: It is none.
    """
    response = reply.response
    try:
        yield _answer_of(reply.response, begin, end)
    except RequestFailure as failure:
        failure.what += reply.through
        raise
    finally:
        # A response that was read to its end has given its connection back before
        response.close()


def range_headers(begin: int, end: int, version: str | None) -> dict[str, str]:
    """The headers that ask for a range of one version."""
    headers = {"Range": f"bytes={begin}-{end - 1}"}
    if version is not None and is_exact(version):
        headers["If-Match"] = version
    return headers


def put_object(client: HttpClient, target: HttpTarget, data: bytes) -> None:
    """Write an object by PUT.

    Raises:
        RequestFailure: It is not written.
    """
    response, _, _, through = client.request("PUT", target, {}, data)
    if response.status not in range(200, 300):
        failure = _refused(response)
        failure.what += through
        raise failure
    drain(response)


def _answer_of(response: BaseHTTPResponse, begin: int, end: int) -> RangeAnswer:
    if response.status == _PARTIAL:
        return _answer_of_range(response)
    if response.status != _OK:
        raise _refused(response)
    chunks = chunks_of(response)
    first = next(chunks, b"")
    _require_no_page(first, response.headers.get("Content-Type", ""))
    size = _whole_size(response)
    if size is None:
        first += _rest_in_parts(response)
        size = len(first)
    version = _version_of(response, size)
    if begin >= size:
        return RangeAnswer(begin, begin, size, version, (), has_ranges=False)
    if begin and size > LARGEST_WHOLE:
        raise RequestFailure(
            f"the server answers with all of its {size:,} bytes and not with a range",
            "final",
            remedy="use a server that knows ranges, or copy the shards here",
        )
    cut = _Cut(first, chunks, begin, min(end, size))
    return RangeAnswer(
        begin, cut.stop, size, version, cut, has_ranges=False, arrived=lambda: cut.arrived
    )


def _answer_of_range(response: BaseHTTPResponse) -> RangeAnswer:
    headers = response.headers
    match = _CONTENT_RANGE.fullmatch(headers.get("Content-Range", "").strip())
    kind = headers.get("Content-Type", "")
    if match is None or kind.lower().startswith("multipart/byteranges"):
        raise RequestFailure("the server does not say which bytes of how many it answers with")
    first, last, size = map(int, match.groups())
    if not first <= last < size:
        raise RequestFailure("the server answers with an impossible range")
    if headers.get("Content-Length") != str(last + 1 - first):
        _require_uncompressed(response)  # a range of a file that is stored compressed is right
    return RangeAnswer(first, last + 1, size, _version_of(response, size), chunks_of(response))


def _version_of(response: BaseHTTPResponse, size: int) -> str:
    headers = response.headers
    # The checksum of an AIStore is no version: it is of the range where its bucket is set so
    number = headers.get("Ais-Version")
    return version_of(headers.get("ETag"), headers.get("Last-Modified"), size, number)


def _whole_size(response: BaseHTTPResponse) -> int | None:
    """The length of a whole object; None if it is sent in parts, of which the last says its end."""
    _require_uncompressed(response)
    length = response.headers.get("Content-Length", "")
    if re.fullmatch(_NUMBER, length):
        return int(length)
    if response.headers.get("Transfer-Encoding", "").lower() == "chunked":
        return None
    raise _unknown_length()


def _require_uncompressed(response: BaseHTTPResponse) -> None:
    if response.headers.get("Content-Encoding", "").strip().lower() not in _AS_IT_IS:
        raise RequestFailure(
            "the server compresses what it sends, so that no range of it is one of the file",
            "final",
            remedy="switch its compression off for shards, or copy the shards here",
        )


def _rest_in_parts(response: BaseHTTPResponse) -> bytes:
    """What else comes of a small object that is sent in parts."""
    rest = _received(partial(response.read, LARGEST_IN_PARTS))
    if len(rest) == LARGEST_IN_PARTS:
        raise _unknown_length()
    return rest


def _unknown_length() -> RequestFailure:
    return RequestFailure(
        "the server answers with an object of unknown length and not with a range",
        "final",
        remedy="use a server that knows ranges, or copy the shards here",
    )


def _refused(response: BaseHTTPResponse) -> RequestFailure:
    """Why a request was refused; what its page says is not shown, as it may repeat the URL."""
    retry_after_s = _retry_after_s(response.headers)
    drain(response)
    return failure_of_status(response.status, retry_after_s=retry_after_s)


def _retry_after_s(headers: Mapping[str, str]) -> float | None:
    """The seconds that a server asks to wait: a number, or up to a time by its own clock."""
    asked = headers.get("Retry-After", "").strip()
    if asked.isascii() and asked.isdecimal():
        return float(asked[:9])
    with suppress(ValueError, TypeError, OverflowError):
        then, now = map(parsedate_to_datetime, (asked, headers.get("Date", "")))
        return max(0.0, (then - now).total_seconds())
    return None


def chunks_of(response: BaseHTTPResponse) -> Iterator[bytes]:
    """The body as it arrives, a piece for each time that the socket is read.

    Raises:
        RequestFailure: It broke off.
    """
    while chunk := _received(partial(response.read1, _CHUNK)):
        yield chunk


def _received(read: Callable[..., bytes]) -> bytes:
    """What is read of the body, as it was sent."""
    try:
        return read(decode_content=False)
    except (HTTPError, OSError, ValueError) as error:
        failure = failure_of_http_error(error if isinstance(error, HTTPError) else OSError())
    raise failure


class _Cut:
    """The range out of a whole object, of which what lies before it must come, too.

    Attributes:
        stop: Offset in the object behind the last byte.
        arrived: Bytes of the object that have come so far.
    """

    def __init__(self, first: bytes, others: Iterator[bytes], begin: int, stop: int) -> None:
        self.stop, self.arrived = stop, 0
        self._chunks, self._begin = chain((first,), others), begin

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self._chunks:
            offset, self.arrived = self.arrived, self.arrived + len(chunk)
            yield chunk[max(0, self._begin - offset) : max(0, self.stop - offset)]
            if self.arrived >= self.stop:
                return


def _require_no_page(chunk: bytes, kind: str) -> None:
    """Refuse a page for people by its first bytes, before its size and version are believed."""
    if kind.lower().startswith("text/html") or _PAGE.match(chunk):
        raise RequestFailure(
            "the server answers with a page for people and not with a shard",
            "final",
            remedy="check the URL, and whether the server wants a login",
        )


class AisBackend(RequestBackend):
    """Asks a gateway, which redirects to the machine that holds the object.

    Args:
        options: `endpoint`, the URL of a gateway.
        policy: Its time limits.
        connections: Idle connections that are kept for each host.

    Raises:
        ConfigError: There is no endpoint.
    """

    def __init__(self, options: Mapping[str, Any], policy: RetryPolicy, connections: int) -> None:
        require_store_options("ais", options)
        self._endpoint = str(options.get("endpoint", "")).rstrip("/")
        if not self._endpoint.startswith(("http://", "https://")):
            raise ConfigError(
                "ais:// shards need the URL of a gateway: set storage_options to {'ais': "
                "{'endpoint': 'http://host:51080'}}, as AIS_ENDPOINT has it"
            )
        self._client = HttpClient(policy, connections)

    def get(
        self, url: str, begin: int, end: int, version: str | None
    ) -> AbstractContextManager[RangeAnswer]:
        """Ask for a range."""
        return answered(self._client, self._target(url), begin, end, version)

    def put(self, url: str, data: bytes) -> None:
        """Write by PUT."""
        put_object(self._client, self._target(url), data)

    def close(self) -> None:
        """Close all connections that are not in use."""
        self._client.close()

    def _target(self, url: str) -> HttpTarget:
        bucket, _, name = url.partition("://")[2].partition("/")
        path = f"/v1/objects/{quote(bucket)}/{quote(name)}"
        prefix = urlsplit(self._endpoint).path
        base = self._endpoint.removesuffix(prefix) if prefix else self._endpoint
        return target_of(f"{base}{prefix}{path}?provider=ais")
