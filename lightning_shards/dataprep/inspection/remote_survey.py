"""The survey of remote shards that can be read by ranges: each is read once, and nothing is copied.

What was found out about a shard is kept in the cache folder before the next shard is begun: its
member table, and beside the table a record of what else its index needs. A later run reads only
shards of which there is no record, or whose version is another one now. The record is written after
the table and names its version, so that a killed run leaves none of a shard that it did not finish.
"""

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from lightning_shards.dataprep.forward_tar import (
    CountedReads,
    ForwardTar,
    HeaderWindows,
    WholeStream,
)
from lightning_shards.dataprep.inspection.findings import (
    NOT_SURVEYED,
    Finding,
    find_passed_over,
)
from lightning_shards.dataprep.inspection.one_pass import ScannedTar, scan_once
from lightning_shards.dataprep.inspection.survey import (
    ShardSurvey,
    Survey,
    describe_shard,
    survey_of,
    without_samples,
)
from lightning_shards.dataprep.processes import map_parallel
from lightning_shards.errors import FileAccessError, IndexMismatchError, StorageError
from lightning_shards.shards.beside import json_object
from lightning_shards.shards.files import replace_file
from lightning_shards.shards.members import MemberTable, table_of_samples
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.progress_line import progress_line
from lightning_shards.shards.storage.protocol import ShardStat, Storage, shard_stat
from lightning_shards.shards.table_bytes import published
from lightning_shards.shards.tables import TableStore, write_table
from lightning_shards.shards.urls import redact, split_url

_RECORD: Final = ".scanned"
"""Ends the name of a record, which lies beside the table in the cache."""


class ShardFacts(NamedTuple):
    """What the index of a shard is made of.

    Attributes:
        table: Its member table.
        md5: MD5 of the shard; None if it was not read whole.
        passed_over: Findings about what is in no sample.
    """

    table: MemberTable
    md5: str | None
    passed_over: list[Finding]


@dataclass(frozen=True, slots=True)
class RemoteScan:
    """How remote shards are surveyed; it travels to the processes that do it.

    Attributes:
        storage: What reads them; it is pickled as its settings.
        cache: Where tables and records are kept.
        with_checksums: Whether every byte is read.
        put: Writes an object, and tells whether another one was replaced; None: no table goes to
            the store.
    """

    storage: Storage
    cache: CacheFolder
    with_checksums: bool
    put: Callable[[str, bytes], bool] | None = None

    def __call__(self, task: tuple[int, str, Path | str | None]) -> ShardSurvey:
        """The survey of one shard, whose table is published at a path, a URL or nowhere.

        A shard that is damaged, absent, refused or just being replaced is a finding, and others
        are surveyed all the same.

        Raises:
            StorageError: The store does not answer, after all retries.
            ConfigError: The store cannot be reached with these settings.
        """
        _, url, place = task
        stat = ShardStat(0, 0)
        try:
            stat = shard_stat(url, self.storage)
            facts = self._kept(url, stat)
            if facts is None:
                facts = self._kept_anew(self._scanned(url, stat, lambda _: None), url)
        except StorageError:  # it would not answer for the others, either
            raise
        except NOT_SURVEYED as error:
            return without_samples(url, error, stat.size)
        found = ShardSurvey(redact(url), facts.table.num_samples, stat.size, facts.md5)
        describe_shard(found, facts.table, facts.passed_over)
        if isinstance(place, Path):
            replace_file(place, published(facts.table))
        elif place is not None and self.put is not None:
            found.has_replaced_table = self.put(place, published(facts.table))
        return found

    def key_of(self, url: str, sample: int) -> str:
        """The key of a sample of a shard that was surveyed."""
        table = TableStore(self.cache).kept_table(url)
        if table is None:
            raise FileAccessError(
                f"the member table of {redact(url)} is gone from {self.cache.root}: something else "
                "has removed it; give the command again"
            )
        return table.key(sample)

    def _scanned(self, url: str, stat: ShardStat, note: Callable[[int], object]) -> ShardFacts:
        """Read the shard, of which nothing may change meanwhile."""
        digest = hashlib.md5(usedforsecurity=False)
        if self.with_checksums:
            with self.storage.open_stream(url) as stream:
                reads = CountedReads(WholeStream(stream, digest), note)
                data = ForwardTar(redact(url), stat.size, reads)
                scanned = scan_once(data, redact(url), with_crc32=True)
        else:
            windows = CountedReads(HeaderWindows(self.storage, url, stat), note)
            scanned = scan_once(ForwardTar(url, stat.size, windows), url, with_crc32=False)
        if shard_stat(url, self.storage) != stat:
            raise IndexMismatchError(
                f"{redact(url)} changed while it was read: a program still writes it; give the "
                "command again when it is whole"
            )
        return _facts_of(scanned, url, stat, digest.hexdigest() if self.with_checksums else None)

    def _kept(self, url: str, stat: ShardStat) -> ShardFacts | None:
        """What an earlier run has found out, if it is of this version and has what is wanted."""
        table = TableStore(self.cache).kept_table(url)
        record = _read_record(_record_of(url, self.cache), self.cache)
        if table is None or table.stamp != stat or record.get("stamp") != list(stat):
            return None
        if self.with_checksums and (table.crc32 is None or record.get("md5") is None):
            return None
        return ShardFacts(table, record["md5"], [Finding(**each) for each in record["passed_over"]])

    def _kept_anew(self, facts: ShardFacts, url: str) -> ShardFacts:
        """These facts, once they are kept: the table first."""
        record = {
            "stamp": list(facts.table.stamp),
            "md5": facts.md5,
            "passed_over": list(map(asdict, facts.passed_over)),
        }
        write_table(self.cache.sidecar_of(url), facts.table, self.cache)
        self.cache.write(_record_of(url, self.cache), json.dumps(record).encode())
        return facts


