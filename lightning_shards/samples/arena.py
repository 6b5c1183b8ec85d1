"""Where the tensors of a batch are made: in memory of their own, or side by side in an arena.

A worker process makes large ones right in the shared memory that the trainer finds them in. What
lies in an arena leaves it as a tensor of a batch only: its memory is used again.
"""

import threading
from collections.abc import Generator
from contextlib import contextmanager
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray

_ALIGNMENT = 64
"""Bytes; of tensors in an arena."""


def aligned(size: int) -> int:
    """Bytes of an arena that a tensor of so many bytes takes."""
    return -(-size // _ALIGNMENT) * _ALIGNMENT


class Arena:
    """Memory that is given away from its front to its end.

    Args:
        memory: uint8, contiguous, its start aligned.

    Attributes:
        claimed: bytes up to the end of what was given away.
    """

    def __init__(self, memory: NDArray[np.uint8]) -> None:
        self.memory, self.claimed = memory, 0
        self._address = memory.__array_interface__["data"][0]

    def new(self, size: int) -> NDArray[np.uint8] | None:
        """So many bytes of it; None if they are not there."""
        start = self.claimed
        if start + size > len(self.memory):
            return None
        self.claimed += aligned(size)
        return self.memory[start : start + size]

    def start_of(self, values: NDArray[np.uint8]) -> int | None:
        """Where in it these bytes lie; None if they lie elsewhere."""
        start = values.__array_interface__["data"][0] - self._address
        return start if start >= 0 and start + len(values) <= len(self.memory) else None


_current = threading.local()


@contextmanager
def allocating_in(arena: Arena | None) -> Generator[None]:
    """Let this thread make tensors in an arena, as long as they fit."""
    _current.arena = arena
    try:
        yield
    finally:
        _current.arena = None


def new_tensor(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A tensor that is not filled yet.

    Without an arena its memory is numpy's: it lies in huge pages, and costs a tenth to fill anew.
    """
    size = prod(shape) * dtype.itemsize
    if not size:
        return torch.empty(shape, dtype=dtype)
    arena: Arena | None = getattr(_current, "arena", None)
    memory = arena.new(size) if arena else None
    if memory is None:
        memory = np.empty(size, np.uint8)
    return torch.as_tensor(memory).view(dtype).reshape(shape)
