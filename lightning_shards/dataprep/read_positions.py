"""How far processes have read each of many files, told to the process that draws it.

The numbers are in a file without a name, so that a killed program leaves nothing behind. Each of
the files that are read has a record of its own in it, to which only its reader writes.
"""

import os
from collections.abc import Generator
from contextlib import contextmanager
from tempfile import TemporaryFile
from typing import Any, Final, NamedTuple

import numpy as np

_RECORD: Final = np.dtype([("read", np.int64), ("size", np.int64), ("is_done", np.int64)])


class BytesSeen(NamedTuple):
    """What was read of all files so far.

    Attributes:
        read: Bytes.
        total: Bytes of all files; those that were not begun are taken to be as large as the others.
        done: Files that were read to their end.
        number: Files.
    """

    read: int
    total: int
    done: int
    number: int


class ReadPositions:
    """What processes note, each by a copy of its own that was made by pickling.

    Args:
        path: The file of numbers, which `read_positions` makes.
    """

    def __init__(self, path: str) -> None:
        self._path = path

    def note(self, number: int, read: int, size: int, *, is_done: bool = False) -> None:
        """Note how many bytes of which size were read of the file of this number."""
        file = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            record: Any = np.array((read, size, is_done), _RECORD)
            os.pwrite(file, record.tobytes(), number * _RECORD.itemsize)
        finally:
            os.close(file)

    def seen(self) -> BytesSeen:
        """The sum over all files."""
        records = np.fromfile(self._path, _RECORD)
        begun = int(np.count_nonzero(records["size"]))
        known = int(records["size"].sum())
        total = known * len(records) // begun if begun else 0
        done = int(records["is_done"].sum())
        return BytesSeen(int(records["read"].sum()), total, done, len(records))


@contextmanager
def read_positions(number: int) -> Generator[ReadPositions]:
    """The positions in so many files, all 0; they are gone when the block ends."""
    with TemporaryFile() as file:
        file.truncate(number * _RECORD.itemsize)
        yield ReadPositions(f"/proc/{os.getpid()}/fd/{file.fileno()}")
