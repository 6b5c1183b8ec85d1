"""The salvage of a damaged tar: its samples that are certainly whole are written to a new shard.

A sample beside the damage is kept only if it is known to be whole: by the member table of an
earlier index, or because it has every field that any sample of the shard has. A table with crc32s
also saves members under damaged headers, and shows changed bytes. Without one it is told which
places could not be read, because nothing says what stood there. Members of one key that are apart
are joined if they can only be one sample. Hidden files, as macOS adds them to tars, are left out.
The original is never touched: saved samples go to another folder.
"""

import tarfile
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO

from lightning_shards.dataprep.damaged_tar import DamagedRange, walk_around_damage
from lightning_shards.dataprep.tar_writer import is_hidden
from lightning_shards.errors import ConfigError
from lightning_shards.shards.files import make_folder, new_file
from lightning_shards.shards.members import MemberTable, scan_members
from lightning_shards.shards.tar.blocks import BLOCK
from lightning_shards.shards.tar.tar_bytes import TarBytes, open_tar
from lightning_shards.shards.tar.walk import (
    RESERVED_SUFFIXES,
    Member,
    damaged,
    is_left_out,
    split_name,
)

Decode = Callable[[bytes], object]
DecoderOf = Callable[[str], Decode | None]
"""Gives the decoder of a suffix, or None; picklable."""

_LEAST_MATCHING = 0.5
"""If fewer members than this share have the crc32 in the table, it is of another shard.

The share is of all members of the table, or of those that can still be read: most may be cut off.
"""


@dataclass(frozen=True, slots=True)
class Salvage:
    """The result of the salvage of one shard.

    Attributes:
        path: Path of the new shard; None if no sample could be saved.
        saved: Samples in the new shard.
        lost: Reasons for the samples left out, by key (`KEY (again)` for the second of a key, and
            `KEY (again, 2)` for the third).
        unread: What is said of each place at which others may have been lost.
    """

    path: str | None
    saved: int
    lost: dict[str, str]
    unread: tuple[str, ...] = ()


def salvage(
    shard: str,
    folder: Path,
    known: Sequence[MemberTable],
    decoder_of: DecoderOf | None = None,
) -> Salvage:
    """Write the samples of a shard that can be saved to a shard of the same name in `folder`.

    Args:
        shard: Path of a local tar.
        folder: Folder of the new shard.
        known: Tables of earlier indexes, of which the first that is of this shard serves.
        decoder_of: Gives the decoder of a suffix; a sample that it refuses is left out.

    Raises:
        ConfigError: `folder` is the folder of the shard itself.
        DamagedShardError: The new shard would not read back as it was meant.
    """
    if folder.resolve() == Path(shard).parent.resolve():
        raise ConfigError(f"{folder} holds the damaged shards; name another folder for the repair")
    with open_tar(shard) as data:
        samples, lost, unread = _whole_samples(data, shard, known)
        for key in list(samples):
            reason = _undecodable(data, samples[key], decoder_of) if decoder_of else None
            if reason is not None:
                lost[key] = reason
                del samples[key]
        if not samples:
            return Salvage(None, 0, lost, unread)
        target = folder / Path(shard).name
        make_folder(folder)
        with new_file(target) as file:
            _write_samples(file, data, samples)
            _require_same(file.name, samples, shard)  # raise while it can still be discarded
            data.require_unchanged()
    return Salvage(str(target), len(samples), lost, unread)


def gone_samples(known: Sequence[MemberTable], taken: Collection[str]) -> dict[str, str]:
    """The samples of earlier indexes that were not taken, as those that are lost."""
    keys = dict.fromkeys(
        table.key(sample) for table in known for sample in range(table.num_samples)
    )
    return {key: _GONE for key in keys if key not in taken and not is_hidden(f"{key}.")}


_GONE = "was there when the shard was indexed, and is not now"


_Samples = dict[str, dict[str, Member]]


@dataclass(slots=True)
class _Run:
    """Members of one key that stand side by side; a field that comes again begins another run.

    Attributes:
        key: The key.
        fields: The members by suffix.
        is_beside: Whether members of it may be missing, because it stands beside a damaged range.
        fault: Why it cannot be saved; empty if it can.
    """

    key: str
    fields: dict[str, Member] = field(default_factory=dict[str, Member])
    is_beside: bool = False
    fault: str = ""


