"""The member table of one shard, and the reader that finds any member by it.

A table is made by one walk over the headers (`scan_members`) and kept between runs by `tables`.
With it any sample takes one lookup and one `pread`. Members are read from a file descriptor and not
from a memory map: if a shard is cut short, a mapped read ends the process (SIGBUS), while a short
read is an error that names the shard.

As a file in the cache (sidecar) a table has this format, all numbers little-endian::

    magic 8 · version u4 · crc32 of all that follows u4 · length of the JSON in bytes u8
    JSON: sizes of the arrays, stamp of the shard, suffixes; filled up with spaces to 8 bytes
    the arrays of `MemberTable`, widest items first, so that each one is aligned
"""

import json
import mmap
import os
import struct
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final, Literal, Self

import numpy as np
from numpy.typing import NDArray

from lightning_shards.errors import (
    IndexMismatchError,
    MissingFieldError,
    SampleError,
    ShardError,
)
from lightning_shards.shards.files import crc32
from lightning_shards.shards.storage.local import LocalStorage
from lightning_shards.shards.storage.protocol import ShardStat, Storage
from lightning_shards.shards.tar.plain_runs import SampleRun, scan_samples
from lightning_shards.shards.tar.tar_bytes import open_tar
from lightning_shards.shards.tar.walk import damaged
from lightning_shards.shards.urls import redact

Extent = tuple[int, int, int | None]  # offset and size of a member in bytes, crc32 where known

_ARRAYS: Final = {
    "key_starts": ("<i8", "starts"),
    "sample_starts": ("<i8", "starts"),
    "offsets": ("<i8", "members"),
    "sizes": ("<i8", "members"),
    "suffix_ids": ("<u4", "members"),
    "crc32": ("<u4", "members"),
    "keys": ("|u1", "bytes"),
}
"""Type of each array in a sidecar, and of what it has one."""

_RENEW: Final = (
    "fetch this shard again, or, if it was written anew, run `lightning-shards index --checksums` "
    "on it"
)

ENCODING: Final = ("utf-8", "surrogateescape")  # names need not be UTF-8

_MAGIC: Final = b"LSmember"
_VERSION: Final = 2
_PREFIX: Final = struct.Struct("<8sIIQ")
_CHECKED_FROM: Final = 16  # the checksum covers the last number of the prefix and all after it
_ALIGNMENT: Final = 8


