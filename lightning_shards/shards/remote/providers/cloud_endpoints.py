"""Where the stores that need signatures are reached, as far as it must be known beforehand.

obstore takes endpoints from the variables of the provider by itself. But it allows no http, unless
it is told to, and it takes no word for that from a variable where it is given time limits. Of what
is no URL it makes a panic of its own language, with a page of calls.
"""

import os
import re
from collections.abc import Mapping
from typing import Any, Final

from lightning_shards.errors import ConfigError

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
