"""The layout of a message in memory: tensors and arrays leave placeholders where they were.

They are taken out of a batch before it is pickled, so their bytes are copied once at most, and the
memory order of a value (channels last, for instance) stays what it is.
"""

from collections.abc import Callable, Sequence
from functools import cache
from math import prod
from typing import Any, Final, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from lightning_shards.samples.arena import Arena, aligned
from lightning_shards.samples.loaded_torch import (
    is_strided,
    load_torch,
    tensor_of,
    torch_has,
    torch_if_loaded,
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
