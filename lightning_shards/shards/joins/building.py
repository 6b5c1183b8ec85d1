"""Makes the file of a join: keys are matched part by part, and each value is copied once.

The table is read twice, first its keys and then the values of the rows that some sample has. What
is in memory at a time does not grow with the table: the rest lies in files of a scratch folder.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lightning_shards.errors import ConfigError, count_of
from lightning_shards.shards.joins.kept_file import JoinFacts, KeptFileWriter
from lightning_shards.shards.joins.matching import HASHED, PAIR, hash_parts, hashed, match
from lightning_shards.shards.joins.rows import JoinTable, RowChunk, RowValues
from lightning_shards.shards.joins.spill import PART_RECORDS, RowNumbers, Spill, parts_for
from lightning_shards.shards.progress_line import rows_bar

_Step: TypeAlias = Callable[[int], object]
"""Told how many keys or rows are done."""

_SLOT: Final = np.dtype([("sample", "<i8"), ("slot", "<i8")])
_COPIED_BYTES: Final = 1 << 22
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


class _Matched(NamedTuple):
    """Who matched whom: `pairs` are parts of rows, `num_rows` those that some sample has."""

    pairs: Spill
    num_pairs: int
    num_rows: int
    stamps: list[tuple[int, int]]


def write_join(
    file: BinaryIO, name: str, table: JoinTable, samples: KeySource, scratch: Path
) -> None:
    """Write the kept file of a join.

    Args:
        file: A new file.
        name: Of the join, for messages.
        table: The table.
        samples: The keys that its rows are matched with.
        scratch: An empty folder.

    Raises:
        ConfigError: Two rows have one key, no row has the key of a sample, or a value cannot be
            kept.
        ShardError: A shard or a table cannot be read.
    """
    with rows_bar(f"join {name!r}", samples.num_samples + 2 * table.num_rows) as step:
        matched = _matched(name, table, samples, scratch, step)
        writer = KeptFileWriter(file)
        slots = Spill(scratch, "slots", _SLOT)
        offsets = scratch / "offsets"
        copied = _copy_values(writer, table, matched.pairs, slots, offsets, step)
    num_lacking, first = _write_slots(writer, slots, samples.num_samples)
    writer.write_numbers(np.array(matched.stamps, np.int64))
    without_row = samples.num_samples - matched.num_pairs
    writer.finish(
        JoinFacts(
            num_samples=samples.num_samples,
            num_shards=len(matched.stamps),
            num_values=copied[0],
            data_bytes=copied[1],
            rows=table.num_rows,
            unmatched=table.num_rows - matched.num_rows,
            without_row=without_row,
            without_value=num_lacking - without_row,
            lacking=samples.name(first) if num_lacking else "",
        )
    )


def _matched(
    name: str, table: JoinTable, samples: KeySource, scratch: Path, step: _Step
) -> _Matched:
    num_parts = parts_for(samples.num_samples + table.num_rows)
    of_samples, of_rows = (Spill(scratch, kind, HASHED) for kind in ("samples", "rows"))
    stamps: list[tuple[int, int]] = []

    def keys_of_samples() -> Iterator[RowValues]:
        for keys, stamp in samples.shards():
            stamps.append(stamp)
            yield from keys

    _spill_keys(of_samples, keys_of_samples(), num_parts, step)
    _spill_keys(of_rows, table.keys(), num_parts, step)
    pairs, num_pairs, num_rows = Spill(scratch, "pairs", PAIR), 0, 0
    for part in range(num_parts):
        found, doubled = match(of_samples.take(part), of_rows.take(part))
        if doubled is not None:
            first, second = map(table.row_name, sorted(doubled))
            raise ConfigError(
                f"join {name!r}: {first} and {second} have the same key "
                f"{_key_of(table, doubled[0])!r}; leave one of them out of the table"
            )
        pairs.add(found["row"] // PART_RECORDS, found)
        num_pairs, num_rows = num_pairs + len(found), num_rows + len(np.unique(found["row"]))
    if samples.num_samples and not num_pairs:
        raise ConfigError(_no_match(name, table, samples))
    return _Matched(pairs, num_pairs, num_rows, stamps)


def _spill_keys(spill: Spill, chunks: Iterable[RowValues], num_parts: int, step: _Step) -> None:
    """Sort the hashes of keys by parts; a row without a key has none."""
    start = 0
    for keys in chunks:
        numbered = [(key, number) for number, key in enumerate(keys, start) if key is not None]
        records = hashed([key for key, _ in numbered], [number for _, number in numbered])
        spill.add(hash_parts(records, num_parts), records)
        start += len(keys)
        step(len(keys))


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


def _copy_values(
    writer: KeptFileWriter,
    table: JoinTable,
    pairs: Spill,
    slots: Spill,
    scratch: Path,
    step: _Step,
) -> tuple[int, int]:
    """Write the values of rows that some sample has, and then where each begins.

    Returns:
        How many they are, and their bytes.
    """
    with scratch.open("w+b") as offsets:
        counts = _write_values(writer, _counted(table.chunks(), step), pairs, slots, offsets)
        writer.align()
        offsets.seek(0)
        while data := offsets.read(_COPIED_BYTES):
            writer.write(data)
    return counts


def _counted(chunks: Iterable[RowChunk], step: _Step) -> Iterator[RowChunk]:
    """The same, each counted when it is done."""
    for chunk in chunks:
        yield chunk
        step(chunk.num_rows)


def _write_values(
    writer: KeptFileWriter,
    chunks: Iterable[RowChunk],
    pairs: Spill,
    slots: Spill,
    offsets: BinaryIO,
) -> tuple[int, int]:
    pairs_up_to, start, num_values, stop = _in_order(pairs), 0, 0, 0
    offsets.write(np.zeros(1, "<i8").tobytes())
    for chunk in chunks:
        found = pairs_up_to(start + chunk.num_rows)
        rows, back = np.unique(found["row"], return_inverse=True)
        values = chunk.values(rows - start) if len(rows) else []
        is_there = np.array([value is not None for value in values], bool)
        given, numbers = _different([value for value in values if value is not None])
        writer.write(b"".join(given))
        stops = stop + np.cumsum(np.fromiter(map(len, given), np.int64, len(given)))
        offsets.write(stops.astype("<i8").tobytes())
        slot_of_row = np.full(len(rows), -1, np.int64)
        slot_of_row[is_there] = num_values + numbers
        records = np.empty(len(found), _SLOT)
        records["sample"], records["slot"] = found["sample"], slot_of_row[back]
        records = records[records["slot"] >= 0]
        slots.add(records["sample"] // PART_RECORDS, records)
        start, num_values = start + chunk.num_rows, num_values + len(given)
        stop = int(stops[-1]) if len(stops) else stop
    return num_values, stop


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


def _in_order(pairs: Spill) -> Callable[[int], NDArray[np.void]]:
    """Gives the pairs of the rows from where the last call ended to a row."""
    part, held = count(), np.empty(0, PAIR)
    read_to = 0

    def up_to(stop: int) -> NDArray[np.void]:
        nonlocal held, read_to
        while read_to < stop:
            more = pairs.take(next(part))
            held = np.concatenate([held, more[np.argsort(more["row"], kind="stable")]])
            read_to += PART_RECORDS
        cut = int(np.searchsorted(held["row"], stop))
        found, held = held[:cut], held[cut:]
        return found

    return up_to


def _write_slots(writer: KeptFileWriter, slots: Spill, num_samples: int) -> tuple[int, int]:
    """Write which value each sample has.

    Returns:
        The samples without a value: their number, and the first of them.
    """
    num_lacking, first = 0, -1
    for part, start in enumerate(range(0, num_samples, PART_RECORDS)):
        records = slots.take(part)
        of_part: RowNumbers = np.full(min(PART_RECORDS, num_samples - start), -1, np.int64)
        of_part[records["sample"] - start] = records["slot"]
        writer.write_numbers(of_part)
        lacking = np.flatnonzero(of_part < 0)
        if len(lacking) and first < 0:
            first = start + int(lacking[0])
        num_lacking += len(lacking)
    return num_lacking, first
