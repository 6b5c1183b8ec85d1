"""What a data set holds, in numbers: shards, samples, fields and their sizes, and what is odd.

Each shard is looked at by itself (`survey_shard`, any number of processes), from its member table
and the few headers that the table says nothing of; `survey` adds the shards up. No member's data is
read, but for checksums if they are asked for. A remote shard is fetched whole for it, and goes by
its URL without secrets.
"""

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from lightning_shards.dataprep.inspection.findings import (
    Finding,
    find_dotted_keys,
    find_missing_fields,
    find_passed_over,
    find_repeats,
    find_repeats_between,
    find_unsafe_names,
    key_hashes,
)
from lightning_shards.dataprep.inspection.layout import lay_out
from lightning_shards.dataprep.processes import map_parallel
from lightning_shards.errors import DamagedShardError, ShardNotFoundError
from lightning_shards.shards.fetching import LocalShard, local_copy
from lightning_shards.shards.members import MemberTable
from lightning_shards.shards.progress_line import progress_line
from lightning_shards.shards.regular_files import open_regular
from lightning_shards.shards.tables import TableStore
from lightning_shards.shards.urls import redact, split_url

_Task = TypeVar("_Task")

NUM_BINS = 64
"""Bin b of a histogram of sizes counts those from 2**(b - 1) up to, not 2**b; bin 0 zeros."""

MAX_COMPARED = 1 << 27
"""Keys that are compared between shards, 8 bytes each; of larger data sets none are."""

_MD5_CHUNK = 1 << 22


@dataclass(slots=True)
class FieldSizes:
    """The members of one suffix.

    Attributes:
        samples: samples that have one.
        total: bytes of all together.
        smallest: bytes.
        largest: bytes.
        bins: how many have a size of so many bits, int64, shape (NUM_BINS,).
    """

    samples: int = 0
    total: int = 0
    smallest: int = 0
    largest: int = 0
    bins: NDArray[np.int64] = field(default_factory=lambda: np.zeros(NUM_BINS, np.int64))

    def add(self, other: "FieldSizes") -> None:
        """Count the members of another shard, too."""
        self.smallest = min(self.smallest, other.smallest) if self.samples else other.smallest
        self.largest = max(self.largest, other.largest)
        self.samples += other.samples
        self.total += other.total
        self.bins = self.bins + other.bins


@dataclass(slots=True)
class ShardSurvey:
    """What one shard holds.

    Attributes:
        path: of the shard, or its redacted URL.
        samples: in it.
        size_bytes: of the file.
        md5: of the file, where checksums were asked for.
        fields: by suffix.
        lacking: suffix to the key of the first sample without it.
        example_keys: of the first and the last sample.
        hashes: `key_hashes`.
        findings: what is odd or wrong; of a damaged shard only that.
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

    @property
    def is_damaged(self) -> bool:
        """Whether the shard could not be looked at."""
        return any(finding.rule == "damaged shard" for finding in self.findings)


@dataclass(slots=True)
class Survey:
    """What a data set holds.

    Attributes:
        shards: in the user's order, each once.
        fields: by suffix, over all shards.
        findings: of all shards, and of all together.
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
        """The findings that say that something is wrong."""
        return [finding for finding in self.findings if finding.is_failure]


def survey(
    urls: Sequence[str],
    *,
    cache_dir: str | PathLike[str] | None = None,
    with_checksums: bool = False,
    processes: int = 1,
    show_progress: bool | None = None,
) -> Survey:
    """Look at all shards; the member tables of local ones are made and kept in `cache_dir`."""
    look = partial(survey_shard, cache_dir=cache_dir, with_checksums=with_checksums)
    shards = list(each_shard("scanned", look, urls, urls, processes, show=show_progress))
    fields: dict[str, FieldSizes] = {}
    for shard in shards:
        for suffix, sizes in shard.fields.items():
            fields.setdefault(suffix, FieldSizes()).add(sizes)
    findings = [finding for shard in shards for finding in shard.findings]
    whole = Survey(shards, fields, findings)
    whole.findings += _findings_of_all(whole, urls, cache_dir)
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
    """What the function finds in each shard, one task for each, with a line of progress."""
    with progress_line(verb, len(urls), split_url(urls[0])[0], show=show) as step:
        for found in map_parallel(function, tasks, processes):
            yield found
            step()


def repeated_keys(
    urls: Sequence[str],
    shards: Sequence[ShardSurvey],
    cache_dir: str | PathLike[str] | None,
    table_of: Callable[[LocalShard], MemberTable],
) -> list[Finding]:
    """Keys that several of the sound shards have; `table_of` says which key it is."""
    sound = [pair for pair in zip(urls, shards, strict=True) if not pair[1].is_damaged]

    def key_of(number: int, sample: int) -> str:
        with local_copy(sound[number][0], cache_dir) as shard:
            return table_of(shard).key(sample)

    return find_repeats_between(
        [found.hashes for _, found in sound], [found.path for _, found in sound], key_of
    )


