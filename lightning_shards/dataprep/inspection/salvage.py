"""The salvage of a damaged tar: its samples that are certainly whole are written to a new shard.

After a damaged header the next sound one is searched. A sample beside the damage is kept only if it
is known to be whole: by the member table of an earlier index, or because it has every field that
any sample of the shard has. A table with crc32s also saves members under damaged headers, and shows
changed bytes. The original is never touched: saved samples go to another folder.
"""

import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from lightning_shards.errors import ConfigError, DamagedShardError
from lightning_shards.shards.atomic import make_folder, new_file
from lightning_shards.shards.members import MemberTable
from lightning_shards.shards.tar.tar_bytes import TarBytes, open_tar
from lightning_shards.shards.tar.walk import (
    BLOCK,
    RESERVED_SUFFIXES,
    Buffer,
    Member,
    split_name,
    walk_members,
)

Decode = Callable[[bytes], object]
DecoderOf = Callable[[str], Decode | None]
"""Gives the decoder of a suffix, or None; picklable."""

_MAGIC = b"ustar"
_MAGIC_AT: Final = 257
_SEARCHED: Final = 1 << 20
"""Bytes that are read at once to search the next header."""

_LEAST_MATCHING = 0.5
"""If fewer members than this share have the crc32 in the table, it is of another shard."""


class DamagedRange(NamedTuple):
    """A range of a tar that could not be read."""

    offset: int
    message: str


@dataclass(frozen=True, slots=True)
class Salvage:
    """The result of the salvage of one shard.

    Attributes:
        path: Path of the new shard; None if no sample could be saved.
        saved: Samples in the new shard.
        lost: Reasons for the samples left out, by key (`KEY (again)` for the second of a key).
    """

    path: str | None
    saved: int
    lost: dict[str, str]


def walk_around_damage(data: TarBytes, url: str) -> Iterator[Member | DamagedRange]:
    """The members before, between and after damaged ranges, and these ranges, in file order."""
    start: int | None = 0
    while start is not None:
        position = start
        try:
            for member in walk_members(_from(data, start), url):
                offset = start + member.offset
                yield member._replace(offset=offset)
                position = (offset + member.size + BLOCK - 1) // BLOCK * BLOCK
        except DamagedShardError as error:
            yield DamagedRange(position, str(error))
            start = _next_header(data, position + BLOCK)
        else:
            return


def salvage(
    shard: str, folder: Path, known: MemberTable | None, decoder_of: DecoderOf | None = None
) -> Salvage:
    """Write the samples of a shard that can be saved to a shard of the same name in `folder`.

    Args:
        shard: Path of a local tar.
        folder: Folder of the new shard.
        known: The members that the shard had when it was indexed.
        decoder_of: Gives the decoder of a suffix; a sample that it refuses is left out.

    Raises:
        ConfigError: `folder` is the folder of the shard itself.
    """
    if folder.resolve() == Path(shard).parent.resolve():
        raise ConfigError(f"{folder} holds the damaged shards; name another folder for the repair")
    with open_tar(shard) as data:
        samples, lost = _whole_samples(data, shard, known)
        for key in list(samples):
            reason = _undecodable(data, samples[key], decoder_of) if decoder_of else None
            if reason is not None:
                lost[key] = reason
                del samples[key]
        if not samples:
            return Salvage(None, 0, lost)
        target = folder / Path(shard).name
        make_folder(folder)
        with new_file(target) as file:
            for fields in samples.values():
                for member in fields.values():
                    file.write(_header(member))
                    file.write(data[member.offset : member.offset + member.size])
                    file.write(bytes(-member.size % BLOCK))
            file.write(bytes(2 * BLOCK))
            data.require_unchanged()  # raises while the new file can still be discarded
    return Salvage(str(target), len(samples), lost)


_Samples = dict[str, dict[str, Member]]


def _whole_samples(
    data: TarBytes, shard: str, known: MemberTable | None
) -> tuple[_Samples, dict[str, str]]:
    """The members of the samples to keep, and the reasons for the other samples."""
    samples, lost, beside = _readable_samples(data, shard)
    if known is not None and known.crc32 is not None and _is_of(known, data):
        return _by_table(data, known, samples, lost)
    inner = [set(fields) for key, fields in samples.items() if key not in beside]
    every = set[str]().union(*inner)
    for key in beside & samples.keys():
        if not inner or set(samples[key]) < every:
            absent = ", ".join(sorted(every - set(samples[key])))
            lost[key] = f"stands beside the damage and has no {absent or 'sample to compare with'}"
            del samples[key]
    return samples, lost


