"""The members of one field in some samples, as bytes or as the rows of one array.

Whatever is given is checked: members against the crc32 that the index has of each, those of a batch
that have one size in one go, since a call for each would cost as much as to read them.
"""

from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lightning_shards.errors import SampleError
from lightning_shards.shards.checksums import crc32

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]

ABSENT = -1


class ColumnError(SampleError):
    """A sample lacks a member, or its bytes are not what they were; read alone, it says more."""


class MemberBytes:
    """Members that lie in a buffer, which will be filled anew; so all that they give is a copy.

    Args:
        buffer: uint8, contiguous.
        starts: where each member begins in it, int64; `ABSENT` for one that is not there.
        sizes: bytes of each, int64.
        checksums: crc32 of each, int64; `ABSENT` where it is not known.
        joined: crc32 of all of them one after the other; None if that is not known.
    """

    def __init__(
        self, buffer: Bytes, starts: Ints, sizes: Ints, checksums: Ints, joined: int | None = None
    ) -> None:
        self._buffer, self._starts, self._sizes = buffer, starts, sizes
        self._checksums, self._joined = checksums, joined

    @property
    def are_there(self) -> bool:
        """Whether none is absent: the rest asks for that."""
        return bool((self._starts >= 0).all())

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.to_list())

    def part(self, start: int, stop: int, joined: int | None) -> "MemberBytes":
        """Those of some samples, whose crc32 is `joined`."""
        starts, sizes = self._starts[start:stop], self._sizes[start:stop]
        return MemberBytes(self._buffer, starts, sizes, self._checksums[start:stop], joined)

    def to_list(self) -> list[bytes]:
        """Each member's bytes.

        Raises:
            ColumnError: one is damaged.
        """
        size = self._common_size()
        if size:
            members = self._items(size).tolist()
        else:
            data, stops = self._buffer.data, (self._starts + self._sizes).tolist()
            pairs = zip(self._starts.tolist(), stops, strict=True)
            members = [bytes(data[start:stop]) for start, stop in pairs]
        self._check_each(members)
        return members

    def rows(self) -> Bytes | None:
        """The bytes of each member; None if they have not one size, or none at all.

        Returns:
            uint8 of shape (members, size), contiguous, writable.

        Raises:
            ColumnError: one is damaged.
        """
        size = self._common_size()
        if not size:
            return None
        items = self._items(size)
        if self._joined is None:
            self._check_each(items)
        elif crc32(items.data) != self._joined:
            raise ColumnError("a member of this batch is damaged")
        return items.view(np.uint8).reshape(len(items), size)

    def _check_each(self, members: Iterable[Any]) -> None:
        is_known = self._checksums != ABSENT
        if is_known.any() and (is_known & (self._checksums != list(map(crc32, members)))).any():
            raise ColumnError("a member of this batch is damaged")

    def _common_size(self) -> int | None:
        """Bytes of each member; None if they differ."""
        sizes = self._sizes.tobytes()  # compared twice as fast
        is_common = sizes == sizes[: self._sizes.itemsize] * len(self._sizes)
        return int(self._sizes[0]) if is_common else None

    def _items(self, size: int) -> NDArray[np.void]:
        # an item of this size begins at each byte of the buffer: numpy copies those asked for
        count = len(self._buffer) - size + 1
        items = np.ndarray((count,), f"V{size}", self._buffer, strides=(1,))
        return items[self._starts]


class ListedBytes:
    """The same of members that are bytes already, all there and checked."""

    def __init__(self, members: list[bytes]) -> None:
        self._members = members

    def to_list(self) -> list[bytes]:
        """Each member's bytes."""
        return self._members

    def rows(self) -> Bytes | None:
        """The bytes of each member, as `MemberBytes` gives them."""
        sizes = set(map(len, self._members))
        if len(sizes) > 1 or not sum(sizes):
            return None
        joined = bytearray().join(self._members)
        return np.frombuffer(joined, np.uint8).reshape(len(self._members), -1)


FieldMembers: TypeAlias = MemberBytes | ListedBytes
"""The members of one field in a batch."""
