"""The check of local shards, every header, byte and image, and the repair of damaged ones.

A shard is compared with all that is known of it: its own checksums, the member tables of earlier
indexes (whose crc32s show which member changed), and its MD5 in the wids JSON beside it.
The check writes nothing, so that the table of a sound shard is kept if it is damaged later.

A repair copies the samples that are whole to a new shard. Behind a damaged header the next sound
one is searched. The sample before the damage is left out, because it may lack a member, and so are
the two behind it: the name of a first member may have stood in a header that was lost, so that its
own header has a stand-in, and what follows may belong to the same sample. All that is left out is
listed, and so is what an earlier index names and the new shard lacks. The original is never
touched.
"""

import json
import os
import tarfile
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import numpy as np

from lightning_shards.dataprep.index import file_md5
from lightning_shards.dataprep.processes import map_parallel
from lightning_shards.dataprep.survey import Finding, ShardSurvey, Survey, describe_table, survey
from lightning_shards.dataprep.tar_writer import check_sample, is_image, write_shard
from lightning_shards.errors import ConfigError, DamagedShardError, SampleError
from lightning_shards.samples.images import decode_pil
from lightning_shards.shards.counts import WIDS, wids_entries
from lightning_shards.shards.files import CacheFolder, make_folder, read_regular, replace_file
from lightning_shards.shards.members import MemberTable, scan_members
from lightning_shards.shards.storage.schemes import Storages
from lightning_shards.shards.tables import (
    MAX_PUBLISHED_BYTES,
    TableStore,
    opened_table,
    published_url,
)
from lightning_shards.shards.tar.tar_bytes import TarBytes, open_tar
from lightning_shards.shards.tar.walk import BLOCK, Member, split_name, up_to_block, walk_members
from lightning_shards.shards.urls import plain_path


def verify_shards(paths: Sequence[str], *, cache: CacheFolder, processes: int) -> Survey:
    """Check local shards, each named once; images are decoded where Pillow is installed.

    `cache` is where earlier indexes kept the member tables.
    """
    md5s: dict[Path, object] = {}
    for folder in {Path(path).parent for path in paths}:
        for entry in wids_entries(plain_path(str(folder / WIDS)), Storages()):
            md5s[folder / Path(str(entry.get("url"))).name] = entry.get("md5sum")
    return survey(paths, partial(_check, cache=cache, md5s=md5s), processes=processes)


def _check(path: str, *, cache: CacheFolder, md5s: Mapping[Path, object]) -> ShardSurvey:
    known = _known_tables(path, cache)
    table = scan_members(path, with_crc32=True)
    seen = describe_table(path, table)
    changed = [finding for old in known for finding in _find_changes(path, table, old)]
    seen.findings += dict.fromkeys(changed)  # two tables say the same as a rule
    if stated := md5s.get(Path(path)):
        seen.md5 = file_md5(path)
        if seen.md5 != stated:
            message = (
                f"its MD5 is {seen.md5}, {str(stated)[:40]} by the {WIDS} beside it; index it "
                "again if it was written anew, else fetch it again"
            )
            seen.findings.append(Finding("changed shard", message, path))
    seen.has_checksums = seen.md5 is not None or any(old.crc32 is not None for old in known)
    if find_spec("PIL"):
        seen.findings += _find_undecodable(path, table)
    return seen


def _known_tables(path: str, cache: CacheFolder) -> list[MemberTable]:
    """The tables of earlier indexes, in the cache and beside a local shard.

    Raises:
        FileAccessError: One cannot be used.
    """
    kept = TableStore(cache).kept_table(path)
    tables = [] if kept is None else [kept]
    beside = Path(published_url(path))
    if beside.exists():
        data = read_regular(beside, MAX_PUBLISHED_BYTES)
        tables.append(opened_table(path, data))
    return tables


