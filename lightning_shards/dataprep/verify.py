"""The check of local shards, every header, byte and image, and the repair of damaged ones.

A shard is compared with all that is known of it: its own checksums, the member tables of earlier
indexes (whose crc32s show which member changed), and the wids JSONs and the `sizes.json` beside it.
The check writes nothing, so that the table of a sound shard is kept if it is damaged later.

A repair copies the samples that are whole to a new shard. Behind a damaged header the next sound
one is searched. The sample before the damage is left out, because it may lack a member, and so are
those of the first two members behind it: the name of the first may have stood in a header that was
lost, so that its own header has a stand-in, and the second may belong to the same sample. All that
is left out is listed, and so is what an earlier index names and the new shard lacks. The original
is never touched.
"""

import json
import os
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np

from lightning_shards.dataprep.index import file_md5
from lightning_shards.dataprep.processes import map_parallel
from lightning_shards.dataprep.survey import (
    Finding,
    ShardSurvey,
    Survey,
    describe_table,
    find_odd_headers,
    survey,
)
from lightning_shards.errors import ConfigError, DamagedShardError, FileAccessError
from lightning_shards.shards.beside import (
    SIZES,
    WIDS,
    json_files,
    json_object,
    read_json,
    shard_entries,
)
from lightning_shards.shards.files import make_folder, new_file, read_regular, replace_file
from lightning_shards.shards.members import MemberTable, scan_members
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.table_bytes import (
    MAX_PUBLISHED_BYTES,
    published_url,
    unpublished,
)
from lightning_shards.shards.tables import TableStore
from lightning_shards.shards.tar.tar_bytes import TarBytes, open_tar
from lightning_shards.shards.tar.walk import (
    BLOCK,
    RESERVED_SUFFIXES,
    Member,
    compression_at,
    damaged,
    is_left_out,
    is_tar_header,
    split_name,
    up_to_block,
    walk_members,
)

Decode = Callable[[bytes], object]
DecoderOf = Callable[[str], Decode | None]
"""Gives the decoder of a suffix, or None; picklable."""

_MAX_NAMED: Final = 1000
"""Most changed members of one shard that are named."""

_MOST_PACKED: Final = 64
"""How many times its bytes a table beside a shard may have unpacked; tables have about eight."""


def verify_shards(
    paths: Sequence[str],
    *,
    cache: CacheFolder,
    decoder_of: DecoderOf | None = None,
    processes: int = 1,
) -> Survey:
    """Check local shards.

    Args:
        paths: The shards, each once.
        cache: Where earlier indexes kept the member tables.
        decoder_of: Gives the decoder of a suffix; None: nothing is decoded.
        processes: Number of processes.
    """
    beside, findings = _listed_beside(paths)
    seen = survey(paths, _Check(cache, decoder_of, beside), processes=processes)
    seen.findings += findings
    return seen


_Facts = Mapping[str, Mapping[str, Any]]
"""What files beside a shard say of it, by the path of the file: nsamples, filesize, md5sum."""


def _listed_beside(paths: Sequence[str]) -> tuple[dict[str, _Facts], list[Finding]]:
    """What files say of the shards beside them, and findings about shards that are missing."""
    by_folder: dict[Path, set[str]] = {}
    for path in map(Path, paths):
        by_folder.setdefault(path.parent, set()).add(path.name)
    beside: dict[str, dict[str, Mapping[str, Any]]] = {path: {} for path in paths}
    path_of = {Path(path): path for path in paths}
    findings: list[Finding] = []
    for folder, names in by_folder.items():
        for source in json_files(folder):
            facts = _facts_in(source)
            if facts is None:
                message = f"{source} is no index that can be read; move it away, and index again"
                findings.append(Finding("unusable index", message, str(folder)))
                continue
            for name in names & facts.keys():
                beside[path_of[folder / name]][str(source)] = facts[name]
            missing = sorted(facts.keys() - names - {""}) if names & facts.keys() else []
            for path in [str(folder / name) for name in missing]:
                if not os.path.isfile(path):  # noqa: PTH113 never raises
                    message = (
                        f"{path} does not exist, but {source} lists it; fetch it, or index again"
                    )
                    findings.append(Finding("missing shard", message, path))
    return dict(beside), findings


