"""Single HTTP requests by urllib3: pools of connections, and redirects.

urllib3 follows no redirect and retries nothing here; both are decided by us.
"""

import logging
import re
import ssl
import threading
from base64 import b64encode
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from string import punctuation
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote, urljoin, urlsplit

import urllib3
from urllib3.exceptions import (
    ConnectTimeoutError,
    HTTPError,
    NameResolutionError,
    NewConnectionError,
    ProxyError,
    ReadTimeoutError,
    SSLError,
)
from urllib3.response import BaseHTTPResponse

from lightning_shards.shards.remote.backend import RequestFailure, closed_failure
from lightning_shards.shards.remote.proxies import proxy_of
from lightning_shards.shards.remote.retries import RetryPolicy
from lightning_shards.shards.urls import split_user

MAX_REDIRECTS: Final = 5

_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_KEEP_METHOD: Final = frozenset({307, 308})
_NO_RETRIES: Final = urllib3.Retry(total=False, redirect=0)
_NUM_HOSTS: Final = 64  # whose connections are kept
_DRAINED: Final = 1 << 16  # bytes of a page that are read to keep its connection

_REASONS: Final[Sequence[tuple[type[Exception], str]]] = (
    (NameResolutionError, "the host has no address"),
    (ReadTimeoutError, "the server stalled"),
    (TimeoutError, "the server stalled"),
    (ProxyError, "the proxy cannot be reached, or refuses"),
    (NewConnectionError, "no connection can be made"),
    (ConnectTimeoutError, "no connection was made in time"),  # also the root of those above
)


_NO_TLS: Final = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST"})
"""What OpenSSL calls an answer in plain text, by its version."""

_AUTHORITY_END = re.compile("[/?#]")
_Origin = tuple[str, str | None, int | None]
"""Scheme, host and port."""


for _name in ("connection", "connectionpool"):
    # what urllib3 logs of less than an error may hold the queries of signed URLs
    logging.getLogger(f"urllib3.{_name}").setLevel(logging.ERROR)


class HttpTarget(NamedTuple):
    """Where a request goes first, and what only that host may see.

    Attributes:
        url: The URL without user and password.
        credentials: Headers.
    """

    url: str
    credentials: Mapping[str, str]


class HttpReply(NamedTuple):
    """A response whose body is not read yet.

    Attributes:
        response: Of urllib3; the caller releases or closes it.
        url: Who gave it, after all redirects.
        redirects: The headers of the redirects that led there.
        through: What messages say of a proxy that the response came through.
    """

    response: BaseHTTPResponse
    url: str
    redirects: list[Mapping[str, str]]
    through: str = ""


class HttpClient:
    """Connections to any number of hosts.

    Args:
        policy: Its time limits.
        connections: Idle connections that are kept for each host.
    """

    def __init__(self, policy: RetryPolicy, connections: int) -> None:
        self._is_closed = False
        self._timeout = urllib3.Timeout(connect=policy.connect_s, read=policy.stall_s)
        self._connections = connections
        self._managers: dict[str, urllib3.PoolManager] = {}
        self._pools: dict[_Origin, urllib3.HTTPConnectionPool] = {}
        self._lock = threading.Lock()

    def request(
        self,
        method: str,
        target: HttpTarget,
        headers: Mapping[str, str],
        body: bytes | None = None,
    ) -> HttpReply:
        """The response to a request, behind at most five redirects.

        Credentials go to the first host alone: the same scheme, name and port.

        Raises:
            RequestFailure: There is no response, too many redirects, or one to no http(s) URL.
        """
        url, credentials = target
        redirects: list[Mapping[str, str]] = []
        while True:
            response, through = self._send(method, url, {**headers, **credentials}, body)
            location = response.headers.get("Location")
            if response.status not in _REDIRECTS or location is None:
                return HttpReply(response, url, redirects, through)
            redirects.append(response.headers)
            drain(response)
            if method != "GET" and response.status not in _KEEP_METHOD:
                raise RequestFailure("the server redirects what is written", "final")
            following = _redirected(url, location)
            if len(redirects) > MAX_REDIRECTS:
                raise RequestFailure(
                    f"the server redirects more than {MAX_REDIRECTS} times", "final"
                )
            if _origin(following) != _origin(url):
                credentials = {}
            url = following

    def close(self) -> None:
        """Close all idle connections for good; one in use ends by its read timeout."""
        with self._lock:
            self._is_closed = True
            managers = list(self._managers.values())
            self._managers, self._pools = {}, {}
        for manager in managers:
            manager.clear()

    def _send(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None
    ) -> tuple[BaseHTTPResponse, str]:
        if self._is_closed:
            raise closed_failure()
        failure, through = None, ""
        try:
            pool = self._pool(url)
            through = f", through the proxy {pool.proxy}" if pool.proxy else ""
            response = pool.urlopen(
                method,
                url if pool.proxy and not url.startswith("https") else _path_of(url),
                body=body,
                # http.client adds "Accept-Encoding: identity"
                headers={"User-Agent": "lightning-shards", **headers},
                retries=_NO_RETRIES,
                redirect=False,
                assert_same_host=False,
                preload_content=False,
                decode_content=False,
                timeout=self._timeout,
            )
        except (HTTPError, OSError, ValueError) as error:
            failure = failure_of_http_error(error, through)
        else:
            return response, through
        raise failure

    def _pool(self, url: str) -> urllib3.HTTPConnectionPool:
        origin = _origin(url)
        with self._lock:
            pool = self._pools.get(origin)
            if pool is not None:
                return pool
            if len(self._pools) == _NUM_HOSTS:  # redirects may lead to ever new ones
                self._pools.clear()
            pool = self._manager(url).connection_from_url(_without_path(url))
            self._pools[origin] = pool
            return pool

    def _manager(self, url: str) -> urllib3.PoolManager:
        proxy = proxy_of(url)
        _require_http(proxy)
        if proxy not in self._managers:
            settings: dict[str, Any] = {"num_pools": _NUM_HOSTS, "maxsize": self._connections}
            if not proxy:
                self._managers[proxy] = urllib3.PoolManager(**settings)
            else:
                plain, user = split_user(proxy)
                headers = {"Proxy-Authorization": basic(user)} if user else None
                self._managers[proxy] = urllib3.ProxyManager(
                    plain, proxy_headers=headers, **settings
                )
        return self._managers[proxy]


