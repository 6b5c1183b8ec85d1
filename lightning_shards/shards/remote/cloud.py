"""Shards of the object stores that need signatures: `s3://`, `gs://` and `az://`, by obstore.

obstore retries nothing here, so that retries are counted and bounded in one place. It takes one
precondition in `get`, and none in its call for several ranges, which is not used.

It follows up to ten redirects, to any host, which cannot be switched off. That host gets no
signature, but the session token of s3, and in `Referer` the SAS token of az: an endpoint is
trusted with where it redirects to. A 200 to a range is refused, because stores of these kinds know
ranges; Google's answers so where it decompresses what it sends.

A read timeout begins anew with each byte, also in the page of an error, which obstore reads by
itself. So a request ends after the time that a mebibyte may take: a body that has brought one by
then goes on from there.
"""

import os
import re
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from http import HTTPStatus
from importlib import import_module
from importlib.util import find_spec
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

from lightning_shards.errors import ConfigError
from lightning_shards.shards.remote.backend import (
    RangeAnswer,
    RequestBackend,
    RequestFailure,
    closed_failure,
    failure_of_status,
    is_exact,
    require_store_options,
    version_of,
)
from lightning_shards.shards.remote.retries import PROGRESS, RetryPolicy

if TYPE_CHECKING:
    from obstore import GetOptions


_THREADS: Final = "2"

_NAMES: Final[Mapping[str, Mapping[str, str]]] = {
    "s3": {
        "endpoint": "endpoint",
        "region": "region",
        "anonymous": "skip_signature",
        "virtual_host": "virtual_hosted_style_request",
        "requester_pays": "request_payer",
    },
    "gs": {"endpoint": "base_url", "anonymous": "skip_signature"},
    "az": {"endpoint": "endpoint", "account": "account_name", "anonymous": "skip_signature"},
}
"""Our names of options, which are alike for all stores, and those of obstore."""

_STORES: Final[Mapping[str, str]] = {"s3": "S3Store", "gs": "GCSStore", "az": "AzureStore"}
"""Their classes in obstore.store, which is imported with the first request."""

_PART: Final = r"(?!\.{1,2}(/|$))[^/\x00-\x1f\x7f]+"
_KEY = re.compile(f"{_PART}(/{_PART})*")

_USED_BY: Final[list[int]] = []
"""The process that used obstore first: its threads are not there in one that is forked of it."""


