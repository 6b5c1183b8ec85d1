"""How batches travel from a worker process: several small ones in one message.

A message costs the same whatever it holds, and so does a tensor in shared memory. So small tensors
travel inside the message as arrays, large ones in shared memory, where they were made. How many
batches a message holds is settled before the start: the trainer takes the messages of its workers
in turn, and they must have equal numbers of batches.
"""

import pickle
from collections.abc import Callable, Iterable, Iterator
from math import prod
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray

from lightning_shards.errors import ConfigError
from lightning_shards.pipeline.collate import Batch
from lightning_shards.workers.pool import Produced

_INLINE_BYTES = 2**20
"""Bytes of a message itself."""

_MESSAGE_BYTES = 2**22
"""The same with what is in shared memory; a batch that is larger goes alone."""

SHARED_BYTES = 2**19
"""Blocks from this size on go through shared memory: to open it costs as much as to copy that."""

_ALIGNMENT = 64
"""Bytes; of tensors in a block."""

_MAX_BATCHES = 16
"""A message of more batches saves nothing that can be measured, and makes the first ones late."""


class BatchBytes(NamedTuple):
    """What a batch takes on its way.

    Attributes:
        inline: bytes of lists and small tensors, in the message.
        shared: bytes of large tensors, in shared memory.
    """

    inline: int = 0
    shared: int = 0

    @property
    def total(self) -> int:
        """Both."""
        return self.inline + self.shared


UNKNOWN_BYTES = BatchBytes()


def batch_bytes(sample: Batch, batch_size: int) -> BatchBytes:
    """What a batch of this size takes, judged by a batch of one sample.

    Raises:
        ConfigError: a value cannot leave the process that made it.
    """
    lists = tensors = 0
    for name, column in _columns(sample):
        size, rest = _taken_apart(column)
        tensors += batch_size * size
        lists += batch_size * (0 if rest is None else _pickled_bytes(name, rest))
    batch = BatchBytes(lists, tensors)
    return batch if shared_bytes(batch) else BatchBytes(lists + tensors)


def tensor_bytes(sample: Batch, batch_size: int) -> int:
    """What the tensors of a batch of this size take, judged by a batch of one sample."""
    return batch_size * sum(_taken_apart(column)[0] for _, column in _columns(sample))


def _taken_apart(column: Any) -> tuple[int, Any]:
    """Bytes of the tensors of a column, and what is left of it: nothing of a tensor itself."""
    if isinstance(column, torch.Tensor):
        return column.nbytes, None
    layout = _Layout()  # of tensors in a list: each is one of a sample
    rest = _mapped(column, layout.place)
    return layout.size, rest


def _columns(batch: Batch) -> Iterable[tuple[str | int, Any]]:
    """The columns by name, or by number where they are a tuple."""
    return batch.items() if isinstance(batch, dict) else enumerate(batch)


def _pickled_bytes(name: str | int, column: object) -> int:
    try:
        return len(pickle.dumps(column))
    except Exception as error:
        raise ConfigError(
            f"field {name!r} cannot travel from a worker process to the trainer "
            f"({type(error).__name__}: {error}); make it a tensor, a number or a text, or take "
            "pool='threads' or 'inline'"
        ) from error


