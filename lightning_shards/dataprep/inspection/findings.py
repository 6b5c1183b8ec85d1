"""Findings about shards: faults and other facts, each with its location and its remedy."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from lightning_shards.dataprep.inspection.layout import PassedOver
from lightning_shards.errors import (
    DamagedShardError,
    FileAccessError,
    IndexMismatchError,
    ShardError,
    ShardNotFoundError,
    StorageError,
    count_of,
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
    "stale count",
    "unusable table",
]

NOTES: frozenset[Rule] = frozenset(
    {
        "repeated key",
        "missing field",
        "dotted key",
        "passed over",
        "empty shard",
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


def key_hashes(table: MemberTable) -> NDArray[np.uint64]:
    """A 64-bit hash of each key, the same in every process; uint64, shape (num_samples,).

    Each (position, byte) pair has a random word of its own, and the hash of a key is the sum of its
    words, so that two different keys have equal hashes with a chance of 2**-64.
    """
    # positions, words: one entry per byte of `table.keys`: its position in its key, and its word.
    # sums: sums of all words up to each byte, so that a key's sum is a difference of two of them.
    lengths = np.diff(table.key_starts)
    positions = np.arange(len(table.keys)) - np.repeat(table.key_starts[:-1], lengths)
    words = _WORDS[positions % len(_WORDS), table.keys] * _LAPS[positions // len(_WORDS)]
    sums = np.concatenate(([np.uint64(0)], np.cumsum(words, dtype=np.uint64)))
    return sums[table.key_starts[1:]] - sums[table.key_starts[:-1]]


_WORDS = np.frombuffer(np.random.Philox(1).random_raw(128 * 256).tobytes(), np.uint64).reshape(
    128, 256
)
_LAPS = np.frombuffer(np.random.Philox(2).random_raw(1 << 8).tobytes(), np.uint64) | np.uint64(1)
"""Odd factors that distinguish a byte from one 128 bytes later. Names have at most 4,096 bytes."""


def find_repeats(table: MemberTable, shard: str, hashes: NDArray[np.uint64]) -> list[Finding]:
    """Findings about keys that a shard has more than once: split samples, and duplicates."""
    # order: the numbers of all samples by hash; twins: where neighbours in it have equal hashes.
    order = np.argsort(hashes, kind="stable")
    twins = np.flatnonzero(hashes[order][1:] == hashes[order][:-1])
    twins_by_rule: dict[Rule, list[int]] = {"split sample": [], "duplicate key": []}
    before, last, has_second = set[str](), -1, False
    for first, second in zip(order[twins].tolist(), order[twins + 1].tolist(), strict=True):
        if first != last:  # it begins another key
            before, has_second = set(table.suffixes_of(first)), False
        fields, last = set(table.suffixes_of(second)), second
        # What follows a second sample of its key may belong to either.
        has_second = has_second or not before.isdisjoint(fields)
        twins_by_rule["duplicate key" if has_second else "split sample"].append(second)
        before |= fields
    return [
        _repeat(rule, table, shard, min(samples), len(samples))
        for rule, samples in twins_by_rule.items()
        if samples
    ]


_REPEATS: dict[Rule, str] = {
    "split sample": "members of {count:,} samples are not adjacent, first of {key!r}: readers "
    "make several samples of them; write the shard again with the members of a sample side by side",
    "duplicate key": "{count:,} samples have the key and a field of another one, first {key!r}; "
    "remove one of them, or give it another key",
}


def _repeat(rule: Rule, table: MemberTable, shard: str, sample: int, count: int) -> Finding:
    key = table.key(sample)
    byte = int(table.offsets[table.sample_starts[sample]])
    return Finding(rule, _REPEATS[rule].format(count=count, key=key), shard, key, byte, count)


def find_repeats_between(
    hashes: Sequence[NDArray[np.uint64]],
    shards: Sequence[str],
    key_of: Callable[[int, int], str | None],
) -> list[Finding]:
    """A finding about keys that are in several shards.

    Args:
        hashes: `key_hashes` of each shard.
        shards: Paths of the shards.
        key_of: Gives the key of a sample, by the number of its shard and its number in it; None if
            it cannot be read again.
    """
    # numbers: the shard of each key of `every`; order: positions in `every` by hash.
    # pairs: positions of keys with equal hashes; between: those pairs whose shards differ. A key
    # that k shards have is in k - 1 of them.
    numbers = np.repeat(np.arange(len(hashes)), [len(of_shard) for of_shard in hashes])
    every = np.concatenate(hashes) if hashes else np.empty(0, np.uint64)
    order = np.argsort(every, kind="stable")
    twins = np.flatnonzero(every[order][1:] == every[order][:-1])
    pairs = order[twins], order[twins + 1]
    between = np.flatnonzero(numbers[pairs[0]] != numbers[pairs[1]])
    if not len(between):
        return []
    later = pairs[1][between]
    first = int(np.argmin(later))
    earlier, other = int(numbers[pairs[0][between[first]]]), int(numbers[later[first]])
    start = sum(len(of_shard) for of_shard in hashes[:other])
    key = key_of(other, int(later[first]) - start)
    named = "one" if key is None else repr(key)
    num_keys = len(np.unique(every[later]))
    are = "is" if num_keys == 1 else "are"
    message = (
        f"{count_of(num_keys, 'key')} {are} in several shards, first {named} of {shards[earlier]}; "
        "readers of tars do not mind, energon does: give the keys of each shard a prefix for it"
    )
    return [Finding("repeated key", message, shards[other], key, count=num_keys)]


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
