"""The survey of a data set: numbers of shards and samples, fields and their sizes, and findings.

Each shard is looked at by itself, in any number of processes, by its member table and the headers
that are not in the table. `info`, `index` and `verify` differ in how they get the table; what it
shows (`describe_table`) and what all shards show together is the same.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Final

import numpy as np
from tqdm import tqdm

from lightning_shards.dataprep.processes import map_parallel
from lightning_shards.errors import (
    DamagedShardError,
    FileAccessError,
    IndexMismatchError,
    ShardNotFoundError,
)
from lightning_shards.shards.members import MemberTable, find_repeats
from lightning_shards.shards.tar.tar_bytes import open_tar
from lightning_shards.shards.tar.walk import (
    BLOCK,
    OtherEntry,
    split_name,
    up_to_block,
    walk_members,
)
from lightning_shards.shards.urls import is_local, redact


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
        is_failure: Whether this is a fault, and not only unusual.
    """

    rule: str
    message: str
    shard: str | None = None
    sample: str | None = None
    byte: int | None = None
    count: int = 1
    is_failure: bool = True


def reported_name(url: str) -> str:
    """What reports call a shard: a local one by its path, which leads to it; a URL has no secrets.

    >>> reported_name("./pipe:ls/0.tar"), reported_name("https://user:secret@host/0.tar")
    ('./pipe:ls/0.tar', 'https://host/0.tar')
    """
    return url if is_local(url) else redact(url)