def _facts_in(source: Path) -> dict[str, Mapping[str, Any]] | None:
    """What a JSON file says of shards in its folder; None if it is an index that cannot be read."""
    content = read_json(source)
    if source.name == SIZES:
        counts = json_object(content)
        if not isinstance(content, dict):
            return None
        return {name: {"nsamples": count} for name, count in counts.items()}
    entries = shard_entries(content)
    if entries is None:
        return None if source.name == WIDS else {}
    folders = ("", source.parent.absolute().name)
    listed = [(Path(str(entry.get("url"))), entry) for entry in entries]
    return {url.name: entry for url, entry in listed if url.parent.name in folders}


@dataclass(frozen=True, slots=True)
class _Check:
    """The check of one shard; it travels to the processes that do it."""

    cache: CacheFolder
    decoder_of: DecoderOf | None
    beside: Mapping[str, _Facts]

    def __call__(self, path: str) -> ShardSurvey:
        known, findings = known_tables(path, self.cache)
        has_checksums = any(table.crc32 is not None for table in known)
        try:
            table = scan_members(path, with_crc32=True)
        except DamagedShardError as error:
            if compression_at(path):
                raise
            raise DamagedShardError(f"{error}; verify --repair saves what can be saved") from error
        seen = describe_table(path, table)
        seen.findings += findings + find_odd_headers(path, table)
        changed = [finding for old in known for finding in _changed_members(path, table, old)]
        seen.findings += dict.fromkeys(changed)  # two tables say the same as a rule
        seen.findings += _differences(seen, self.beside[path])
        seen.has_checksums = has_checksums or seen.md5 is not None
        if self.decoder_of is not None:
            seen.findings += _undecodable(path, table, self.decoder_of)
        return seen


def known_tables(path: str, cache: CacheFolder) -> tuple[list[MemberTable], list[Finding]]:
    """The tables of earlier indexes, beside a local shard and in the cache, and what is wrong."""
    kept = TableStore(cache).kept_table(path)
    tables = [] if kept is None else [kept]
    beside = Path(published_url(path))
    if not beside.exists():
        return tables, []
    try:
        data = read_regular(beside, MAX_PUBLISHED_BYTES)
        return [unpublished(data, _MOST_PACKED * len(data)), *tables], []
    except (FileAccessError, ValueError, RecursionError) as error:
        message = f"{beside} cannot be used: {error}; make it again by `lightning-shards index`"
        return tables, [Finding("unusable table", message, path)]


def _changed_members(path: str, table: MemberTable, known: MemberTable) -> list[Finding]:
    """Findings about members whose bytes differ from those that were indexed."""
    if known.crc32 is None or known.has_same_members(table):
        return []
    assert table.crc32 is not None  # the scan was with crc32s
    is_same = np.array_equal(known.offsets, table.offsets) and np.array_equal(
        known.sizes, table.sizes
    )
    changed = np.flatnonzero(known.crc32 != table.crc32).tolist() if is_same else []
    if not changed:
        message = (
            f"its members or their names are not those of its last index ({known.num_samples:,} "
            f"samples then, {table.num_samples:,} now); index it again if it was meant, else fetch "
            "it again"
        )
        return [Finding("changed shard", message, path)]
    owners = np.searchsorted(known.sample_starts, np.array(changed), side="right") - 1
    findings: list[Finding] = []
    for member, sample in zip(changed[:_MAX_NAMED], owners.tolist(), strict=False):
        key, offset = known.key(sample), int(known.offsets[member])
        name = f"{key}.{known.suffixes[known.suffix_ids[member]]}"
        message = f"member {name!r} is not what it was when indexed; fetch the shard again"
        findings.append(Finding("changed member", message, path, key, offset))
    return findings


def _differences(seen: ShardSurvey, beside: _Facts) -> list[Finding]:
    """Findings about facts that files beside the shard state differently."""
    facts: dict[str, object] = {"filesize": seen.size_bytes, "nsamples": seen.samples}
    if any(stated.get("md5sum") for stated in beside.values()):
        seen.md5 = file_md5(seen.path)
        facts["md5sum"] = seen.md5
    findings: list[Finding] = []
    for source, stated in beside.items():
        known = [name for name in facts if stated.get(name) is not None]
        different = [name for name in known if stated[name] != facts[name]]
        if different:
            name = different[0]
            message = (
                f"its {name} is {facts[name]}, {str(stated[name])[:40]} by the index {source}; "
                "index it again if it was written anew, else fetch it again"
            )
            rule = "stale count" if known == ["nsamples"] else "changed shard"
            findings.append(Finding(rule, message, seen.path))
    return findings


