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
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

from lightning_shards.errors import ConfigError
from lightning_shards.remote.backend import (
    FailureKind,
    RangeAnswer,
    RangeClient,
    RequestFailure,
    TransportSettings,
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

_FAILURES: Final[Mapping[str, tuple[str, FailureKind]]] = {
    "FileNotFoundError": ("the server answers 404 Not Found", "absent"),
    "UnauthenticatedError": ("the server answers 401 Unauthorized", "denied"),
    "PermissionDeniedError": ("the server answers 403 Forbidden", "denied"),
    "GenericError": ("the server refuses, or the connection broke or could not be made", "again"),
}
"""By the class of obstore's errors: what happened, and what is to be done."""

_METADATA: Final = ("//169.254.169.254", "//metadata.google.internal", "/latest/api", "/latest/m")
"""Services that are asked for credentials where nothing else says who the user is."""


@cache
def _first_process() -> int:
    """The process that used obstore first: one that is forked of it lacks its threads."""
    return os.getpid()


class CloudClient(RangeClient):
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
        if find_spec("obstore") is None:
            raise ConfigError(
                f"{scheme}:// shards need obstore, which is not installed; run pip install "
                "'lightning-shards[remote]'"
            )
        endpoint = self._options.get("endpoint", "https://")
        if not endpoint.startswith(("http://", "https://")):
            raise ConfigError(  # obstore would panic
                f"the endpoint of {scheme} must be a whole URL, got {endpoint!r}; write "
                "https://HOST or http://HOST:PORT in storage_options"
            )
        self._scheme, self._policy = scheme, settings.policy
        self._has_answered = False
        self._stores: dict[str, Any] = {}  # by bucket

    @contextmanager
    def get(self, url: str, begin: int, end: int) -> Generator[RangeAnswer, None, None]:
        """Ask for a range; where that fails, a HEAD says whether it begins behind the end."""
        failure = None
        try:
            result = self._called(
                url, lambda store, key: store.get(key, options={"range": (begin, end)})
            )
        except RequestFailure as error:
            failure = error
        else:
            chunks = self._chunks(iter(result.stream(min_chunk_size=1)))  # each as it arrives
            yield _answer(result.meta, result.range[0], result.range[1], chunks)
            return
        if failure.kind == "again":
            meta = self._called(url, lambda store, key: store.head(key))
            if meta["size"] <= begin:
                yield _answer(meta, begin, begin, ())
                return
        raise failure

    def put(self, url: str, data: bytes) -> None:
        """Write by one PUT."""
        self._called(url, lambda store, key: store.put(key, data, use_multipart=False))

    def refresh(self, url: str) -> None:
        """Forget all stores, and with them the credentials that they have found."""
        self._stores = {}

    def _chunks(self, stream: Iterator[Any]) -> Iterator[memoryview]:
        while (chunk := self._tried(lambda: next(stream, None))) is not None:
            yield memoryview(chunk)

    def _called(self, url: str, act: Callable[[Any, str], Any]) -> Any:
        bucket, _, key = url.partition("://")[2].partition("/")
        if not bucket or "@" in bucket or not {"", ".", ".."}.isdisjoint(key.split("/")):
            raise RequestFailure(  # obstore reads some of such keys as other ones
                "the URL cannot be read",
                "final",
                f"write {self._scheme}://BUCKET/KEY, without keys or passwords, and no part of "
                "the name that is empty, . or ..",
            )
        return self._tried(lambda: act(self._store(bucket), key))

    def _tried(self, act: Callable[[], Any]) -> Any:
        """What obstore gives; its errors hold URLs and what stores say, so they go no further."""
        try:
            given = act()
        except ConfigError:
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
        if _first_process() != os.getpid():  # it would wait for ever
            raise ConfigError(
                f"{self._scheme}:// was used in process {_first_process()} before this one, "
                f"{os.getpid()}, was forked of it, and its client does not survive a fork; take "
                "multiprocessing_context='forkserver' or 'spawn'"
            )
        stores = self._stores
        return stores.get(bucket) or stores.setdefault(bucket, self._make(bucket))

    def _make(self, bucket: str) -> Any:
        os.environ.setdefault("TOKIO_WORKER_THREADS", "2")  # read at the first request
        from obstore import store

        policy = self._policy
        settings = {_NAMES.get(name, name): value for name, value in self._options.items()}
        if "profile" in settings:
            settings["credential_provider"] = _profile(settings.pop("profile"))
        if self._scheme == "gs" and "endpoint" in settings:
            settings["base_url"] = settings.pop("endpoint")
        settings["client_options"] = {
            "connect_timeout": timedelta(seconds=policy.connect_s),
            "read_timeout": timedelta(seconds=policy.stall_s),
            "timeout": timedelta(seconds=policy.total_s - policy.stall_s),
            "allow_http": True,  # as the endpoint says, which may be in a variable
        }
        settings["retry_config"] = {  # of what passes soon; the tries of the transport take longer
            "max_retries": 2,
            "retry_timeout": timedelta(seconds=policy.stall_s / 6),
        }
        return getattr(store, _STORES[self._scheme])(bucket, **settings)


def _answer(meta: Any, begin: int, stop: int, chunks: Iterable[memoryview]) -> RangeAnswer:
    changed = meta["last_modified"]  # the beginning of 1970 where a store says none
    version = version_of(meta["e_tag"], changed.timestamp() and changed.isoformat())
    return RangeAnswer(begin, stop, meta["size"], version, chunks)


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
