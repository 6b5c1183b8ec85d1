"""The messages that carry batches from a worker process to the trainer, several small ones in one.

A message costs the same whatever it holds, and so does a tensor in shared memory. So small tensors
travel inside the message as arrays, and large ones in the shared memory that they were made in. How
many batches each message holds is fixed before the start: the trainer takes one message from each
worker after the other, so the messages of all workers must hold equal numbers of batches.

Arrays that are whole columns travel as tensors do; those in lists are pickled, and so are tensors
in objects other than dicts, lists and tuples. torch is not imported for arrays, and tensors are
there only where torch is loaded.
"""

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from math import prod
from typing import Any, Final, NamedTuple, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from lightning_shards.errors import ConfigError, SampleError
from lightning_shards.samples.collate import Batch, LoadedBatch
from lightning_shards.samples.tensors import (
    Arena,
    aligned,
    is_strided,
    load_torch,
    map_columns,
    tensor_of,
    torch_has,
    torch_if_loaded,
)
from lightning_shards.workers.connection import (
    Lease,
    ReceivedBuffers,
    SharedBuffer,
)

_CONTAINERS: Final[frozenset[Any]] = frozenset([dict, list, tuple])

_DEEPEST: Final = 16
"""Values that lie deeper in others are pickled as they are. Batches have tensors at five or six
levels, and JSON may have a thousand."""


