"""Memory of ranges that are not needed any more, for those that are fetched next.

Fresh memory costs about as much as to receive the bytes: the system clears each page of it first.
"""

from collections import deque
from typing import Final

_LEAST: Final = 1 << 16
"""Smaller memory is not worth it."""

_MOST: Final = 16 << 20
"""Bytes that are kept, about: as if all of it had the size of what comes last."""


class SpareMemory:
    """Takes memory back and gives it out again; any thread may call any method.

    It has no lock, which a fork could inherit held.
    """

    def __init__(self) -> None:
        self._spare: deque[bytearray] = deque()

    def take(self, size: int) -> bytearray:
        """Memory of so many bytes, with anything in them."""
        if size < _LEAST:
            return bytearray(size)
        try:
            memory = self._spare.pop()
            if len(memory) > size:
                del memory[size:]
            else:
                memory += bytes(size - len(memory))
        except (IndexError, BufferError):  # there is none, or somebody still looks at it
            return bytearray(size)
        return memory

    def give_back(self, data: bytearray) -> None:
        """Take memory that nobody reads or writes any more."""
        if len(data) >= _LEAST and (len(self._spare) + 1) * len(data) <= _MOST:
            self._spare.append(data)
