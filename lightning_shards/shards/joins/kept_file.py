"""The file that a join is kept in: of each sample the bytes of its value, mapped when it is read.

The format, all numbers little-endian::

    magic 8 · version u4 · crc32 of the body u4 · crc32 of the JSON u4 · 0 u4
    offset of the JSON u8 · length of the JSON u8 · zeros up to 64 bytes
    body: the values, one after the other; zeros up to 8 bytes
          offsets  int64 (num_values + 1)  where each value begins among them
          slots    int64 (num_samples)     which value a sample has, -1 for none
          stamps   int64 (num_shards, 2)   size and time of the shards whose keys were matched
    JSON: the lengths of these arrays, and what was counted

The table is read twice, first its keys and then the values of the rows that some sample has. About
60 bytes of each row and of each sample are in memory meanwhile, and of the values a few MiB.
"""

import json
import mmap
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from struct import Struct
from typing import Any, BinaryIO, Final, NamedTuple, Protocol, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from lightning_shards.errors import ConfigError, count_of
from lightning_shards.shards.checksums import crc32
from lightning_shards.shards.joins.settings import (
    HASHED,
    Hashed,
    JoinTable,
    RowNumbers,
    RowValues,
    hashed,
    match,
)
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.progress_line import rows_bar

_MAGIC: Final = b"LSjoined"
_VERSION: Final = 2
_PREFIX: Final = Struct("<8sIIIIQQ")
_BODY: Final = 64
_ALIGNMENT: Final = 8
_CHECKED_BYTES: Final = 1 << 24
_INT: Final = np.dtype("<i8")


@dataclass(frozen=True, slots=True)
class JoinFacts:
    """What was counted when a join was made.

    Attributes:
        num_samples: Samples of all shards.
        num_shards: Shards, repeats included.
        num_values: Values that some sample has; equal ones may be one.
        data_bytes: bytes of these values.
        rows: Rows of the table.
        unmatched: Rows whose key no sample has.
        without_row: Samples whose key no row has.
        without_value: Samples whose row has no value.
        lacking: Key and id of the first sample without a value; empty if there is none.
    """

    num_samples: int
    num_shards: int
    num_values: int
    data_bytes: int
    rows: int
    unmatched: int
    without_row: int
    without_value: int
    lacking: str


class KeptFileWriter:
    """Writes the parts of a kept join in their order.

    Args:
        file: A new file.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._checksum, self._position = file, 0, _BODY
        file.write(bytes(_BODY))

    def write(self, data: bytes | memoryview) -> None:
        """Write the next bytes of the body."""
        self._file.write(data)
        self._checksum = crc32(data, self._checksum)
        self._position += len(data)

    def write_numbers(self, numbers: NDArray[Any]) -> None:
        """Write the next numbers of one of the arrays."""
        self.write(np.ascontiguousarray(numbers, _INT).tobytes())

    def align(self) -> None:
        """Fill up to where an array may begin."""
        self.write(bytes(-self._position % _ALIGNMENT))

    def finish(self, facts: JoinFacts) -> None:
        """Write what was counted, and then the beginning, without which the file is nothing."""
        text = json.dumps(asdict(facts)).encode("ascii")
        self._file.write(text)
        self._file.seek(0)
        sums = (self._checksum, crc32(text), 0)
        self._file.write(_PREFIX.pack(_MAGIC, _VERSION, *sums, self._position, len(text)))


class UnusableJoinError(ValueError):
    """The reason why a file is no kept join; whoever opens it makes it again."""


class KeptJoin:
    """A kept join, open for reading.

    Args:
        mapped: The file.

    Attributes:
        facts: What was counted when it was made.
        data: The values, uint8.
        stamps: Size and time of change of each shard then, int64 of shape (num_shards, 2).

    Raises:
        UnusableJoinError: It is damaged, as far as its beginning and its length show.
    """

    def __init__(self, mapped: mmap.mmap) -> None:
        self._mapped = mapped
        self._checksum, stop, self.facts = _read_facts(mapped)
        counts = (self.facts.num_values + 1, self.facts.num_samples, 2 * self.facts.num_shards)
        start = _BODY + self.facts.data_bytes
        start += -start % _ALIGNMENT
        if start + _INT.itemsize * sum(counts) != stop:
            raise UnusableJoinError("its arrays do not fill it")
        self.data = np.frombuffer(mapped, np.uint8, self.facts.data_bytes, _BODY)
        arrays: list[RowNumbers] = []
        for count in counts:
            arrays.append(np.frombuffer(mapped, _INT, count, start))
            start += _INT.itemsize * count
        self._offsets, self._slots, stamps = arrays
        self.stamps = stamps.reshape(-1, 2)
        self._stop = stop

    def extents(self, samples: RowNumbers) -> tuple[RowNumbers, RowNumbers]:
        """Where in `data` the values of these samples begin, and their sizes; both -1 for none."""
        slots = self._slots[samples]
        has_value = slots >= 0
        found = slots[has_value]
        starts, sizes = np.full((2, len(slots)), -1, np.int64)
        starts[has_value] = self._offsets[found]
        sizes[has_value] = self._offsets[found + 1] - self._offsets[found]
        return starts, sizes

    def lacking(self, start: int, stop: int) -> RowNumbers:
        """Which of the samples from `start` to `stop` have no value, as numbers from `start` on."""
        return np.flatnonzero(self._slots[start:stop] < 0)

    def require_whole(self) -> None:
        """Read all of it, and hold it against its checksum.

        Raises:
            UnusableJoinError: It is damaged.
        """
        view, checksum = memoryview(self._mapped), 0
        for start in range(_BODY, self._stop, _CHECKED_BYTES):
            part = view[start : min(start + _CHECKED_BYTES, self._stop)]
            checksum = crc32(part, checksum)
            part.release()
            self.release()
        view.release()
        if checksum != self._checksum:
            raise UnusableJoinError("its checksum does not match")

    def release(self) -> None:
        """Count the pages that were read no longer as memory of this process."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self._mapped.madvise(mmap.MADV_DONTNEED)


