"""One field of a batch of several components, put together from the column of each of them."""

from collections.abc import Sequence
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from lightning_shards.samples.arena import Arena, new_array, new_tensor
from lightning_shards.samples.collate import Column
from lightning_shards.samples.loaded_torch import as_tensor, is_tensor, load_torch

Part = tuple[NDArray[np.int64], Column]
"""The rows of a component in the batch, and its column of these rows."""

_NUMBERS: Final = (np.dtype(np.float64), np.dtype(np.int64), np.dtype(np.bool_))
"""The types of columns of numbers: of several the first one holds all."""


_IMAGES: Final = 4
"""Dimensions of a column of images."""


def joined_column(parts: Sequence[Part], count: int, arena: Arena | None = None) -> "Column | None":
    """The column of `count` rows; None if the parts are of different kinds, shapes or types.

    Numbers may be of several types, as in a batch that is made sample by sample. Arrays beside
    tensors become tensors.
    """
    columns = [column for _, column in parts]
    if all(isinstance(column, list) for column in columns):
        return _joined_lists(parts, count)
    if any(isinstance(column, list) for column in columns):
        return None
    if any(map(is_tensor, columns)):
        return _joined_tensors(parts, count, arena)
    return joined_arrays(cast("Any", parts), count, arena)


def _joined_lists(parts: Sequence[Part], count: int) -> list[Any]:
    joined: list[Any] = [None] * count
    for rows, column in parts:
        for row, value in zip(rows.tolist(), column, strict=True):
            joined[row] = value
    return joined


def joined_arrays(
    parts: Sequence[tuple[NDArray[np.int64], NDArray[Any]]], count: int, arena: Arena | None = None
) -> NDArray[Any] | None:
    """The column of `count` rows of these arrays; None if their shapes or types do not fit."""
    first = parts[0][1]
    dtypes = {column.dtype for _, column in parts}
    if {column.shape[1:] for _, column in parts} != {first.shape[1:]}:
        return None
    dtype = first.dtype
    if len(dtypes) > 1:
        if first.ndim > 1 or not dtypes.issubset(_NUMBERS):
            return None
        dtype = next(number for number in _NUMBERS if number in dtypes)
    joined = _array_like(first, count, dtype, arena)
    for rows, column in parts:
        joined[rows] = column
    return joined


def _array_like(
    first: NDArray[Any], count: int, dtype: np.dtype[Any], arena: Arena | None
) -> NDArray[Any]:
    """Memory for the rows, in which the values of a pixel are neighbours if they are in `first`."""
    # Shape (rows, channels, height, width), in memory (rows, height, width, channels).
    is_images = first.ndim == _IMAGES and not first.flags.c_contiguous
    if not is_images or not first.transpose(0, 2, 3, 1).flags.c_contiguous:
        return new_array((count, *first.shape[1:]), dtype, arena)
    _, channels, height, width = first.shape
    return new_array((count, height, width, channels), dtype, arena).transpose(0, 3, 1, 2)


def _joined_tensors(parts: Sequence[Part], count: int, arena: Arena | None) -> "Column | None":
    torch = load_torch()
    columns = [
        (rows, cast("Any", column if is_tensor(column) else as_tensor(cast("Any", column))))
        for rows, column in parts
    ]
    first = columns[0][1]
    if {(tuple(column.shape[1:]), column.dtype) for _, column in columns} != {
        (tuple(first.shape[1:]), first.dtype)
    }:
        return None
    joined = new_tensor((count, *first.shape[1:]), first.dtype, arena)
    with torch.no_grad():
        for rows, column in columns:
            joined[torch.from_numpy(rows)] = column
    return joined