def _whole_samples(
    data: TarBytes, shard: str, known: Sequence[MemberTable]
) -> tuple[_Samples, dict[str, str], tuple[str, ...]]:
    """The members of the samples to keep, the reasons for the others, and what is not known."""
    runs, lost, unread = _readable_runs(data, shard)
    table = next(
        (table for table in known if table.crc32 is not None and _is_of(table, data, runs)), None
    )
    if table is not None:
        samples, apart = _joined(_runs_of_table(data, table, runs))
        apart += _unlisted(runs, table)
        # It says what stood in each place up to the end that the shard had then.
        unread = [place for place in unread if place.offset >= table.file_size]
    else:
        samples, apart = _joined(runs)
        _find_incomplete(samples)
    lost |= {run.key: run.fault for run in samples if run.fault}
    taken = {run.key for run in samples} | lost.keys()
    for run in apart:
        name = _free_name(run.key, taken)
        taken.add(name)
        lost[name] = run.fault
    if table is None:
        lost |= gone_samples(known, taken)
    messages = tuple(place.message for place in unread if place.message)
    return {run.key: run.fields for run in samples if not run.fault}, lost, messages


def _readable_runs(
    data: TarBytes, shard: str
) -> tuple[list[_Run], dict[str, str], list[DamagedRange]]:
    """The runs in file order, why members of reserved names are left out, and what is unread."""
    runs: list[_Run] = []
    lost: dict[str, str] = {}
    unread: list[DamagedRange] = []
    is_behind = False
    for read in walk_around_damage(data, shard):
        if isinstance(read, DamagedRange):
            unread.append(read)
            is_behind = True
            if runs:
                runs[-1].is_beside = True
            continue
        parts = split_name(read.name)
        if parts is None or is_hidden(read.name):
            continue
        key, suffix = parts
        if not runs or runs[-1].key != key or suffix in runs[-1].fields:
            runs.append(_Run(key))
        runs[-1].is_beside |= is_behind
        is_behind = False
        if suffix in RESERVED_SUFFIXES:
            lost[f"{key}.{suffix}"] = f"is a reserved name, at byte {read.offset}"
        else:
            runs[-1].fields[suffix] = read
    return [run for run in runs if run.fields], lost, unread


def _joined(runs: Iterable[_Run]) -> tuple[list[_Run], list[_Run]]:
    """The sample of each key, and the runs that are in none, each with its fault.

    A run goes with the first one of its key if it has no field of it, as `reshard` joins them. If
    one has a field of the first, two sets were joined whose keys overlap, and of what follows under
    this key it is unknown to which of the two it belongs::

        a.jpg b.jpg a.cls b.cls              a: jpg cls    b: jpg cls
        a.jpg a.cls .. a.jpg a.txt .. a.json a: jpg cls    apart: jpg txt, and json
    """
    samples: dict[str, _Run] = {}
    apart: list[_Run] = []
    ended: set[str] = set()
    for run in runs:
        if is_left_out(run.fields):
            run.fault = "is left out by its member __bad__"
            apart.append(run)
            continue
        first = samples.setdefault(run.key, run)
        if first is run:
            continue
        problem = _why_apart(first, run, has_others=run.key in ended)
        if problem:
            run.fault = f"{problem}, at byte {min(each.offset for each in run.fields.values())}"
            apart.append(run)
            ended.add(run.key)
        else:
            first.fields |= run.fields
            first.fault = first.fault or run.fault
    return list(samples.values()), apart


def _why_apart(first: _Run, run: _Run, *, has_others: bool) -> str:
    """Why a run is not joined with the first one of its key; empty if it is."""
    again = [suffix for suffix in run.fields if suffix in first.fields]
    if again:
        return f"has a second {again[0]}"
    if has_others:
        return "follows another sample of this key, to which it may belong"
    if first.is_beside or run.is_beside:
        first.is_beside = True
        return "is apart from the rest of its key, and one of the two stands beside the damage"
    return ""


def _find_incomplete(samples: Sequence[_Run]) -> None:
    """Note the fault of each sample beside damage that lacks a field or is like no other sample.

    One with more fields than any other may have grown together from two, cut by the damage.
    """
    inner = [run.fields.keys() for run in samples if not run.is_beside]
    every = set[str]().union(*inner)
    for run in samples:
        absent = ", ".join(sorted(every - run.fields.keys()))
        if not run.is_beside:
            continue
        if not inner:
            run.fault = "stands beside the damage and has no sample to compare with"
        elif absent:
            run.fault = f"stands beside the damage and has no {absent}"
        elif run.fields.keys() not in inner:
            run.fault = "stands beside the damage, and no other sample has all of its fields"


def _free_name(key: str, taken: Collection[str]) -> str:
    """What a run that is in no sample is called in a report: its key, if that is not taken."""
    name, number = key, 1
    while name in taken:
        name = f"{key} (again)" if number == 1 else f"{key} (again, {number})"
        number += 1
    return name