def open_kept_join(path: Path, cache: CacheFolder) -> KeptJoin | None:
    """The kept join; None if there is none.

    Raises:
        UnusableJoinError: It is damaged, as far as its beginning and its length show.
        FileAccessError: It could be another user's work.
    """
    file = cache.open(path)
    if file is None:
        return None
    with os.fdopen(file, "rb") as kept:
        if os.fstat(kept.fileno()).st_size < _BODY:
            raise UnusableJoinError("it is cut short")
        return KeptJoin(mmap.mmap(kept.fileno(), 0, access=mmap.ACCESS_READ))


def _read_facts(mapped: mmap.mmap) -> tuple[int, int, JoinFacts]:
    """The checksum of the body, where it stops, and what was counted."""
    magic, version, body_sum, text_sum, _, stop, length = _PREFIX.unpack_from(mapped)
    if (magic, version) != (_MAGIC, _VERSION):
        raise UnusableJoinError("it is of another version, or no join")
    if stop + length != len(mapped) or stop < _BODY:
        raise UnusableJoinError("it is cut short, or too long")
    text = mapped[stop:]
    if crc32(text) != text_sum:
        raise UnusableJoinError("what was counted is damaged")
    content = cast("dict[str, Any]", json.loads(text))
    if content.keys() != {fact.name for fact in fields(JoinFacts)}:
        raise UnusableJoinError("it is of another version")
    return body_sum, stop, JoinFacts(**content)


_Step: TypeAlias = Callable[[int], object]
"""A function to call with the number of keys or rows that are done."""

_RECORD_BYTES: Final = 60
_LONG_BYTES: Final = 1 << 9
"""From this mean length on it is faster to look at the ends of values before all their bytes."""
_END: Final = 64


class ShardKeys(NamedTuple):
    """The keys of the samples of one shard, some at a time, and its size and time of change."""

    keys: Iterable[RowValues]
    stamp: tuple[int, int]


class KeySource(Protocol):
    """The keys of all samples of a split."""

    @property
    def num_samples(self) -> int:
        """Samples of all shards."""
        ...

    def shards(self) -> Iterator[ShardKeys]:
        """The keys of one shard after the other."""
        ...

    def name(self, sample: int) -> str:
        """The key and the id of one sample, by its number among all, for messages."""
        ...


def write_join(file: BinaryIO, name: str, table: JoinTable, samples: KeySource) -> None:
    """Write the kept file of a join.

    Args:
        file: A new file.
        name: Of the join, for messages.
        table: The table.
        samples: The keys that its rows are matched with.

    Raises:
        ConfigError: Two rows have one key, no row has the key of a sample, a value cannot be kept,
            or the keys do not fit the memory.
        ShardError: A shard or a table cannot be read.
    """
    num_records = samples.num_samples + table.num_rows
    try:
        with rows_bar(f"join {name!r}", num_records + table.num_rows) as step:
            _write_join(file, name, table, samples, step)
    except MemoryError as error:
        raise ConfigError(
            f"join {name!r}: matching {count_of(samples.num_samples, 'sample')} with "
            f"{count_of(table.num_rows, 'row')} takes {_RECORD_BYTES * num_records / 1e9:,.1f} GB "
            "of memory, which is not there; take a machine with more, or a table of these samples "
            "alone"
        ) from error


