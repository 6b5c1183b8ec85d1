"""The file that a join is kept in: of each sample the bytes of its value, mapped when it is read.

The format, all numbers little-endian::

    magic 8 · version u4 · crc32 of the body u4 · crc32 of the JSON u4 · 0 u4
    offset of the JSON u8 · length of the JSON u8 · zeros up to 64 bytes
    body: the values, one after the other; zeros up to 8 bytes
          offsets  int64 (num_values + 1)  where each value begins among them
          slots    int64 (num_samples)     which value a sample has, -1 for none
          stamps   int64 (num_shards, 2)   size and time of the shards whose keys were matched
    JSON: the lengths of these arrays, and what was counted
"""

import json
import mmap
import os
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from struct import Struct
from typing import Any, BinaryIO, Final, cast

import numpy as np
from numpy.typing import NDArray

from lightning_shards.shards.checksums import crc32
from lightning_shards.shards.joins.rows import RowNumbers
from lightning_shards.shards.private_files import CacheFolder

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
