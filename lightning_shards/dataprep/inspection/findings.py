"""Findings about shards: faults and other facts, each with its location and its remedy."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from lightning_shards.dataprep.damaged_tar import MOST_END
from lightning_shards.dataprep.inspection.layout import PassedOver
from lightning_shards.errors import (
    DamagedShardError,
    FileAccessError,
    IndexMismatchError,
    ShardError,
    ShardNotFoundError,
    StorageError,
)
from lightning_shards.shards.members import MemberTable
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
    "unsafe name",
    "unprotected name",
    "empty shard",
    "long end",
    "unwritten end",
    "stale count",
    "unusable table",
    "unusable index",
]

NOTES: frozenset[Rule] = frozenset(
    {
        "repeated key",
        "missing field",
        "dotted key",
        "passed over",
        "empty shard",
        "long end",
        "unprotected name",
    }
)
"""Rules of findings that may be intended: they are reported, and are not failures."""

WITHOUT_SAMPLES: frozenset[Rule] = frozenset({"damaged shard", "unread shard", "missing shard"})
"""Rules of findings about shards of which no sample is known."""

NOT_SURVEYED = (
    ShardNotFoundError,
    FileAccessError,
    IndexMismatchError,
    StorageError,
    DamagedShardError,
)
"""Errors about one shard, in spite of which others can be read."""

_MANY_ZEROS: Final = 16 << 20
"""More than fills the last record of a tar: `tar -b` takes records of 10 MiB at most."""

_LARGE_SHARE: Final = 1 / 3
"""The share of a file that its end does not take, unless the rest was never written."""

MAX_DOTTED = 4
"""If more suffixes than this end alike, they come from dots in keys and not from fields."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One fact about a shard, or about all shards together.

    Attributes:
        rule: Kind of the finding.
        message: The fact and the remedy.
        shard: Path of the shard; None for the whole data set.
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
    as a store that does not answer or that refuses, or a shard that is just being replaced.
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


def find_passed_over(passed_over: Iterable[PassedOver], shard: str) -> list[Finding]:
    """Findings about members that are in no sample, by kind; folders are not reported."""
    kinds: dict[str, list[PassedOver]] = {}
    for member in passed_over:
        if member.kind != "folder":
            kinds.setdefault(member.kind, []).append(member)
    return [
        Finding(
            "passed over",
            f"{len(members):,} members are in no sample ({kind}), first {members[0].name!r}; "
            f"{_PASSED_OVER[kind]}",
            shard,
            byte=members[0].offset,
            count=len(members),
        )
        for kind, members in kinds.items()
    ]


_PASSED_OVER = {
    "link": "GNU tar makes links of files that it meets twice: write it with --hard-dereference",
    "special file": "only regular files are read: take it out",
    "name without a field": "a member is named KEY.FIELD: rename it if it belongs to a sample",
    "reserved name": "names like __this__ are for tools: rename it if it belongs to a sample",
    "left out by __bad__": "the sample has a member KEY.__bad__ with contents: remove that member",
}


def find_long_end(end: int, size_bytes: int, shard: str) -> list[Finding]:
    """A finding about more zeros after the end of the archive than tar writes.

    A file that was preallocated and never filled, or half fetched, ends so, and reads as whole.
    """
    zeros = size_bytes - end
    if zeros <= MOST_END:
        return []
    is_large = zeros > _MANY_ZEROS or zeros >= _LARGE_SHARE * size_bytes
    message = (
        f"{zeros:,} of its {size_bytes:,} bytes are zeros behind the end of the archive, at byte "
        f"{end}; look whether the file is whole, and fetch it again if not: if it is, `reshard` "
        "writes it without them"
    )
    return [Finding("unwritten end" if is_large else "long end", message, shard, byte=end)]


def find_unsafe_names(table: MemberTable, shard: str) -> list[Finding]:
    """A finding about keys that lead out of a folder or cannot be printed."""
    keys = table.keys.tobytes()
    if not _SUSPICIOUS.search(keys):
        return []
    unsafe = [sample for sample in range(table.num_samples) if _is_unsafe(table.key(sample))]
    if not unsafe:
        return []
    key = table.key(unsafe[0])
    message = (
        f"{len(unsafe):,} keys are absolute, lead upwards, hold control characters or are not "
        f"UTF-8, first {key!a}; pack these samples again under plain names"
    )
    byte = int(table.offsets[table.sample_starts[unsafe[0]]])
    return [Finding("unsafe name", message, shard, key, byte, len(unsafe))]


_SUSPICIOUS = re.compile(rb"\.\.|//|[\x00-\x1f\x7f-\xff]|/")


def _is_unsafe(key: str) -> bool:
    is_text = not any("\ud800" <= letter <= "\udfff" for letter in key)
    return (
        not is_text or key.startswith("/") or ".." in key.split("/") or bool(_CONTROL.search(key))
    )


_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def find_dotted_keys(samples_with: Mapping[str, int]) -> list[Finding]:
    """A finding about suffixes that come from dots in keys, because many of them end alike."""
    by_end: dict[str, list[str]] = {}
    for suffix in samples_with:
        head, dot, end = suffix.rpartition(".")
        if dot and head:
            by_end.setdefault(end, []).append(suffix)
    return [
        Finding(
            "dotted key",
            f"{len(suffixes):,} different fields end in '.{end}', such as {suffixes[0]!r}: "
            "names are split at the first dot, so dots in keys make fields; pack without them",
            count=len(suffixes),
        )
        for end, suffixes in by_end.items()
        if len(suffixes) > MAX_DOTTED
    ]


def find_missing_fields(
    samples_with: Mapping[str, int], num_samples: int, lacking: Mapping[str, tuple[str, str]]
) -> list[Finding]:
    """Findings about fields that some samples lack; `lacking` has shard and key of the first."""
    findings: list[Finding] = []
    for suffix, count in samples_with.items():
        if count < num_samples and suffix in lacking:
            shard, key = lacking[suffix]
            message = (
                f"{num_samples - count:,} of {num_samples:,} samples have no {suffix!r}, first "
                f"{key!r}; name in `fields` what stands in for it ('{suffix};OTHER'), or drop them"
            )
            findings.append(
                Finding("missing field", message, shard, key, count=num_samples - count)
            )
    return findings[:_MAX_MISSING]


_MAX_MISSING = 20
"""Most findings about missing fields: keys with dots would give one for every sample."""