def _is_of(known: MemberTable, data: TarBytes, read: Sequence[_Run]) -> bool:
    """Whether the table was made from this shard before it was damaged."""
    offsets = known.offsets.tolist()
    right = {
        offset: member for member, offset in enumerate(offsets) if _is_right(known, member, data)
    }
    if len(right) >= _LEAST_MATCHING * max(len(offsets), 1):
        return True
    members = [
        (member.offset, (run.key, suffix)) for run in read for suffix, member in run.fields.items()
    ]
    num_same = sum(
        offset in right and _parts_of(known, right[offset]) == parts for offset, parts in members
    )
    return num_same >= _LEAST_MATCHING * max(len(members), 1)


def _parts_of(known: MemberTable, member: int) -> tuple[str, str]:
    """Key and suffix of a member of a table."""
    sample = int(known.sample_starts.searchsorted(member, side="right")) - 1
    return known.key(sample), known.suffixes[int(known.suffix_ids[member])]


def _is_right(known: MemberTable, member: int, data: TarBytes) -> bool:
    """Whether the bytes of a member are the same as when it was indexed."""
    start, size = int(known.offsets[member]), int(known.sizes[member])
    assert known.crc32 is not None  # callers check this
    return start + size <= len(data) and data.crc32(start, size) == known.crc32[member]


def _runs_of_table(data: TarBytes, known: MemberTable, read: Sequence[_Run]) -> list[_Run]:
    """The runs of the table, with the faults of those that are not the same as when indexed."""
    names = {member.offset: member.name for run in read for member in run.fields.values()}
    runs: list[_Run] = []
    for sample in range(known.num_samples):
        run = _Run(known.key(sample))
        if is_hidden(f"{run.key}."):
            continue
        first, stop = known.sample_starts[sample : sample + 2]
        for member in range(int(first), int(stop)):
            suffix = known.suffixes[int(known.suffix_ids[member])]
            offset, size = int(known.offsets[member]), int(known.sizes[member])
            name = names.get(offset, "")
            if split_name(name) != (run.key, suffix):  # it is a stand-in, or was damaged
                name = f"{run.key}.{suffix}"
            run.fields[suffix] = Member(name, offset, size)
            if not run.fault and not _is_right(known, member, data):
                run.fault = f"member {suffix} at byte {offset} is not what it was when indexed"
        runs.append(run)
    return runs


def _unlisted(read: Sequence[_Run], known: MemberTable) -> list[_Run]:
    """The runs that were read and have no member in the table, with this as their fault."""
    listed = frozenset(known.offsets.tolist())
    return [
        replace(run, fault="was not there when the shard was indexed")
        for run in read
        if listed.isdisjoint(member.offset for member in run.fields.values())
    ]


def _undecodable(data: TarBytes, fields: dict[str, Member], decoder_of: DecoderOf) -> str | None:
    """The reason why a member of a sample cannot be decoded; None if all can be."""
    for suffix, member in fields.items():
        decode = decoder_of(suffix)
        if decode is not None:
            problem = decoding_problem(decode, data[member.offset : member.offset + member.size])
            if problem is not None:
                return f"member {suffix} at byte {member.offset} cannot be decoded: {problem}"
    return None


def decoding_problem(decode: Decode, data: bytes) -> str | None:
    """The error of a decoder about these bytes; None if it can decode them."""
    try:
        decode(data)
    except Exception as error:  # noqa: BLE001 a decoder may raise anything at damaged bytes
        return f"{type(error).__name__}: {error}"
    return None


def _header(member: Member) -> bytes:
    """A tar header for a member, without traces of the machine."""
    info = tarfile.TarInfo(member.name)
    info.size = member.size
    return info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")


def _write_samples(file: BinaryIO, data: TarBytes, samples: _Samples) -> None:
    for fields in samples.values():
        for member in fields.values():
            file.write(_header(member))
            file.write(data[member.offset : member.offset + member.size])
            file.write(bytes(-member.size % BLOCK))
    file.write(bytes(2 * BLOCK))
    file.flush()


def _require_same(copy: str, samples: _Samples, shard: str) -> None:
    """Check that a copy holds exactly these samples, as readers see them."""
    table = scan_members(copy)
    read = [(table.key(sample), table.suffixes_of(sample)) for sample in range(table.num_samples)]
    if read != [(key, list(fields)) for key, fields in samples.items()]:
        raise damaged("cannot be saved: its copy would not read back as it was meant", shard, 0)
