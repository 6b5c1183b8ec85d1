"""The fields of components whose samples are read together, as those of one data set."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from lightning_shards.readers.ahead.read_ahead import LargeMembers, ReadAhead
from lightning_shards.samples.collate import Column
from lightning_shards.samples.decoders import PIXEL_DECODERS
from lightning_shards.samples.fields import Field
from lightning_shards.samples.member_bytes import FieldMembers, Ints
from lightning_shards.samples.tensors import (
    Arena,
    as_tensor,
    is_tensor,
    load_torch,
    new_array,
    new_tensor,
)


@dataclass(frozen=True)
class ComponentFields:
    """The fields of all components, which have the same names.

    Attributes:
        of_components: In the order of the mix, all in one order of names.
        component_of: Gives the component of a shard.
    """

    of_components: Sequence[Sequence[Field]]
    component_of: Callable[[int], int]

    def of_shard(self, shard: int) -> Sequence[Field]:
        """The fields of a shard: they say which members of its samples are read."""
        return self.of_components[self.component_of(shard)]

    @cached_property
    def differing(self) -> dict[str, Sequence[Field]]:
        """By name, of each component: those that differ in more than the suffixes of members."""
        by_name = zip(*self.of_components, strict=True)
        return {of[0].name: of for of in by_name if _differ(of) or _differ_in_gaps(of)}

    @cached_property
    def alike_without_gaps(self) -> frozenset[str]:
        """The names of those of them that differ only where a sample has no such member."""
        return frozenset(name for name, of in self.differing.items() if not _differ(of))


class ComponentColumns(Protocol):
    """Makes the columns of fields that components decode in different ways."""

    @property
    def fields(self) -> ComponentFields:
        """The fields of all components."""
        ...

    def begin(self, components: Sequence[Ints], read: Sequence[str], ahead: ReadAhead) -> None:
        """Go on to the next stretch of an epoch.

        Args:
            components: Of the samples of each batch.
            read: The names of the fields that are read.
            ahead: Reads them.
        """

    def column(self, name: str, batch: range, members: FieldMembers | LargeMembers) -> Column:
        """One field of a batch: of the samples of these numbers in the stretch.

        Raises:
            SampleError: One cannot be decoded, or components make values of different kinds.
        """
        ...


def _differ(fields: Sequence[Field]) -> bool:
    """Whether bytes become other values in these fields."""
    decoded = {(each.decodings, each.classes, _gives_pixel_arrays(each)) for each in fields}
    return len(decoded) > 1


def _gives_pixel_arrays(field: Field) -> bool:
    return field.gives_arrays and not field.decoders.isdisjoint(PIXEL_DECODERS)


def _differ_in_gaps(fields: Sequence[Field]) -> bool:
    """Whether what stands for a member that is missing, or comes from a join, differs."""
    return len({(each.default, each.is_joined) for each in fields}) > 1


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
