"""The member table of one shard, and the reader that finds any member by it.

A table is made by one walk over the headers (`scan_members`) and kept between runs by `tables`.
With it any sample takes one lookup and one `pread`. Members are read from a file descriptor and not
from a memory map: if a shard is cut short, a mapped read ends the process (SIGBUS), while a short
read is an error that names the shard.
"""

import os
from array import array
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from lightning_shards.errors import (
    DamagedShardError,
    FileAccessError,
    IndexMismatchError,
    MissingFieldError,
)
from lightning_shards.shards.checksums import crc32
from lightning_shards.shards.regular_files import absent, open_regular, stamp_of
from lightning_shards.shards.tar.plain_runs import scan_samples
from lightning_shards.shards.tar.tar_bytes import open_tar, read_at
from lightning_shards.shards.tar.walk import damaged
from lightning_shards.shards.urls import redact

Extent = tuple[int, int, int | None]  # offset and size of a member in bytes, crc32 where known

ARRAY_FIELDS: Final = (
    "key_starts",
    "sample_starts",
    "offsets",
    "sizes",
    "suffix_ids",
    "crc32",
    "keys",
)

ENCODING: Final = ("utf-8", "surrogateescape")  # names need not be UTF-8
_Lookup = tuple[
    dict[str, int], memoryview, memoryview, memoryview, memoryview, memoryview | None, int
]


