"""Shards of the Hugging Face hub: one request for a shard's signed location, then ranges from it.

The hub allows few requests, and its storage many. So a location is kept until it is refused, for
all processes of this machine in a file that only this user can read.
"""

import json
import logging
import os
import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from hashlib import sha256
from os import fdopen
from pathlib import Path
from threading import Lock
from typing import Any, Final
from urllib.parse import quote, unquote, urlsplit

from lightning_shards.errors import ConfigError
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.remote.backend import (
    RangeAnswer,
    RequestBackend,
    RequestFailure,
    require_store_options,
)
from lightning_shards.shards.remote.http import (
    RANGE_BEYOND,
    answered,
    range_headers,
    read_reply,
    target_of,
)
from lightning_shards.shards.remote.http_client import HttpClient, HttpReply, HttpTarget, drain
from lightning_shards.shards.remote.retries import RetryPolicy
from lightning_shards.shards.scheme_table import commit_of, is_commit, pin_commit

_log = logging.getLogger(__name__)

_ENDPOINT: Final = "https://huggingface.co"
_GIVEN: Final = frozenset({200, 206, RANGE_BEYOND})
_PATH = re.compile(
    r"hf://(?P<kind>datasets/|spaces/)?(?P<repo>(?!datasets/|spaces/)[^/@]+/[^/@]+)(?:@(?P<revision>[^/]+))?/(?P<path>.+)"
)


@dataclass(frozen=True, slots=True)
class HubLocation:
    """Where a shard's bytes are for some time.

    Attributes:
        url: A signed URL: a secret while it is valid.
        commit: The commit that its revision stands for; empty if the hub did not say.
    """

    url: str
    commit: str


class HubBackend(RequestBackend):
    """Reads `hf://datasets/OWNER/NAME[@REVISION]/PATH`, and models and spaces alike.

    The first answer of the hub pins a revision to its commit, see `hub_commits`; what other
    processes have found before is taken from their files.

    Args:
        options: `endpoint`, of a mirror; `anonymous`, to send no token.
        policy: Its time limits.
        connections: Idle connections that are kept for each host.
        cache_dir: In which folder locations are kept.
    """

    def __init__(
        self,
        options: Mapping[str, Any],
        policy: RetryPolicy,
        connections: int,
        cache_dir: str | None = None,
    ) -> None:
        require_store_options("hf", options)
        self._endpoint = str(options.get("endpoint", _ENDPOINT)).rstrip("/")
        self._is_anonymous = bool(options.get("anonymous", False))
        self._client = HttpClient(policy, connections)
        self._cache = CacheFolder(cache_dir)
        self._locations: dict[str, HubLocation] = {}
        self._lock = Lock()
        self._resolving: dict[str, Lock] = {}
        self._refused: dict[str, str] = {}

    @contextmanager
    def get(
        self, url: str, begin: int, end: int, version: str | None
    ) -> Generator[RangeAnswer, None, None]:
        """Ask the shard's location for a range; the hub only where none is known."""
        location, reply = self._located(url, range_headers(begin, end, version))
        if reply is not None and reply.response.status != RANGE_BEYOND:
            with self._explained(None), read_reply(reply, begin, end) as answer:
                yield answer
            return
        if reply is not None:
            drain(reply.response)
        target = HttpTarget(location.url, {}) if location else self._hub_target(url)
        with (
            self._explained(location),
            answered(self._client, target, begin, end, version) as answer,
        ):
            yield answer

    def put(self, url: str, data: bytes) -> None:
        """Refuse.

        Raises:
            ConfigError: Always.
        """
        raise ConfigError("the hub is written by commits, not by file; upload with its own tools")

    def refresh(self, url: str, used: object) -> None:
        """Use this location no more; the token is looked up for each request to the hub."""
        if isinstance(used, HubLocation):
            with self._lock:
                self._refused[url] = used.url
                if self._locations.get(url) == used:
                    del self._locations[url]

    def close(self) -> None:
        """Close all connections that are not in use."""
        self._client.close()

    def _located(
        self, url: str, headers: Mapping[str, str]
    ) -> tuple[HubLocation | None, HttpReply | None]:
        """The location if it is known, else also the reply to the request that found it."""
        with self._lock:
            resolving = self._resolving.setdefault(url, Lock())
        with resolving:  # the threads of this process ask the hub once
            location = self._known(url)
            if location is not None:
                return location, None
            target, reply, commit = self._asked(url, headers)
            if _host(reply.url) == _host(target.url) or reply.response.status not in _GIVEN:
                return None, reply
            location = HubLocation(reply.url, commit)
            self._keep(url, location)
            return location, reply

    def _asked(self, url: str, headers: Mapping[str, str]) -> tuple[HttpTarget, HttpReply, str]:
        """What the hub answers for the commit that its revision is pinned to, and that commit.

        A branch that moves may be told by its new commit, while another thread has pinned the one
        before: then the hub is asked once more.
        """
        revision = _revision_of(url)
        target = self._hub_target(url)
        reply = self._client.request("GET", target, headers)
        commit = _commit_of(reply)
        if not commit:  # it does not say it, and answers for what it was asked for
            return target, reply, commit_of(self._endpoint, revision)
        pinned = pin_commit(self._endpoint, revision, commit)
        if pinned != commit:
            drain(reply.response)
            target = self._hub_target(url)
            reply = self._client.request("GET", target, headers)
        return target, reply, pinned

    def _known(self, url: str) -> HubLocation | None:
        """The location that this process, or another one of this machine, has found."""
        location = self._locations.get(url) or self._read(url)
        if location is None:
            return None
        with self._lock:
            revision = _revision_of(url)
            pinned = commit_of(self._endpoint, revision)
            if location.commit:  # the hub may not have said it
                pinned = pin_commit(self._endpoint, revision, location.commit)
            if location.url == self._refused.get(url) or location.commit != pinned:
                return None
            self._locations[url] = location
        return location

    def _read(self, url: str) -> HubLocation | None:
        file = self._cache.open(self._path(url))
        if file is None:
            return None
        with fdopen(file, "rb") as opened:
            return _location_of(opened.read())

    def _keep(self, url: str, location: HubLocation) -> None:
        with self._lock:
            self._locations[url] = location
        try:
            self._cache.write(self._path(url), json.dumps(asdict(location)).encode())
        except OSError as error:  # others ask for themselves
            _log.debug("a location of the hub is not kept in a file: %s", error.strerror)

    def _path(self, url: str) -> Path:
        name = sha256(f"{self._endpoint} {url}".encode()).hexdigest()
        return self._cache.root / "locations" / f"{name}.json"

    def _hub_target(self, url: str) -> HttpTarget:
        match = _PATH.fullmatch(url)
        if match is None:
            raise RequestFailure(
                "the URL cannot be read",
                "final",
                remedy="write hf://datasets/OWNER/NAME@REVISION/PATH",
            )
        pinned = commit_of(self._endpoint, _revision_of(url))
        revision = pinned or unquote(match["revision"] or "main")
        target = target_of(
            f"{self._endpoint}/{match['kind'] or ''}{quote(match['repo'])}/resolve/"
            f"{quote(revision, safe='')}/{quote(match['path'])}"
        )
        token = None if self._is_anonymous else hub_token()
        return HttpTarget(target.url, {"Authorization": f"Bearer {token}"} if token else {})

    @contextmanager
    def _explained(self, kept: HubLocation | None) -> Generator[None, None, None]:
        """Say where the token was looked for; a location that was kept may only have expired."""
        try:
            yield
        except RequestFailure as failure:
            failure.used = kept
            if kept is not None and failure.kind in ("absent", "final"):
                failure.kind = "denied"
            if failure.kind == "denied":
                failure.remedy = (
                    "no token was sent, as storage_options say"
                    if self._is_anonymous
                    else "check that the repository is there, and your token, which was looked "
                    f"for in {PLACES}"
                )
            raise


