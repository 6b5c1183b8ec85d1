"""Shards over http and https, of AIStore clusters and of the Hugging Face hub, by urllib3.

urllib3 has the pools of connections, TLS, proxies and redirects; behind a redirect to another host
it sends no `Authorization`. It repeats nothing here: all requests for a range have one limit of
time, and its pauses are drawn from the generator of `random`, which belongs to users' transforms.
"""

import logging
import os
import re
import ssl
from base64 import b64encode
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import sha256
from itertools import chain
from os import fdopen
from pathlib import Path
from threading import Lock
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote, urljoin

import urllib3
from urllib3 import exceptions
from urllib3.exceptions import HTTPError
from urllib3.response import BaseHTTPResponse

from lightning_shards.errors import ConfigError
from lightning_shards.remote.backend import (
    UNKNOWN_SIZE,
    RangeAnswer,
    RequestFailure,
    Store,
    TransportSettings,
    failure_of_status,
    is_exact,
    require_store_options,
    version_of,
)
from lightning_shards.shards.hosts import proxy_of
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.scheme_table import commit_of, is_commit, pin_commit
from lightning_shards.shards.urls import split_user

LARGEST_WHOLE: Final = 64 << 20
"""Bytes of an object of which a server that knows no ranges sends more than its beginning."""

LARGEST_IN_PARTS: Final = 4 << 20
"""Bytes of an object that is sent in parts, without its length, up to which its size is found."""

MAX_REDIRECTS: Final = 5

_ONE_REQUEST: Final = urllib3.Retry(
    None, connect=0, read=0, other=0, redirect=MAX_REDIRECTS, respect_retry_after_header=False
)
_CHUNK: Final = 1 << 18
_OK, _PARTIAL, _BEYOND = 200, 206, 416
_CONTENT_RANGE = re.compile("bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18})")
_PAGE = re.compile(rb"\s*<(!doctype\s+html|html|head|body)\b", re.IGNORECASE)
_REFUSED: Final = 400

_REASONS: Final[Mapping[type[Exception], str]] = {
    exceptions.ProxySchemeUnknown: "the proxy is of another kind than http:// and https://",
    ValueError: "the URL cannot be read, or the server redirects to what is no http(s) URL",
    exceptions.ResponseError: f"the server redirects more than {MAX_REDIRECTS} times",
    exceptions.ReadTimeoutError: "the server stalled",
    exceptions.ProxyError: "the proxy cannot be reached, or refuses",
    exceptions.NewConnectionError: "no connection can be made",
    exceptions.ConnectTimeoutError: "no connection can be made",
}

for _name in ("connection", "connectionpool", "poolmanager", "util.retry"):
    # what urllib3 logs of less than an error may hold the queries of signed URLs
    logging.getLogger(f"urllib3.{_name}").setLevel(logging.ERROR)


class HttpTarget(NamedTuple):
    """A URL without user and password, and the headers that only its host may see."""

    url: str
    credentials: Mapping[str, str]


class HttpClient:
    """Connections to any number of hosts.

    Args:
        scheme: Of the store.
        settings: Its options may have `ca`, a file of certificates, as REQUESTS_CA_BUNDLE has it.

    Attributes:
        options: Of the store.
    """

    def __init__(self, scheme: str, settings: TransportSettings) -> None:
        self.options = dict(settings.options.get(scheme, {}))
        require_store_options(scheme, self.options)
        policy = settings.policy
        self._settings: dict[str, Any] = {
            "maxsize": settings.connections,
            "num_pools": 64,
            "retries": _ONE_REQUEST,
            "timeout": urllib3.Timeout(connect=policy.connect_s, read=policy.stall_s),
            "ca_certs": self.options.get("ca") or os.environ.get("REQUESTS_CA_BUNDLE"),
        }
        self._managers: dict[str, urllib3.PoolManager] = {}  # by scheme and host

    def request(
        self,
        method: str,
        target: HttpTarget,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        *,
        follows: bool = True,
    ) -> BaseHTTPResponse:
        """The response to a request, with its body not read yet, behind a few redirects if told so.

        Raises:
            RequestFailure: There is none.
        """
        try:
            return self._manager(target.url).urlopen(
                method,
                target.url,
                follows,
                body=body,
                headers={"User-Agent": "lightning-shards", **(headers or {}), **target.credentials},
                preload_content=False,
                decode_content=False,
            )
        except (HTTPError, OSError, ValueError) as error:
            failure = _failure_of(error)
        raise failure

    def _manager(self, url: str) -> urllib3.PoolManager:
        """The connections to a host, and to those that it redirects to, by its proxy."""
        host = "/".join(url.split("/", 3)[:3])
        manager = self._managers.get(host)
        if manager is None:
            plain, user = split_user(proxy_of(url))
            headers = {"Proxy-Authorization": _basic(user)} if user else None
            manager = (
                urllib3.ProxyManager(plain, proxy_headers=headers, **self._settings)
                if plain
                else urllib3.PoolManager(**self._settings)
            )
            manager = self._managers.setdefault(host, manager)  # that of the first thread
        return manager