class Placeholder(NamedTuple):
    """Stands for a tensor or an array in a pickled message, and gives its number.

    Attributes:
        number: Number of the value in the message.
        dtype: Name of the type, torch's or numpy's.
        shape: The shape that it has in memory.
        axes: The axes of that shape in the order that the value has them; None: it is the same.
        is_array: Whether it is an array.
        requires_grad: Whether it is a tensor that gradients are summed up in.
    """

    number: int
    dtype: str
    shape: tuple[int, ...]
    axes: tuple[int, ...] | None
    is_array: bool
    requires_grad: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes of the value."""
        return prod(self.shape) * _dtype(self.dtype, self.is_array).itemsize

    def value(self, memory: NDArray[np.uint8]) -> Any:
        """The value that lies in this memory, which it shares; uint8 of shape (nbytes,)."""
        dtype, shape, axes = _dtype(self.dtype, self.is_array), self.shape, self.axes
        if self.is_array:
            array = memory.view(dtype).reshape(shape)
            return array if axes is None else array.transpose(axes)
        torch = _torch()
        flat = (
            torch.from_numpy(memory).view(dtype)
            if memory.size
            else torch.empty(0, dtype=dtype, device="cpu")
        )
        tensor = flat.reshape(shape)
        tensor = tensor if axes is None else tensor.permute(axes)
        return tensor.requires_grad_(self.requires_grad)


@cache
def _torch() -> Any:
    return load_torch()


@cache
def _dtype(name: str, is_array: bool) -> Any:
    return np.dtype(name) if is_array else getattr(_torch(), name)


def pinned(value: Any) -> Any:
    """A tensor in page-locked memory with the content of this tensor or array.

    An array of numbers that torch lacks stays what it is.
    """
    is_array = isinstance(value, np.ndarray)
    if is_array and not torch_has(cast("Any", value).dtype):
        return cast("Any", value)
    tensor = tensor_of(value)
    return tensor.detach().pin_memory().requires_grad_(tensor.requires_grad)


def mapped(
    value: Any, kinds: tuple[type, ...], change: Callable[[Any], Any], depth: int = 0
) -> Any:
    """The value with all that has exactly one of these types changed.

    They are looked for in dicts, lists and tuples, also in those of one another. An object of any
    other class is kept as it is, because its class alone knows how it is made. (`tree_map_only` of
    torch takes ten times as long for a batch, because it looks at each key.)
    """
    kind = cast("Any", type(value))
    if kind in kinds:
        return change(value)
    if kind not in _CONTAINERS or depth == _DEEPEST:
        return value
    if kind is dict:
        return {name: mapped(entry, kinds, change, depth + 1) for name, entry in value.items()}
    if not any(entry in kinds or entry in _CONTAINERS for entry in set(map(type, value))):
        return value  # a list of keys or texts
    return kind(mapped(entry, kinds, change, depth + 1) for entry in value)


class TensorLayout:
    """The tensors of a message, as uint8 arrays, because numpy lacks some of torch's types.

    Attributes:
        size: Bytes of all of them, each aligned.
    """

    def __init__(self) -> None:
        self.size = 0
        self._values: list[NDArray[np.uint8]] = []

    def add(self, tensor: Any) -> Any:
        """The placeholder of a tensor, or the tensor itself if it is not a plain one of the CPU.

        Raises:
            ValueError: Gradients flow through it to others, which stay in this process.
        """
        if not tensor.is_leaf:
            raise ValueError("gradients flow through a tensor; call detach() on it")
        if not is_plain_tensor(tensor):
            return tensor
        torch = _torch()
        plain, axes = tensor.detach().resolve_neg(), None
        if not plain.is_contiguous():
            order = _memory_order(plain.stride())
            if plain.permute(order).is_contiguous():  # channels last, for instance
                plain, axes = plain.permute(order), _inverse(order)
        values = plain.contiguous().reshape(-1).view(torch.uint8).numpy()
        name = str(tensor.dtype).removeprefix("torch.")
        shape, is_summed = tuple(plain.shape), tensor.requires_grad
        return self._added(values, name, shape, axes, requires_grad=is_summed)

    def add_array(self, array: NDArray[Any]) -> Placeholder:
        """The placeholder of an array of numbers."""
        axes = None
        if not array.flags.c_contiguous:
            order = _memory_order(array.strides)
            if array.transpose(order).flags.c_contiguous:
                array, axes = array.transpose(order), _inverse(order)
        values = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        return self._added(values, array.dtype.str, array.shape, axes, is_array=True)

    def _added(
        self,
        values: NDArray[np.uint8],
        dtype: str,
        shape: tuple[int, ...],
        axes: tuple[int, ...] | None,
        *,
        is_array: bool = False,
        requires_grad: bool = False,
    ) -> Placeholder:
        self._values.append(values)
        self.size += aligned(len(values))
        number = len(self._values) - 1
        return Placeholder(number, dtype, shape, axes, is_array, requires_grad)

    def complete(self, arena: Arena) -> list[int] | None:
        """Copy to an arena the tensors that were not made in it.

        Returns:
            The offset of each tensor in the arena; None if they do not fit.
        """
        starts: list[int] = []
        for values in self._values:
            start = arena.start_of(values)
            if start is None:
                start, copy = arena.claimed, arena.new(len(values))
                if copy is None:
                    return None
                copy[:] = values
            starts.append(start)
        return starts

    def copied(self, memory: NDArray[np.uint8]) -> list[int]:
        """Copy all tensors to this memory, and return the offset of each."""
        arena = Arena()
        arena.use(memory)
        starts = self.complete(arena)
        assert starts is not None  # the memory is large enough
        return starts


def _memory_order(strides: Sequence[int]) -> tuple[int, ...]:
    """The axes of a value from the one with the largest steps in memory to the smallest."""
    return tuple(sorted(range(len(strides)), key=lambda axis: -strides[axis]))


def _inverse(axes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted(range(len(axes)), key=lambda axis: axes[axis]))


def is_plain_array(value: object) -> bool:
    """Whether it is an array of numbers; others, of objects or texts, are pickled."""
    return type(value) is np.ndarray and value.dtype.kind in "biufc"


def is_plain_tensor(value: object) -> bool:
    """Whether it is a tensor that lies as numbers in memory of the CPU; others are pickled."""
    if type(value) not in tensor_types():
        return False
    tensor: Any = value
    is_here = tensor.device.type == "cpu" and is_strided(tensor)
    return is_here and not tensor.is_conj() and not tensor.is_quantized


def tensor_types() -> tuple[type, ...]:
    """The class of plain tensors; none as long as torch is not loaded, as there is no tensor then.

    Those of a subclass are pickled, with the attributes that they may have.
    """
    torch = torch_if_loaded()
    return () if torch is None else (torch.Tensor,)


_INLINE_BYTES = 2**20
"""Most bytes of a message without its shared memory."""

_MESSAGE_BYTES = 2**22
"""Most bytes of a message with its shared memory; a larger batch travels alone."""

SHARED_BYTES = 2**19
"""A message uses shared memory if its tensors have at least so many bytes, else the pipe alone."""

_KEPT_BYTES = 2**14
"""Tensors of at least this many bytes stay in the shared memory that they came in."""

_MAX_BATCHES = 16
"""More batches in a message save nothing that can be measured, and the first ones come late."""


class BatchBytes(NamedTuple):
    """The size of one batch on its way from a worker process to the trainer.

    Attributes:
        inline: Bytes of lists and small tensors, inside the message.
        shared: Bytes of large tensors, in shared memory.
    """

    inline: int = 0
    shared: int = 0

    @property
    def total(self) -> int:
        """Bytes of the whole batch."""
        return self.inline + self.shared


UNKNOWN_BYTES = BatchBytes()


def batch_bytes(sample: Batch, batch_size: int) -> BatchBytes:
    """The size of a batch of so many samples, estimated from a batch of one.

    Raises:
        ConfigError: A value cannot be pickled.
    """
    lists = tensors = 0
    _sizes("the batch", type(sample))
    for name, column in _columns(sample):
        size, pickled = _sizes(name, column)
        tensors += batch_size * size
        lists += batch_size * pickled
    batch = BatchBytes(lists, tensors)
    return batch if shared_bytes(batch) else BatchBytes(lists + tensors)


def tensor_bytes(sample: Batch, batch_size: int) -> int:
    """Bytes of the tensors in a batch of so many samples, estimated from a batch of one."""
    size = 0
    for _, column in _columns(sample):
        with suppress(ValueError):  # a tensor that stays in its process
            size += _taken_apart(column)[0]
    return batch_size * size


def _taken_apart(column: Any) -> tuple[int, Any]:
    """Bytes of the tensors in a column, and the column without them (None if it is a tensor)."""
    if is_plain_array(column) or (is_plain_tensor(column) and column.is_leaf):
        return column.nbytes, None
    layout = TensorLayout()  # a list of tensors holds one for each sample
    rest = mapped(column, tensor_types(), layout.add)
    return layout.size, rest


def _columns(batch: Any) -> Iterable[tuple[str, Any]]:
    """The columns, each with its name in errors; a batch of another class is one column."""
    columns: Any = batch
    if _is_one_value(batch):
        return [("the batch", columns)]
    if isinstance(batch, dict):
        return ((f"field {name!r}", column) for name, column in columns.items())
    return ((f"field {number}", column) for number, column in enumerate(columns))


def _is_one_value(batch: Any) -> bool:
    """Whether a batch has no columns: only its class can make a named tuple of some."""
    return not isinstance(batch, dict) and type(batch) is not tuple


def _sizes(name: str, column: object) -> tuple[int, int]:
    """Bytes of the tensors in a column, and of what is pickled of it."""
    try:
        size, rest = _taken_apart(column)
        pickled = b"" if rest is None else pickle.dumps(rest)
        if pickled:
            pickle.loads(pickled)  # noqa: S301 what this process made itself
    except Exception as error:
        raise ConfigError(f"{name} {_cannot_travel(error)}") from error
    return size, len(pickled)


def require_picklable(batch: Batch) -> None:
    """Check that a batch can be pickled.

    Raises:
        SampleError: It cannot be pickled; the message names the field and the sample.
    """
    keys: Any = batch.get("__key__") if isinstance(batch, dict) else None
    for name, column in (("the batch", type(batch)), *_columns(batch)):
        rows = cast("list[object]", column) if isinstance(column, list) else [column]
        has_keys = isinstance(keys, list) and len(cast("list[object]", keys)) == len(rows)
        for row, value in enumerate(rows):
            try:
                _, rest = _taken_apart(value)
                pickle.dumps(rest)
            except Exception as error:
                where = f"sample {keys[row]!r}" if has_keys else f"row {row}"
                raise SampleError(f"{name} of {where} {_cannot_travel(error)}") from error


def _cannot_travel(error: Exception) -> str:
    return (
        f"cannot travel from a worker process to the trainer ({type(error).__name__}: {error}); "
        "make it a tensor, a number or a text, or take pool='threads' or 'inline'"
    )


def most_batches(batch: BatchBytes) -> int:
    """The largest number of batches in one message."""
    if not batch.total:
        return 1
    inline = _INLINE_BYTES // max(batch.inline, 1)
    return max(1, min(_MAX_BATCHES, inline, _MESSAGE_BYTES // batch.total))


def shared_bytes(batch: BatchBytes) -> int:
    """Bytes of shared memory that a message of such batches takes; 0 if it takes none."""
    buffer = most_batches(batch) * batch.shared
    return buffer if buffer >= SHARED_BYTES else 0


def message_sizes(batch: BatchBytes) -> Iterator[int]:
    """The numbers of batches in the messages of a worker; they grow, so the first comes soon."""
    most = most_batches(batch)
    size = 1
    while True:
        yield size
        size = min(2 * size, most)


class MessageBuffer(Protocol):
    """Memory for the tensors of one message."""

    @property
    def content(self) -> NDArray[np.uint8]:
        """The bytes that a message may use: uint8."""
        ...

    def free(self) -> None:
        """Say that no message uses it."""
        ...


class MessageBuffers(Protocol):
    """Gives memory for messages: shared memory, or arrays that something else carries."""

    def take(self, size: int) -> MessageBuffer:
        """A free buffer for so many bytes; it is in use from now on."""
        ...


class Message:
    """Some batches of one worker, in step order, as they are sent to the trainer.

    Attributes:
        failure: The error that the worker met after these batches, or None.
        buffer: The memory that holds their tensors.
    """

    def __init__(
        self,
        loaded: list[LoadedBatch],
        buffer: MessageBuffer | bytearray,
        starts: list[int],
        failure: Any,
    ) -> None:
        self._loaded, self._starts = loaded, starts
        self.buffer, self.failure = buffer, failure

    @property
    def size(self) -> int:
        """Bytes of the memory that holds its tensors; only while they are not in shared memory."""
        return len(self._memory(None))

    def lease(self) -> Lease | None:
        """A new lease of the message's shared memory; None if it has none."""
        return Lease(self.buffer) if isinstance(self.buffer, SharedBuffer) else None

    def unpack(self, lease: Lease | None, *, copy: bool = True) -> Iterator[LoadedBatch]:
        """The batches; each is unpacked when it is asked for.

        Args:
            lease: The lease of the message's shared memory.
            copy: Whether each tensor gets memory of its own. If False, only small tensors do:
                otherwise a caller who keeps a small tensor would keep a whole message.
        """
        memory = self._memory(lease)
        limit = None if copy or lease is None else _KEPT_BYTES
        for each in self._loaded:
            yield _with_placeholders(each, lambda x: self._unpacked(memory, x, limit))

    def pickled(self) -> "PickledMessage":
        """The message as bytes."""
        buffer, fd = self.buffer, None
        if isinstance(buffer, SharedBuffer) and not buffer.is_known:
            fd = buffer.fd
        kept = _Reference(buffer.number) if isinstance(buffer, SharedBuffer) else buffer
        parts = (self._loaded, kept, self._starts, self.failure)
        content = pickle.dumps(parts, pickle.HIGHEST_PROTOCOL)
        if isinstance(buffer, SharedBuffer):
            buffer.is_known = buffer.number is not None
        return PickledMessage(content, fd, cast("SharedBuffer | bytearray", buffer))

    def pin_memory(self) -> "Message":
        """This message, with its tensors and arrays copied to tensors in page-locked memory."""
        memory = self._memory(self.lease())
        self._loaded = [
            _with_placeholders(each, lambda x: pinned(self._unpacked(memory, x, 0)))
            for each in self._loaded
        ]
        self.buffer = bytearray()
        return self

    def _unpacked(
        self, memory: NDArray[np.uint8], placeholder: Placeholder, kept_bytes: int | None
    ) -> Any:
        """The value of a placeholder: a copy, unless it has at least `kept_bytes` bytes."""
        start = self._starts[placeholder.number]
        values = memory[start : start + placeholder.nbytes]
        if kept_bytes is None or len(values) < kept_bytes:
            values = values.copy()
        return placeholder.value(values)

    def _memory(self, lease: Lease | None) -> NDArray[np.uint8]:
        if lease is not None:
            return np.asarray(lease)
        if isinstance(self.buffer, bytearray):
            return np.frombuffer(self.buffer, np.uint8)
        return self.buffer.content


