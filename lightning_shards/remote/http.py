"""Shards over http and https, of AIStore clusters and of the Hugging Face hub, by urllib3.

urllib3 has the pools of connections, TLS, proxies and redirects; behind a redirect to another host
it sends no `Authorization`. It repeats nothing here: all requests for a range have one limit of
time, and its pauses are drawn from the generator of `random`, which belongs to users' transforms.
"""

import logging
import os
import re
import socket
import ssl
import urllib.request
from base64 import b64encode
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import sha256
from os import fdopen
from pathlib import Path
from threading import Lock
from typing import Any, Final
from urllib.parse import quote, unquote, urljoin, urlsplit

import urllib3
from urllib3 import exceptions
from urllib3.exceptions import HTTPError
from urllib3.response import BaseHTTPResponse

from lightning_shards.errors import ConfigError
from lightning_shards.remote.backend import (
    UNKNOWN_SIZE,
    FailureKind,
    RangeAnswer,
    RangeClient,
    RequestFailure,
    TransportSettings,
    failure_of_status,
    version_of,
)
from lightning_shards.shards.files import CacheFolder
from lightning_shards.shards.scheme_table import SCHEMES
from lightning_shards.shards.urls import split_user

MAX_REDIRECTS: Final = 5

_ONE_REQUEST: Final = urllib3.Retry(
    None, connect=0, read=0, other=0, redirect=MAX_REDIRECTS, respect_retry_after_header=False
)
_CHUNK: Final = 1 << 20
"""Bytes that are taken from a socket at once: all that is there, as a rule. 128 KiB cost a quarter
more CPU where 24 threads read, since each turn hands the interpreter over twice."""

_OK, _PARTIAL, _BEYOND = 200, 206, 416
_CONTENT_RANGE = re.compile("bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18})")
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
_BROKE: Final = "the connection broke"

for _name in ("connection", "connectionpool", "poolmanager", "util.retry"):
    # what urllib3 logs of less than an error may hold the queries of signed URLs
    logging.getLogger(f"urllib3.{_name}").setLevel(logging.ERROR)


_Target = tuple[str, Mapping[str, str]]
"""A URL without user and password, and the headers that only its host may see."""


