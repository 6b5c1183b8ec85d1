"""The survey of a data set: numbers of shards and samples, fields and sizes, and findings.

Each shard is surveyed by itself (`survey_shard`, in any number of processes), by its member table
and the few headers that are not in the table; `survey` adds the shards up. Data of members is read
only if checksums are wanted. A remote shard is fetched whole, and named by its URL without secrets.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from lightning_shards.dataprep.inspection.findings import (
    NOT_SURVEYED,
    WITHOUT_SAMPLES,
    Finding,
    find_dotted_keys,
    find_long_end,
    find_missing_fields,
    find_passed_over,
    find_unsafe_names,
    finding_of,
    reported_name,
)
from lightning_shards.dataprep.inspection.layout import lay_out
from lightning_shards.dataprep.inspection.listed_shards import ListedMd5, md5_of
from lightning_shards.dataprep.inspection.repeated_keys import (
    find_repeats,
    find_repeats_between,
    key_hashes,
)
from lightning_shards.dataprep.processes import map_parallel
from lightning_shards.errors import ConfigError, DamagedShardError, ShardError
from lightning_shards.shards.files import replace_file
from lightning_shards.shards.members import MemberTable
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.progress_line import progress_line
from lightning_shards.shards.remote.transport import TransportSettings
from lightning_shards.shards.storage.local_copies import LocalShard, local_copy
from lightning_shards.shards.table_bytes import published
from lightning_shards.shards.tables import TableStore
from lightning_shards.shards.urls import split_url

_Task = TypeVar("_Task")

NUM_BINS = 64
"""Bins of a histogram of sizes: bin b counts sizes from 2**(b - 1) to 2**b - 1, bin 0 zeros."""

MAX_COMPARED = 1 << 27
"""Most keys that are compared between shards, at 8 bytes each; beyond that none are compared."""


@dataclass(slots=True)
class FieldSizes:
    """The sizes of the members of one suffix.

    Attributes:
        samples: Samples that have such a member.
        total: bytes of all members together.
        smallest: Size of the smallest member in bytes.
        largest: Size of the largest member in bytes.
        bins: Number of members by the number of bits of their size, int64, shape (NUM_BINS,).
    """

    samples: int = 0
    total: int = 0
    smallest: int = 0
    largest: int = 0
    bins: NDArray[np.int64] = field(default_factory=lambda: np.zeros(NUM_BINS, np.int64))

    def add(self, other: "FieldSizes") -> None:
        """Add the members of another shard."""
        self.smallest = min(self.smallest, other.smallest) if self.samples else other.smallest
        self.largest = max(self.largest, other.largest)
        self.samples += other.samples
        self.total += other.total
        self.bins = self.bins + other.bins


@dataclass(slots=True)
class ShardSurvey:
    """The survey of one shard.

    Attributes:
        path: Path of the shard, or its redacted URL.
        samples: Number of samples.
        size_bytes: Size of the file.
        md5: MD5 of the file, if checksums were wanted or an index has it and it is still right.
        fields: Sizes of members by suffix.
        lacking: Key of the first sample without a suffix, by suffix.
        example_keys: Keys of the first and the last sample.
        hashes: `key_hashes` of all samples.
        findings: Findings about the shard; one that could not be read has nothing else.
        has_replaced_table: Whether another member table lay beside the shard.
        has_checksums: Whether its bytes were held against checksums of an earlier index.
    """

    path: str
    samples: int = 0
    size_bytes: int = 0
    md5: str | None = None
    fields: dict[str, FieldSizes] = field(default_factory=dict[str, FieldSizes])
    lacking: dict[str, str] = field(default_factory=dict[str, str])
    example_keys: tuple[str, ...] = ()
    hashes: NDArray[np.uint64] = field(default_factory=lambda: np.empty(0, np.uint64))
    findings: list[Finding] = field(default_factory=list[Finding])
    has_replaced_table: bool = False
    has_checksums: bool = False

    @property
    def is_readable(self) -> bool:
        """Whether the shard could be read to its end."""
        return all(finding.rule not in WITHOUT_SAMPLES for finding in self.findings)


@dataclass(slots=True)
class Survey:
    """The survey of a data set.

    Attributes:
        shards: Surveys of the shards in the user's order, each once.
        fields: Sizes of members by suffix, over all shards.
        findings: Findings about single shards, and about all shards together.
    """

    shards: list[ShardSurvey]
    fields: dict[str, FieldSizes]
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
    def failures(self) -> list[Finding]:
        """The findings that are faults."""
        return [finding for finding in self.findings if finding.is_failure]


def survey(
    urls: Sequence[str],
    *,
    cache: CacheFolder,
    settings: TransportSettings | None = None,
    with_checksums: bool = False,
    table_paths: Sequence[Path] = (),
    listed: Sequence[ListedMd5 | None] = (),
    processes: int = 1,
    show_progress: bool | None = None,
) -> Survey:
    """Survey all shards; the member tables of local ones are made and kept in `cache`.

    Args:
        urls: The shards.
        cache: Folder of the member tables.
        settings: How remote shards are reached.
        with_checksums: Whether each byte is read.
        table_paths: Where the table of each sound shard is published; empty: nowhere.
        listed: The MD5 of each shard in the index that is made again; empty: of none.
        processes: Number of processes.
        show_progress: Whether to draw a line on stderr; None does so on a terminal.
    """
    look = partial(survey_shard, cache=cache, settings=settings, with_checksums=with_checksums)
    none = [None] * len(urls)
    tasks = list(zip(urls, table_paths or none, listed or none, strict=True))
    shards = list(each_shard("scanned", look, urls, tasks, processes, show=show_progress))

    def key_of(url: str, sample: int) -> str:
        with local_copy(url, cache, settings) as shard:
            return TableStore(shard.cache).table_now(shard.path).key(sample)

    return survey_of(shards, urls, key_of)


def survey_of(
    shards: list[ShardSurvey], urls: Sequence[str], key_of: Callable[[str, int], str]
) -> Survey:
    """The survey of a data set from those of its shards; `key_of` looks up the key of a sample."""
    fields: dict[str, FieldSizes] = {}
    for shard in shards:
        for suffix, sizes in shard.fields.items():
            fields.setdefault(suffix, FieldSizes()).add(sizes)
    findings = [finding for shard in shards for finding in shard.findings]
    whole = Survey(shards, fields, findings)
    whole.findings += _findings_of_all(whole, urls, key_of)
    return whole


def each_shard(
    verb: str,
    function: Callable[[_Task], ShardSurvey],
    urls: Sequence[str],
    tasks: Sequence[_Task],
    processes: int,
    *,
    show: bool | None,
) -> Iterator[ShardSurvey]:
    """The survey that the function makes of each shard's task, with a line of progress."""
    with progress_line(verb, len(urls), split_url(urls[0])[0], show=show) as step:
        for shard in map_parallel(function, tasks, processes):
            yield shard
            step()