class CloudBackend(RequestBackend):
    """Reads one scheme's buckets.

    Args:
        scheme: `s3`, `gs` or `az`.
        options: `endpoint`, `anonymous`; of s3 `region`, `profile` (boto3 is asked for its
            credentials), `virtual_host`, `requester_pays`; of az `account`. What is not given is
            taken from the variables that the provider's own tools read.
        policy: Its time limits.

    Raises:
        ConfigError: obstore is not installed, or an option cannot work.
    """

    def __init__(self, scheme: str, options: Mapping[str, Any], policy: RetryPolicy) -> None:
        require_store_options(scheme, options)
        if find_spec("obstore") is None:
            raise ConfigError(
                f"{scheme}:// shards need obstore, which is not installed; run pip install "
                "'lightning-shards[remote]'"
            )
        self._scheme = scheme
        self._options = dict(options)
        self._policy = policy
        self._stores: dict[str, Any] = {}
        self._lock = Lock()
        self._is_closed = self._has_answered = False

    @contextmanager
    def get(
        self, url: str, begin: int, end: int, version: str | None
    ) -> Generator[RangeAnswer, None, None]:
        """Ask for a range; one that begins behind the end is answered by a HEAD."""
        bucket, key = self._split(url)
        options: GetOptions = {"range": (begin, end)}
        if version is not None and is_exact(version):
            options["if_match"] = version
        result: Any = None
        meta: Any = None
        try:
            result = self._asked(bucket, lambda store: store.get(key, options=options))
        except RequestFailure as failure:
            if failure.kind != "beyond":
                raise
            meta = self._asked(bucket, lambda store: store.head(key))
        if meta is not None:
            yield RangeAnswer(begin, begin, meta["size"], _version(meta), ())
            return
        first, stop = result.range
        meta = result.meta
        yield RangeAnswer(first, stop, meta["size"], _version(meta), self._chunks(result))

    def put(self, url: str, data: bytes) -> None:
        """Write by one PUT."""
        bucket, key = self._split(url)
        size = len(data)
        self._asked(bucket, lambda store: store.put(key, data, use_multipart=False), size)

    def refresh(self, url: str, used: object) -> None:
        """Forget the bucket's store, and with it the credentials that it has found."""
        bucket = self._split(url)[0]
        with self._lock:
            if self._stores.get(bucket) is used:
                self._stores.pop(bucket, None)

    def close(self) -> None:
        """Forget all stores; bodies that are read end with their next bytes."""
        self._is_closed = True
        with self._lock:
            self._stores.clear()

    def _split(self, url: str) -> tuple[str, str]:
        bucket, _, key = url.partition("://")[2].partition("/")
        if not bucket or not key or "@" in bucket:
            raise RequestFailure(
                "the URL cannot be read",
                "final",
                remedy=f"write {self._scheme}://BUCKET/KEY, without keys or passwords",
            )
        if not _KEY.fullmatch(key):  # obstore refuses some, and reads others of another name
            raise RequestFailure(
                "the key holds an empty part, a part . or .., or a control character",
                "final",
                remedy="copy the object to another key",
            )
        return bucket, key

    def _store(self, bucket: str, largest: int = 0) -> Any:
        """A store whose requests may take as long as so many bytes, or a mebibyte."""
        _require_own_process(self._scheme)
        if largest > PROGRESS:  # of an index, which is written once
            return self._make(bucket, largest)
        with self._lock:
            if bucket not in self._stores:
                self._stores[bucket] = self._make(bucket, PROGRESS)
            return self._stores[bucket]

    def _make(self, bucket: str, largest: int) -> Any:
        os.environ.setdefault("TOKIO_WORKER_THREADS", _THREADS)  # read at the first request
        from obstore import store

        settings: dict[str, Any] = {
            name: self._options[own]
            for own, name in _NAMES[self._scheme].items()
            if own in self._options
        }
        policy = self._policy
        settings["client_options"] = {
            "connect_timeout": timedelta(seconds=policy.connect_s),
            "read_timeout": timedelta(seconds=policy.stall_s),
            "timeout": timedelta(seconds=policy.longest_s(largest)),
            "allow_http": allows_http(self._scheme, self._options),
        }
        settings["retry_config"] = {"max_retries": 0, "retry_timeout": timedelta(0)}
        if self._scheme == "s3" and "profile" in self._options:
            settings["credential_provider"] = _profile(str(self._options["profile"]))
        return getattr(store, _STORES[self._scheme])(bucket, **settings)

    def _asked(self, bucket: str, act: Callable[[Any], Any], largest: int = 0) -> Any:
        """What the bucket's store gives; a failure knows which store it was."""
        used: list[Any] = []

        def ask() -> Any:
            used.append(self._store(bucket, largest))
            return act(used[0])

        try:
            return self._call(ask)
        except RequestFailure as failure:
            failure.used = used[0] if used else None
            raise

    def _call(self, act: Callable[[], Any]) -> Any:
        """What obstore gives; its errors hold URLs and what stores say, so they go no further."""
        if self._is_closed:
            raise closed_failure()
        failure: RequestFailure | None = None
        try:
            given = act()
        except (ConfigError, RequestFailure):
            raise
        except BaseException as error:
            if not isinstance(error, Exception) and not is_panic(error):
                raise
            failure = failure_of_error(error, self._scheme, has_answered=self._has_answered)
        else:
            self._has_answered = True
            return given
        raise failure

    def _chunks(self, result: Any) -> Iterator[memoryview]:
        stream = iter(result.stream(min_chunk_size=1))  # a piece as soon as it arrives
        while True:
            chunk = self._call(lambda: next(stream, None))
            if chunk is None:
                return
            yield memoryview(chunk)


def _version(meta: Any) -> str:
    return version_of(meta["e_tag"], meta["last_modified"].isoformat(), meta["size"])


def _require_own_process(scheme: str) -> None:
    """Refuse to use obstore after a fork: its threads are gone, and it would wait for ever."""
    if not _USED_BY:
        _USED_BY.append(os.getpid())
    if _USED_BY[0] != os.getpid():
        raise ConfigError(
            f"{scheme}:// was used in process {_USED_BY[0]} before this one, {os.getpid()}, was "
            "forked of it, and its client does not survive a fork; take "
            "multiprocessing_context='forkserver' or 'spawn'"
        )


def _profile(profile: str) -> Any:
    """Credentials of a profile of ~/.aws, by boto3, which looks them up anew when they expire.

    Raises:
        ConfigError: boto3 is not installed, or has no such profile.
    """
    if find_spec("boto3") is None:
        raise ConfigError(
            f"storage_options of s3: profile={profile!r} needs boto3, which is not installed; run "
            "pip install boto3, or leave it out and set AWS_ACCESS_KEY_ID"
        )
    from obstore.auth.boto3 import Boto3CredentialProvider

    try:
        session = import_module("boto3").Session(profile_name=profile)
        return Boto3CredentialProvider(session)
    except Exception as error:  # noqa: BLE001 botocore's errors have no root of their own
        name = type(error).__name__
    raise ConfigError(
        f"storage_options of s3: boto3 raised {name} for profile={profile!r}; check ~/.aws"
    )