def _revision_of(url: str) -> str:
    """The repository and revision that a URL names, which are pinned together."""
    match = _PATH.fullmatch(url)
    return "" if match is None else f"{match['kind']}{match['repo']}@{match['revision']}"


def _commit_of(reply: HttpReply) -> str:
    """The commit that the hub says it answers for; the empty text if it does not."""
    for headers in (*reply.redirects, reply.response.headers):
        commit = headers.get("X-Repo-Commit", "")
        if is_commit(commit):
            return commit
    return ""


def _location_of(data: bytes) -> HubLocation | None:
    """The location in a file; None if the file holds none."""
    with suppress(ValueError, TypeError, KeyError):
        facts = json.loads(data)
        url, commit = str(facts["url"]), str(facts["commit"])
        if url.startswith(("http://", "https://")):
            return HubLocation(url, commit)
    return None


def _host(url: str) -> str:
    return urlsplit(url).netloc


_VARIABLES: Final = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
_SENDABLE = re.compile(r"[\x21-\x7e]+")

PLACES: Final = (
    "HF_TOKEN, HUGGING_FACE_HUB_TOKEN, the file that HF_TOKEN_PATH names, $HF_HOME/token, "
    "~/.cache/huggingface/token"
)
"""Where it is looked for, in this order, for messages; of the files only the first is read."""


def hub_token() -> str | None:
    """The first token that there is, looked for anew, since users renew theirs during a run.

    Raises:
        ConfigError: It holds what no header can; the message does not show it.
    """
    for name in _VARIABLES:
        if token := os.environ.get(name, "").strip():
            return _sendable(token, name)
    file = _file()
    with suppress(OSError, RuntimeError, UnicodeDecodeError):  # there is none that can be read
        if token := Path(file).expanduser().read_text().strip():
            return _sendable(token, file)
    return None


def _file() -> str:
    """The file in which `hf auth login` keeps the token."""
    if path := os.environ.get("HF_TOKEN_PATH"):
        return path
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = os.environ.get("HF_HOME") or f"{cache}/huggingface"
    return f"{home}/token"


def _sendable(token: str, place: str) -> str:
    if not _SENDABLE.fullmatch(token):
        raise ConfigError(
            f"the token in {place} holds a space, a control character or one that is not ASCII, "
            "and so cannot be one; copy it anew from https://huggingface.co/settings/tokens"
        )
    return token