def compare_keys(
    urls: Sequence[str], shards: Sequence[ShardSurvey], key_of: Callable[[str, int], str]
) -> list[Finding]:
    """Findings about keys that several sound shards have; `key_of` looks up one of a shard.

    If the shards have more than `MAX_COMPARED` keys, the finding is that none were compared.
    """
    sound = [pair for pair in zip(urls, shards, strict=True) if pair[1].is_readable]
    num_keys = sum(len(shard.hashes) for _, shard in sound)
    if num_keys > MAX_COMPARED:
        message = (
            f"keys that are in several shards were not looked for: there are {num_keys:,} keys, "
            f"and {MAX_COMPARED:,} are compared at most; name fewer shards at a time"
        )
        return [Finding("repeated key", message, count=0)]

    def key_if_read(number: int, sample: int) -> str | None:
        try:
            return key_of(sound[number][0], sample)
        except (*NOT_SURVEYED, ConfigError, IndexError):
            # All shards were read, and what was found of them is to be told. This one cannot be
            # read again, or was replaced by one with fewer samples.
            return None

    return find_repeats_between(
        [shard.hashes for _, shard in sound], [shard.path for _, shard in sound], key_if_read
    )


def survey_shard(
    task: tuple[str, Path | None, ListedMd5 | None],
    *,
    cache: CacheFolder,
    settings: TransportSettings | None,
    with_checksums: bool,
) -> ShardSurvey:
    """Survey one shard; that it is damaged or cannot be read is a finding and not an error.

    The table of a sound one is published, if the task has a path for it.
    """
    url, table_path, listed = task
    try:
        with local_copy(url, cache, settings) as shard:
            found, table = _survey_file(shard, listed, with_checksums=with_checksums)
            found = under_url(found, url)
            packed = b"" if table is None or table_path is None else published(table)
    except NOT_SURVEYED as error:
        return without_samples(url, error)
    if table_path is not None and packed:
        replace_file(table_path, packed)
    return found


