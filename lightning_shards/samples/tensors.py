"""Arrays and tensors: the memory that batches are made in, and torch where it is loaded."""

import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from math import prod
from threading import RLock
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
from numpy.typing import DTypeLike, NDArray

if TYPE_CHECKING:
    import torch


NUMBERS = "buifc"
"""The kinds of numpy's types whose arrays become tensors."""

_WIDEST = 8
"""Bytes of the widest numbers that torch has, too; of complex ones twice as many."""

_callbacks: list[Callable[[], None]] = []
_lock = RLock()  # a callback may load torch, too


def on_load(callback: Callable[[], None]) -> None:
    """Call this once as soon as torch is loaded in this process; at once if it is loaded."""
    _callbacks.append(callback)
    torch_if_loaded()


def torch_if_loaded() -> ModuleType | None:
    """The module torch if this process has imported it; callbacks that still wait are called."""
    return load_torch() if sys.modules.get("torch") is not None else None


def load_torch() -> ModuleType:
    """The module torch, imported if need be; callbacks that still wait are called."""
    torch = _imported()
    if _callbacks:
        with _lock:  # threads that come here together do not take the same one
            while _callbacks:
                _callbacks.pop(0)()
    return torch


@cache  # what an import costs, two columns of a batch would pay: 2 us
def _imported() -> ModuleType:
    return import_module("torch")  # waits where another thread is importing it


def default_dtype_name() -> str | None:
    """The name of the type of new floating-point tensors; None where torch is not loaded."""
    torch = torch_if_loaded()
    return None if torch is None else str(torch.get_default_dtype()).removeprefix("torch.")


def tensor_class() -> "type[torch.Tensor] | None":
    """`torch.Tensor`; None while there can be no tensor."""
    return getattr(sys.modules.get("torch"), "Tensor", None)


def is_tensor(value: object) -> "TypeGuard[torch.Tensor]":
    """Whether a value is a tensor; torch is not loaded for it."""
    kind = tensor_class()
    return kind is not None and isinstance(value, kind)


def is_strided(tensor: "torch.Tensor") -> bool:
    """Whether a tensor is one block of numbers, neither sparse nor nested, and so has a size."""
    return tensor.layout == load_torch().strided and not tensor.is_nested


def bytes_of(value: object) -> int:
    """Bytes of an array or of a dense tensor; 0 of anything else."""
    if is_tensor(value):
        return value.nbytes if is_strided(value) else 0
    return value.nbytes if isinstance(value, np.ndarray) else 0


def torch_has(dtype: np.dtype[Any]) -> bool:
    """Whether torch has such numbers, too, whatever the order of their bytes is."""
    return dtype.kind in NUMBERS and dtype.itemsize <= _WIDEST * (2 if dtype.kind == "c" else 1)


def as_native(array: NDArray[Any]) -> NDArray[Any]:
    """The array with the machine's order of bytes: torch has no other."""
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def as_tensor(array: NDArray[Any]) -> "torch.Tensor":
    """The tensor of an array of numbers, which shares its memory, with its strides, if it can."""
    torch: Any = load_torch()
    if not array.flags.writeable:  # torch would warn
        array = array.copy(order="K")
    try:
        return torch.from_numpy(array)
    except ValueError:  # swapped bytes, or strides that torch has not, as of one read backwards
        return torch.from_numpy(array.astype(array.dtype.newbyteorder("=")))


def with_tensors(batch: dict[str, Any] | tuple[Any, ...]) -> dict[str, Any] | tuple[Any, ...]:
    """A batch as the user gets it: the arrays in it are tensors, which share their memory.

    Arrays deeper in it, in the lists of a field or in an object, stay arrays, and so do those of
    texts, dates and objects.

    Raises:
        TypeError: One holds numbers of a type that torch lacks.
    """
    return map_columns(batch, _with_tensor)


def map_columns(batch: Any, change: Callable[[Any], Any]) -> Any:
    """A batch with each of its entries changed; a dict of the user's own class becomes a dict.

    A batch that is neither a dict nor a tuple counts as one entry. A named tuple stays one; its
    class, which might check or count its entries again, as `PackedSequence`, is not called.
    """
    columns: Any = batch
    if isinstance(batch, dict):
        return {name: change(column) for name, column in columns.items()}
    if not isinstance(batch, tuple):
        return change(batch)  # a `collate_fn` may return anything
    make: Any = getattr(columns, "_make", tuple)
    return make(map(change, columns))


def _with_tensor(column: Any) -> Any:
    are_numbers = type(column) is np.ndarray and column.dtype.kind in NUMBERS
    return as_tensor(column) if are_numbers else column


def tensor_of(value: Any) -> "torch.Tensor":
    """A tensor itself, or that of an array of numbers."""
    return value if is_tensor(value) else as_tensor(value)


_ALIGNMENT = 64
"""Bytes; each array in an arena begins at a multiple of it."""


def aligned(size: int) -> int:
    """Bytes of an arena that an array of `size` bytes takes."""
    return -(-size // _ALIGNMENT) * _ALIGNMENT


_NO_MEMORY = np.empty(0, np.uint8)


class Arena:
    """Memory that is given out from its beginning to its end; arrays that get none have their own.

    Attributes:
        claimed: Bytes given out so far, which is also the offset of the next array.
    """

    def __init__(self) -> None:
        self.use()

    def use(self, memory: NDArray[np.uint8] = _NO_MEMORY) -> None:
        """Give out this memory from now on: uint8, contiguous, with an aligned beginning."""
        self._memory, self.claimed = memory, 0
        self._address = memory.__array_interface__["data"][0]

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