class HttpStore(Store):
    """Reads what a URL stands for at a server.

    Args:
        client: Makes the requests.
        target_of: Where the object of a URL is.
        hub: What has found that, if it is a hub.
    """

    def __init__(
        self,
        client: HttpClient,
        target_of: Callable[[str], HttpTarget],
        hub: "HubLocations | None" = None,
    ) -> None:
        self._client, self._target_of, self._hub = client, target_of, hub
        self._has_answered = False

    @contextmanager
    def get(
        self, url: str, begin: int, end: int, version: str | None
    ) -> Generator[RangeAnswer, None, None]:
        """Ask for a range; a refusal of its beginning is answered by the whole object's size."""
        target, headers = self._target_of(url), {"Range": f"bytes={begin}-{end - 1}"}
        if version is not None and is_exact(version):
            headers["If-Match"] = version
        response = self._client.request("GET", target, headers)
        if response.status == _BEYOND:  # which says neither version nor, often, size
            response.drain_conn()
            response = self._client.request("GET", target)
        try:
            yield self._answer(response, begin, is_known=version is not None)
        finally:
            response.close()  # one that was read to its end has given its connection back before

    def put(self, url: str, data: bytes) -> None:
        """Write by PUT, which few servers allow."""
        if self._hub is not None:
            raise ConfigError("the hub is written by commits, not by file; upload with its tools")
        response = self._client.request("PUT", self._target_of(url), body=data)
        if response.status not in range(200, 300):
            raise refusal(response)
        response.drain_conn()

    def refresh(self, url: str) -> None:
        """Ask a hub again where the object is."""
        if self._hub is not None:
            self._hub.forget(url)

    def _answer(self, response: BaseHTTPResponse, begin: int, *, is_known: bool) -> RangeAnswer:
        if response.status == _PARTIAL:
            answer = _answer_of_range(response)
        elif response.status == _OK:
            answer = _answer_of_whole(response, begin, is_known=is_known or self._has_answered)
        else:
            raise refusal(response)
        self._has_answered = True
        return answer


def _answer_of_range(response: BaseHTTPResponse) -> RangeAnswer:
    match = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", "").strip())
    if match is None:
        raise RequestFailure("the server does not say which bytes of how many it answers with")
    first, last, size = map(int, match.groups())
    if not first <= last < size or response.length_remaining not in (None, last + 1 - first):
        raise RequestFailure("the server answers with an impossible range")
    return RangeAnswer(first, last + 1, size, _version(response, size), _chunks(response))


def _answer_of_whole(response: BaseHTTPResponse, begin: int, *, is_known: bool) -> RangeAnswer:
    """The whole object, of a server that knows no ranges, unless it is a page for people.

    Such a page may come from a server in trouble where the object is known.
    """
    headers, size, chunks = response.headers, response.length_remaining, _chunks(response)
    first = next(chunks, b"")
    if headers.get("Content-Type", "").lower().startswith("text/html") or _PAGE.match(first):
        raise RequestFailure(
            "the server answers with a page for people and not with a shard",
            "again" if is_known else "final",
            "check the URL, and whether the server wants a login",
        )
    if size is None and response.chunked:  # only its end says that it is whole
        while len(first) < LARGEST_IN_PARTS and (chunk := next(chunks, b"")):
            first += chunk
        size = len(first) if len(first) < LARGEST_IN_PARTS else UNKNOWN_SIZE
    if size is None or (begin > 0 and size > max(begin, LARGEST_WHOLE)):
        raise RequestFailure(
            "the server answers with all of an object that is large or of unknown length, and not "
            "with a range",
            "final",
            "use a server that knows ranges, or copy the shards here",
        )
    body = chain((first,), chunks)
    return RangeAnswer(0, size, size, _version(response, size), body, has_ranges=False)