def _find_changes(path: str, table: MemberTable, known: MemberTable) -> list[Finding]:
    """A finding about members whose bytes differ from those that were indexed."""
    if known.crc32 is None or known.has_same_members(table):
        return []
    assert table.crc32 is not None  # the scan was with crc32s
    is_same = np.array_equal(known.offsets, table.offsets)
    changed = np.flatnonzero(known.crc32 != table.crc32).tolist() if is_same else []
    if not changed:
        message = (
            f"its members or their names are not those of its last index ({known.num_samples:,} "
            f"samples then, {table.num_samples:,} now); index it again if it was meant, else fetch "
            "it again"
        )
        return [Finding("changed shard", message, path)]
    return _about("changed member", changed, known, path, "members are not as they were indexed")


def _about(
    rule: str, members: Sequence[int], table: MemberTable, path: str, fact: str
) -> list[Finding]:
    """The finding about these members, which names the first of them."""
    sample = int(np.searchsorted(table.sample_starts, members[0], side="right")) - 1
    key, suffix = table.key(sample), table.suffixes[int(table.suffix_ids[members[0]])]
    message = f"{len(members):,} {fact}, first '{key}.{suffix}'; fetch the shard again"
    return [Finding(rule, message, path, key, int(table.offsets[members[0]]), len(members))]


def _find_undecodable(path: str, table: MemberTable) -> list[Finding]:
    """A finding about images that cannot be decoded."""
    of_images = np.array([is_image(suffix) for suffix in table.suffixes], bool)
    images: list[int] = np.flatnonzero(of_images[table.suffix_ids]).tolist()
    bad: list[int] = []
    reason = ""
    with open_tar(path) as data:
        for member in images:
            offset = int(table.offsets[member])
            try:
                decode_pil(data[offset : offset + int(table.sizes[member])])
            except Exception as error:  # noqa: BLE001 a decoder may raise anything at damaged bytes
                bad.append(member)
                reason = reason or f" ({type(error).__name__}: {error})"
    fact = f"images cannot be decoded{reason}"
    return _about("undecodable member", bad, table, path, fact) if bad else []


_REPAIRABLE: Final = ("damaged shard", "changed member")

_MAGIC: Final = slice(257, 262)

_BESIDE: Final = "stands beside the damage, and may lack a member or its name"
_GONE: Final = "was there when the shard was indexed, and is not now"


def require_place(paths: Sequence[str], folder: Path) -> None:
    """Check that copies of these shards can be written to a folder.

    Raises:
        ConfigError: It is not empty, or two shards have the same name.
    """
    if os.path.lexists(folder) and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} is no empty folder; name another one for the repair")
    if len({Path(path).name for path in paths}) < len(paths):
        raise ConfigError(
            "two of the shards have the same name, and their repaired copies would overwrite each "
            "other; verify the shards of one folder at a time"
        )


def repair_shards(
    seen: Survey, folder: Path, *, cache: CacheFolder, processes: int
) -> dict[str, dict[str, Any]]:
    """The repairs of damaged shards by their paths, as the report in the folder lists them.

    Each has the `path` of the new shard, or None if no sample could be saved; how many samples were
    `saved`; by key why others were `lost`; and the places that are `unread`.

    Raises:
        DamagedShardError: A shard changed while it was read.
    """
    bad = [finding.shard for finding in seen.findings if finding.rule in _REPAIRABLE]
    paths = list(dict.fromkeys(filter(None, bad)))
    repairs = map_parallel(partial(_repair, folder=folder, cache=cache), paths, processes)
    report = dict(zip(paths, repairs, strict=True))
    if report:
        text = json.dumps(report, indent=1, sort_keys=True) + "\n"
        replace_file(make_folder(folder) / "repair.json", text)
    return report