@dataclass(frozen=True, slots=True, eq=False)
class MemberTable:
    """The samples of one tar in file order, and their members. Arrays are read-only.

    The members of sample i are those from `sample_starts[i]` to `sample_starts[i + 1]`, and its key
    is `keys[key_starts[i] : key_starts[i + 1]]`. Members that are in no sample are left out::

        0.cls  0.jpg  README  1.cls         sample_starts  0 2 3
                                            suffix_ids     0 1 0      suffixes  ("cls", "jpg")

    Attributes:
        keys: All keys, concatenated, uint8.
        key_starts: int64, shape (num_samples + 1,).
        sample_starts: int64, shape (num_samples + 1,).
        offsets: Offset in the tar of the data of each member, int64, ascending.
        sizes: bytes of data of each member, int64.
        crc32: CRC-32 of the data of each member, uint32; None when the data was not read.
        suffix_ids: Position of each member's suffix in `suffixes`, uint32.
        suffixes: The different suffixes, in lower case.
        file_size: Size of the tar when the table was made, in bytes.
        mtime_ns: Its time of change then, in ns; of a shard that is no file, its version.
        split_sample: The first sample that is the rest of an earlier one, whose members are not
            adjacent; None if there is none.
    """

    keys: NDArray[np.uint8]
    key_starts: NDArray[np.int64]
    sample_starts: NDArray[np.int64]
    offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]
    crc32: NDArray[np.uint32] | None
    suffix_ids: NDArray[np.uint32]
    suffixes: tuple[str, ...]
    file_size: int
    mtime_ns: int
    split_sample: int | None = None

    @property
    def num_samples(self) -> int:
        """Samples in the tar."""
        return len(self.sample_starts) - 1

    @property
    def stamp(self) -> tuple[int, int]:
        """Size of the tar and its time of change or version, like a `ShardStat`."""
        return self.file_size, self.mtime_ns

    def key(self, sample: int) -> str:
        """The key of a sample; bytes that are not UTF-8 are kept as surrogates."""
        self._check(sample)
        start, stop = self.key_starts[sample : sample + 2]
        return self.keys[start:stop].tobytes().decode(*ENCODING)

    def all_keys(self) -> list[bytes]:
        """The keys of all samples."""
        keys = self.keys.tobytes()
        return [keys[start:stop] for start, stop in pairwise(self.key_starts.tolist())]

    def keys_of(self, samples: NDArray[np.int64]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """The keys of these samples, concatenated; the sample numbers are not checked.

        Returns:
            uint8, as in `keys`; and the length of each key, int64 of shape (len(samples),).
        """
        # starts, lengths, stops: shape (len(samples),). Byte number i of the result belongs to the
        # key that stops after i, and is byte number i + (its start - its first i) of `keys`.
        starts = self.key_starts[samples]
        lengths = self.key_starts[samples + 1] - starts
        stops = np.cumsum(lengths)
        shifts = np.repeat(starts - stops + lengths, lengths)
        return self.keys[shifts + np.arange(len(shifts))], lengths

    def find(self, sample: int, suffix: str) -> Extent | None:
        """The extent of a sample's member with this (lower-case) suffix; None if it has none.

        Raises:
            IndexError: There is no such sample; negative numbers do not count from the end.
        """
        suffixes = self.suffixes_of(sample)
        if suffix not in suffixes:
            return None
        member = int(self.sample_starts[sample]) + suffixes.index(suffix)
        checksum = None if self.crc32 is None else int(self.crc32[member])
        return int(self.offsets[member]), int(self.sizes[member]), checksum

    def members_with(self, suffixes: Sequence[str]) -> NDArray[np.int64]:
        """For each sample the number of its member with the first of these suffixes that it has.

        Returns:
            int64 of shape (num_samples,), -1 for samples that have none of them.
        """
        chosen = np.full(self.num_samples, -1, np.int64)
        # samples: the sample of each member, shape (num_members,).
        samples = np.repeat(np.arange(self.num_samples), np.diff(self.sample_starts))
        for suffix in reversed(suffixes):
            if suffix in self.suffixes:
                members = np.flatnonzero(self.suffix_ids == self.suffixes.index(suffix))
                chosen[samples[members]] = members
        return chosen

    def suffixes_of(self, sample: int) -> list[str]:
        """The suffixes that a sample has, in file order."""
        self._check(sample)
        start, stop = self.sample_starts[sample : sample + 2].tolist()
        return [self.suffixes[number] for number in self.suffix_ids[start:stop].tolist()]

    def has_same_members(self, other: "MemberTable") -> bool:
        """Whether two tables have equal members; times and missing crc32s are not compared."""
        if (self.suffixes, self.file_size) != (other.suffixes, other.file_size):
            return False
        pairs = ((getattr(self, name), getattr(other, name)) for name in _ARRAYS)
        return all(a is None or b is None or np.array_equal(a, b) for a, b in pairs)

    def _check(self, sample: int) -> None:
        if not 0 <= sample < self.num_samples:
            raise IndexError(f"sample {sample} of a shard that holds {self.num_samples}")


def scan_members(
    path: str | os.PathLike[str], *, with_crc32: bool = False, storage: Storage | None = None
) -> MemberTable:
    """The table of a tar, from its headers; for crc32s every byte of its members is read.

    Args:
        path: Path of a local tar, or a URL of the storage.
        with_crc32: Whether the table has crc32s.
        storage: What reads the tar and does not hold it open already; None for local files.

    Raises:
        ShardNotFoundError: There is no such file.
        DamagedShardError: It is not one whole tar archive, or changed while it was read.
    """
    with open_tar(path, storage) as data:
        run = scan_samples(data, os.fspath(path))
        crcs = map(data.crc32, run.offsets.data, run.sizes.data)
        return table_of_samples(
            run, data.stat, np.fromiter(crcs, np.uint32) if with_crc32 else None
        )


def table_of_samples(
    run: SampleRun, stamp: tuple[int, int], crc32s: NDArray[np.uint32] | None
) -> MemberTable:
    """The table of these samples, which are all of a shard; `crc32s` are those of its members."""
    table = MemberTable(
        keys=np.frombuffer(run.keys, np.uint8),
        key_starts=_starts(run.key_lengths),
        sample_starts=_starts(run.num_members),
        offsets=_frozen(run.offsets),
        sizes=_frozen(run.sizes),
        crc32=None if crc32s is None else _frozen(crc32s),
        suffix_ids=_frozen(run.suffix_ids.astype(np.uint32)),
        suffixes=tuple(run.suffixes),
        file_size=stamp[0],
        mtime_ns=stamp[1],
    )
    return replace(table, split_sample=next(iter(find_repeats(table)["split"]), None))


def find_repeats(table: MemberTable) -> dict[str, list[int]]:
    """The samples whose key came before in their shard: `split` ones, and `duplicate` ones."""
    found: dict[str, list[int]] = {"split": [], "duplicate": []}
    if len({*table.all_keys()}) < table.num_samples:
        known: dict[str, frozenset[str]] = {}
        for sample in range(table.num_samples):
            kind = repeat_of(table.key(sample), table.suffixes_of(sample), known)
            if kind:
                found[kind].append(sample)
    return found


def _starts(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """The positions at which parts of these lengths begin, and the end of the last one."""
    return _frozen(np.concatenate([[0], np.cumsum(lengths)]))


def repeat_of(
    key: str, suffixes: Iterable[str], known: dict[str, frozenset[str]], most: int = sys.maxsize
) -> Literal["", "split", "duplicate"]:
    """What a sample is if its key came before in its shard.

    A sample is a run of adjacent members with one key. Where its members are apart, as where a tar
    was appended to, readers would make several samples with different fields of it, and optional
    fields would hide that. So a key that comes again with other suffixes alone is an error of
    training.

    Args:
        key: The key.
        suffixes: What its members are.
        known: The suffixes that came with each key so far, to which these are added.
        most: Keys that are known at most.
    """
    now, before = frozenset(suffixes), known.get(key)
    if len(known) < most:
        known[key] = now | (before or now)
    if before is None:
        return ""
    return "split" if before.isdisjoint(now) else "duplicate"


def split_error(url: str, key: str, suffixes: Iterable[str]) -> SampleError:
    """The error about a sample whose members are apart; these are the suffixes of its rest."""
    return SampleError(
        f"members of {key!r} are not adjacent in {redact(url)}: {', '.join(suffixes)} came after "
        "other samples, and would be a sample of its own; `lightning-shards reshard` joins them"
    )


def packed(table: MemberTable) -> bytearray:
    """The contents of the sidecar."""
    facts = {
        "num_samples": table.num_samples,
        "num_members": len(table.offsets),
        "key_bytes": len(table.keys),
        "file_size": table.file_size,
        "mtime_ns": table.mtime_ns,
        "has_crc32": table.crc32 is not None,
        "split_sample": table.split_sample,
        "suffixes": table.suffixes,
    }
    header = json.dumps(facts).encode("ascii")
    header += b" " * (-len(header) % _ALIGNMENT)
    values = [
        np.asarray(getattr(table, name), dtype).tobytes() for name, dtype, _ in _columns(facts)
    ]
    data = bytearray(_PREFIX.pack(_MAGIC, _VERSION, 0, len(header)) + header + b"".join(values))
    _PREFIX.pack_into(data, 0, _MAGIC, _VERSION, crc32(data[_CHECKED_FROM:]), len(header))
    return data


def _columns(facts: dict[str, Any]) -> list[tuple[str, str, int]]:
    """Name, type and length of the arrays in a sidecar, in their order."""
    starts, members, key_bytes = (facts[n] for n in ("num_samples", "num_members", "key_bytes"))
    lengths = {"starts": starts + 1, "members": members, "bytes": key_bytes}
    columns = [(name, kind, lengths[each]) for name, (kind, each) in _ARRAYS.items()]
    return [column for column in columns if column[0] != "crc32" or facts["has_crc32"]]


def unpacked(data: mmap.mmap | bytes) -> MemberTable:
    """The table in these bytes, whose checksum is compared.

    Raises:
        ValueError: They are damaged, or are no member table.
    """
    if len(data) < _PREFIX.size:
        raise ValueError("it is cut short")
    magic, version, checksum, header_bytes = _PREFIX.unpack_from(data)
    if (magic, version) != (_MAGIC, _VERSION):
        raise ValueError("it is of another version, or no member table")
    if crc32(memoryview(data)[_CHECKED_FROM:]) != checksum:
        raise ValueError("it is damaged: its checksum does not match")
    position = _PREFIX.size + header_bytes
    facts = json.loads(data[_PREFIX.size : position])
    arrays: dict[str, Any] = {"crc32": None, "suffixes": tuple(facts["suffixes"])}
    for name, kind, length in _columns(facts):
        arrays[name] = np.frombuffer(data, kind, length, position)
        position += arrays[name].nbytes
    others = {name: facts[name] for name in ("file_size", "mtime_ns", "split_sample")}
    return MemberTable(**arrays, **others)


class ShardReader:
    """An open tar: the bytes of any member, by sample and suffix.

    Threads may share a reader and processes may inherit one. Of a local tar it holds one file
    descriptor until it is closed, and goes on reading the file that it opened if another file takes
    its name.

    Args:
        path: Path of a local tar, or a URL of the storage.
        table: What the shard holds.
        storage: What reads the tar; None for local files.
        on_change: Called before the error that says that a shard was replaced.

    Attributes:
        url: The tar.
        table: What it holds.
        storage: What reads it.

    Raises:
        ShardNotFoundError: There is no such shard.
        FileAccessError: It is not a regular file, or cannot be opened.
        IndexMismatchError: It is not the one that the table was made from.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        table: MemberTable,
        storage: Storage | None = None,
        *,
        on_change: Callable[[], None] | None = None,
    ) -> None:
        self.url, self._on_change = os.fspath(path), on_change
        self.storage = LocalStorage() if storage is None else storage
        self.table = table
        self._members_with: dict[tuple[str, ...], NDArray[np.int64]] = {}
        if self.storage.is_remote:
            return  # each read compares what the shard is
        stat = self.storage.stat(self.url)
        if stat.size != table.file_size or self.expected not in (None, stat):
            self.close()
            raise self._changed(stat)

    @property
    def expected(self) -> tuple[int, int] | None:
        """What the tar must be when it is read; None if the table has crc32s to compare instead.

        A remote tar must be what it was in any case, because that costs nothing.
        """
        has_crc32 = self.table.crc32 is not None
        return None if has_crc32 and not self.storage.is_remote else self.table.stamp

    def read(self, sample: int, suffix: str) -> bytes:
        """The data of one member, checked against its crc32 where the table has one.

        Raises:
            IndexError: There is no such sample.
            MissingFieldError: The sample has no such suffix.
            DamagedShardError: The data is missing, or differs from when the table was made.
            IndexMismatchError: The file was written to since then, and the table has no crc32s.
        """
        extent = self.table.find(sample, suffix)
        if extent is None:
            raise MissingFieldError(
                f"sample {self.table.key(sample)!r} of {redact(self.url)} has no {suffix!r}; it "
                f"has {', '.join(self.table.suffixes_of(sample)[:50])}"
            )
        offset, size, checksum = extent
        name, stat = f"{self.table.key(sample)}.{suffix}", self.expected
        try:
            data = self.storage.read(self.url, offset, offset + size, stat)
        except ShardError:
            raise
        except (OSError, MemoryError) as error:
            what = f"could not be read: {getattr(error, 'strerror', None) or 'no memory for it'}"
            raise damaged(f"(member {name!r}, sample {sample}) {what}", self.url, offset) from error
        what, remedy = "", list[str]()
        if len(data) < size or (stat and not size):  # nothing else shows a change if it is empty
            what = self._why_short(offset, size, len(data), stat)
        elif checksum is not None and crc32(data) != checksum:
            what = f"is damaged: its crc32 is {crc32(data):08x}, it was {checksum:08x} when indexed"
            remedy.append(_RENEW)
        if what:
            raise damaged(f"(member {name!r}, sample {sample}) {what}", self.url, offset, *remedy)
        return data

    def _why_short(
        self, offset: int, size: int, num_read: int, stat: tuple[int, int] | None
    ) -> str:
        """Why fewer bytes than wanted were read, if so; the shard may also have changed."""
        now = self.storage.stat(self.url)
        there = max(0, min(now.size - offset, size))
        if there == size and stat and (now != stat or num_read < size):
            raise self._changed(now)
        came = num_read if stat is None else there
        return f"was cut short: {came} of {size} bytes came" if num_read < size else ""

    def require_same(self, now: ShardStat) -> None:
        """Hold what the tar is now against what it was when its members were listed.

        Raises:
            IndexMismatchError: It is another one.
        """
        if now != self.table.stamp:
            raise self._changed(now)

    def members_with(self, suffixes: tuple[str, ...]) -> NDArray[np.int64]:
        """The result of `MemberTable.members_with`, which is kept while the shard is open."""
        if suffixes not in self._members_with:
            self._members_with[suffixes] = self.table.members_with(suffixes)
        return self._members_with[suffixes]

    def close(self) -> None:
        """Let the storage close the tar; no other thread may be reading."""
        self.storage.close(self.url)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _changed(self, now: ShardStat) -> IndexMismatchError:
        """The error for a shard that has changed, and is this now."""
        if self._on_change is not None:
            self._on_change()
        size, version = self.table.stamp
        return IndexMismatchError(
            f"{redact(self.url)} changed since it was indexed: it has {now.size} bytes of version "
            f"{now.version:x}, {size} bytes of version {version:x} by its member table; start the "
            "run anew, or fetch the shard again"
        )


def _frozen(values: NDArray[Any]) -> NDArray[Any]:
    """The array itself, made read-only."""
    values.setflags(write=False)
    return values
