"""The rows of a table, as whoever matches them with samples needs them."""

from collections.abc import Iterator
from typing import Protocol, TypeAlias

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