def _version(response: BaseHTTPResponse, size: int) -> str:
    headers = response.headers
    # The checksum of an AIStore is no version: it is of the range where its bucket is set so
    number = headers.get("Ais-Version")
    return version_of(headers.get("ETag") or number, headers.get("Last-Modified"), size)


def refusal(response: BaseHTTPResponse) -> RequestFailure:
    """Why a request was refused; what its page says is not shown, as it may repeat the URL."""
    response.drain_conn()
    asked_s = 0.0
    with suppress(HTTPError):  # of one that is no time
        asked_s = _ONE_REQUEST.get_retry_after(response) or 0.0
    return failure_of_status(response.status, asked_s)


def _chunks(response: BaseHTTPResponse) -> Iterator[bytes]:
    """The body as it arrives, a piece for each time that the socket is read.

    Raises:
        RequestFailure: It broke off.
    """
    failure = None
    try:
        while chunk := response.read1(_CHUNK, decode_content=False):
            yield chunk
    except (HTTPError, OSError, ValueError) as error:
        failure = _failure_of(error if isinstance(error, HTTPError) else OSError())
    if failure is not None:
        raise failure


def _failure_of(error: Exception) -> RequestFailure:
    """Why there is no response, in words of ours: those of urllib3 hold the URL."""
    cause = error.reason if isinstance(error, exceptions.MaxRetryError) else error
    tls = cause.args[0] if isinstance(cause, exceptions.SSLError) else None
    if isinstance(tls, ssl.SSLError) and not isinstance(tls, ssl.SSLEOFError):
        return RequestFailure(
            "the server's certificate is not trusted, or it does not speak TLS at this port",
            "final",
            "check the host and the port, and the certificates of this machine (SSL_CERT_FILE, "
            "REQUESTS_CA_BUNDLE, or ca in storage_options)",
        )
    reasons = (reason for kind, reason in _REASONS.items() if isinstance(cause, kind))
    is_final = isinstance(cause, (ValueError, exceptions.ResponseError))
    return RequestFailure(
        next(reasons, "the connection broke"),
        "final" if is_final else "again",
        "check the URL, and the proxy in http_proxy and no_proxy" if is_final else "",
    )


def _basic(user: str) -> str:
    """The header value for a user and a password that were part of a URL."""
    return f"Basic {b64encode(unquote(user).encode()).decode()}"


def web_target(url: str) -> HttpTarget:
    """An http(s) URL; the query of a signed one is kept."""
    plain, user = split_user(url)
    return HttpTarget(plain, {"Authorization": _basic(user)} if user else {})


def make_ais_store(client: HttpClient) -> HttpStore:
    """The store of an AIStore, whose gateway redirects to the machine that holds an object.

    Args:
        client: Its option `endpoint`, or AIS_ENDPOINT, is the URL of a gateway.

    Raises:
        ConfigError: There is none.
    """
    gateway = str(client.options.get("endpoint") or os.environ.get("AIS_ENDPOINT", "")).rstrip("/")
    if not gateway.startswith(("http://", "https://")):
        raise ConfigError(
            "ais:// shards need the URL of a gateway: set AIS_ENDPOINT, or storage_options to "
            "{'ais': {'endpoint': 'http://host:51080'}}"
        )

    def target_of(url: str) -> HttpTarget:
        bucket, _, name = url.partition("://")[2].partition("/")
        return web_target(f"{gateway}/v1/objects/{quote(bucket)}/{quote(name)}?provider=ais")

    return HttpStore(client, target_of)


_HUB: Final = "https://huggingface.co"
_HUB_PATH = re.compile(
    r"hf://(?P<kind>datasets/|spaces/)?(?P<repo>(?!datasets/|spaces/)[^/@]+/[^/@]+)(?:@(?P<revision>[^/]+))?/(?P<path>.+)"
)


