"""The messages that carry batches from a worker process to the trainer, several small ones in one.

A message is pickled, but for large arrays and tensors: these stay in the shared memory that they
were made in, wherever a batch holds them, and come as views of it. How many batches each message
holds is fixed before the start: the trainer takes one message from each worker after the other, so
the messages of all workers must hold equal numbers of batches.

torch is not imported for arrays, and tensors are there only where torch is loaded.
"""

import io
import pickle
from collections.abc import Iterator
from importlib import import_module
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from lightning_shards.errors import ConfigError, SampleError, ShardError
from lightning_shards.samples.collate import Batch, LoadedBatch
from lightning_shards.samples.tensors import (
    NUMBERS,
    is_strided,
    is_tensor,
    load_torch,
    tensor_class,
    with_tensors,
)

KEPT_BYTES = 2**14
"""Arrays and tensors of at least this many bytes travel in shared memory, and stay in it: whoever
keeps one keeps the memory of a whole message."""


class Packed(NamedTuple):
    """A pickled value.

    Attributes:
        content: What is pickled.
        parts: The bytes of its large arrays and tensors, which `content` refers to: uint8.
    """

    content: Any
    parts: list[NDArray[np.uint8]]


def taken_apart(value: object, least: int = KEPT_BYTES) -> Packed:
    """A value, pickled but for its arrays and tensors of at least so many bytes.

    Raises:
        Exception: Something in it cannot be pickled.
    """
    file = io.BytesIO()
    packer = _Packer(file, least)
    packer.dump(value)
    return Packed(file.getvalue(), packer.parts)


def put_together(value: Packed) -> Any:
    """The value; its large arrays and tensors share the memory of the parts."""
    return pickle.loads(value.content, buffers=value.parts)  # noqa: S301 a worker of our own


class _Packer(pickle.Pickler):
    def __init__(self, file: io.BytesIO, least: int) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL, buffer_callback=self._is_inside)
        self._least, self.parts = least, list[NDArray[np.uint8]]()

    def _is_inside(self, buffer: pickle.PickleBuffer) -> bool:
        values: NDArray[np.uint8] = np.frombuffer(buffer.raw(), np.uint8)
        if len(values) < self._least:
            return True
        self.parts.append(values)
        return False

    def reducer_override(self, obj: Any) -> Any:
        """How an array or a tensor is made again; anything else is pickled as its class says."""
        if is_plain_array(obj):
            return _array, _laid_out(obj)
        if type(obj) is not tensor_class():
            return NotImplemented
        if not obj.is_leaf:
            raise ValueError("gradients flow through a tensor; call detach() on it")
        if not (obj.device.type == "cpu" and is_strided(obj)) or obj.is_conj() or obj.is_quantized:
            return NotImplemented
        bits = obj.detach().resolve_neg().view(getattr(load_torch(), _BITS[obj.itemsize]))
        return _tensor, (bits.numpy(), str(obj.dtype).removeprefix("torch."), obj.requires_grad)


_BITS = {1: "uint8", 2: "int16", 4: "int32", 8: "int64", 16: "complex128"}
"""By their size, the types that numpy and torch share."""


def is_plain_array(value: object) -> bool:
    """Whether it is an array of numbers; others, of objects or texts, are pickled."""
    return type(value) is np.ndarray and value.dtype.kind in NUMBERS


def _laid_out(array: NDArray[Any]) -> tuple[Any, ...]:
    """The bytes of an array as they lie in memory, its type, its shape and its axes there."""
    axes = None
    if not array.flags.c_contiguous:  # channels last, for instance
        order = np.argsort([-step for step in array.strides], kind="stable")
        array, axes = array.transpose(order), np.argsort(order).tolist()
    values = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return pickle.PickleBuffer(values.data), array.dtype.str, array.shape, axes


def _array(buffer: Any, dtype: str, shape: tuple[int, ...], axes: list[int] | None) -> NDArray[Any]:
    array: NDArray[Any] = np.frombuffer(buffer, dtype).reshape(shape)
    return array if axes is None else array.transpose(axes)


def _tensor(bits: NDArray[Any], dtype: str, requires_grad: bool) -> Any:
    torch: Any = load_torch()
    return torch.from_numpy(bits).view(getattr(torch, dtype)).requires_grad_(requires_grad)


def pinned(loaded: LoadedBatch) -> LoadedBatch:
    """A batch with its tensors, and its columns that are arrays, as tensors in page-locked memory.

    Raises:
        TypeError: One holds numbers of a type that torch lacks.
    """
    pin: Any = import_module("torch.utils.data._utils.pin_memory")
    return loaded._replace(batch=pin.pin_memory(with_tensors(loaded.batch)))


_MESSAGE_BYTES = 2**22
"""Most bytes of a message; a larger batch travels alone."""

_MAX_BATCHES = 16
"""More batches in a message save nothing that can be measured, and the first ones come late."""


def batch_bytes(sample: Batch, batch_size: int) -> int:
    """The bytes of a batch of so many samples, estimated from a batch of one.

    Raises:
        ConfigError: A value cannot be pickled.
    """
    size = 0
    for name, column in _columns(sample):
        value = _tried(column, name, ConfigError, least=0)
        is_numbers = value.parts and (is_plain_array(column) or is_tensor(column))
        size += sum(map(len, value.parts))
        size += 0 if is_numbers or isinstance(column, type) else len(value.content)
    return batch_size * size


def require_picklable(batch: Batch) -> None:
    """Check that a batch can be pickled.

    Raises:
        SampleError: It cannot be pickled; the message names the field and the sample.
    """
    keys: Any = batch.get("__key__") if isinstance(batch, dict) else None
    for name, column in _columns(batch):
        rows = cast("list[object]", column) if isinstance(column, list) else [column]
        has_keys = isinstance(keys, list) and len(cast("list[object]", keys)) == len(rows)
        for row, value in enumerate(rows):
            where = f"sample {keys[row]!r}" if has_keys else f"row {row}"
            _tried(value, f"{name} of {where}", SampleError)


def _columns(batch: Any) -> Iterator[tuple[str, Any]]:
    """The class and the columns, each with its name in errors; another class is one column."""
    yield "the batch", type(batch)
    if isinstance(batch, dict):
        columns = cast("dict[str, Any]", batch)
        yield from ((f"field {name!r}", column) for name, column in columns.items())
    elif type(batch) is tuple:
        columns = cast("tuple[Any, ...]", batch)
        yield from ((f"field {number}", column) for number, column in enumerate(columns))
    else:
        yield "the batch", batch


def _tried(
    value: object, name: str, error_class: type[ShardError], least: int = KEPT_BYTES
) -> Packed:
    """A value that is packed and put together again, so that the error names it."""
    try:
        packed = taken_apart(value, least)
        put_together(packed)
    except Exception as error:
        raise error_class(
            f"{name} cannot travel from a worker process to the trainer ({type(error).__name__}: "
            f"{error}); make it a tensor, a number or a text, or take pool='threads' or 'inline'"
        ) from error
    return packed


def most_batches(batch_bytes: int) -> int:
    """The largest number of batches in one message."""
    return max(1, min(_MAX_BATCHES, _MESSAGE_BYTES // batch_bytes)) if batch_bytes else 1


def message_sizes(batch_bytes: int) -> Iterator[int]:
    """The numbers of batches in the messages of a worker; they grow, so the first comes soon."""
    most = most_batches(batch_bytes)
    size = 1
    while True:
        yield size
        size = min(2 * size, most)
