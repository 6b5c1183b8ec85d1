"""What may be said of a store in a configuration: how it is reached, and never a secret.

A configuration is saved beside checkpoints and logged by experiment trackers, so passwords and keys
stay where the tools of each provider keep them.
"""

import re
from collections.abc import Mapping
from typing import Any, cast

from lightning_shards.errors import ConfigError
from lightning_shards.shards.scheme_table import FURTHER, SCHEMES

_SECRET_NAME = re.compile(
    r"pass(word|wd|phrase)?$|secret|token|credential|signature|authorization|cookie|access_?key|pkey"
    r"|(^|[_-])(key|sas|auth)$|api_?key",
    re.IGNORECASE,
)
_SECRET_VALUE = re.compile(
    r"-----BEGIN|(AKIA|ASIA)[0-9A-Z]{16}|\bhf_\w{16}|AccountKey=|SharedAccessSignature|[?&;]sig="
    r"|X-Amz-Signature|^(Bearer|Basic) |://[^/@]*@|://[^/?#@\[\]:]*:(?!\d*[/?#])[^@]*@",
    re.IGNORECASE,
)


def require_store_options(scheme: str, options: Mapping[str, Any]) -> None:
    """Check the options of a store against those that its scheme has.

    Raises:
        ConfigError: One is or holds a secret, is unknown, or is of another type.
    """
    require_no_secret(scheme, options)
    known = SCHEMES.get(scheme, FURTHER).options
    if known is None:
        return
    for name, value in options.items():
        if name not in known:
            there = ", ".join(known) or "none"
            raise ConfigError(f"storage_options of {scheme} have no {name!r}; there are {there}")
        if type(value) is not known[name]:
            raise ConfigError(
                f"storage_options of {scheme}: {name} must be a {known[name].__name__}, "
                f"got a {type(value).__name__}"
            )


def require_no_secret(scheme: str, options: Mapping[str, Any]) -> None:
    """Check that no option looks like a secret, by its name or by its value.

    Raises:
        ConfigError: One does; the message says where it belongs, and not what it is.
    """
    for name, value in options.items():
        for inner in _mappings_in(value):
            require_no_secret(scheme, inner)
        if isinstance(value, Mapping):
            continue
        if _SECRET_NAME.search(str(name)) or _SECRET_VALUE.search(str(value)):
            kept = SCHEMES.get(scheme, FURTHER).secrets_in
            raise ConfigError(
                f"storage_options of {scheme}: {name!r} looks like a secret, and configurations "
                f"are saved and logged; leave it out, and keep it in {kept}"
            )


def _mappings_in(value: object) -> list[Mapping[str, Any]]:
    """The mapping that a value is, or those in a list."""
    if isinstance(value, Mapping):
        return [cast("Mapping[str, Any]", value)]
    listed = cast("list[Any]", value) if isinstance(value, (list, tuple)) else []
    return [inner for inner in listed if isinstance(inner, Mapping)]