def _undecodable(path: str, table: MemberTable, decoder_of: DecoderOf) -> list[Finding]:
    """Findings about members that their decoder refuses."""
    decoders = [decoder_of(suffix) for suffix in table.suffixes]
    owners = np.repeat(np.arange(table.num_samples), np.diff(table.sample_starts))
    columns = (owners, table.suffix_ids, table.offsets, table.sizes)
    rows: list[list[int]] = np.stack(columns, axis=1).astype(np.int64).tolist()
    findings: list[Finding] = []
    with open_tar(path) as data:
        for sample, suffix, offset, size in rows:
            decode = decoders[suffix]
            if decode is None:
                continue
            try:
                decode(data[offset : offset + size])
            except Exception as error:  # noqa: BLE001 a decoder may raise anything at damaged bytes
                message = (
                    f"member {table.suffixes[suffix]} cannot be decoded: {type(error).__name__}: "
                    f"{error}; fetch the shard again, or leave the sample out by `reshard --filter`"
                )
                key = table.key(sample)
                findings.append(Finding("undecodable member", message, path, key, offset))
    return findings


REPORT: Final = "repair.json"

REPAIRABLE = frozenset({"damaged shard", "changed member"})
"""Rules of findings whose shards can be repaired."""

_SEARCHED: Final = 1 << 20
"""Bytes that are read at once to search the next header."""

_MAGIC: Final = slice(257, 262)

_MOST_CHANGED: Final = 0.5
"""If a larger share of the members that were read is not as in a table, it is of another shard."""


@dataclass(frozen=True, slots=True)
class Repair:
    """The repair of one shard.

    Attributes:
        path: Path of the new shard; None if no sample could be saved.
        saved: Samples in the new shard.
        lost: Reasons for what is left out, by key.
        unread: The places that cannot be read, and what stood there is not known.
    """

    path: str | None
    saved: int
    lost: dict[str, str]
    unread: tuple[str, ...] = ()


def require_place(paths: Sequence[str], folder: Path) -> None:
    """Check that copies of these shards can be written to a folder.

    Raises:
        ConfigError: It is not empty, or two shards have the same name.
    """
    if os.path.lexists(folder) and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(
            f"{folder} is there and is no empty folder; name another one for the repair, which "
            "writes over nothing"
        )
    name, times = Counter(Path(path).name for path in paths).most_common(1)[0]
    if times > 1:
        raise ConfigError(
            f"{times} of the shards are named {name!r}, and their repaired copies would overwrite "
            "each other; verify the shards of one folder at a time"
        )


def repair_shards(
    paths: Sequence[str],
    folder: Path,
    *,
    cache: CacheFolder,
    processes: int = 1,
) -> dict[str, Repair]:
    """The repairs of these shards by their paths, which a report in the folder lists, too."""
    repair = partial(repair_shard, folder=folder, cache=cache)
    repairs = dict(zip(paths, map_parallel(repair, paths, processes), strict=True))
    if repairs:
        make_folder(folder)
        report = {path: asdict(repair) for path, repair in repairs.items()}
        replace_file(folder / REPORT, json.dumps(report, indent=1, sort_keys=True) + "\n")
    return repairs


def repair_shard(path: str, *, folder: Path, cache: CacheFolder) -> Repair:
    """Copy the whole samples of one shard to a shard of the same name in a folder.

    Raises:
        DamagedShardError: The new shard would not read back as it was meant.
    """
    known = known_tables(path, cache)[0]
    try:
        with open_tar(path) as data:
            runs, unread = _runs_of(data, path)
            _find_repeated(runs)
            _find_changed(data, runs, known)
            whole = [run for run in runs if not run.fault]
            lost = _lost(runs, known)
            if not whole:
                return Repair(None, 0, lost, unread)
            target = make_folder(folder) / Path(path).name
            with new_file(target) as file:
                _write(file, data, whole)
                if scan_members(file.name).num_samples != len(whole):
                    raise damaged("cannot be saved: its copy reads back otherwise", path, 0)
                data.require_unchanged()
    except DamagedShardError as error:  # it is empty
        if Path(path).stat().st_size:
            raise
        return Repair(None, 0, {"": str(error)} | _lost([], known))
    return Repair(str(target), len(whole), lost, unread)


@dataclass(slots=True)
class _Run:
    """Members of one key that stand side by side; `fault` says why they cannot be saved."""

    key: str
    fields: dict[str, Member] = field(default_factory=dict[str, Member])
    fault: str = ""


_BESIDE: Final = "stands beside the damage, and may lack a member or its name"


