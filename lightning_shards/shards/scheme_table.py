"""How the shards of each scheme are read: the one table, and the place to add a scheme.

`storage` has what reads each kind, and `remote/` a module for each client. A store that obstore
reaches needs rows in the tables of `remote/cloud.py`, too. What is not in the table is read by
fsspec, if that knows it.
"""

import re
from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final, Literal, NamedTuple, cast

from lightning_shards.errors import ConfigError
from lightning_shards.shards.urls import scheme_of


class Scheme(NamedTuple):
    """How the shards of one scheme are read.

    Attributes:
        client: What requests ranges of bytes from a store: a module of `remote/`. `file`: they are
            files of this machine. `pipe`: a program gives them as a stream.
        options: What `storage_options` may say of the store, with the types; None: all that
            fsspec's file system takes.
        secrets_in: Where its secrets belong, which `storage_options` may not hold.
    """

    client: Literal["http", "cloud", "hub", "ais", "other", "file", "pipe"]
    options: str | None = None
    secrets_in: str = "the files or variables that this store's own tools read"

    @property
    def is_remote(self) -> bool:
        """Whether ranges of bytes are requested from a store."""
        return self.client not in {"file", "pipe"}


_WEB: Final = Scheme("http", "ca: str", "the URL itself, as user and password or as a signature")

FURTHER: Final = Scheme("other")
"""A scheme that is not in the table: fsspec may know it."""

SCHEMES: Final[Mapping[str, Scheme]] = {
    "": Scheme("file"),  # a plain path
    "file": Scheme("file"),
    "http": _WEB,
    "https": _WEB,
    "s3": Scheme(
        "cloud",
        "endpoint: str, region: str, profile: str, anonymous: bool, virtual_host: bool, "
        "requester_pays: bool",
        "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile of ~/.aws",
    ),
    "gs": Scheme(
        "cloud",
        "endpoint: str, anonymous: bool",
        "the file that GOOGLE_APPLICATION_CREDENTIALS names",
    ),
    "az": Scheme(
        "cloud",
        "endpoint: str, account: str, anonymous: bool",
        "AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN",
    ),
    "hf": Scheme(
        "hub", "endpoint: str, ca: str, anonymous: bool", "HF_TOKEN or ~/.cache/huggingface/token"
    ),
    "ais": Scheme("ais", "endpoint: str, ca: str"),
    "sftp": Scheme("other", secrets_in="the agent and the keys of ssh, in ~/.ssh"),
    "ftp": Scheme("other"),
    "hdfs": Scheme("other"),
    "pipe": Scheme("pipe"),
}
"""All schemes that a data set may name, in the order of messages; `pipe` must be switched on."""


def row_of(scheme: str) -> Scheme | None:
    """How a scheme is read; None if neither the table nor fsspec knows it."""
    if scheme in SCHEMES:
        return SCHEMES[scheme]
    fsspec = import_module("fsspec.registry")
    is_known = scheme in fsspec.known_implementations or scheme in fsspec.registry
    return FURTHER if is_known else None


def has_ranges(url: str) -> bool:
    """Whether any range of this shard can be read; if not, it can only be streamed."""
    row = row_of(scheme_of(url))
    return row is not None and row.client != "pipe"


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

    A configuration is saved beside checkpoints and logged by experiment trackers, so passwords and
    keys stay where the tools of each provider keep them.

    Raises:
        ConfigError: Its shards are not read from a store; or an option is or holds a secret, is
            unknown, or is of another type.
    """
    row = row_of(scheme) or SCHEMES["file"]
    if options and not row.is_remote:
        known = ", ".join(name for name, other in SCHEMES.items() if other.is_remote)
        raise ConfigError(
            f"storage_options has {scheme!r}; its keys are schemes: {known}, and what fsspec reads"
        )
    for name, value in options.items():
        _require_no_secret(scheme, row, name, value)
        kind = type(value).__name__
        if row.options is not None and f"{name}: {kind}" not in row.options.split(", "):
            raise ConfigError(
                f"storage_options of {scheme} have no {name!r} that is a {kind}; there are "
                f"{row.options}"
            )


def _require_no_secret(scheme: str, row: Scheme, name: object, value: object) -> None:
    if isinstance(value, Mapping):
        for inner, text in cast("Mapping[object, object]", value).items():
            _require_no_secret(scheme, row, inner, text)
    elif _SECRET_NAME.search(str(name)) or _SECRET_VALUE.search(str(value)):
        raise ConfigError(
            f"storage_options of {scheme}: {name!r} looks like a secret, and configurations are "
            f"saved and logged; leave it out, and keep it in {row.secrets_in}"
        )