def _write_join(
    file: BinaryIO, name: str, table: JoinTable, samples: KeySource, step: _Step
) -> None:
    stamps: list[tuple[int, int]] = []

    def keys_of_samples() -> Iterator[RowValues]:
        for keys, stamp in samples.shards():
            stamps.append(stamp)
            yield from keys

    of_samples = _hashes_of(keys_of_samples(), samples.num_samples, step)
    pairs = _matched(name, table, samples, of_samples, step)
    writer, slots = KeptFileWriter(file), np.full(samples.num_samples, -1, np.int64)
    stops = _write_values(writer, table, pairs, slots, step)
    writer.align()
    writer.write_numbers(stops)
    writer.write_numbers(slots)
    writer.write_numbers(np.array(stamps, np.int64))
    lacking = np.flatnonzero(slots < 0)
    without_row = samples.num_samples - len(pairs)
    writer.finish(
        JoinFacts(
            num_samples=samples.num_samples,
            num_shards=len(stamps),
            num_values=len(stops) - 1,
            data_bytes=int(stops[-1]),
            rows=table.num_rows,
            unmatched=table.num_rows - len(np.unique(pairs["row"])),
            without_row=without_row,
            without_value=len(lacking) - without_row,
            lacking=samples.name(int(lacking[0])) if len(lacking) else "",
        )
    )


def _hashes_of(chunks: Iterable[RowValues], most: int, step: _Step) -> Hashed:
    """The hashes of so many keys at most, with their numbers; a row without a key has none."""
    records, start, filled = np.empty(most, HASHED), 0, 0
    for keys in chunks:
        numbers = [number for number, key in enumerate(keys, start) if key is not None]
        stop = filled + len(numbers)
        records[filled:stop] = hashed([key for key in keys if key is not None], numbers)
        start, filled = start + len(keys), stop
        step(len(keys))
    return records[:filled]


def _matched(
    name: str, table: JoinTable, samples: KeySource, of_samples: Hashed, step: _Step
) -> NDArray[np.void]:
    pairs, doubled = match(of_samples, _hashes_of(table.keys(), table.num_rows, step))
    if doubled is not None:
        first, second = map(table.row_name, sorted(doubled))
        raise ConfigError(
            f"join {name!r}: {first} and {second} have the same key "
            f"{_key_of(table, doubled[0])!r}; leave one of them out of the table"
        )
    if samples.num_samples and not len(pairs):
        raise ConfigError(_no_match(name, table, samples))
    return pairs


def _key_of(table: JoinTable, row: int) -> str:
    for keys in table.keys():  # noqa: SIM118 a table is no dict
        if row < len(keys):
            return (keys[row] or b"").decode(errors="replace")
        row -= len(keys)
    raise AssertionError(row)  # it had this row a moment ago


def _no_match(name: str, table: JoinTable, samples: KeySource) -> str:
    problem = f"join {name!r}: no row of its table has the key of a sample"
    if not table.num_rows:
        return f"{problem}, because it has no rows; name another table"
    return (
        f"{problem}: the first of {count_of(table.num_rows, 'row')} has {_key_of(table, 0)!r}, the "
        f"first sample {samples.name(0)}; name the column with the keys of samples in `key`"
    )


def _write_values(
    writer: KeptFileWriter,
    table: JoinTable,
    pairs: NDArray[np.void],
    slots: RowNumbers,
    step: _Step,
) -> RowNumbers:
    """Write the values of rows that some sample has, and note in `slots` which a sample has.

    Returns:
        Where each value begins, and the end of the last one: int64, shape (num_values + 1,).
    """
    stops: list[RowNumbers] = [np.zeros(1, np.int64)]
    start = done = num_values = 0
    for chunk in table.chunks():
        stop = int(np.searchsorted(pairs["row"], start + chunk.num_rows))
        found, done = pairs[done:stop], stop
        rows, back = np.unique(found["row"], return_inverse=True)
        values = chunk.values(rows - start) if len(rows) else []
        is_there = np.array([value is not None for value in values], bool)
        given, numbers = _different([value for value in values if value is not None])
        writer.write(b"".join(given))
        if given:
            stops.append(stops[-1][-1] + np.cumsum(list(map(len, given))))
        slot_of_row = np.full(len(rows), -1, np.int64)
        slot_of_row[is_there] = num_values + numbers
        slots[found["sample"]] = slot_of_row[back]
        start, num_values = start + chunk.num_rows, num_values + len(given)
        step(chunk.num_rows)
    return np.concatenate(stops)


def _different(values: list[bytes]) -> tuple[list[bytes], RowNumbers]:
    """The different ones of these values, in the order in which each is first, and who has which.

    Equal values of rows that are read together are written once: of labels and texts that repeat
    some megabytes of a table are enough.
    """
    is_long = sum(map(len, values)) > _LONG_BYTES * len(values)
    if is_long and len({(value[:_END], value[-_END:]) for value in values}) == len(values):
        return values, np.arange(len(values))  # without a hash of all their bytes
    different = dict.fromkeys(values)
    if len(different) == len(values):
        return values, np.arange(len(values))
    number_of = dict(zip(different, range(len(different)), strict=True))
    numbers = np.fromiter(map(number_of.__getitem__, values), np.int64, len(values))
    return list(different), numbers
