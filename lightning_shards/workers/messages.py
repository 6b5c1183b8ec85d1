"""How batches travel from a worker process: several small ones in one message.

A message costs the same whatever it holds, and so does a tensor in shared memory. So small tensors
travel inside the message as arrays, large ones in shared memory, where they were made. How many
batches a message holds is settled before the start: the trainer takes the messages of its workers
in turn, and they must have equal numbers of batches.
"""

import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray

from lightning_shards.pipeline.collate import SHARED_BYTES, Batch
from lightning_shards.workers.pool import Produced

_MESSAGE_BYTES = 2**20
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
    """What a batch of this size takes, judged by a batch of one sample."""
    inline = shared = 0
    for column in sample.values() if isinstance(sample, dict) else sample:
        is_tensor = isinstance(column, torch.Tensor)
        size = batch_size * (column.nbytes if is_tensor else len(pickle.dumps(column)))
        if is_tensor and size >= SHARED_BYTES:
            shared += size
        else:
            inline += size
    return BatchBytes(inline, shared)


def message_sizes(batch: BatchBytes) -> Iterator[int]:
    """How many batches each message of a worker holds, growing so that the first comes soon."""
    most = max(1, min(_MAX_BATCHES, _MESSAGE_BYTES // batch.total)) if batch.total else 1
    size = 1
    while True:
        yield size
        size = min(2 * size, most)


@dataclass(frozen=True, slots=True)
class _Inline:
    """A small tensor."""

    values: NDArray[Any]


class Message:
    """Some batches of one worker, in order; the trainer unpacks them, pinned if torch pins them."""

    def __init__(self, produced: list[Produced]) -> None:
        self._produced = [_with_columns(each, _packed) for each in produced]

    def unpack(self) -> list[Produced]:
        """The batches."""
        return [_with_columns(each, _unpacked) for each in self._produced]

    def pin_memory(self) -> "Message":
        """Called by torch's own thread."""
        self._produced = [_with_columns(each, _pinned) for each in self._produced]
        return self


def _with_columns(produced: Produced, change: Callable[[Any], Any]) -> Produced:
    columns = produced.made.batch
    batch: Batch = (
        {name: change(column) for name, column in columns.items()}
        if isinstance(columns, dict)
        else tuple(map(change, columns))
    )
    return produced._replace(made=produced.made._replace(batch=batch))


def _packed(column: Any) -> Any:
    if isinstance(column, torch.Tensor) and column.nbytes < SHARED_BYTES:
        return _Inline(column.numpy())
    return column


def _unpacked(column: Any) -> Any:
    return torch.as_tensor(column.values) if isinstance(column, _Inline) else column


def _pinned(column: Any) -> Any:
    column = _unpacked(column)
    return column.pin_memory() if isinstance(column, torch.Tensor) else column
