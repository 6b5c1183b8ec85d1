"""Makes the file of a join: keys are matched, and each value is copied once.

The table is read twice, first its keys and then the values of the rows that some sample has. About
60 bytes of each row and of each sample are in memory meanwhile, and of the values a few MiB.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO, Final, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lightning_shards.errors import ConfigError, count_of
from lightning_shards.shards.joins.kept_file import JoinFacts, KeptFileWriter
from lightning_shards.shards.joins.rows import (
    HASHED,
    Hashed,
    JoinTable,
    RowNumbers,
    RowValues,
    hashed,
    match,
)
from lightning_shards.shards.progress_line import rows_bar

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
