"""How batches travel from a worker process: several small ones in one message.

A message costs the same whatever it holds, and so does a tensor in shared memory. So small tensors
travel inside the message as arrays, large ones in shared memory, where they were made. How many
batches a message holds is settled before the start: the trainer takes the messages of its workers
in turn, and they must have equal numbers of batches.
"""

import pickle
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, cast

import torch

from lightning_shards.errors import ConfigError
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
    """What a batch of this size takes, judged by a batch of one sample.

    Raises:
        ConfigError: a value cannot leave the process that made it.
    """
    inline = shared = 0
    for name, column in _columns(sample):
        is_tensor = isinstance(column, torch.Tensor)
        size = batch_size * (column.nbytes if is_tensor else _pickled_bytes(name, column))
        if is_tensor and size >= SHARED_BYTES:
            shared += size
        else:
            inline += size
    return BatchBytes(inline, shared)


def tensor_bytes(sample: Batch, batch_size: int) -> int:
    """What the tensors of a batch of this size take, judged by a batch of one sample."""
    columns = (column for _, column in _columns(sample))
    return batch_size * sum(each.nbytes for each in columns if isinstance(each, torch.Tensor))


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
    return max(1, min(_MAX_BATCHES, _MESSAGE_BYTES // batch.total)) if batch.total else 1


def message_sizes(batch: BatchBytes) -> Iterator[int]:
    """How many batches each message of a worker holds, growing so that the first comes soon."""
    most = most_batches(batch)
    size = 1
    while True:
        yield size
        size = min(2 * size, most)


class _Inline(NamedTuple):
    """A small tensor: its bytes, as numpy has not all of torch's types."""

    data: bytes
    dtype: torch.dtype
    shape: tuple[int, ...]


class Message:
    """Some batches of one worker, in order; the trainer unpacks them, pinned if torch pins them.

    Attributes:
        failure: why the worker ended behind them; None: it has not.
    """

    def __init__(self, produced: list[Produced], failure: Any = None) -> None:
        self._produced = [_with_columns(each, _packed) for each in produced]
        self.failure = failure

    def unpack(self) -> list[Produced]:
        """The batches."""
        return [_with_columns(each, _unpacked) for each in self._produced]

    def pin_memory(self) -> "Message":
        """Called by torch's own thread."""
        self._produced = [_with_columns(each, _pinned) for each in self._produced]
        return self


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


_TENSORS = (torch.Tensor, _Inline)
_MAY_HOLD_TENSORS = (torch.Tensor, dict, list, tuple)


def _packed(tensor: Any) -> Any:
    is_plain = tensor.layout == torch.strided and tensor.device.type == "cpu"
    if tensor.nbytes >= SHARED_BYTES or not is_plain or tensor.is_conj() or tensor.is_quantized:
        return tensor
    values = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
    return _Inline(values.tobytes(), tensor.dtype, tuple(tensor.shape))


def _unpacked(column: Any) -> Any:
    if not isinstance(column, _Inline):
        return column
    if not column.data:
        return torch.empty(column.shape, dtype=column.dtype)
    data = bytearray(column.data)  # torch wants to be able to write
    return torch.frombuffer(data, dtype=column.dtype).reshape(column.shape)


def _pinned(column: Any) -> Any:
    return _unpacked(column).pin_memory()