def _readable_samples(data: TarBytes, shard: str) -> tuple[_Samples, dict[str, str], set[str]]:
    """Members by key, the reasons for repeated ones, and the keys beside a damaged range."""
    samples: _Samples = {}
    lost: dict[str, str] = {}
    beside: set[str] = set()
    last: str | None = None
    is_behind = False
    for read in walk_around_damage(data, shard):
        if isinstance(read, DamagedRange):
            beside |= {last} if last is not None else set()
            is_behind = True
            continue
        parts = split_name(read.name)
        if parts is None:
            continue
        key, suffix = parts
        if is_behind:
            beside.add(key)
        is_behind, last = False, key
        if suffix in RESERVED_SUFFIXES:
            lost[f"{key}.{suffix}"] = f"is a reserved name, at byte {read.offset}"
        elif suffix in samples.setdefault(key, {}):
            lost[f"{key} (again)"] = f"has a second {suffix}, at byte {read.offset}"
        else:
            samples[key][suffix] = read
    return samples, lost, beside


def _is_of(known: MemberTable, data: TarBytes) -> bool:
    """Whether the table was made from this shard before it was damaged."""
    num_right = sum(_is_right(known, member, data) for member in range(len(known.offsets)))
    return num_right >= _LEAST_MATCHING * max(len(known.offsets), 1)


def _is_right(known: MemberTable, member: int, data: TarBytes) -> bool:
    """Whether the bytes of a member are the same as when it was indexed."""
    start, size = int(known.offsets[member]), int(known.sizes[member])
    assert known.crc32 is not None  # callers check this
    return start + size <= len(data) and data.crc32(start, size) == known.crc32[member]


def _by_table(
    data: TarBytes, known: MemberTable, read: _Samples, lost: dict[str, str]
) -> tuple[_Samples, dict[str, str]]:
    """The samples all of whose members are the same as when the shard was indexed."""
    names = {member.offset: member.name for fields in read.values() for member in fields.values()}
    samples: _Samples = {}
    for sample in range(known.num_samples):
        key = known.key(sample)
        first, stop = known.sample_starts[sample : sample + 2]
        for member in range(int(first), int(stop)):
            suffix = known.suffixes[int(known.suffix_ids[member])]
            offset, size = int(known.offsets[member]), int(known.sizes[member])
            if not _is_right(known, member, data):
                lost[key] = f"member {suffix} at byte {offset} is not what it was when indexed"
            elif suffix not in samples.setdefault(key, {}):
                name = names.get(offset, f"{key}.{suffix}")
                samples[key][suffix] = Member(name, offset, size)
    for key in lost:
        samples.pop(key, None)
    return samples, lost


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


def _next_header(data: TarBytes, start: int) -> int | None:
    """The offset of the next sound header; tars from before POSIX have no magic to search for."""
    for begin in range(start, len(data), _SEARCHED):
        part = data[begin : begin + _SEARCHED]
        for block in range(0, len(part), BLOCK):
            if part.startswith(_MAGIC, block + _MAGIC_AT) and _is_sound(
                part[block : block + BLOCK]
            ):
                return begin + block
    return None


def _is_sound(header: bytes) -> bool:
    """Whether the header's checksum is right."""
    try:
        tarfile.TarInfo.frombuf(header, "utf-8", "surrogateescape")
    except tarfile.HeaderError:
        return False
    return True


def _from(data: TarBytes, start: int) -> Buffer:
    """The bytes from `start` on, for a walk; only the parts that it reads are copied."""
    return _Rest(data, start) if start else data


class _Rest:
    """The bytes of a tar from an offset on, read on demand."""

    def __init__(self, data: TarBytes, start: int) -> None:
        self._data, self._start = data, start

    def __len__(self) -> int:
        return len(self._data) - self._start

    def __getitem__(self, part: slice, /) -> bytes:
        start, stop, _ = part.indices(len(self))
        return self._data[self._start + start : self._start + stop]
