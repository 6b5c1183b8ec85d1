"""How the shards of each scheme are read: the one table, and the place to add a scheme.

`storage.schemes` has a storage for each `reading`, and `remote/` a module for each client. A store
that obstore reaches needs rows in the tables of `remote/cloud.py`, too. What is not in the table is
read by fsspec, if that knows it.

Here is also to which commits of the Hugging Face hub the revisions of a run are pinned.
A branch may move while a run reads it. So the first commit that the hub names for a revision holds
for the whole process, whatever connections it opens later, and is carried to its workers and to the
other ranks of its node. A dict serves without a lock, which a fork could inherit held.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Final, Literal, TypeGuard


@dataclass(frozen=True, slots=True)
class Scheme:
    """How the shards of one scheme are read.

    Attributes:
        reading: `file`: they are files of this machine. `ranges`: any range of bytes is requested
            from a store. `opener`: webdataset's opener starts a program that gives them as a
            stream.
        client: What makes the requests for ranges: a module of `remote/`.
        options: What `storage_options` may say of the store, and the types; None: all that fsspec's
            file system takes.
        secrets_in: Where its secrets belong, which `storage_options` may not hold.
    """

    reading: Literal["file", "ranges", "opener"]
    client: Literal["http", "cloud", "hub", "ais", "other"] = "other"
    options: Mapping[str, type] | None = None
    secrets_in: str = "the files or variables that this store's own tools read"

    @property
    def survives_fork(self) -> bool:
        """Whether a forked process can use the client of its parent; that of obstore it cannot."""
        return self.client != "cloud"


_FILE: Final = Scheme("file")
_OPENER: Final = Scheme("opener")
_WEB: Final = Scheme(
    "ranges",
    "http",
    options={"ca": str},
    secrets_in="the URL itself, as user and password or as a signature",
)

FURTHER: Final = Scheme("ranges")
"""A scheme that is not in the table: fsspec may know it."""

ANY_FURTHER: Final = "*"
"""What stands for all further schemes where storages are named by scheme."""

_NO_STORES: Final = frozenset({
    "async_wrapper", "asynclocal", "asyncwrapper", "blockcache", "cached", "data", "dir", "file",
    "filecache", "generic", "libarchive", "local", "memory", "pyscript", "reference",
    "simplecache", "tar", "zip", "gcs", "s3a",
})  # fmt: skip
"""File systems of fsspec on this machine, in one process or around another one, and two names of
stores that the table has by other names."""

SCHEMES: Final[Mapping[str, Scheme]] = {
    "": _FILE,  # a plain path
    "file": _FILE,
    "http": _WEB,
    "https": _WEB,
    "s3": Scheme(
        "ranges",
        "cloud",
        options={
            "endpoint": str,
            "region": str,
            "anonymous": bool,
            "profile": str,
            "virtual_host": bool,
            "requester_pays": bool,
        },
        secrets_in="AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile of ~/.aws",
    ),
    "gs": Scheme(
        "ranges",
        "cloud",
        options={"endpoint": str, "anonymous": bool},
        secrets_in="the file that GOOGLE_APPLICATION_CREDENTIALS names",
    ),
    "az": Scheme(
        "ranges",
        "cloud",
        options={"endpoint": str, "account": str, "anonymous": bool},
        secrets_in="AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN",
    ),
    "hf": Scheme(
        "ranges",
        "hub",
        options={"endpoint": str, "anonymous": bool, "ca": str},
        secrets_in="HF_TOKEN or ~/.cache/huggingface/token",
    ),
    "ais": Scheme("ranges", "ais", options={"endpoint": str, "ca": str}),
    "sftp": Scheme("ranges", secrets_in="the agent and the keys of ssh, in ~/.ssh"),
    "ftp": Scheme("ranges"),
    "hdfs": Scheme("ranges"),
    "ftps": _OPENER,
    "scp": _OPENER,
    "htgs": _OPENER,
    "pipe": _OPENER,
}
"""All schemes that a data set may name, in the order of messages; `pipe` must be switched on."""

RANGED_SCHEMES: Final = tuple(
    name for name, scheme in SCHEMES.items() if scheme.reading == "ranges"
)
"""The schemes of the table of whose shards any range can be read."""


def is_further(scheme: str) -> bool:
    """Whether a scheme is not in the table, and fsspec reads it."""
    if scheme in SCHEMES or scheme in _NO_STORES:
        return False
    from fsspec.registry import known_implementations, registry

    return scheme in known_implementations or scheme in registry


def row_of(scheme: str) -> Scheme | None:
    """How a scheme is read; None if neither the table nor fsspec knows it."""
    return FURTHER if is_further(scheme) else SCHEMES.get(scheme)


_COMMIT: Final = re.compile("[0-9a-f]{40}")
_pinned: dict[str, str] = {}  # by the hash of endpoint and revision: an endpoint may hold a secret


def pin_commit(endpoint: str, revision: str, commit: str) -> str:
    """Pin a revision to a commit, unless it is pinned; the commit that holds from now on."""
    return _pinned.setdefault(_key(endpoint, revision), commit)


def commit_of(endpoint: str, revision: str) -> str:
    """The commit that a revision is pinned to; the empty text if it is not."""
    return _pinned.get(_key(endpoint, revision), "")


def is_commit(text: object) -> TypeGuard[str]:
    """Whether this is how the hub names a commit."""
    return isinstance(text, str) and _COMMIT.fullmatch(text) is not None


def pinned_commits() -> dict[str, str]:
    """All that is pinned in this process, for another one of the run."""
    return dict(_pinned)


def take_over_commits(commits: Mapping[str, object]) -> None:
    """Pin what another process of the run has pinned; what is pinned here stays as it is.

    Raises:
        ValueError: These are no commits.
    """
    for key, commit in commits.items():
        if not is_commit(commit):
            raise ValueError(f"{commit!r} is no commit of the hub")
        _pinned.setdefault(key, commit)


def forget_commits() -> None:
    """Ask the hub again what revisions stand for, as a new process does."""
    _pinned.clear()


def _key(endpoint: str, revision: str) -> str:
    return sha256(f"{endpoint} {revision}".encode()).hexdigest()