def _require_http(proxy: str) -> None:
    kind = proxy.partition("://")[0].lower()
    if proxy and kind not in ("http", "https"):
        raise RequestFailure(
            f"the proxy is one of {kind}://, which is not known here",
            "final",
            remedy="set http_proxy and https_proxy to one of http://, or name the host in no_proxy",
        )


def failure_of_http_error(error: Exception, through: str = "") -> RequestFailure:
    """Why there is no response, in words of ours: those of urllib3 hold the URL."""
    if isinstance(error, SSLError) and isinstance(error.args[0], ssl.SSLCertVerificationError):
        return RequestFailure(
            f"the server's certificate is not trusted{through}",
            "final",
            remedy="check the host, and the certificates of this machine (SSL_CERT_FILE)",
        )
    if isinstance(error, SSLError) and getattr(error.args[0], "reason", None) in _NO_TLS:
        return RequestFailure(
            f"the server does not speak TLS at this port{through}",
            "final",
            remedy="write http:// in place of https://, or name the port that does",
        )
    if isinstance(error, ValueError):
        return RequestFailure("the URL cannot be read", "final", remedy="check the URL")
    reasons = (reason for kind, reason in _REASONS if isinstance(error, kind))
    return RequestFailure(next(reasons, "the connection broke") + through)


def basic(user: str) -> str:
    """The header value for a user and a password that were part of a URL."""
    return f"Basic {b64encode(unquote(user).encode()).decode()}"


def drain(response: BaseHTTPResponse) -> None:
    """Keep the connection of an answer that is not wanted, if its page is short."""
    with suppress(HTTPError, OSError, ValueError):  # of a length below 0
        if len(response.read(_DRAINED)) < _DRAINED:
            response.release_conn()
            return
    response.close()


def _redirected(url: str, location: str) -> str:
    """Where a redirect leads; who it names as user is not believed."""
    with suppress(ValueError):
        # http.client has read each byte of the header as latin-1; most servers mean UTF-8
        escaped = quote(location, encoding="latin-1", safe=punctuation)
        following = split_user(urljoin(url, escaped))[0]
        scheme, host, _ = _origin(following)
        if scheme in ("http", "https") and host:
            return following
    raise RequestFailure("the server redirects to what is no http(s) URL", "final")


def _origin(url: str) -> _Origin:
    scheme, _, rest = url.partition("://")
    return _origin_of(f"{scheme}://{_AUTHORITY_END.split(rest, 1)[0]}")


@lru_cache  # few hosts have the shards of a run
def _origin_of(authority: str) -> _Origin:
    parts = urlsplit(authority)
    port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    return parts.scheme, parts.hostname, port


def _without_path(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}/"


def _path_of(url: str) -> str:
    """Path and query as urllib3 takes them; it escapes what must be escaped."""
    parts = urlsplit(url)
    query = f"?{parts.query}" if parts.query else ""
    return f"{parts.path or '/'}{query}"