def survey_shard(
    url: str,
    *,
    cache_dir: str | PathLike[str] | None = None,
    with_checksums: bool = False,
) -> ShardSurvey:
    """Look at one shard; one that is damaged or cannot be fetched is a finding, and no error."""
    try:
        with local_copy(url, cache_dir) as shard:
            return under_url(_survey_file(shard, with_checksums=with_checksums), url)
    except DamagedShardError as error:
        return unfetched(url, error)


def unfetched(url: str, error: DamagedShardError) -> ShardSurvey:
    """What there is to say of a remote shard that could not be fetched."""
    name = redact(url)
    return ShardSurvey(name, findings=[Finding("damaged shard", str(error), name)])


def under_url(found: ShardSurvey, url: str) -> ShardSurvey:
    """What was found in the copy of a remote shard, said of its redacted URL."""
    copy, name = found.path, redact(url)
    found.path = name
    found.findings = [
        replace(each, shard=name, message=each.message.replace(copy, name))
        for each in found.findings
    ]
    return found


def _survey_file(shard: LocalShard, *, with_checksums: bool) -> ShardSurvey:
    path = shard.path
    try:
        table = TableStore(shard.cache_dir, with_crc32=with_checksums).table_of(path)
        found = ShardSurvey(path, table.num_samples, table.file_size)
        found.md5 = file_md5(path) if with_checksums else None
        describe_shard(found, table)
    except (DamagedShardError, ShardNotFoundError) as error:
        damage = Finding("damaged shard", str(error), path, byte=damaged_byte(error))
        size = Path(path).stat().st_size if Path(path).is_file() else 0
        return ShardSurvey(path, size_bytes=size, findings=[damage])
    return found


def damaged_byte(error: Exception) -> int | None:
    """The place that an error about a shard names."""
    head, found, tail = str(error).rpartition(", at byte ")
    digits = tail.partition(";")[0]
    return int(digits) if found and head and digits.isdigit() else None


def file_md5(path: str) -> str:
    """MD5 of a file, which is what the wids JSON has a place for; against accidents only."""
    digest = hashlib.md5(usedforsecurity=False)
    with os.fdopen(open_regular(path), "rb") as file:
        while chunk := file.read(_MD5_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def describe_shard(found: ShardSurvey, table: MemberTable) -> None:
    """Fill in what the table of a shard says."""
    samples = np.repeat(np.arange(table.num_samples), np.diff(table.sample_starts))
    # the members by suffix, each group in file order: there may be as many suffixes as members
    members = np.argsort(table.suffix_ids, kind="stable")
    stops = np.cumsum(np.bincount(table.suffix_ids, minlength=len(table.suffixes)))
    sizes, owners = table.sizes[members], samples[members].tolist()
    start = 0
    for suffix, stop in zip(table.suffixes, stops.tolist(), strict=True):
        if start < stop:
            found.fields[suffix] = sizes_of(sizes[start:stop])
        if start < stop < start + table.num_samples:
            # a sample has a suffix once, so that up to a gap the owners are 0, 1, 2 and so on
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
    found.findings += find_passed_over(lay_out(table, found.path).passed_over, found.path)


def sizes_of(sizes: NDArray[np.int64]) -> FieldSizes:
    """The sizes of the members of one suffix, at least one."""
    bits = np.ceil(np.log2(sizes + 1.0)).astype(np.int64)  # exact up to 2**53
    bins = np.bincount(bits, minlength=NUM_BINS).astype(np.int64)
    return FieldSizes(len(sizes), int(sizes.sum()), int(sizes.min()), int(sizes.max()), bins)


def _findings_of_all(
    whole: Survey, urls: Sequence[str], cache_dir: str | PathLike[str] | None
) -> list[Finding]:
    """What no shard can know by itself."""
    sound = [shard for shard in whole.shards if not shard.is_damaged]
    samples_with = {suffix: sizes.samples for suffix, sizes in whole.fields.items()}
    lacking: dict[str, tuple[str, str]] = {}
    unplaced = set(samples_with)
    for shard in sound:
        if shard.samples:
            absent = dict.fromkeys(unplaced - shard.fields.keys(), shard.example_keys[0])
            for suffix, key in (shard.lacking | absent).items():
                lacking.setdefault(suffix, (shard.path, key))
            unplaced -= lacking.keys()
    found = find_missing_fields(samples_with, whole.samples, lacking)
    found += find_dotted_keys(samples_with)
    if whole.samples <= MAX_COMPARED:
        found += repeated_keys(
            urls,
            whole.shards,
            cache_dir,
            lambda shard: TableStore(shard.cache_dir).table_of(shard.path),
        )
    return found
