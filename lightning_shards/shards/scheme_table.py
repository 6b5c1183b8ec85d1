"""How the shards of each scheme are read: the one table, and the place to add a scheme.

`storage.schemes` has a storage for each `reading`, and `remote/` a module for each client. A store
that obstore reaches needs rows in the tables of `remote/cloud.py`, too. What is not in the table is
read by fsspec, if that knows it.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, cast

from lightning_shards.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Scheme:
    """How the shards of one scheme are read.

    Attributes:
        reading: `file`: they are files of this machine. `ranges`: any range of bytes is requested
            from a store. `pipe`: a program gives them as a stream.
        client: What makes the requests for ranges: a module of `remote/`.
        options: What `storage_options` may say of the store as text; None: all that fsspec's file
            system takes.
        flags: What they may say by true or false.
        secrets_in: Where its secrets belong, which `storage_options` may not hold.
    """

    reading: Literal["file", "ranges", "pipe"]
    client: Literal["http", "cloud", "hub", "ais", "other"] = "other"
    options: tuple[str, ...] | None = None
    flags: tuple[str, ...] = ()
    secrets_in: str = "the files or variables that this store's own tools read"

    @property
    def survives_fork(self) -> bool:
        """Whether a forked process can use the client of its parent; that of obstore it cannot."""
        return self.client != "cloud"


_FILE: Final = Scheme("file")
_WEB: Final = Scheme(
    "ranges", "http", ("ca",), secrets_in="the URL itself, as user and password or as a signature"
)

FURTHER: Final = Scheme("ranges")
"""A scheme that is not in the table: fsspec may know it."""

ANY_FURTHER: Final = "*"
"""What stands for all further schemes where storages are named by scheme."""

SCHEMES: Final[Mapping[str, Scheme]] = {
    "": _FILE,  # a plain path
    "file": _FILE,
    "http": _WEB,
    "https": _WEB,
    "s3": Scheme(
        "ranges",
        "cloud",
        ("endpoint", "region", "profile"),
        ("anonymous", "virtual_host", "requester_pays"),
        "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile of ~/.aws",
    ),
    "gs": Scheme(
        "ranges",
        "cloud",
        ("endpoint",),
        ("anonymous",),
        "the file that GOOGLE_APPLICATION_CREDENTIALS names",
    ),
    "az": Scheme(
        "ranges",
        "cloud",
        ("endpoint", "account"),
        ("anonymous",),
        "AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN",
    ),
    "hf": Scheme(
        "ranges",
        "hub",
        ("endpoint", "ca"),
        ("anonymous",),
        "HF_TOKEN or ~/.cache/huggingface/token",
    ),
    "ais": Scheme("ranges", "ais", ("endpoint", "ca")),
    "sftp": Scheme("ranges", secrets_in="the agent and the keys of ssh, in ~/.ssh"),
    "ftp": Scheme("ranges"),
    "hdfs": Scheme("ranges"),
    "pipe": Scheme("pipe"),
}
"""All schemes that a data set may name, in the order of messages; `pipe` must be switched on."""

RANGED_SCHEMES: Final = tuple(
    name for name, scheme in SCHEMES.items() if scheme.reading == "ranges"
)
"""The schemes of the table of whose shards any range can be read."""


def is_further(scheme: str) -> bool:
    """Whether a scheme is not in the table, and fsspec reads it."""
    if scheme in SCHEMES:
        return False
    from fsspec.registry import known_implementations, registry

    return scheme in known_implementations or scheme in registry


def row_of(scheme: str) -> Scheme | None:
    """How a scheme is read; None if neither the table nor fsspec knows it."""
    return FURTHER if is_further(scheme) else SCHEMES.get(scheme)


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
        ConfigError: One is or holds a secret, is unknown, or is of another type.
    """
    row = SCHEMES.get(scheme, FURTHER)
    for name, value in options.items():
        _require_no_secret(scheme, row, name, value)
        if row.options is None or (name in row.options and isinstance(value, str)):
            continue
        if name not in row.flags or not isinstance(value, bool):
            there = [
                *(f"{text}: str" for text in row.options),
                *(f"{flag}: bool" for flag in row.flags),
            ]
            raise ConfigError(
                f"storage_options of {scheme} have no {name!r} that is a {type(value).__name__}; "
                f"there are {', '.join(there)}"
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
