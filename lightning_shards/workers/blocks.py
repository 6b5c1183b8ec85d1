"""Shared memory between a worker process and the trainer, used again and again.

The first byte of a block says whether it is in use. A worker sets it when it begins a message, the
trainer clears it when it holds no tensor of that message any more.
"""

import os
from collections.abc import Iterable
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from lightning_shards.pipeline.room import aligned

_HEADER = aligned(1)
"""Bytes before the content of a block: the flag, and room to align what follows."""

_Name: TypeAlias = tuple[int, int]
"""Process id of the worker, and number of the block."""


class Block:
    """A piece of shared memory.

    It is pickled as a whole once, and later as its name: to open it costs a millisecond.

    Args:
        memory: shared, uint8.
        name: None for one that is used once.
    """

    def __init__(self, memory: torch.Tensor, name: _Name | None = None) -> None:
        self._memory, self._name, self._is_known = memory, name, False
        self._bytes: NDArray[np.uint8] = memory.numpy()

    @classmethod
    def new(cls, size: int, name: _Name | None = None) -> "Block":
        """A block with content of so many bytes."""
        memory = torch.empty(_HEADER + size, dtype=torch.uint8)
        memory.share_memory_()
        return cls(memory, name)

    @property
    def content(self) -> NDArray[np.uint8]:
        """What may be written to."""
        return self._bytes[_HEADER:]

    @property
    def is_in_use(self) -> bool:
        """Whether a message lies in it."""
        return bool(self._bytes[0])

    @is_in_use.setter
    def is_in_use(self, value: bool) -> None:
        self._bytes[0] = value

    def __reduce__(self) -> tuple[Any, ...]:
        memory = None if self._is_known else self._memory
        self._is_known = self._name is not None
        return _received, (memory, self._name)


_open_blocks: dict[_Name, Block] = {}
"""What workers sent to this process."""


def _received(memory: torch.Tensor | None, name: _Name | None) -> Block:
    if memory is None:
        assert name is not None  # noqa: S101 what has no name is sent as memory
        return _open_blocks[name]
    block = Block(memory, name)
    if name is not None:
        _open_blocks[name] = block
    return block


def forget_blocks(pids: Iterable[int | None]) -> None:
    """Close what these workers sent; tensors that lie in it keep it."""
    workers = set(pids)
    for name in list(_open_blocks):  # a copy: torch's thread for pinned memory may add some
        if name[0] in workers:
            del _open_blocks[name]


class SharedBlocks:
    """The blocks of the worker that this process is.

    Args:
        count: see `plan.footprint.blocks_per_worker`.
    """

    def __init__(self, count: int) -> None:
        self._blocks: list[Block | None] = [None] * count
        self._turn = 0

    def take(self, size: int) -> Block:
        """A free block with room for so many bytes, in use from now on."""
        for _ in self._blocks:
            self._turn = (self._turn + 1) % len(self._blocks)
            block = self._blocks[self._turn]
            if block is None or not block.is_in_use:
                break
        else:
            return Block.new(size)
        if block is None or len(block.content) < size:
            block = self._blocks[self._turn] = Block.new(size, (os.getpid(), self._turn))
        block.is_in_use = True
        return block


class Lease:
    """The content of a block for as long as an array or a tensor shares its memory.

    ``numpy.asarray(lease)`` gives it; what is cut out of that keeps the lease. When the last of it
    is gone, the block is not in use any more.
    """

    def __init__(self, block: Block) -> None:
        self._block, self._pid = block, os.getpid()
        self.__array_interface__ = block.content.__array_interface__

    def __del__(self) -> None:
        if os.getpid() == self._pid:  # a fork of the trainer drops it, too
            self._block.is_in_use = False
