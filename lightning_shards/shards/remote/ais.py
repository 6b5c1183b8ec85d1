"""Shards of an AIStore cluster: `ais://bucket/object`, by the redirects of its gateway."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any
from urllib.parse import quote, urlsplit

from lightning_shards.errors import ConfigError
from lightning_shards.shards.remote.backend import RangeAnswer, RequestBackend
from lightning_shards.shards.remote.http import answered, put_object, target_of
from lightning_shards.shards.remote.http_client import HttpClient, HttpTarget
from lightning_shards.shards.remote.options import require_store_options
from lightning_shards.shards.remote.retries import RetryPolicy


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