@dataclass(frozen=True, slots=True, eq=False)
class MemberTable:
    """The samples of one tar in file order, and their members. Arrays are read-only.

    The members of sample i are those from `sample_starts[i]` to `sample_starts[i + 1]`, and its key
    is `keys[key_starts[i] : key_starts[i + 1]]`. Members that are in no sample are left out::

        0.cls  0.jpg  README  1.cls         sample_starts  0 2 3
                                            suffix_ids     0 1 0      suffixes  ("cls", "jpg")

    Attributes:
        keys: all keys, concatenated, uint8.
        key_starts: int64, shape (num_samples + 1,).
        sample_starts: int64, shape (num_samples + 1,).
        offsets: offset in the tar of the data of each member, int64, ascending.
        sizes: bytes of data of each member, int64.
        crc32: CRC-32 of the data of each member, uint32; None when the data was not read.
        suffix_ids: position of each member's suffix in `suffixes`, uint32.
        suffixes: the different suffixes, in lower case.
        file_size: size of the tar when the table was made, in bytes.
        mtime_ns: its time of change then, in ns.
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
    _lookup: _Lookup = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Make memory views of the arrays: they give plain ints three times as fast as numpy."""
        lookup = (
            {suffix: number for number, suffix in enumerate(self.suffixes)},
            self.sample_starts.data,
            self.suffix_ids.data,
            self.offsets.data,
            self.sizes.data,
            None if self.crc32 is None else self.crc32.data,
            self.num_samples,
        )
        object.__setattr__(self, "_lookup", lookup)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the values; views cannot travel."""
        values = (self.keys, self.key_starts, self.sample_starts, self.offsets, self.sizes)
        rest = (self.crc32, self.suffix_ids, self.suffixes, self.file_size, self.mtime_ns)
        return MemberTable, values + rest

    @property
    def num_samples(self) -> int:
        """Samples in the tar."""
        return len(self.sample_starts) - 1

    @property
    def stamp(self) -> tuple[int, int]:
        """Size and time of change of the tar, as `stamp_of` gives them."""
        return self.file_size, self.mtime_ns

    def key(self, sample: int) -> str:
        """The key of a sample; bytes that are not UTF-8 are kept as surrogates."""
        self._check(sample)
        start, stop = self.key_starts[sample : sample + 2]
        return self.keys[start:stop].tobytes().decode(*ENCODING)

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
        numbers, starts, ids, offsets, sizes, crcs, num_samples = self._lookup
        if not 0 <= sample < num_samples:
            self._check(sample)
        number = numbers.get(suffix)
        for member in range(starts[sample], starts[sample + 1]):
            if ids[member] == number:
                return offsets[member], sizes[member], crcs[member] if crcs is not None else None
        return None

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
        start, stop = self.sample_starts[sample : sample + 2]
        return [self.suffixes[number] for number in self.suffix_ids[start:stop]]

    def extent_of(self, start_sample: int, stop_sample: int) -> tuple[int, int]:
        """Offset and length of the bytes that hold these samples; length 0 if there are none."""
        starts = self.sample_starts
        first, stop = int(starts[start_sample]), int(starts[min(stop_sample, self.num_samples)])
        if first >= stop:
            return 0, 0
        offset = int(self.offsets[first])
        return offset, int(self.offsets[stop - 1] + self.sizes[stop - 1]) - offset

    def has_same_members(self, other: "MemberTable") -> bool:
        """Whether two tables have equal members; times and missing crc32s are not compared."""
        if (self.suffixes, self.file_size) != (other.suffixes, other.file_size):
            return False
        pairs = ((getattr(self, name), getattr(other, name)) for name in ARRAY_FIELDS)
        return all(a is None or b is None or np.array_equal(a, b) for a, b in pairs)

    def _check(self, sample: int) -> None:
        if not 0 <= sample < self.num_samples:
            raise IndexError(f"sample {sample} of a shard that holds {self.num_samples}")


def scan_members(path: str | os.PathLike[str], *, with_crc32: bool = False) -> MemberTable:
    """The table of a local tar, from its headers; for crc32s every byte of its members is read.

    Raises:
        ShardNotFoundError: There is no such file.
        DamagedShardError: It is not one whole tar archive, or changed while it was read.
    """
    url = os.fspath(path)
    stamp = shard_stamp(url)  # by path, so that a file which replaced this one is noticed too
    crcs = array("I")
    with open_tar(url) as data:
        run = scan_samples(data, url)
        if with_crc32:
            data.rewind()
            crcs.extend(map(data.crc32, run.offsets.data, run.sizes.data))
    if shard_stamp(url) != stamp:
        raise damaged("changed while it was read: a program still writes it", url, 0)
    return MemberTable(
        keys=np.frombuffer(run.keys, np.uint8),
        key_starts=_starts(run.key_lengths),
        sample_starts=_starts(run.num_members),
        offsets=_frozen(run.offsets),
        sizes=_frozen(run.sizes),
        crc32=_frozen(np.array(crcs)) if with_crc32 else None,
        suffix_ids=_frozen(run.suffix_ids.astype(np.uint32)),
        suffixes=tuple(run.suffixes),
        file_size=stamp[0],
        mtime_ns=stamp[1],
    )


def _starts(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """The positions at which parts of these lengths begin, and the end of the last one."""
    return _frozen(np.concatenate([[0], np.cumsum(lengths)]))


def shard_stamp(url: str) -> tuple[int, int]:
    """Size and time of change of a local shard.

    Raises:
        ShardNotFoundError: There is no such file.
        FileAccessError: This process may not or cannot look at it.
    """
    try:
        return stamp_of(url)
    except FileNotFoundError as error:
        raise absent(url) from error
    except OSError as error:
        raise FileAccessError(
            f"{url} cannot be looked at: {error.strerror}; check the path, and who may read it"
        ) from error


class ShardReader:
    """An open tar: the bytes of any member, by sample and suffix.

    Threads may share a reader and processes may inherit one. It holds one file descriptor until it
    is closed, and goes on reading the file that it opened if another file takes its name.

    Attributes:
        table: what the shard holds.
        stamp: size and time of change of the tar by its table.

    Raises:
        ShardNotFoundError: There is no such file.
        FileAccessError: It is not a regular file, or cannot be opened.
        IndexMismatchError: The file is not the one that the table was made from.
    """

    def __init__(self, path: str | os.PathLike[str], table: MemberTable) -> None:
        self._url = os.fspath(path)
        self.table, self.stamp = table, table.stamp
        self._members_with: dict[tuple[str, ...], NDArray[np.int64]] = {}
        self._file = os.fdopen(open_regular(self._url), "rb", buffering=0)
        size = os.fstat(self._file.fileno()).st_size
        if size != table.file_size or not self.is_unchanged:
            self.close()
            raise self._changed(size)

    @property
    def is_unchanged(self) -> bool:
        """Whether all bytes read so far are of the file that the table was made from.

        It is checked after reading, because a write changes the time of a file before its bytes.
        Where the table has crc32s, this is always true: the caller compares these instead.
        """
        has_crc32 = self.table.crc32 is not None
        return has_crc32 or stamp_of(self._file.fileno()) == self.stamp

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
                f"sample {self.table.key(sample)!r} of {redact(self._url)} has no {suffix!r}; it "
                f"has {', '.join(self.table.suffixes_of(sample)[:50])}"
            )
        offset, size, checksum = extent
        try:
            data = self.read_span(offset, size)
        except (OSError, MemoryError) as error:
            what = f"could not be read: {getattr(error, 'strerror', None) or 'no memory for it'}"
            raise self._damaged(what, sample, suffix, offset) from error
        if len(data) < size:
            what = f"was cut short: {len(data)} of {size} bytes are there"
            raise self._damaged(what, sample, suffix, offset)
        if checksum is not None and crc32(data) != checksum:
            what = f"is damaged: its crc32 is {crc32(data):08x}, it was {checksum:08x} when indexed"
            raise self._damaged(what, sample, suffix, offset)
        if not self.is_unchanged:
            raise self._changed(os.fstat(self._file.fileno()).st_size)
        return data

    def read_span(self, offset: int, size: int) -> bytes:
        """The bytes of the tar at this offset, fewer if the file ends; nothing is checked.

        Raises:
            OSError: They could not be read.
        """
        return read_at(self._file.fileno(), offset, size)

    def read_into(self, offset: int, into: memoryview) -> int:
        """Fill `into` with the bytes of the tar at this offset, and return how many there were.

        Raises:
            OSError: They could not be read.
        """
        file, read = self._file.fileno(), 0
        while read < len(into):
            more = os.preadv(file, [into[read:]], offset + read)
            if not more:
                break
            read += more
        return read

    def members_with(self, suffixes: tuple[str, ...]) -> NDArray[np.int64]:
        """The result of `MemberTable.members_with`, which is kept while the shard is open."""
        if suffixes not in self._members_with:
            self._members_with[suffixes] = self.table.members_with(suffixes)
        return self._members_with[suffixes]

    def will_need(self, start_sample: int, stop_sample: int) -> None:
        """Ask the system to fetch these samples in the background; it may ignore this."""
        offset, length = self.table.extent_of(start_sample, stop_sample)
        if length and hasattr(os, "posix_fadvise"):
            with suppress(OSError):
                os.posix_fadvise(self._file.fileno(), offset, length, os.POSIX_FADV_WILLNEED)

    def close(self) -> None:
        """Close the file descriptor; no other thread may be reading."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _changed(self, size: int) -> IndexMismatchError:
        """The error for a shard that has changed and now has this size."""
        what = f"it has {size} bytes, {self.table.file_size} by its member table"
        if size == self.table.file_size:
            what = "it was written to after its members were listed"
        return IndexMismatchError(
            f"{redact(self._url)} changed since it was indexed: {what}; start the run anew, or "
            "fetch the shard again"
        )

    def _damaged(self, what: str, sample: int, suffix: str, offset: int) -> DamagedShardError:
        """The error for a damaged member, with its name and offset."""
        member = f"{self.table.key(sample)}.{suffix}"
        return damaged(f"(member {member!r}, sample {sample}) {what}", self._url, offset)


def _frozen(values: NDArray[Any]) -> NDArray[Any]:
    """The array itself, made read-only."""
    values.setflags(write=False)
    return values