@dataclass(slots=True)
class ShardSurvey:
    """What was seen of one shard; if it could not be read to its end, no more than its findings.

    Attributes:
        samples: Samples in it.
        size_bytes: Its size.
        md5: Its MD5, where it is known.
        fields: By suffix how many samples have such a member, and their bytes together.
        findings: Faults and other facts.
        has_checksums: Whether its bytes could be held against checksums of an earlier index.
        is_readable: Whether it could be read to its end.
    """

    samples: int = 0
    size_bytes: int = 0
    md5: str | None = None
    fields: dict[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    findings: list[Finding] = field(default_factory=list[Finding])
    has_checksums: bool = False
    is_readable: bool = True


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
    def fields(self) -> dict[str, dict[str, int]]:
        """By suffix the samples and the bytes of its members in all shards."""
        samples, size_bytes = Counter[str](), Counter[str]()
        for shard in self.shards:
            for suffix, (num_samples, num_bytes) in shard.fields.items():
                samples[suffix] += num_samples
                size_bytes[suffix] += num_bytes
        return {of: {"samples": samples[of], "size_bytes": size_bytes[of]} for of in samples}

    def document(self) -> dict[str, Any]:
        """The numbers and the findings, for a report."""
        return {
            "shards": len(self.shards),
            "samples": self.samples,
            "bytes": sum(shard.size_bytes for shard in self.shards),
            "fields": self.fields,
            "findings": list(map(asdict, self.findings)),
        }

    @property
    def failures(self) -> list[Finding]:
        """The findings that are faults."""
        return [finding for finding in self.findings if finding.is_failure]


def survey(
    urls: Sequence[str], look: Callable[[str], ShardSurvey], *, processes: int = 1
) -> Survey:
    """Look at all shards; errors about single shards are findings.

    Args:
        urls: The shards, each once.
        look: Looks at one shard; it travels to the processes.
        processes: Number of processes.

    Raises:
        StorageError: A store does not answer.
    """
    looked = map_parallel(partial(_seen, look=look), urls, processes)
    shards = list(tqdm(looked, total=len(urls), unit=" shards", disable=None))
    seen = Survey(shards, [finding for shard in shards for finding in shard.findings])
    seen.findings += _find_missing_fields(seen)
    return seen


def _seen(url: str, look: Callable[[str], ShardSurvey]) -> ShardSurvey:
    try:
        return look(url)
    # A store that does not answer is no such error: it would not answer for other shards either.
    except (ShardNotFoundError, FileAccessError, IndexMismatchError, DamagedShardError) as error:
        # What kept bytes from being read is no damage: a store that refuses, a shard in replacement
        rule = "damaged shard" if isinstance(error, DamagedShardError) else "unread shard"
        finding = Finding(rule, str(error), reported_name(url))
        return ShardSurvey(findings=[finding], is_readable=False)


def describe_table(url: str, table: MemberTable) -> ShardSurvey:
    """What the member table of a shard shows, and of a local one its odd headers."""
    seen = ShardSurvey(table.num_samples, table.file_size)
    counts = np.bincount(table.suffix_ids, minlength=len(table.suffixes)).tolist()
    # float64 holds sums of bytes up to 9 PB exactly
    totals = np.bincount(table.suffix_ids, table.sizes, len(counts)).astype(np.int64).tolist()
    sizes = zip(table.suffixes, counts, totals, strict=True)
    seen.fields = {suffix: (count, total) for suffix, count, total in sizes if count}
    seen.findings += _find_repeats(table, reported_name(url))
    seen.findings += _find_odd_headers(url, table) if is_local(url) else []
    return seen


def _find_repeats(table: MemberTable, shard: str) -> list[Finding]:
    """Findings about keys that a shard has more than once: split samples, and duplicates."""
    findings: list[Finding] = []
    rules = {"split": "split sample", "duplicate": "duplicate key"}
    for kind, samples in find_repeats(table).items():
        if samples:
            key, count = table.key(samples[0]), len(samples)
            message = f"{count:,} samples have a key that came before, first {key!r}; {_REMEDY}"
            byte = int(table.offsets[table.sample_starts[samples[0]]])
            findings.append(Finding(rules[kind], message, shard, key, byte, count))
    return findings


_REMEDY: Final = "`reshard` joins members that are apart; of two samples remove or rename one"

PASSED_OVER: Final = "passed over"

_LONGEST_END: Final = 1 << 20
"""More zeros than at the end of an archive: two blocks, and what fills tar's last record."""

_ONE_EXTENDED: Final = 3 * BLOCK
"""An extended header, its body, and the header of the member, as webdataset writes each member."""


def _find_odd_headers(path: str, table: MemberTable) -> list[Finding]:
    """Findings about what is in a local tar and in no sample, and about its end.

    The headers are walked only where the table does not account for every block: where the gaps
    between the members are not all alike, or the end is long, or not of zeros alone.
    """
    stops = up_to_block(table.offsets + table.sizes)
    end = int(stops.max(initial=0))
    gaps = np.unique(table.offsets - np.append(0, stops[:-1]))
    others: list[OtherEntry] = []
    with open_tar(path) as data:
        is_even = gaps.tolist() in ([BLOCK], [_ONE_EXTENDED])
        is_short = table.file_size - end <= _LONGEST_END
        if is_even and is_short and not any(data[end : table.file_size]):
            return []
        members = list(walk_members(data, path, others=others))
    stops_of_all = [member.offset + member.size for member in members]
    stops_of_all += [entry.stop for entry in others]
    end = up_to_block(max(stops_of_all, default=0))
    passed_over = [member.name for member in members if split_name(member.name) is None]
    passed_over += [entry.name for entry in others if not entry.is_folder]
    findings: list[Finding] = []
    if passed_over:
        count = len(passed_over)
        message = (
            f"{count:,} members are in no sample, first {passed_over[0]!r}: they are not named "
            "KEY.FIELD, or are no regular files; GNU tar makes links of files that it meets twice: "
            "write it with --hard-dereference"
        )
        findings.append(Finding(PASSED_OVER, message, path, count=count, is_failure=False))
    if table.file_size - end > _LONGEST_END:
        # a file that was preallocated and never filled, or half fetched, reads as whole
        message = (
            f"{table.file_size - end:,} of its {table.file_size:,} bytes are zeros behind the end "
            "of the archive; fetch it again if it is not whole: if it is, `reshard` writes it "
            "without them"
        )
        findings.append(Finding("unwritten end", message, path, byte=end))
    return findings


def _find_missing_fields(seen: Survey) -> list[Finding]:
    """Findings about fields that some samples lack."""
    findings: list[Finding] = []
    for suffix, sizes in seen.fields.items():
        if count := seen.samples - sizes["samples"]:
            message = (
                f"{count:,} of {seen.samples:,} samples have no {suffix!r}; name in `fields` what "
                f"stands in for it ('{suffix};OTHER'), or drop them; where dots in keys made many "
                "such fields, as names are split at the first dot, pack without them"
            )
            findings.append(Finding("missing field", message, count=count, is_failure=False))
    return findings
