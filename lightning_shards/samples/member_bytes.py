"""The members of one field in several samples, as bytes or as the rows of one array.

Members are checked against the crc32s in the index before they are given out.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightning_shards.errors import SampleError
from lightning_shards.shards.files import crc32
from lightning_shards.shards.members import ENCODING

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]

ABSENT = -1


class ColumnError(SampleError):
    """A member is missing or damaged; reading the sample alone gives the full message."""


class MemberBytes:
    """Members in a buffer that will be used again, so every result is a copy.

    Args:
        buffer: uint8, contiguous.
        starts: Where each member begins in the buffer, int64; `ABSENT` for a missing member.
        sizes: bytes of each member, int64.
        checksums: Crc32 of each member, int64; `ABSENT` where it is unknown.
    """

    def __init__(self, buffer: Bytes, starts: Ints, sizes: Ints, checksums: Ints) -> None:
        self._buffer, self._starts, self._sizes = buffer, starts, sizes
        self._checksums = checksums

    @property
    def are_read(self) -> bool:
        """Whether all members are there that the samples have."""
        return bool(((self._starts >= 0) | (self._sizes < 0)).all())

    @property
    def has_gaps(self) -> bool:
        """Whether some samples have no such member: all but `with_gaps` needs that none has."""
        return bool((self._sizes < 0).any())

    def with_gaps(self) -> Iterator[bytes | None]:
        """The bytes of each member, copied when they are asked for; None for one that is missing.

        Raises:
            ColumnError: A member is damaged.
        """
        data = self._buffer.data
        rows = zip(*(v.tolist() for v in (self._starts, self._sizes, self._checksums)), strict=True)
        for start, size, checksum in rows:
            member = bytes(data[start : start + size]) if size >= 0 else None
            if member is not None and checksum not in (ABSENT, crc32(member)):
                raise ColumnError("a member of this batch is damaged")
            yield member

    def at(self, rows: Ints | slice) -> "MemberBytes":
        """The members of these samples."""
        starts, sizes = self._starts[rows], self._sizes[rows]
        return MemberBytes(self._buffer, starts, sizes, self._checksums[rows])

    def to_list(self) -> list[bytes]:
        """The bytes of each member.

        Raises:
            ColumnError: A member is damaged.
        """
        rows = self.rows()
        if rows is not None:  # members of one size, as classes, are listed twice as fast
            return rows.view(f"V{rows.shape[1]}").ravel().tolist()
        data, stops = self._buffer.data, (self._starts + self._sizes).tolist()
        pairs = zip(self._starts.tolist(), stops, strict=True)
        members = [bytes(data[start:stop]) for start, stop in pairs]
        self._check_each(members)
        return members

    def rows(self) -> Bytes | None:
        """The bytes of each member as a row; None if the sizes differ or are 0.

        Returns:
            uint8 of shape (members, size), contiguous, writable.

        Raises:
            ColumnError: A member is damaged.
        """
        size, sizes = int(self._sizes[0]), self._sizes.tobytes()  # bytes are compared twice as fast
        if not size or sizes != sizes[: self._sizes.itemsize] * len(self._sizes):
            return None
        # items: a view of every `size` consecutive bytes, shape (len(buffer) - size + 1,). Indexing
        # it by `starts` copies the wanted members only.
        count = len(self._buffer) - size + 1
        items = np.ndarray((count,), f"V{size}", self._buffer, strides=(1,))[self._starts]
        self._check_each(items)
        return items.view(np.uint8).reshape(len(items), size)

    def _check_each(self, members: Iterable[Any]) -> None:
        is_known = self._checksums != ABSENT
        if is_known.any() and (is_known & (self._checksums != list(map(crc32, members)))).any():
            raise ColumnError("a member of this batch is damaged")


class SampleKeys:
    """The keys of some samples, cut out of one text when they are asked for.

    Args:
        data: The text, uint8.
        starts: Where each key begins in it.
        lengths: bytes of each.
    """

    def __init__(self, data: NDArray[np.uint8], starts: Ints, lengths: Ints) -> None:
        self._starts, self._stops = starts, starts + lengths
        text = data.tobytes()
        self._text = text.decode("ascii") if text.isascii() else text
        self._alike: NDArray[np.str_] | None = None
        length = int(lengths[0])
        is_plain = text.isascii() and b"\0" not in text  # with which numpy fills an item
        if length and is_plain and (lengths == length).all():
            # an item of so many letters, of four bytes each, begins at each of them
            shape, letters = (len(data) - length + 1,), data.astype(np.uint32)
            self._alike = np.ndarray(shape, f"U{length}", letters, strides=(4,))

    def part(self, start: int, stop: int) -> list[str]:
        """The keys of the samples start to stop."""
        if self._alike is not None:
            return self._alike[self._starts[start:stop]].tolist()
        text, starts, stops = self._text, self._starts[start:stop], self._stops[start:stop]
        pairs = zip(starts.tolist(), stops.tolist(), strict=True)
        if isinstance(text, str):
            return [text[a:b] for a, b in pairs]
        return [str(text[a:b], *ENCODING) for a, b in pairs]
