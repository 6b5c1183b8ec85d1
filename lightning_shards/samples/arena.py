"""Where the tensors of a batch are made: in memory of their own, or side by side in an arena.

A worker process makes large ones right in the shared memory that the trainer finds them in: it
hands its arena to the source, which hands it to what collates. What lies in an arena leaves it as a
tensor of a batch only: its memory is used again.
"""

from math import prod

import numpy as np
import torch
from numpy.typing import NDArray

_ALIGNMENT = 64
"""Bytes; of tensors in an arena."""


def aligned(size: int) -> int:
    """Bytes of an arena that a tensor of so many bytes takes."""
    return -(-size // _ALIGNMENT) * _ALIGNMENT


_NO_MEMORY = np.empty(0, np.uint8)


class Arena:
    """Memory that is given away from its front to its end; it has none before `use`.

    Attributes:
        claimed: bytes up to the end of what was given away.
    """

    def __init__(self) -> None:
        self.use(_NO_MEMORY)

    def use(self, memory: NDArray[np.uint8]) -> None:
        """Give this memory away from now on: uint8, contiguous, its start aligned."""
        self._memory, self.claimed = memory, 0
        self._address = memory.__array_interface__["data"][0]

    def use_none(self) -> None:
        """Let tensors be made elsewhere from now on."""
        self.use(_NO_MEMORY)

    def new(self, size: int) -> NDArray[np.uint8] | None:
        """So many bytes of it; None if they are not there."""
        start = self.claimed
        if start + size > len(self._memory):
            return None
        self.claimed += aligned(size)
        return self._memory[start : start + size]

    def start_of(self, values: NDArray[np.uint8]) -> int | None:
        """Where in it these bytes lie; None if they lie elsewhere."""
        start = values.__array_interface__["data"][0] - self._address
        return start if start >= 0 and start + len(values) <= len(self._memory) else None


def new_tensor(
    shape: tuple[int, ...], dtype: torch.dtype, arena: Arena | None = None
) -> torch.Tensor:
    """A tensor that is not filled yet, in the arena as long as that has memory.

    Elsewhere its memory is numpy's: it lies in huge pages, and costs a tenth to fill anew.
    """
    size = prod(shape) * dtype.itemsize
    if not size:
        return torch.empty(shape, dtype=dtype)
    memory = arena.new(size) if arena else None
    if memory is None:
        memory = np.empty(size, np.uint8)
    return torch.as_tensor(memory).view(dtype).reshape(shape)