def most_batches(batch: BatchBytes) -> int:
    """How many batches one message holds at most."""
    if not batch.total:
        return 1
    inline = _INLINE_BYTES // max(batch.inline, 1)
    return max(1, min(_MAX_BATCHES, inline, _MESSAGE_BYTES // batch.total))


def shared_bytes(batch: BatchBytes) -> int:
    """Bytes of a message in shared memory."""
    block = most_batches(batch) * batch.shared
    return block if block >= SHARED_BYTES else 0


def message_sizes(batch: BatchBytes) -> Iterator[int]:
    """How many batches each message of a worker holds, growing so that the first comes soon."""
    most = most_batches(batch)
    size = 1
    while True:
        yield size
        size = min(2 * size, most)


class _Placed(NamedTuple):
    """Where a tensor lies in the block of its message."""

    start: int
    dtype: torch.dtype
    shape: tuple[int, ...]


class SharedBlocks:
    """Shared memory for the large blocks of one worker, used in turn.

    A block is written again for the message that comes `count` messages later. torch asks a worker
    for message number k + prefetch when it hands out number k. With `count` = prefetch + 1, that
    will overwrite number k - 1, whose batches have then all been copied.
    """

    def __init__(self, count: int) -> None:
        self._blocks = [torch.empty(0, dtype=torch.uint8)] * count
        self._turn = 0

    def next(self, size: int) -> torch.Tensor:
        """A block of at least so many bytes."""
        self._turn = (self._turn + 1) % len(self._blocks)
        if len(self._blocks[self._turn]) < size:
            self._blocks[self._turn] = torch.empty(size, dtype=torch.uint8).share_memory_()
        return self._blocks[self._turn]


class _Layout:
    """The tensors of a message side by side, as bytes: numpy has not all of torch's types."""

    def __init__(self) -> None:
        self.size = 0
        self._parts: list[tuple[int, NDArray[np.uint8]]] = []

    def place(self, tensor: Any) -> Any:
        """Where it will lie; itself if it is no plain tensor of the CPU."""
        is_plain = tensor.layout == torch.strided and tensor.device.type == "cpu"
        if not is_plain or tensor.is_conj() or tensor.is_quantized:
            return tensor
        values = tensor.detach().resolve_neg().contiguous().reshape(-1).view(torch.uint8).numpy()
        placed = _Placed(self.size, tensor.dtype, tuple(tensor.shape))
        self._parts.append((self.size, values))
        self.size += -(-len(values) // _ALIGNMENT) * _ALIGNMENT
        return placed

    def fill(self, room: NDArray[np.uint8]) -> None:
        """Copy all of them."""
        for start, values in self._parts:
            room[start : start + len(values)] = values


class Message:
    """Some batches of one worker, in order; the trainer unpacks them, pinned if torch pins them.

    Attributes:
        failure: why the worker ended behind them; None: it has not.
        block: where their tensors lie; a tensor if it is shared memory, to be kept by who receives
            it: it will come again, and is then open already.
    """

    def __init__(self, produced: list[Produced], blocks: SharedBlocks, failure: Any = None) -> None:
        layout = _Layout()
        self._produced = [_with_columns(each, layout.place) for each in produced]
        self.failure = failure
        is_shared = layout.size >= SHARED_BYTES
        self.block = blocks.next(layout.size) if is_shared else bytearray(layout.size)
        layout.fill(self._values())

    def unpack(self) -> Iterator[Produced]:
        """The batches, each tensor in memory of its own, copied when it is asked for."""
        block = self._values()
        for each in self._produced:
            yield _with_columns(each, lambda x: _unpacked(block, x, copy=True))

    def pin_memory(self) -> "Message":
        """Called by torch's own thread."""
        block = self._values()
        self._produced = [
            _with_columns(each, lambda x: _unpacked(block, x, copy=False).pin_memory())
            for each in self._produced
        ]
        self.block = bytearray()
        return self

    def _values(self) -> NDArray[np.uint8]:
        block = self.block
        return block.numpy() if isinstance(block, torch.Tensor) else np.frombuffer(block, np.uint8)


def _with_columns(produced: Produced, change: Callable[[Any], Any]) -> Produced:
    batch = cast("Batch", _mapped(produced.made.batch, change))
    return produced._replace(made=produced.made._replace(batch=batch))


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """The value with each tensor in it changed, also in lists, tuples and dicts of tensors."""
    if isinstance(value, _TENSORS):
        return change(value)
    if isinstance(value, dict):
        items = cast("dict[Any, Any]", value).items()
        return {name: _mapped(each, change) for name, each in items}
    if not isinstance(value, list | tuple):
        return value
    values = cast("list[Any] | tuple[Any, ...]", value)
    if not any(issubclass(kind, _MAY_HOLD_TENSORS) for kind in set(map(type, values))):
        return values  # keys, texts
    changed = [_mapped(each, change) for each in values]
    if isinstance(values, list):
        return changed
    return type(values)(*changed) if hasattr(values, "_fields") else tuple(changed)


_TENSORS = (torch.Tensor, _Placed)
_MAY_HOLD_TENSORS = (torch.Tensor, dict, list, tuple)


def _unpacked(block: NDArray[np.uint8], column: Any, *, copy: bool) -> Any:
    if not isinstance(column, _Placed):
        return column
    size = prod(column.shape) * column.dtype.itemsize
    if not size:
        return torch.empty(column.shape, dtype=column.dtype)
    values = block[column.start : column.start + size]
    return (
        torch.as_tensor(values.copy() if copy else values).view(column.dtype).reshape(column.shape)
    )