def _runs_of(data: TarBytes, path: str) -> tuple[list[_Run], tuple[str, ...]]:
    """The runs in file order, and what is said of the places that cannot be read."""
    runs: list[_Run] = []
    unread: list[str] = []
    key, num_doubtful = "", 0  # the key of the last run, and members that stand behind the damage
    for read in _walk_around_damage(data, path):
        if isinstance(read, str):
            unread.append(read)
            key, num_doubtful = "", 2
            if runs:
                runs[-1].fault = _BESIDE
            continue
        parts = split_name(read.name)
        is_doubtful, num_doubtful = num_doubtful > 0, max(0, num_doubtful - 1)
        if parts is None:
            continue
        if not key or parts[0] != key:
            runs.append(_Run(parts[0]))
        (key, suffix), run = parts, runs[-1]
        if is_doubtful:
            run.fault = _BESIDE
        elif suffix in RESERVED_SUFFIXES or suffix in run.fields:
            run.fault = f"has a second or reserved {suffix}, at byte {read.offset:,}"
        run.fields[suffix] = read
    return runs, tuple(unread)


def _walk_around_damage(data: TarBytes, path: str) -> Iterator[Member | str]:
    """The members in file order, and what is said of each damaged range between them."""
    start: int | None = 0
    while start is not None:
        position = start
        try:
            for member in walk_members(data, path, start):
                yield member
                position = up_to_block(member.offset + member.size)
        except DamagedShardError:
            start = _next_header(data, position + BLOCK)
            place = f"from byte {position:,} on"
            if start is not None:
                place = f"of bytes {position:,} to {start:,}"
            yield f"nothing can be read {place}, and what stood there is not known"
        else:
            return


def _next_header(data: TarBytes, start: int) -> int | None:
    """The offset of the next sound header; tars from before POSIX have no magic to search for."""
    for begin in range(start, len(data), _SEARCHED):
        part = data[begin : begin + _SEARCHED]
        for block in range(0, len(part), BLOCK):
            header = part[block : block + BLOCK]
            if header[_MAGIC] == b"ustar" and is_tar_header(header):
                return begin + block
    return None


def _find_repeated(runs: Sequence[_Run]) -> None:
    """Note the fault of each run whose key repeats, and of those that are marked as bad."""
    firsts: dict[str, _Run] = {}
    for run in runs:
        if is_left_out(run.fields):
            run.fault = run.fault or "is left out by its member __bad__"
        first = firsts.setdefault(run.key, run)
        if first is not run:
            run.fault = run.fault or "comes again, apart from the first sample of this key"
            if first.fields.keys().isdisjoint(run.fields):
                first.fault = first.fault or "has members that are apart from each other"


def _find_changed(data: TarBytes, runs: Sequence[_Run], known: Sequence[MemberTable]) -> None:
    """Note the fault of each run with a member whose bytes are not those that were indexed."""
    members = [(run, suffix, member) for run in runs for suffix, member in run.fields.items()]
    for table in known:
        if table.crc32 is None:
            continue
        right = dict(zip(table.offsets.tolist(), table.crc32.tolist(), strict=True))
        wrong = [
            (run, suffix)
            for run, suffix, member in members
            if right.get(member.offset) != data.crc32(member.offset, member.size)
        ]
        if len(wrong) <= _MOST_CHANGED * len(members):
            for run, suffix in wrong:
                run.fault = run.fault or f"member {suffix} is not what it was when indexed"


def _lost(runs: Sequence[_Run], known: Sequence[MemberTable]) -> dict[str, str]:
    """Why samples are lost, by key; a key of which another sample is saved is marked."""
    saved = {run.key for run in runs if not run.fault}
    lost = {
        f"{run.key} (again)" if run.key in saved else run.key: run.fault
        for run in runs
        if run.fault
    }
    for table in known:
        for key in map(table.key, range(table.num_samples)):
            if key not in saved:
                lost.setdefault(key, "was there when the shard was indexed, and is not now")
    return lost


def _write(file: BinaryIO, data: TarBytes, runs: Sequence[_Run]) -> None:
    for member in (member for run in runs for member in run.fields.values()):
        header = tarfile.TarInfo(member.name)  # without traces of the machine
        header.size = member.size
        file.write(header.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape"))
        file.write(data[member.offset : member.offset + member.size])
        file.write(bytes(-member.size % BLOCK))
    file.write(bytes(2 * BLOCK))
    file.flush()
