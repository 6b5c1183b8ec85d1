"""Shards of the object stores that need signatures: `s3://`, `gs://` and `az://`, by obstore.

obstore signs, and repeats twice what failed for a moment. What it gave up is asked for again by the
transport while the time for the range lasts.

It follows up to ten redirects, to any host, which cannot be switched off. That host gets no
signature, but the session token of s3, and in `Referer` the SAS token of az: an endpoint is
trusted with where it redirects to.
"""

import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from importlib import import_module
from importlib.util import find_spec
from threading import Lock
from typing import Any, Final

from lightning_shards.errors import ConfigError
from lightning_shards.remote.backend import (
    FailureKind,
    RangeAnswer,
    RequestFailure,
    Store,
    TransportSettings,
    is_exact,
    require_store_options,
    version_of,
)

_NAMES: Final[Mapping[str, str]] = {
    "anonymous": "skip_signature",
    "virtual_host": "virtual_hosted_style_request",
    "requester_pays": "request_payer",
    "account": "account_name",
}
"""Options of ours that obstore names otherwise."""

_STORES: Final[Mapping[str, str]] = {"s3": "S3Store", "gs": "GCSStore", "az": "AzureStore"}
"""Their classes in obstore.store, which is imported with the first request."""

_ENDPOINTS: Final[Mapping[str, tuple[str, ...]]] = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "gs": ("GOOGLE_BASE_URL",),
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
}
"""Variables that obstore reads."""

_FAILURES: Final[Mapping[str, tuple[str, FailureKind]]] = {
    "FileNotFoundError": ("the server answers 404 Not Found", "absent"),
    "PreconditionError": ("the server answers 412 Precondition Failed", "changed"),
    "UnauthenticatedError": ("the server answers 401 Unauthorized", "denied"),
    "PermissionDeniedError": ("the server answers 403 Forbidden", "denied"),
    "GenericError": ("the server refuses, or the connection broke or could not be made", "again"),
}
"""By the class of obstore's errors: what happened, and what is to be done."""

_METADATA: Final = ("//169.254.169.254", "//metadata.google.internal", "/latest/api", "/latest/m")
"""Services that are asked for credentials where nothing else says who the user is."""

_USED_BY: Final[list[int]] = []
"""The process that used obstore first: its threads are not there in one that is forked of it."""