def survey_remote(
    urls: Sequence[str],
    scan: RemoteScan,
    *,
    places: Sequence[Path | str] = (),
    processes: int = 1,
    show_progress: bool | None = None,
) -> Survey:
    """Survey remote shards.

    Args:
        urls: The shards.
        scan: How each is surveyed.
        places: Paths or URLs where the tables of the sound ones are published; empty: nowhere.
        processes: Number of processes.
        show_progress: Whether to draw a line on stderr; None does so on a terminal.

    Raises:
        StorageError: A store does not answer; what was finished before is kept.
    """
    tasks = list(zip(range(len(urls)), urls, places or [None] * len(urls), strict=True))
    try:
        found: list[ShardSurvey] = []
        with progress_line("scanned", len(urls), split_url(urls[0])[0], show=show_progress) as step:
            for shard in map_parallel(scan, tasks, processes):
                found.append(shard)
                step()
        return survey_of(found, urls, scan.key_of)
    except StorageError as error:
        raise StorageError(
            f"{error}; what was read is kept: give the same command again to go on"
        ) from None
    finally:
        scan.storage.close_all()


def _facts_of(scanned: ScannedTar, url: str, stat: ShardStat, md5: str | None) -> ShardFacts:
    table = table_of_samples(scanned.samples, stat, scanned.crc32s)
    return ShardFacts(table, md5, find_passed_over(scanned.passed_over, redact(url)))


def _record_of(url: str, cache: CacheFolder) -> Path:
    sidecar = cache.sidecar_of(url)
    return sidecar.with_name(sidecar.name + _RECORD)


def _read_record(path: Path, cache: CacheFolder) -> dict[str, Any]:
    """The record at this path; empty if there is none that can be read."""
    file = cache.open(path)
    if file is None:
        return {}
    with os.fdopen(file, "rb") as kept:
        try:
            return json_object(json.load(kept))
        except (OSError, ValueError, RecursionError):
            return {}
