"""Findings about shards: faults and other facts, each with its location and its remedy."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

from lightning_shards.errors import (
    DamagedShardError,
    FileAccessError,
    IndexMismatchError,
    ShardError,
    ShardNotFoundError,
)
from lightning_shards.shards.urls import is_local, redact

Rule = Literal[
    "damaged shard",
    "unread shard",
    "missing shard",
    "changed shard",
    "changed member",
    "undecodable member",
    "split sample",
    "duplicate key",
    "repeated key",
    "missing field",
    "dotted key",
    "passed over",
    "empty shard",
    "long end",
    "unwritten end",
    "stale count",
    "unusable table",
    "unusable index",
]

NOTES: frozenset[Rule] = frozenset(
    {"repeated key", "missing field", "dotted key", "passed over", "empty shard", "long end"}
)
"""Rules of findings that may be intended: they are reported, and are not failures."""

WITHOUT_SAMPLES: frozenset[Rule] = frozenset({"damaged shard", "unread shard", "missing shard"})
"""Rules of findings about shards of which no sample is known."""

OF_ONE_SHARD = (ShardNotFoundError, FileAccessError, IndexMismatchError, DamagedShardError)
"""Errors about one shard, in spite of which others can be read. A store that does not answer is not
among them: it would not answer for the other shards either."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One fact about a shard, or about all shards together.

    Attributes:
        rule: Kind of the finding.
        message: The fact and the remedy.
        shard: Path of the shard, or its URL without secrets; None for the whole data set.
        sample: Key of the (first) sample.
        byte: Offset in the shard, if there is one.
        count: Number of samples or members that it is about.
    """

    rule: Rule
    message: str
    shard: str | None = None
    sample: str | None = None
    byte: int | None = None
    count: int = 1

    @property
    def is_failure(self) -> bool:
        """Whether this is a fault, and not only unusual."""
        return self.rule not in NOTES

    def as_json(self) -> dict[str, Any]:
        """The finding in plain values."""
        return asdict(self) | {"is_failure": self.is_failure}


def reported_name(url: str) -> str:
    """What reports call a shard: a local one by its path, which leads to it; a URL has no secrets.

    >>> reported_name("./pipe:ls/0.tar"), reported_name("https://user:secret@host/0.tar")
    ('./pipe:ls/0.tar', 'https://host/0.tar')
    """
    return url if is_local(url) else redact(url)


def finding_of(error: ShardError, shard: str) -> Finding:
    """The finding about a shard that could not be read to its end, by the class of its error.

    Only what the bytes of a shard are can be damage. What kept them from being read is none, such
    as a store that refuses, or a shard that is just being replaced.
    """
    rule: Rule = "unread shard"
    if isinstance(error, DamagedShardError):
        rule = "damaged shard"
    elif isinstance(error, ShardNotFoundError):
        rule = "missing shard"
    return Finding(rule, str(error), shard, byte=_damaged_byte(error))


def _damaged_byte(error: ShardError) -> int | None:
    """The offset in the message of an error about a shard."""
    head, found, tail = str(error).rpartition(", at byte ")
    digits = tail.partition(";")[0]
    return int(digits) if found and head and digits.isdigit() else None