class HubLocations:
    """Where objects are that `hf://datasets/OWNER/NAME[@REVISION]/PATH` names; models, spaces, too.

    The hub allows few requests, and its storage many. So a signed location is kept until it is
    refused, for all processes of this machine in a file that only this user can read. The first
    answer of the hub pins a revision to its commit, see `scheme_table`.

    Args:
        client: Its options are `endpoint`, of a mirror, and `anonymous`, to send no token.
        cache_dir: In which folder locations are kept.
    """

    def __init__(self, client: HttpClient, cache_dir: str | None) -> None:
        self._client = client
        self._endpoint = str(client.options.get("endpoint", _HUB)).rstrip("/")
        self._is_anonymous = bool(client.options.get("anonymous", False))
        self._cache = CacheFolder(cache_dir)
        self._known: dict[str, str] = {}
        self._asking: dict[str, Lock] = {}

    def forget(self, url: str) -> None:
        """Ask the hub when the object is wanted next."""
        self._known.pop(url, None)
        with suppress(OSError):
            self._file(url).unlink()

    def target_of(self, url: str) -> HttpTarget:
        """The location that this process, or another one of this machine, has found.

        Raises:
            RequestFailure: The hub does not say it.
        """
        with self._asking.setdefault(url, Lock()):  # the threads of this process ask the hub once
            location = self._known.get(url) or self._read(url)
            if not location:
                location = self._asked(url)
                with suppress(OSError):  # others ask for themselves
                    self._cache.write(self._file(url), location.encode())
            self._known[url] = location
        return self._target(location)

    def _asked(self, url: str) -> str:
        """What the hub answers for the commit that a revision is pinned to."""
        location, commit = self._head(self._resolved(url))
        pinned = pin_commit(self._endpoint, self._revision(url), commit) if commit else ""
        if pinned != commit:  # of two threads that asked, one was told another commit
            raise RequestFailure("the branch has moved")
        return location

    def _head(self, url: str) -> tuple[str, str]:
        """Where the hub redirects to, its own redirects apart, and the commit that it names."""
        commit = ""
        for _ in range(MAX_REDIRECTS):
            response = self._client.request("HEAD", self._target(url), follows=False)
            if response.status >= _REFUSED:
                raise refusal(response)
            response.drain_conn()
            said = response.headers.get("X-Repo-Commit")
            commit = said if is_commit(said) else commit
            following = urljoin(url, response.get_redirect_location() or url)
            if following == url or not self._is_hub(following):
                return following, commit
            url = following
        raise RequestFailure(f"the hub redirects more than {MAX_REDIRECTS} times", "final")

    def _target(self, location: str) -> HttpTarget:
        token = "" if self._is_anonymous or not self._is_hub(location) else hub_token()
        return HttpTarget(location, {"Authorization": f"Bearer {token}"} if token else {})

    def _is_hub(self, location: str) -> bool:
        return location.startswith(f"{self._endpoint}/")

    def _resolved(self, url: str) -> str:
        match = _matched(url)
        revision = commit_of(self._endpoint, self._revision(url))
        revision = quote(revision or unquote(match["revision"] or "main"), safe="")
        repo = f"{match['kind'] or ''}{quote(match['repo'])}"
        return f"{self._endpoint}/{repo}/resolve/{revision}/{quote(match['path'])}"

    def _revision(self, url: str) -> str:
        """The repository and revision that a URL names, which are pinned together."""
        match = _matched(url)
        return f"{match['kind']}{match['repo']}@{match['revision']}"

    def _read(self, url: str) -> str:
        file = self._cache.open(self._file(url))
        if file is None:
            return ""
        with fdopen(file, "rb") as opened:
            return opened.read().decode()

    def _file(self, url: str) -> Path:
        commit = commit_of(self._endpoint, self._revision(url))
        name = sha256(f"{self._endpoint} {url} {commit}".encode()).hexdigest()
        return self._cache.root / "locations" / name


def _matched(url: str) -> re.Match[str]:
    match = _HUB_PATH.fullmatch(url)
    if match is None:
        remedy = "write hf://datasets/OWNER/NAME@REVISION/PATH"
        raise RequestFailure("the URL cannot be read", "final", remedy)
    return match


def hub_token() -> str:
    """The first token that there is, looked for again each time; the empty text if there is none.

    Users renew theirs during a run.
    """
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = os.environ.get("HF_HOME") or f"{cache}/huggingface"
    file = os.environ.get("HF_TOKEN_PATH") or f"{home}/token"
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        if token := os.environ.get(name, "").strip():
            return token
    with suppress(OSError, RuntimeError, UnicodeDecodeError):  # there is none that can be read
        return Path(file).expanduser().read_text().strip()
    return ""