def without_samples(url: str, error: ShardError, size_bytes: int = 0) -> ShardSurvey:
    """The survey of a shard that could not be read to its end."""
    name = reported_name(url)
    return ShardSurvey(name, size_bytes=size_bytes, findings=[finding_of(error, name)])


def under_url(found: ShardSurvey, url: str) -> ShardSurvey:
    """The survey of the copy of a remote shard, with the copy's path replaced by the URL."""
    copy, name = found.path, reported_name(url)
    found.path = name
    found.findings = [
        replace(finding, shard=name, message=finding.message.replace(copy, name))
        for finding in found.findings
    ]
    return found


def _survey_file(
    shard: LocalShard, listed: ListedMd5 | None, *, with_checksums: bool
) -> tuple[ShardSurvey, MemberTable | None]:
    """The survey of a file, and the table that it is made from, if it could be read to its end."""
    path = shard.path
    try:
        # First, so that the table of a damaged shard is not kept.
        md5 = md5_of(path, listed, is_wanted=with_checksums)
        table = TableStore(shard.cache, with_crc32=with_checksums).table_of(path)
        found = ShardSurvey(path, table.num_samples, table.file_size, md5)
        layout = lay_out(table, path)
        describe_shard(found, table, find_passed_over(layout.passed_over, path))
        found.findings += find_long_end(layout.end, table.file_size, path)
    except DamagedShardError as error:
        size = Path(path).stat().st_size if Path(path).is_file() else 0
        return without_samples(path, error, size), None
    return found, table


def describe_shard(
    found: ShardSurvey, table: MemberTable, passed_over: Sequence[Finding] = ()
) -> None:
    """Fill in the facts from the table of a shard, and findings about what is not in it."""
    # samples: the sample of each member, shape (num_members,).
    samples = np.repeat(np.arange(table.num_samples), np.diff(table.sample_starts))
    # members: the numbers of all members grouped by suffix, each group in file order. One sort
    # serves all suffixes, because there may be as many suffixes as members.
    # sizes, owners: size and sample of each member in that order; stops: the end of each group.
    members = np.argsort(table.suffix_ids, kind="stable")
    stops = np.cumsum(np.bincount(table.suffix_ids, minlength=len(table.suffixes)))
    sizes, owners = table.sizes[members], samples[members].tolist()
    start = 0
    for suffix, stop in zip(table.suffixes, stops.tolist(), strict=True):
        if start < stop:
            found.fields[suffix] = sizes_of(sizes[start:stop])
        if start < stop < start + table.num_samples:
            # A sample has a suffix once, so the owners are 0, 1, 2, ... up to the first gap.
            group = enumerate(owners[start:stop])
            lacks = next((count for count, owner in group if owner > count), stop - start)
            found.lacking[suffix] = table.key(lacks)
        start = stop
    if table.num_samples:
        found.example_keys = tuple(dict.fromkeys((table.key(0), table.key(table.num_samples - 1))))
    else:
        found.findings.append(Finding("empty shard", f"{found.path} holds no sample", found.path))
    found.hashes = key_hashes(table)
    found.findings += find_repeats(table, found.path, found.hashes)
    found.findings += find_unsafe_names(table, found.path)
    found.findings += passed_over


def sizes_of(sizes: NDArray[np.int64]) -> FieldSizes:
    """The sizes of the members of one suffix, at least one."""
    bits = np.ceil(np.log2(sizes + 1.0)).astype(np.int64)  # exact up to 2**53
    bins = np.bincount(bits, minlength=NUM_BINS).astype(np.int64)
    return FieldSizes(len(sizes), int(sizes.sum()), int(sizes.min()), int(sizes.max()), bins)


def _findings_of_all(
    whole: Survey, urls: Sequence[str], key_of: Callable[[str, int], str]
) -> list[Finding]:
    """Findings that need all shards: missing fields, dotted keys, repeated keys."""
    sound = [shard for shard in whole.shards if shard.is_readable]
    samples_with = {suffix: sizes.samples for suffix, sizes in whole.fields.items()}
    lacking: dict[str, tuple[str, str]] = {}
    unplaced = set(samples_with)
    for shard in sound:
        if shard.samples:
            absent = dict.fromkeys(unplaced - shard.fields.keys(), shard.example_keys[0])
            for suffix, key in (shard.lacking | absent).items():
                lacking.setdefault(suffix, (shard.path, key))
            unplaced -= lacking.keys()
    findings = find_missing_fields(samples_with, whole.samples, lacking)
    findings += find_dotted_keys(samples_with)
    return findings + compare_keys(urls, whole.shards, key_of)
