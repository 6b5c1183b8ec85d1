"""The repair of damaged tars: their samples that are whole are copied to a new shard.

Behind a damaged header the next sound one is searched. The sample before the damage is left out,
because it may lack a member, and so are those of the first two members behind it: the name of the
first may have stood in a header that was lost, so that its own header has a stand-in, and the
second may belong to the same sample. All that is left out is listed, and so is what an earlier
index names and the new shard lacks. The original is never touched.
"""

import json
import os
import tarfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final

from lightning_shards.dataprep.processes import map_parallel
from lightning_shards.dataprep.verify import known_tables
from lightning_shards.errors import ConfigError, DamagedShardError
from lightning_shards.shards.files import make_folder, new_file, replace_file
from lightning_shards.shards.members import MemberTable, scan_members
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.tar.tar_bytes import TarBytes, open_tar
from lightning_shards.shards.tar.walk import (
    BLOCK,
    RESERVED_SUFFIXES,
    Member,
    damaged,
    is_left_out,
    is_tar_header,
    split_name,
    up_to_block,
    walk_members,
)

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
