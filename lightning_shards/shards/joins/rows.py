"""The rows of a table, and which sample has the key of which row.

Keys are compared by 128 bits of a cryptographic hash, so that records have one size.
"""

from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import Final, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

RowNumbers: TypeAlias = NDArray[np.int64]
"""Numbers of rows or of samples."""

RowValues: TypeAlias = list[bytes | None]
"""The bytes of keys or values; None where a row has none."""


class RowChunk(Protocol):
    """Consecutive rows."""

    @property
    def num_rows(self) -> int:
        """How many."""
        ...

    def values(self, rows: RowNumbers) -> RowValues:
        """The values of these rows, numbered from the first one of the chunk."""
        ...


class JoinTable(Protocol):
    """A table that is read from its beginning any number of times.

    `keys` and `chunks` give the same rows in the same order, and few of them at a time.
    """

    @property
    def num_rows(self) -> int:
        """Rows of the whole table."""
        ...

    def row_name(self, row: int) -> str:
        """Where a row is, for messages, by its number in the table."""
        ...

    def keys(self) -> Iterator[RowValues]:
        """The keys of all rows."""
        ...

    def chunks(self) -> Iterator[RowChunk]:
        """All rows."""
        ...


HASHED: Final = np.dtype([("high", "<u8"), ("low", "<u8"), ("number", "<i8")])
"""The hash of a key, and the number of its sample or row."""

PAIR: Final = np.dtype([("row", "<i8"), ("sample", "<i8")])
"""A row, and a sample that has its key."""

_HASH_BYTES: Final = 16

Hashed: TypeAlias = NDArray[np.void]


def hashed(keys: Sequence[bytes], numbers: Iterable[int]) -> Hashed:
    """A record of dtype `HASHED` for each key, with these numbers."""
    records = np.empty(len(keys), HASHED)
    data = b"".join(blake2b(key, digest_size=_HASH_BYTES).digest() for key in keys)
    halves = np.frombuffer(data, "<u8").reshape(-1, 2)
    records["high"], records["low"] = halves.T
    records["number"] = np.fromiter(numbers, np.int64, len(keys))
    return records


def match(samples: Hashed, rows: Hashed) -> tuple[NDArray[np.void], tuple[int, int] | None]:
    """The pairs of all: each sample with the row that has its key, in the order of the rows.

    Returns:
        The pairs, of dtype `PAIR`, and the numbers of two rows that have the same key; None if
        there are no such rows.
    """
    # records: rows first, so that a stable sort puts the row before the samples of its key.
    records = np.concatenate([rows, samples])
    is_row = np.arange(len(records)) < len(rows)
    order = np.lexsort((records["low"], records["high"]))
    sorted_records, is_row = records[order], is_row[order]
    is_first = np.ones(len(records), bool)
    for half in ("high", "low"):
        values = sorted_records[half]
        differs = values[1:] != values[:-1]
        is_first[1:] = differs if half == "high" else is_first[1:] | differs
    doubled = np.flatnonzero(is_row[1:] & is_row[:-1] & ~is_first[1:])
    if len(doubled):
        first, second = sorted_records["number"][doubled[0] : doubled[0] + 2].tolist()
        return np.empty(0, PAIR), (first, second)
    # row_of_key: the number of the row with each different key, -1 where there is none.
    key_numbers = np.cumsum(is_first) - 1
    row_of_key = np.full(int(is_first.sum()), -1, np.int64)
    row_of_key[key_numbers[is_row]] = sorted_records["number"][is_row]
    rows_of_samples = row_of_key[key_numbers[~is_row]]
    has_row = rows_of_samples >= 0
    pairs = np.empty(int(has_row.sum()), PAIR)
    pairs["row"] = rows_of_samples[has_row]
    pairs["sample"] = sorted_records["number"][~is_row][has_row]
    return pairs[np.argsort(pairs["row"], kind="stable")], None
