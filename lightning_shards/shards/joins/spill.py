"""Records that are sorted into files by number, so that only one part of them is in memory."""

from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

RowNumbers: TypeAlias = NDArray[np.int64]
"""Numbers of rows, of samples or of parts."""

PART_RECORDS: Final = 1 << 19
"""About the records of a part, and of what is held before it is written: 12 MiB of hashed keys."""


def parts_for(num_records: int) -> int:
    """How many parts keep each of them small.

    >>> parts_for(0), parts_for(524_288), parts_for(524_289)
    (1, 1, 2)
    """
    return max(1, -(-num_records // PART_RECORDS))


class Spill:
    """Records of one dtype in one file for each part.

    Args:
        folder: Where the files go; nothing else writes files of this name there.
        name: Begins the names of the files.
        dtype: Of a record.
    """

    def __init__(self, folder: Path, name: str, dtype: np.dtype[Any]) -> None:
        self._folder, self._name, self._dtype = folder, name, dtype
        self._parts: list[RowNumbers] = []
        self._records: list[NDArray[Any]] = []
        self._held = 0

    def add(self, parts: RowNumbers, records: NDArray[Any]) -> None:
        """Add records, each to the part of its number; both have the same length."""
        self._parts.append(parts)
        self._records.append(records)
        self._held += len(records)
        if self._held >= PART_RECORDS:
            self._write()

    def take(self, part: int) -> NDArray[Any]:
        """The records of a part in the order in which they were added; its file is removed."""
        if self._held:
            self._write()
        path = self._path(part)
        if not path.exists():
            return np.empty(0, self._dtype)
        records = np.fromfile(path, self._dtype)
        path.unlink()
        return records

    def _write(self) -> None:
        parts, records = np.concatenate(self._parts), np.concatenate(self._records)
        self._parts, self._records, self._held = [], [], 0
        order = np.argsort(parts, kind="stable")
        parts = parts[order]
        starts = np.flatnonzero(np.diff(parts, prepend=-1))
        for start, stop in zip(starts, [*starts[1:], len(parts)], strict=True):
            with self._path(int(parts[start])).open("ab") as file:
                file.write(records[order[start:stop]].tobytes())

    def _path(self, part: int) -> Path:
        return self._folder / f"{self._name}-{part}"