_VARIABLES: Final[Mapping[str, tuple[str, ...]]] = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "gs": ("GOOGLE_BASE_URL",),
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
}
"""Those that obstore reads, by scheme."""

_URL = re.compile(r"https?://[^\s/?#]+[^\s]*", re.IGNORECASE)


def allows_http(scheme: str, options: Mapping[str, Any]) -> bool:
    """Whether requests may go without TLS, since an endpoint says so.

    Args:
        scheme: `s3`, `gs` or `az`.
        options: Of the store; an endpoint of theirs goes before those of variables.

    Raises:
        ConfigError: An endpoint is no http(s) URL.
    """
    named = {name: os.environ[name] for name in _VARIABLES[scheme] if name in os.environ}
    if "endpoint" in options:
        named = {f"storage_options of {scheme}: endpoint": str(options["endpoint"])}
    for name, endpoint in named.items():
        if not _URL.fullmatch(endpoint):
            shown = "" if "@" in endpoint else f", got {endpoint!r}"
            raise ConfigError(
                f"{name} must be a whole URL{shown}; write https://HOST or http://HOST:PORT, or "
                "leave it out"
            )
    return any(endpoint.lower().startswith("http://") for endpoint in named.values())


_CREDENTIALS: Final[Mapping[str, str]] = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a web identity or container role, then the "
    "metadata service of the instance; a profile of ~/.aws is asked if storage_options name one",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS and GOOGLE_SERVICE_ACCOUNT, the file of "
    "`gcloud auth application-default login`, then the metadata service of the instance",
    "az": "AZURE_STORAGE_ACCOUNT_KEY, AZURE_STORAGE_SAS_TOKEN, AZURE_CLIENT_ID and those beside "
    "them, then the managed identity of the instance",
}
_PANIC: Final = "PanicException"
_STATUS = re.compile(r"status code: (\d{3})")
_AZURITE_BEYOND: Final = ("StartTooLarge", "ParseContentRange")
"""What Azurite's answer to a range behind the end is called, where other stores say 416."""

_METADATA: Final = (
    "//169.254.169.254",
    "//metadata.google.internal",
    "/latest/api/token",
    "/latest/meta-data/iam",
)
"""Services that are asked for credentials where nothing else says who the user is."""


def is_panic(error: BaseException) -> bool:
    """Whether obstore's own code stumbled, mostly over a URL; its class cannot be imported."""
    return type(error).__name__ == _PANIC


def failure_of_error(
    error: BaseException, scheme: str, *, has_answered: bool = False
) -> RequestFailure:
    """Why obstore raised an error.

    Args:
        error: What it raised.
        scheme: Of the URL that was asked for.
        has_answered: Whether the store answered before, so that there are credentials.
    """
    from obstore import exceptions

    statuses = {
        FileNotFoundError: HTTPStatus.NOT_FOUND,
        exceptions.PreconditionError: HTTPStatus.PRECONDITION_FAILED,
        exceptions.UnauthenticatedError: HTTPStatus.UNAUTHORIZED,
        exceptions.PermissionDeniedError: HTTPStatus.FORBIDDEN,
    }
    asked, text = f"credentials were looked for in {_CREDENTIALS[scheme]}", str(error)
    known = next((statuses[kind] for kind in statuses if isinstance(error, kind)), None)
    if known is None and any(sign in text for sign in _AZURITE_BEYOND):
        known = HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE
    told = _STATUS.search(text)
    if known is not None or told is not None:
        failure = failure_of_status(known or int(told[1] if told else 0))
        failure.remedy = asked if failure.kind == "denied" else ""
        is_busy = failure.kind in ("again", "busy")
    else:
        is_busy = has_answered
        is_generic = isinstance(error, exceptions.GenericError)
        broke = "the connection broke or could not be made, or the server stalled"
        failure = RequestFailure(
            broke if is_generic else f"obstore raised {type(error).__name__}",
            "again" if is_generic else "final",
            remedy="check the network and the server, endpoint and region of storage_options or of "
            f"the provider's variables; {asked}",
        )
    if not is_busy and any(address in text for address in _METADATA):
        return RequestFailure("no credentials were found", "denied", remedy=asked)
    return failure