class _Reference(NamedTuple):
    """Stands for the buffer of a pickled message, and gives its number; see `SharedBuffer`."""

    number: int | None


class PickledMessage(NamedTuple):
    """A message as bytes.

    Attributes:
        content: The bytes.
        fd: File of its buffer of shared memory, if the trainer does not know it yet.
        buffer: The buffer, whose file is open as long as it is kept.
    """

    content: bytes | memoryview
    fd: int | None = None
    buffer: SharedBuffer | bytearray | None = None

    def unpickled(self, buffers: ReceivedBuffers) -> Message:
        """The message, whose buffer is one of these of its worker; call this once."""
        loaded, kept, starts, failure = pickle.loads(self.content)  # noqa: S301 a worker of our own
        buffer = buffers.buffer(kept.number, self.fd) if isinstance(kept, _Reference) else kept
        return Message(loaded, buffer, starts, failure)


class MessageMaker:
    """Makes the messages of one worker, and gives its batches memory to be made in.

    Args:
        buffers: Give the memory of messages that are not small.

    Attributes:
        arena: Memory for the tensors of the next batches, as far as they fit.
    """

    def __init__(self, buffers: MessageBuffers) -> None:
        self._buffers = buffers
        self._batch_bytes = 0
        self._buffer: MessageBuffer | None = None
        self.arena = Arena()

    def prepare(self, batches: int) -> None:
        """Give the arena memory for so many batches; make them next, and then call `message`."""
        size = batches * self._batch_bytes
        if size >= SHARED_BYTES:
            self._buffer = self._buffers.take(size)
            self.arena.use(self._buffer.content)

    def message(self, loaded: list[LoadedBatch], failure: Any = None) -> Message:
        """The message of these batches."""
        layout = TensorLayout()
        stripped = [_stripped(each, layout) for each in loaded]
        message = Message(stripped, *self._filled(layout), failure)
        self._batch_bytes = max(self._batch_bytes, -(-layout.size // max(len(loaded), 1)))
        self._buffer = None
        self.arena.use_none()
        return message

    def _filled(self, layout: TensorLayout) -> tuple[MessageBuffer | bytearray, list[int]]:
        """The buffer that holds the tensors of a message, and the offset of each tensor in it."""
        if self._buffer and layout.size >= SHARED_BYTES:
            starts = layout.complete(self.arena)
            if starts is not None:
                return self._buffer, starts
        if layout.size < SHARED_BYTES:
            buffer = bytearray(layout.size)
            starts = layout.copied(np.frombuffer(buffer, np.uint8))
        else:
            buffer = self._buffers.take(layout.size)
            starts = layout.copied(buffer.content)
        if self._buffer:
            self._buffer.free()  # only now, or `take` could have returned it
        return buffer, starts


def _stripped(loaded: LoadedBatch, layout: TensorLayout) -> LoadedBatch:
    """A batch with placeholders for its tensors and for the columns that are arrays."""
    kinds = tensor_types()

    def strip(column: Any) -> Any:
        if is_plain_array(column):
            return layout.add_array(column)
        return mapped(column, kinds, layout.add) if kinds else column

    return _with_columns(loaded, strip)


def _with_placeholders(loaded: LoadedBatch, change: Callable[[Any], Any]) -> LoadedBatch:
    return _with_columns(loaded, lambda column: mapped(column, (Placeholder,), change))


def _with_columns(loaded: LoadedBatch, change: Callable[[Any], Any]) -> LoadedBatch:
    batch: Any = loaded.batch
    if isinstance(batch, Placeholder) or _is_one_value(batch):
        # a placeholder is a tuple, and stands for the whole batch
        return loaded._replace(batch=change(batch))
    return loaded._replace(batch=map_columns(batch, change))
