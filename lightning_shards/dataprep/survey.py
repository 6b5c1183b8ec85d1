"""The survey of a data set: numbers of shards and samples, fields and their sizes, and findings.

Each shard is looked at by itself, in any number of processes, by its member table and the headers
that are not in the table. `info`, `index` and `verify` differ in how they look at a shard; what a
table shows (`describe_table`) and what all shards show together is the same.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from tqdm import tqdm

from lightning_shards.dataprep.processes import map_parallel
from lightning_shards.errors import (
    DamagedShardError,
    FileAccessError,
    IndexMismatchError,
    ShardError,
    ShardNotFoundError,
)
from lightning_shards.shards.members import MemberTable
from lightning_shards.shards.tar.tar_bytes import open_tar
from lightning_shards.shards.tar.walk import (
    BLOCK,
    OtherEntry,
    split_name,
    up_to_block,
    walk_members,
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
    "missing field",
    "dotted key",
    "passed over",
    "empty shard",
    "unwritten end",
    "stale count",
    "unusable table",
    "unusable index",
]

NOTES: frozenset[Rule] = frozenset({"missing field", "dotted key", "passed over", "empty shard"})
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


_LONGEST_END: Final = 10_240 + 2 * BLOCK
"""Zeros at the end of an archive: two blocks, and what fills the last record of tar."""

_MANY_ZEROS: Final = 16 << 20
"""More than fills the last record of a tar: `tar -b` takes records of 10 MiB at most."""

_ONE_EXTENDED: Final = 3 * BLOCK
"""An extended header, its body, and the header of the member, as webdataset writes each member."""

_MAX_MISSING: Final = 20
"""If more fields than this are not in all samples, they come from dots in keys."""


class FieldSizes(NamedTuple):
    """The sizes of the members of one suffix, in bytes.

    Attributes:
        samples: Samples that have such a member.
        total: Bytes of all members together.
        least: Size of the smallest member.
        most: Size of the largest member.
    """

    samples: int
    total: int
    least: int
    most: int


@dataclass(slots=True)
class ShardSurvey:
    """What was seen of one shard; if it could not be read to its end, no more than its findings.

    Attributes:
        path: Its path, or its URL without secrets.
        samples: Samples in it.
        size_bytes: Its size.
        md5: Its MD5, where it is known.
        fields: Sizes of its members by suffix.
        example_keys: The keys of its first and last sample.
        findings: Faults and other facts.
        has_checksums: Whether its bytes could be held against checksums of an earlier index.
    """

    path: str
    samples: int = 0
    size_bytes: int = 0
    md5: str | None = None
    fields: dict[str, FieldSizes] = field(default_factory=dict[str, FieldSizes])
    example_keys: tuple[str, ...] = ()
    findings: list[Finding] = field(default_factory=list[Finding])
    has_checksums: bool = False

    @property
    def is_readable(self) -> bool:
        """Whether the shard could be read to its end."""
        return all(finding.rule not in WITHOUT_SAMPLES for finding in self.findings)


@dataclass(slots=True)
class Survey:
    """The surveys of all shards, in the user's order, and what they show together."""

    shards: list[ShardSurvey]
    findings: list[Finding]

    @property
    def samples(self) -> int:
        """Samples of all shards."""
        return sum(shard.samples for shard in self.shards)

    @property
    def size_bytes(self) -> int:
        """Bytes of all shards."""
        return sum(shard.size_bytes for shard in self.shards)

    @property
    def fields(self) -> dict[str, FieldSizes]:
        """Sizes of members by suffix, over all shards."""
        return _fields_of_all(self.shards)

    @property
    def failures(self) -> list[Finding]:
        """The findings that are faults."""
        return [finding for finding in self.findings if finding.is_failure]


def survey(
    urls: Sequence[str],
    look: Callable[[str], ShardSurvey],
    *,
    processes: int = 1,
) -> Survey:
    """Look at all shards; errors about single shards are findings.

    Args:
        urls: The shards, each once.
        look: Looks at one shard; it travels to the processes.
        processes: Number of processes.

    Raises:
        StorageError: A store does not answer.
    """
    seen = map_parallel(partial(_seen, look=look), urls, processes)
    shards = list(tqdm(seen, total=len(urls), unit=" shards", disable=None))
    findings = [finding for shard in shards for finding in shard.findings]
    return Survey(shards, findings + find_missing_fields(shards, _fields_of_all(shards)))


def _seen(url: str, look: Callable[[str], ShardSurvey]) -> ShardSurvey:
    try:
        return look(url)
    except OF_ONE_SHARD as error:
        name = reported_name(url)
        return ShardSurvey(name, findings=[finding_of(error, name)])


def _fields_of_all(shards: Sequence[ShardSurvey]) -> dict[str, FieldSizes]:
    parts: dict[str, list[FieldSizes]] = {}
    for shard in shards:
        for suffix, sizes in shard.fields.items():
            parts.setdefault(suffix, []).append(sizes)
    columns = {suffix: list(zip(*sizes, strict=True)) for suffix, sizes in parts.items()}
    return {
        suffix: FieldSizes(sum(samples), sum(total), min(least), max(most))
        for suffix, (samples, total, least, most) in columns.items()
    }