def _repair(path: str, *, folder: Path, cache: CacheFolder) -> dict[str, Any]:
    """Copy the whole samples of one shard to a shard of the same name in a folder."""
    known = _known_tables(path, cache)
    lost = {key: _GONE for table in known for key in map(table.key, range(table.num_samples))}
    if not Path(path).stat().st_size:
        return {"path": None, "saved": 0, "lost": lost, "unread": ["it is empty"]}
    with open_tar(path) as data:
        runs, unread = _runs_of(data, path)
        times, checksums = Counter(run.key for run in runs), _checksums(known)
        for run in runs:
            run.fault = run.fault or _fault_of(run, times[run.key], data, checksums)
        whole = [run for run in runs if not run.fault]
        lost |= {run.key: run.fault for run in runs}
        lost = {key: why for key, why in lost.items() if why}
        target = folder / Path(path).name
        if whole:
            write_shard(target, ((run.key, run.contents(data)) for run in whole))
    saved_at = str(target) if whole else None
    return {"path": saved_at, "saved": len(whole), "lost": lost, "unread": unread}


@dataclass(slots=True)
class _Run:
    """Members of one key that stand side by side; `fault` says why they cannot be saved."""

    key: str
    members: list[tuple[str, Member]] = field(default_factory=list[tuple[str, Member]])
    fault: str = ""

    def contents(self, data: TarBytes) -> list[tuple[str, bytes]]:
        return [(name, data[m.offset : m.offset + m.size]) for name, m in self.members]


def _runs_of(data: TarBytes, path: str) -> tuple[list[_Run], list[str]]:
    """The runs in file order, and what is said of the places that cannot be read."""
    runs: list[_Run] = []
    unread: list[str] = []
    start: int | None = 0
    while start is not None:  # the offset of a sound header
        position, stretch = start, list[_Run]()
        num_doubtful = 2 if unread else 0  # runs that may lack a member or its name
        try:
            for member in walk_members(data, path, start):
                position = up_to_block(member.offset + member.size)
                if parts := split_name(member.name):
                    if not stretch or stretch[-1].key != parts[0]:
                        stretch.append(_Run(parts[0]))
                    stretch[-1].members.append((parts[1], member))
            start = None
        except DamagedShardError:
            start = _next_header(data, position + BLOCK)
            stop = len(data) if start is None else start
            place = f"bytes {position:,} to {stop:,}"
            unread.append(f"{place} cannot be read; what stood there is not known")
            for run in stretch[-1:]:
                run.fault = _BESIDE
        for run in stretch[:num_doubtful]:
            run.fault = _BESIDE
        runs += stretch
    return runs, unread


def _next_header(data: TarBytes, start: int) -> int | None:
    """The offset of the next sound header; tars from before POSIX have no magic to search for."""
    for position in range(start, len(data), BLOCK):
        header = data[position : position + BLOCK]
        if header[_MAGIC] == b"ustar":
            with suppress(tarfile.HeaderError):
                tarfile.TarInfo.frombuf(header, "utf-8", "surrogateescape")
                return position
    return None


def _checksums(known: Sequence[MemberTable]) -> dict[tuple[str, str, int, int], int]:
    """The crc32s of earlier indexes by key, suffix, offset and size of the members."""
    return {
        (table.key(sample), suffix, *extent[:2]): extent[2]
        for table in known
        for sample in range(table.num_samples)
        for suffix in table.suffixes_of(sample)
        if (extent := table.find(sample, suffix)) and extent[2] is not None
    }


def _fault_of(
    run: _Run, times: int, data: TarBytes, checksums: Mapping[tuple[str, str, int, int], int]
) -> str:
    """Why a run would not read back as it is, or as it was indexed; empty if it would.

    Members that no index has at this place are not compared: it may be of an older shard.
    """
    try:
        check_sample(run.key, [suffix for suffix, _ in run.members])
    except SampleError as error:
        return str(error)
    for suffix, member in run.members:
        indexed = checksums.get((run.key, suffix, member.offset, member.size))
        if indexed is not None and data.crc32(member.offset, member.size) != indexed:
            return f"member {suffix} is not what it was when indexed"
    return "its key is in several places" if times > 1 else ""
