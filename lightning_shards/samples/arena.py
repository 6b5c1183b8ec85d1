"""The arena: memory in which the arrays of a batch are made one after the other.

A worker process makes large arrays in the shared memory that the trainer reads them from: it passes
its arena to the source, and the source passes it to the code that collates. Only an array of a
batch may use memory of an arena after the batch is made, because this memory is used again.
"""

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from lightning_shards.samples.loaded_torch import load_torch

if TYPE_CHECKING:
    import torch

_ALIGNMENT = 64
"""Bytes; each array in an arena begins at a multiple of it."""


def aligned(size: int) -> int:
    """Bytes of an arena that an array of `size` bytes takes."""
    return -(-size // _ALIGNMENT) * _ALIGNMENT


_NO_MEMORY = np.empty(0, np.uint8)


class Arena:
    """Memory that is given out from its beginning to its end; there is none before `use`.

    Attributes:
        claimed: Bytes given out so far, which is also the offset of the next array.
    """

    def __init__(self) -> None:
        self.use(_NO_MEMORY)

    def use(self, memory: NDArray[np.uint8]) -> None:
        """Give out this memory from now on: uint8, contiguous, with an aligned beginning."""
        self._memory, self.claimed = memory, 0
        self._address = memory.__array_interface__["data"][0]

    def use_none(self) -> None:
        """Give out no memory from now on, so that arrays have memory of their own."""
        self.use(_NO_MEMORY)

    def new(self, size: int) -> NDArray[np.uint8] | None:
        """The next `size` bytes, uint8 of shape (size,); None if fewer are left."""
        start = self.claimed
        if start + size > len(self._memory):
            return None
        self.claimed += aligned(size)
        return self._memory[start : start + size]

    def start_of(self, values: NDArray[np.uint8]) -> int | None:
        """The offset of these bytes in the arena; None if they are not in it."""
        start = values.__array_interface__["data"][0] - self._address
        return start if start >= 0 and start + len(values) <= len(self._memory) else None


def new_array(shape: tuple[int, ...], dtype: DTypeLike, arena: Arena | None = None) -> NDArray[Any]:
    """An array that is not filled yet, in the arena if enough memory is left there.

    Otherwise its memory is numpy's, which uses huge pages: to fill new memory costs a tenth then.
    """
    size = prod(shape) * np.dtype(dtype).itemsize
    memory = arena.new(size) if arena and size else None
    if memory is None:
        return np.empty(shape, dtype)
    return memory.view(dtype).reshape(shape)


def new_tensor(
    shape: tuple[int, ...], dtype: "torch.dtype", arena: Arena | None = None
) -> "torch.Tensor":
    """A `new_array` as a tensor, of any type of torch's, some of which numpy lacks."""
    torch, size = load_torch(), prod(shape) * dtype.itemsize
    if not size:
        return torch.empty(shape, dtype=dtype, device="cpu")
    return torch.from_numpy(new_array((size,), np.uint8, arena)).view(dtype).reshape(shape)