class HttpClient(RangeClient):
    """Reads what a URL stands for at a server; it keeps connections to any number of hosts.

    Args:
        scheme: Of the URLs.
        settings: Its options may have `ca`, a file of certificates, as REQUESTS_CA_BUNDLE has it,
            and `endpoint`, of a hub or an AIStore.

    Raises:
        ConfigError: An option cannot work.
    """

    def __init__(self, scheme: str, settings: TransportSettings) -> None:
        options = dict(settings.options.get(scheme, {}))
        policy, client = settings.policy, SCHEMES[scheme].client
        self._settings: dict[str, Any] = {
            "maxsize": settings.connections + 1,  # the thread that reads pieces asks, too
            "num_pools": 64,
            "retries": _ONE_REQUEST,
            "timeout": urllib3.Timeout(connect=policy.connect_s, read=policy.stall_s),
            "ca_certs": options.get("ca") or os.environ.get("REQUESTS_CA_BUNDLE"),
        }
        self._managers: dict[str, urllib3.PoolManager] = {}  # by scheme and host
        self._gateway = _gateway(options) if client == "ais" else ""
        self._hub = HubLocations(options, settings.cache_dir) if client == "hub" else None
        self._has_answered = self._gives_ranges = False

    @contextmanager
    def get(self, url: str, begin: int, end: int) -> Generator[RangeAnswer, None, None]:
        """Ask for a range; a refusal of its beginning is answered by the whole object's size."""
        target = self._target_of(url)
        response = self.request("GET", target, {"Range": f"bytes={begin}-{end - 1}"})
        if response.status == _BEYOND:  # which says neither version nor, often, size
            response.drain_conn()
            response = self.request("GET", target)
        try:
            yield self._answer(response, begin)
        finally:
            response.close()  # one that was read to its end has given its connection back before

    def put(self, url: str, data: bytes) -> None:
        """Write by PUT, which few servers allow."""
        if self._hub is not None:
            raise ConfigError("the hub is written by commits, not by file; upload with its tools")
        response = self.request("PUT", self._target_of(url), body=data)
        if response.status not in range(200, 300):
            raise refusal(response)
        response.drain_conn()

    def refresh(self, url: str) -> None:
        """Ask a hub again where the object is."""
        if self._hub is not None:
            self._hub.forget(url)

    def request(
        self,
        method: str,
        target: _Target,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        *,
        follows: bool = True,
    ) -> BaseHTTPResponse:
        """The response to a request, with its body not read yet, behind a few redirects if told so.

        Raises:
            RequestFailure: There is none.
        """
        url, credentials = target
        try:
            return self._manager(url).urlopen(
                method,
                url,
                follows,
                body=body,
                headers={"User-Agent": "lightning-shards", **(headers or {}), **credentials},
                preload_content=False,
                decode_content=False,
            )
        except (HTTPError, OSError, ValueError) as error:
            failure = _failure_of(error, is_known=self._has_answered)
        raise failure

    def _target_of(self, url: str) -> _Target:
        """Where the object is; the query of a signed URL is kept."""
        if self._hub is not None:
            return self._hub.target_of(url, self.request)
        if self._gateway:  # it redirects to the machine that holds the object
            bucket, _, name = url.partition("://")[2].partition("/")
            url = f"{self._gateway}/v1/objects/{quote(bucket)}/{quote(name)}?provider=ais"
        plain, user = split_user(url)
        return plain, {"Authorization": _basic(user)} if user else {}

    def _manager(self, url: str) -> urllib3.PoolManager:
        """The connections to a host, and to those that it redirects to, by its proxy."""
        host = "/".join(url.split("/", 3)[:3])
        manager = self._managers.get(host)
        if manager is None:
            plain, user = split_user(_proxy_of(url))
            headers = {"Proxy-Authorization": _basic(user)} if user else None
            manager = (
                urllib3.ProxyManager(plain, proxy_headers=headers, **self._settings)
                if plain
                else urllib3.PoolManager(**self._settings)
            )
            manager = self._managers.setdefault(host, manager)  # that of the first thread
        return manager

    def _answer(self, response: BaseHTTPResponse, begin: int) -> RangeAnswer:
        if response.status == _PARTIAL:
            match = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", "").strip())
            if match is None:
                raise RequestFailure("the server does not say with which bytes it answers")
            begin, last, size = map(int, match.groups())
            stop = last + 1
            if response.length_remaining not in (None, stop - begin):
                raise RequestFailure("the server answers with an impossible range")
            self._gives_ranges = True
        elif response.status == _OK:
            size = self._size_of_whole(response, begin)
            stop = max(begin, size)
        else:
            raise refusal(response)
        self._has_answered = True
        return RangeAnswer(begin, stop, size, _version(response), _chunks(response))

    def _size_of_whole(self, response: BaseHTTPResponse, begin: int) -> int:
        """The size of an object that is sent whole, where a range from `begin` on was asked for.

        Such an answer, or a page for people, also comes once from a server in trouble that has
        given better ones before.
        """
        if response.headers.get("Content-Type", "").lower().startswith("text/html"):
            what = "the server answers with a page for people and not with a shard"
            kind: FailureKind = "again" if self._has_answered else "final"
            raise RequestFailure(what, kind, "check the URL, and whether the server wants a login")
        size = UNKNOWN_SIZE if response.length_remaining is None else response.length_remaining
        if 0 < begin < size:
            what = "the server answers with all of the object, and no range"
            remedy = "use a server that knows ranges, take reader='stream', or copy the shards here"
            raise RequestFailure(what, "again" if self._gives_ranges else "final", remedy)
        return size


def _version(response: BaseHTTPResponse) -> str:
    headers = response.headers
    # The checksum of an AIStore is no version: it is of the range where its bucket is set so
    etag = headers.get("ETag") or headers.get("Ais-Version")
    return version_of(etag, headers.get("Last-Modified"))


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
        failure = _failure_of(error if isinstance(error, HTTPError) else OSError(), is_known=True)
    if failure is not None:
        raise failure


def _failure_of(error: Exception, *, is_known: bool) -> RequestFailure:
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
    lookup = cause.__cause__ if isinstance(cause, exceptions.NameResolutionError) else None
    if isinstance(lookup, socket.gaierror) and lookup.errno == socket.EAI_NONAME and not is_known:
        return RequestFailure("its host has no address", "absent", "check the URL and the network")
    what = next((what for kind, what in _REASONS.items() if isinstance(cause, kind)), _BROKE)
    if isinstance(cause, (ValueError, exceptions.ResponseError)):
        remedy = "check the URL, and the proxy in http_proxy and no_proxy"
        return RequestFailure(what, "final", remedy)
    return RequestFailure(what)


def _proxy_of(url: str) -> str:
    """The proxy that requests for this URL go through, with its user; the empty text if none."""
    proxies, parts = urllib.request.getproxies(), urlsplit(url)
    proxy = proxies.get(parts.scheme) or proxies.get("all", "")
    if not proxy or urllib.request.proxy_bypass(parts.netloc):
        return ""
    return proxy if "://" in proxy else f"http://{proxy}"


def _basic(user: str) -> str:
    """The header value for a user and a password that were part of a URL."""
    return f"Basic {b64encode(unquote(user).encode()).decode()}"