class CloudStore(Store):
    """Reads one scheme's buckets.

    Args:
        scheme: `s3`, `gs` or `az`.
        settings: Options are `endpoint`, `anonymous`; of s3 `region`, `profile` (boto3 is asked for
            its credentials), `virtual_host`, `requester_pays`; of az `account`. What is not given
            is taken from the variables that the provider's own tools read.

    Raises:
        ConfigError: obstore is not installed, or an option cannot work.
    """

    def __init__(self, scheme: str, settings: TransportSettings) -> None:
        self._options = dict(settings.options.get(scheme, {}))
        require_store_options(scheme, self._options)
        if find_spec("obstore") is None:
            raise ConfigError(
                f"{scheme}:// shards need obstore, which is not installed; run pip install "
                "'lightning-shards[remote]'"
            )
        self._scheme, self._policy = scheme, settings.policy
        self._has_answered = False
        self._stores: dict[str, Any] = {}  # by bucket
        self._lock = Lock()

    @contextmanager
    def get(
        self, url: str, begin: int, end: int, version: str | None
    ) -> Generator[RangeAnswer, None, None]:
        """Ask for a range; where that fails, a HEAD says whether it begins behind the end."""
        options: dict[str, Any] = {"range": (begin, end)}
        if is_exact(version):
            options["if_match"] = version

        failure = None
        try:
            result = self._called(url, lambda store, key: store.get(key, options=options))
        except RequestFailure as error:
            failure = error
        else:
            chunks = self._chunks(iter(result.stream(min_chunk_size=1)))  # each as it arrives
            first, stop = result.range
            yield _answer(result.meta, first, stop, chunks)
            return
        if failure.kind == "again":
            meta = self._called(url, lambda store, key: store.head(key))
            if meta["size"] <= begin and version in (None, meta["e_tag"]):
                yield _answer(meta, begin, begin, ())
                return
        raise failure

    def put(self, url: str, data: bytes) -> None:
        """Write by one PUT."""
        self._called(url, lambda store, key: store.put(key, data, use_multipart=False))

    def refresh(self, url: str) -> None:
        """Forget all stores, and with them the credentials that they have found."""
        with self._lock:
            self._stores.clear()

    def _split(self, url: str) -> tuple[str, str]:
        bucket, _, key = url.partition("://")[2].partition("/")
        if not bucket or "@" in bucket or not {"", ".", ".."}.isdisjoint(key.split("/")):
            raise RequestFailure(  # obstore reads some of such keys as other ones
                "the URL cannot be read",
                "final",
                f"write {self._scheme}://BUCKET/KEY, without keys or passwords, and no part of "
                "the name that is empty, . or ..",
            )
        return bucket, key

    def _chunks(self, stream: Iterator[Any]) -> Iterator[memoryview]:
        while (chunk := self._tried(lambda: next(stream, None))) is not None:
            yield memoryview(chunk)

    def _called(self, url: str, act: Callable[[Any, str], Any]) -> Any:
        bucket, key = self._split(url)
        return self._tried(lambda: act(self._store(bucket), key))

    def _tried(self, act: Callable[[], Any]) -> Any:
        """What obstore gives; its errors hold URLs and what stores say, so they go no further."""
        try:
            given = act()
        except (ConfigError, RequestFailure):
            raise
        except BaseException as error:
            name = type(error).__name__
            if not isinstance(error, Exception) and name != "PanicException":
                raise
            what, kind = _FAILURES.get(name, (f"obstore raised {name}", "final"))
            if not self._has_answered and any(address in str(error) for address in _METADATA):
                what, kind = "no credentials were found", "denied"
        else:
            self._has_answered = True
            return given
        raise RequestFailure(what, kind)

    def _store(self, bucket: str) -> Any:
        _require_own_process(self._scheme)
        with self._lock:
            if bucket not in self._stores:
                self._stores[bucket] = self._make(bucket)
            return self._stores[bucket]

    def _make(self, bucket: str) -> Any:
        os.environ.setdefault("TOKIO_WORKER_THREADS", "2")  # read at the first request
        from obstore import store

        policy = self._policy
        settings = {_NAMES.get(name, name): value for name, value in self._options.items()}
        profile = settings.pop("profile", None)
        if profile is not None:
            settings["credential_provider"] = _profile(profile)
        if self._scheme == "gs" and "endpoint" in settings:
            settings["base_url"] = settings.pop("endpoint")
        urls = [self._options.get("endpoint"), *map(os.environ.get, _ENDPOINTS[self._scheme])]
        urls = [str(url).lower() for url in urls if url]
        if not all(url.startswith(("http://", "https://")) for url in urls):
            raise ConfigError(  # obstore would panic
                f"the endpoint of {self._scheme} must be a whole URL; write https://HOST or "
                f"http://HOST:PORT in storage_options or {_ENDPOINTS[self._scheme][0]}"
            )
        settings["client_options"] = {
            "connect_timeout": timedelta(seconds=policy.connect_s),
            "read_timeout": timedelta(seconds=policy.stall_s),
            "timeout": timedelta(seconds=policy.request_s),
            "allow_http": any(url.startswith("http:") for url in urls),
        }
        settings["retry_config"] = {  # of what passes soon; the tries of the transport take longer
            "max_retries": 2,
            "retry_timeout": timedelta(seconds=policy.stall_s / 6),
        }
        return getattr(store, _STORES[self._scheme])(bucket, **settings)


def _answer(meta: Any, begin: int, stop: int, chunks: Iterable[memoryview]) -> RangeAnswer:
    changed = meta["last_modified"]  # the beginning of 1970 where a store says none
    told = changed.isoformat() if changed.timestamp() else None
    version = version_of(meta["e_tag"], told, meta["size"])
    return RangeAnswer(begin, stop, meta["size"], version, chunks)


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
    """Credentials of a profile of ~/.aws, by boto3, which looks them up again when they expire.

    Raises:
        ConfigError: boto3 is not installed, or has no such profile.
    """
    try:
        session = import_module("boto3").Session(profile_name=profile)
        return import_module("obstore.auth.boto3").Boto3CredentialProvider(session)
    except Exception as error:  # noqa: BLE001 botocore's errors have no root of their own
        name = type(error).__name__
    raise ConfigError(f"{name} for profile={profile!r}; pip install boto3, and look into ~/.aws")
