"""The members of one field in some samples, as bytes or as the rows of one array."""

from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]

ABSENT = -1


class MemberBytes:
    """Members that lie in a buffer, which will be filled anew; so all that they give is a copy.

    Args:
        buffer: uint8, contiguous.
        starts: where each member begins in it, int64; `ABSENT` for one that is not there.
        sizes: bytes of each, int64.
    """

    def __init__(self, buffer: Bytes, starts: Ints, sizes: Ints) -> None:
        self._buffer, self._starts, self._sizes = buffer, starts, sizes

    @property
    def are_there(self) -> bool:
        """Whether none is absent: the rest asks for that."""
        return bool((self._starts >= 0).all())

    def loaded(self) -> "MemberBytes":
        """These, as they are read already."""
        return self

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.to_list())

    def part(self, start: int, stop: int) -> "MemberBytes":
        """Those of some samples."""
        return MemberBytes(self._buffer, self._starts[start:stop], self._sizes[start:stop])

    def joined(self) -> "MemberBytes":
        """These, as they are in one buffer already."""
        return self

    def common_size(self) -> int | None:
        """Bytes of each member; None if they differ."""
        first = int(self._sizes[0])
        return first if (self._sizes == first).all() else None

    def to_list(self) -> list[bytes]:
        """Each member's bytes."""
        size = self.common_size()
        if size:
            return self._items(0, size).tolist()
        data, stops = self._buffer.data, (self._starts + self._sizes).tolist()
        pairs = zip(self._starts.tolist(), stops, strict=True)
        return [bytes(data[start:stop]) for start, stop in pairs]

    def head(self, length: int) -> bytes:
        """The first bytes of the first member, at most so many."""
        start = int(self._starts[0])
        return self._buffer[start : start + min(length, int(self._sizes[0]))].tobytes()

    def rows(self, begin: int, end: int) -> Bytes:
        """The bytes from `begin` to `end` of each member; all have so many, and end > begin.

        Returns:
            uint8 of shape (members, end - begin), contiguous, writable.
        """
        return self._items(begin, end).view(np.uint8).reshape(len(self._starts), -1)

    def _items(self, begin: int, end: int) -> NDArray[Any]:
        # an item of this size begins at each byte of the buffer: numpy copies those asked for
        count = len(self._buffer) - (end - begin) + 1
        items = np.ndarray((count,), f"V{end - begin}", self._buffer, strides=(1,))
        return items[self._starts + begin]


class ListedBytes:
    """The same of members that are bytes already, and all there."""

    def __init__(self, members: list[bytes]) -> None:
        self._members = members

    def to_list(self) -> list[bytes]:
        """Each member's bytes."""
        return self._members

    def joined(self) -> MemberBytes:
        """All of them in one buffer."""
        sizes = np.array(list(map(len, self._members)), np.int64)
        buffer = np.frombuffer(b"".join(self._members), np.uint8)
        return MemberBytes(buffer, np.cumsum(sizes) - sizes, sizes)


Members: TypeAlias = MemberBytes | ListedBytes
"""The members of one field in a batch."""