def _gateway(options: Mapping[str, str]) -> str:
    """The URL of the gateway of an AIStore."""
    gateway = (options.get("endpoint") or os.environ.get("AIS_ENDPOINT", "")).rstrip("/")
    if not gateway.startswith(("http://", "https://")):
        raise ConfigError(
            "ais:// shards need the URL of a gateway: set AIS_ENDPOINT, or storage_options to "
            "{'ais': {'endpoint': 'http://host:51080'}}"
        )
    return gateway


_HUB_PATH = re.compile(
    r"hf://(?P<repo>(datasets/|spaces/)?(?!datasets/|spaces/)[^/@]+/[^/@]+)(@(?P<revision>[^/]+))?/(?P<path>.+)"
)


class HubLocations:
    """Where objects are that `hf://datasets/OWNER/NAME[@REVISION]/PATH` names; models, spaces, too.

    The hub allows few requests, and its storage many. So a signed location is kept until it is
    refused, for all processes of this machine in a file that only this user can read. Its name has
    the commit of the branch, which the first answer of the hub tells each process: what was pushed
    since the last run is not read at its old location.

    Args:
        options: `endpoint`, of a mirror, and `anonymous`, to send no token.
        cache_dir: In which folder locations are kept.
    """

    def __init__(self, options: Mapping[str, Any], cache_dir: str | None) -> None:
        self._is_anonymous = bool(options.get("anonymous"))
        self._endpoint = str(options.get("endpoint", "https://huggingface.co")).rstrip("/")
        self._cache = CacheFolder(cache_dir)
        self._known: dict[str, str] = {}
        self._commits: dict[str, str] = {}  # by branch
        self._asking: dict[str, Lock] = {}

    def forget(self, url: str) -> None:
        """Ask the hub when the object is wanted next."""
        self._known.pop(url, None)
        with suppress(OSError):
            self._file(url).unlink()

    def target_of(self, url: str, request: Callable[..., BaseHTTPResponse]) -> _Target:
        """The location that this process, or another one of this machine, has found.

        Raises:
            RequestFailure: The hub does not say it.
        """
        with self._asking.setdefault(url, Lock()):  # the threads of this process ask the hub once
            location = self._known.get(url) or self._read(url)
            if not location:
                location = self._asked(url, request)
                with suppress(OSError):  # others ask for themselves
                    self._cache.write(self._file(url), location.encode())
            self._known[url] = location
        return self._target(location)

    def _asked(self, url: str, request: Callable[..., BaseHTTPResponse]) -> str:
        """Where the hub redirects to, its own redirects apart."""
        branch, path = self._resolved(url)
        resolved = f"{branch}/{path}"
        for _ in range(MAX_REDIRECTS):
            response = request("HEAD", self._target(resolved), follows=False)
            if response.status >= _REFUSED:
                raise refusal(response)
            response.drain_conn()
            if commit := response.headers.get("X-Repo-Commit"):
                self._commits[branch] = commit
            following = urljoin(resolved, response.get_redirect_location() or resolved)
            if following == resolved or not following.startswith(f"{self._endpoint}/"):
                return following
            resolved = following
        raise RequestFailure(f"the hub redirects more than {MAX_REDIRECTS} times", "final")

    def _target(self, location: str) -> _Target:
        """The location, with the token of the user if it is the hub itself."""
        is_hub = location.startswith(f"{self._endpoint}/")
        token = hub_token() if is_hub and not self._is_anonymous else ""
        return location, {"Authorization": f"Bearer {token}"} if token else {}

    def _resolved(self, url: str) -> tuple[str, str]:
        """The URL of a branch or a commit at the hub, and the path of the object there."""
        match = _HUB_PATH.fullmatch(url)
        if match is None:
            remedy = "write hf://datasets/OWNER/NAME@REVISION/PATH"
            raise RequestFailure("the URL cannot be read", "final", remedy)
        revision = quote(unquote(match["revision"] or "main"), safe="")
        repo, path = quote(match["repo"]), quote(match["path"])
        return f"{self._endpoint}/{repo}/resolve/{revision}", path

    def _read(self, url: str) -> str:
        file = self._cache.open(self._file(url))
        if file is None:
            return ""
        with fdopen(file, "rb") as opened:
            return opened.read().decode()

    def _file(self, url: str) -> Path:
        branch, path = self._resolved(url)
        name = f"{branch}@{self._commits.get(branch, '')}/{path}"
        return self._cache.root / "locations" / sha256(name.encode()).hexdigest()


def hub_token() -> str:
    """The token of the user, looked for again each time; the empty text if there is none.

    Users renew theirs during a run.
    """
    if token := os.environ.get("HF_TOKEN", "").strip():
        return token
    home = os.environ.get("HF_HOME") or "~/.cache/huggingface"
    file = os.environ.get("HF_TOKEN_PATH") or f"{home}/token"
    with suppress(OSError, RuntimeError, UnicodeDecodeError):  # there is none that can be read
        return Path(file).expanduser().read_text().strip()
    return ""