def describe_table(url: str, table: MemberTable) -> ShardSurvey:
    """What the member table of a shard shows."""
    name = reported_name(url)
    seen = ShardSurvey(name, table.num_samples, table.file_size)
    # sizes: of all members, grouped by suffix; stops: the end of each group. One sort serves all
    # suffixes, because there may be as many suffixes as members.
    sizes = table.sizes[np.argsort(table.suffix_ids, kind="stable")]
    stops = np.cumsum(np.bincount(table.suffix_ids, minlength=len(table.suffixes)))
    start = 0
    for suffix, stop in zip(table.suffixes, stops.tolist(), strict=True):
        part, start = sizes[start:stop], stop
        if len(part):
            of_field = int(part.sum()), int(part.min()), int(part.max())
            seen.fields[suffix] = FieldSizes(len(part), *of_field)
    if table.num_samples:
        seen.example_keys = tuple(dict.fromkeys((table.key(0), table.key(table.num_samples - 1))))
    else:
        seen.findings.append(Finding("empty shard", f"{name} holds no sample", name))
    seen.findings += _find_repeats(table, name)
    return seen


def _find_repeats(table: MemberTable, shard: str) -> list[Finding]:
    """Findings about keys that a shard has more than once: split samples, and duplicates.

    Members of one sample that are not adjacent make several samples with different fields.
    """
    first: dict[str, int] = {}  # the first sample of each key
    fields: dict[int, set[str]] = {}
    by_rule: dict[Rule, list[int]] = {"split sample": [], "duplicate key": []}
    for sample in range(table.num_samples):
        before = first.setdefault(table.key(sample), sample)
        if before == sample:
            continue
        known = fields.setdefault(before, set(table.suffixes_of(before)))
        now = set(table.suffixes_of(sample))
        by_rule["split sample" if known.isdisjoint(now) else "duplicate key"].append(sample)
        known |= now
    findings: list[Finding] = []
    for rule, samples in by_rule.items():
        if samples:
            key, count = table.key(samples[0]), len(samples)
            byte = int(table.offsets[table.sample_starts[samples[0]]])
            message = _REPEATS[rule].format(count=count, key=key)
            findings.append(Finding(rule, message, shard, key, byte, count))
    return findings


_REPEATS: Final[Mapping[Rule, str]] = {
    "split sample": "members of {count:,} samples are not adjacent, first of {key!r}: readers make "
    "several samples of them; write the shard again with the members of a sample side by side",
    "duplicate key": "{count:,} samples have the key and a field of another one, first {key!r}; "
    "remove one of them, or give it another key",
}


def find_odd_headers(path: str, table: MemberTable) -> list[Finding]:
    """Findings about what is in a local tar and in no sample, and about its end.

    The headers are walked only where the table does not account for every block: where the gaps
    between the members are not all alike, or the end is long, or not of zeros alone.
    """
    stops = up_to_block(table.offsets + table.sizes)
    end = int(stops.max(initial=0))
    gaps = np.unique(table.offsets - np.append(0, stops[:-1]))
    is_even = len(gaps) == 1 and gaps[0] in (BLOCK, _ONE_EXTENDED)
    others: list[OtherEntry] = []
    passed_over: dict[str, list[str]] = {kind: [] for kind in _PASSED_OVER}
    with open_tar(path) as data:
        is_short = table.file_size - end <= _LONGEST_END
        if is_even and is_short and not any(data[end : table.file_size]):
            return []
        for member in walk_members(data, path, others=others):
            end = max(end, up_to_block(member.offset + member.size))
            if split_name(member.name) is None:
                passed_over["name without a field"].append(member.name)
    for entry in others:
        end = max(end, up_to_block(entry.stop))
        passed_over.setdefault(entry.kind, []).append(entry.name)
    return [
        Finding(
            "passed over",
            f"{len(names):,} members are in no sample ({kind}), first {names[0]!r}; "
            f"{_PASSED_OVER[kind]}",
            path,
            count=len(names),
        )
        for kind, names in passed_over.items()
        if names and kind in _PASSED_OVER
    ] + _find_long_end(end, table.file_size, path)


_PASSED_OVER: Final = {
    "link": "GNU tar makes links of files that it meets twice: write it with --hard-dereference",
    "special file": "only regular files are read: take it out",
    "name without a field": "a member is named KEY.FIELD: rename it if it belongs to a sample",
}


def _find_long_end(end: int, size_bytes: int, path: str) -> list[Finding]:
    """A finding about far more zeros after the end of the archive than tar writes.

    A file that was preallocated and never filled, or half fetched, ends so, and reads as whole.
    """
    zeros = size_bytes - end
    if zeros <= _LONGEST_END or (zeros <= _MANY_ZEROS and 3 * zeros < size_bytes):
        return []
    message = (
        f"{zeros:,} of its {size_bytes:,} bytes are zeros behind the end of the archive, at byte "
        f"{end}; look whether the file is whole, and fetch it again if not: if it is, `reshard` "
        "writes it without them"
    )
    return [Finding("unwritten end", message, path, byte=end)]


def find_missing_fields(
    shards: Sequence[ShardSurvey], fields: Mapping[str, FieldSizes]
) -> list[Finding]:
    """Findings about fields that some samples lack; of many fields there is one."""
    samples = sum(shard.samples for shard in shards)
    lacking = [suffix for suffix, sizes in fields.items() if sizes.samples < samples]
    if len(lacking) > _MAX_MISSING:
        message = (
            f"{len(lacking):,} different fields are not in all samples, such as {lacking[-1]!r}: "
            "names are split at the first dot, so dots in keys make fields; pack without them"
        )
        return [Finding("dotted key", message, count=len(lacking))]
    return [
        Finding(
            "missing field",
            f"{samples - fields[suffix].samples:,} of {samples:,} samples have no {suffix!r}; name "
            f"in `fields` what stands in for it ('{suffix};OTHER'), or drop them",
            next(shard.path for shard in shards if _lacks(shard, suffix)),
            count=samples - fields[suffix].samples,
        )
        for suffix in lacking
    ]


def _lacks(shard: ShardSurvey, suffix: str) -> bool:
    """Whether a sample of a shard lacks this field."""
    sizes = shard.fields.get(suffix)
    return shard.samples > (0 if sizes is None else sizes.samples)
