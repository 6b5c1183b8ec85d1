"""Batches of several components of a mixture: what these must have in common, and their columns.

Their fields must have the same names, and values that fit into one tensor. It is enough to look at
one sample of each component: whether the others of it are alike is checked where it is collated.
"""

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Final, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from lightning_shards.errors import ConfigError, SampleError, ShardError
from lightning_shards.readers.recipe import Recipe
from lightning_shards.samples.collate import (
    BatchFormat,
    Column,
    LoadedBatch,
    PixelLayout,
    Sample,
)
from lightning_shards.samples.collate_fn import Collation
from lightning_shards.samples.member_bytes import Ints
from lightning_shards.samples.optional_fields import LackingField, lacking_in_all, require_found
from lightning_shards.samples.tensors import (
    Arena,
    as_tensor,
    bytes_of,
    is_tensor,
    load_torch,
    map_columns,
    new_array,
    new_tensor,
)
from lightning_shards.samples.transforms import fields_of

_APART = "set unit to a multiple of the batch size, so that each batch is of one component"


@dataclass(frozen=True)
class Components:
    """The components whose samples a source puts into batches; of a data set, this alone.

    Attributes:
        recipes: Of each of them, in the order of the mix.
        names: Of each of them; of a data set alone it is empty.
        first_shards: The shards before those of each of them, int64 of shape (components,).
        batch_format: A dict, or the fields of the first one in order as a tuple.
        are_stacked: Whether rows become columns, and are not given to a `collate_fn`.
    """

    recipes: tuple[Recipe, ...]
    names: tuple[str, ...] = ("",)
    first_shards: Ints = dataclasses.field(default_factory=lambda: np.zeros(1, np.int64))
    batch_format: BatchFormat = "dict"
    are_stacked: bool = True

    @property
    def is_mixture(self) -> bool:
        """Whether they are those of a mixture, which may have only one."""
        return bool(self.names[0])

    @cached_property
    def made_by(self) -> list[int]:
        """By component the number of the first one whose rows are made in the same way."""
        firsts: list[int] = []
        for number, recipe in enumerate(self.recipes):
            alike = (first for first in firsts if self.recipes[first].makes_alike(recipe))
            firsts.append(next(alike, number))
        return firsts

    @cached_property
    def _layouts(self) -> list[dict[str, PixelLayout]]:
        """By component, of the fields that crops make."""
        return [recipe.layouts for recipe in self.recipes]

    def of_shards(self, shards: Ints) -> Ints:
        """The components of these shards; empty if it is no mixture."""
        if not self.is_mixture:
            return np.empty(0, np.int64)
        return np.searchsorted(self.first_shards, shards, side="right") - 1

    def of_shard(self, shard: int) -> int:
        """The component of one shard."""
        return int(np.searchsorted(self.first_shards, shard, side="right")) - 1

    def collated(
        self, rows: list[Sample], numbers: Sequence[int]
    ) -> tuple[list[Sample], list[str], dict[str, PixelLayout]]:
        """The rows of a batch as they are collated, its fields in their order, and its layouts.

        Args:
            rows: They are not changed.
            numbers: The component of each row; empty if it is no mixture.

        Raises:
            ConfigError: Components in it have fields of other names.
            SampleError: The values of a field do not fit into one tensor.
            TransformError: The fields of the rows of one component differ.
        """
        if not numbers:
            recipe = self.recipes[0]
            return rows, recipe.batch_names(rows, self.batch_format), self._layouts[0]
        firsts: list[_ComponentRow] = []
        for number in sorted(set(numbers)):
            own = [row for row, of in zip(rows, numbers, strict=True) if of == number]
            names = self.recipes[number].batch_names(own, self.batch_format)
            firsts.append(_ComponentRow(self.names[number], names, own[0]))
        names = self.in_order(firsts[0].fields)
        if self.are_stacked and len(firsts) > 1:
            _require_alike(firsts)
            rows = _with_one_kind(rows, names)
        return rows, names, self.layouts(numbers)

    def in_order(self, names: Iterable[str]) -> list[str]:
        """The names as the first component of the mix has them, and then the others."""
        places = {name: place for place, name in enumerate(self.recipes[0].names)}
        return sorted(names, key=lambda name: places.get(name, len(places)))

    def layouts(self, numbers: Iterable[int] = (0,)) -> dict[str, PixelLayout]:
        """Of the fields that crops make alike in all of these components."""
        first, *others = (self._layouts[number] for number in sorted(set(numbers)))
        alike = (name for name in first if all(o.get(name) == first[name] for o in others))
        return {name: first[name] for name in alike}

    def require_found(self, lacking: Sequence[Sequence[LackingField]]) -> None:
        """Refuse optional fields that all of them lack; `lacking` are those that each one lacks.

        Raises:
            MissingFieldError: There is one.
        """
        require_found(lacking_in_all(self.names, lacking) if self.is_mixture else lacking[0])

    def first_of(
        self,
        makers: Sequence[Callable[[], LoadedBatch]],
        reserved: Collection[str],
        *,
        are_apart: bool,
    ) -> LoadedBatch:
        """The largest of first samples, which are batches of one, and have to fit into one batch.

        Args:
            makers: Make them, one of each component.
            reserved: The reserved entries of batches.
            are_apart: Whether each batch is of one component, so that they need not fit.

        Raises:
            ShardError: One cannot be made; a note says of which component it is.
            ConfigError: Their fields have other names.
            SampleError: The values of a field do not fit into one tensor.
        """
        made: list[LoadedBatch] = []
        for number, (name, make) in enumerate(zip(self.names, makers, strict=True)):
            try:
                made.append(make())
            except ShardError as error:
                if name:
                    error.add_note(f"this is component {name!r} of the mixture")
                raise
            if name and isinstance(made[-1].batch, dict) and "__component__" in reserved:
                made[-1].batch.setdefault("__component__", np.array([number], np.int64))
        if self.are_stacked and not are_apart and len(made) > 1:
            rows = map(self._first_row, self.names, self.recipes, made)
            _require_alike(list(rows))
        return max(made, key=_num_bytes)

    def _first_row(self, name: str, recipe: Recipe, loaded: LoadedBatch) -> "_ComponentRow":
        columns = cast("dict[str, Any]", loaded.batch)
        if self.batch_format == "tuple":
            columns = dict(zip(recipe.names, cast("tuple[Any, ...]", loaded.batch), strict=True))
        sample = {key: column[0] for key, column in columns.items()}
        return _ComponentRow(name, fields_of(sample), sample)


def of_component(name: str, what: str) -> str:
    """What is said of a component; of a data set alone, which has no name, as it is."""
    return f"{what} of component {name!r}" if name else what


def described(
    names: Sequence[str],
    recipes: Sequence[Recipe],
    stages: Sequence[Sequence[object]],
    collation: Collation,
) -> dict[str, Any]:
    """What a `SourceDescription` says of the fields and callables of these components."""
    named = list(zip(names, recipes, stages, strict=True))
    drawing = [(name, each) for name, of, own in named for each in of.draw_from_globals(own)]
    called = [(name, *each) for name, of, own in named for each in of.callables(own)]
    return {
        "fields": tuple(field for recipe in recipes for field in recipe.fields),
        "draws_from_globals": tuple(of_component(*each) for each in drawing),
        "callables": tuple((of_component(name, each), function) for name, each, function in called)
        + collation.callables,
        "reserved": collation.reserved,
    }


def _num_bytes(loaded: LoadedBatch) -> int:
    """The bytes in its arrays and tensors."""
    sizes: list[int] = []
    map_columns(loaded.batch, lambda column: sizes.append(bytes_of(column)))
    return sum(sizes)


class _ComponentRow(NamedTuple):
    """One sample of a component, by the name of the component."""

    name: str
    fields: Collection[str]
    sample: Mapping[str, Any]


def _require_alike(rows: Sequence[_ComponentRow]) -> None:
    for first, other in pairwise(rows):
        if set(first.fields) != set(other.fields):
            raise ConfigError(
                f"the components of one batch need the same fields, {first.name!r} has "
                f"{sorted(first.fields)} and {other.name!r} has {sorted(other.fields)}; name them "
                f"alike, or {_APART}, with batch_format='dict'"
            )
        for field in first.fields:
            value, other_value = first.sample.get(field), other.sample.get(field)
            if not _are_alike(value, other_value):
                raise SampleError(
                    f"field {field!r} does not fit into one tensor: {_form(value)} in "
                    f"{_described(first)}, but {_form(other_value)} in {_described(other)}; give "
                    "the field of one component a decoder or transform that makes them alike, or "
                    f"{_APART}"
                )


def _with_one_kind(rows: list[Sample], fields: Sequence[str]) -> list[Sample]:
    """The rows with tensors for the arrays of fields that have both, so that they are stacked.

    Crops of this package give arrays, and other transforms give tensors.
    """
    for field in fields:
        by_type: dict[type, object] = {type(row.get(field)): row.get(field) for row in rows}
        values = filter(_is_array_like, by_type.values())
        if set(map(is_tensor, values)) == {True, False}:
            rows = [
                row | {field: as_tensor(row[field])} if _is_array(row.get(field)) else row
                for row in rows
            ]
    return rows


def _are_alike(value: Any, other: Any) -> bool:
    """Whether two values fit into one tensor, or into one list; one that is missing fits any."""
    if value is None or other is None:
        return True
    if type(value) is type(other) and _is_array_like(value) and _is_array_like(other):
        return value.shape == other.shape and value.dtype == other.dtype  # words cost 40 times that
    return _form(value) == _form(other)


def _form(value: object) -> str:
    """What must be equal, in words."""
    if _is_array_like(value):
        array = cast("Any", value)
        return f"{tuple(array.shape)} {str(array.dtype).removeprefix('torch.')}"
    return "a number" if isinstance(value, bool | int | float | np.generic) else "no number"


def _described(row: _ComponentRow) -> str:
    key = row.sample.get("__key__")
    return f"component {row.name!r}" if key is None else f"sample {key!r} of component {row.name!r}"


def _is_array_like(value: object) -> bool:
    return is_tensor(value) or _is_array(value)


def _is_array(value: object) -> bool:
    return isinstance(value, np.ndarray) and cast("Any", value).dtype.kind in "buif"


Part = tuple[Ints, Column]
"""The rows of a part of a batch, and its column of these rows."""

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
    are_lists = [isinstance(column, list) for column in columns]
    if all(are_lists):
        return _joined_lists(parts, count)
    if any(are_lists):
        return None
    if any(map(is_tensor, columns)):
        return _joined_tensors(parts, count, arena)
    return _joined_arrays(cast("Any", parts), count, arena)


def _joined_lists(parts: Sequence[Part], count: int) -> list[Any]:
    joined: list[Any] = [None] * count
    for rows, column in parts:
        for row, value in zip(rows.tolist(), column, strict=True):
            joined[row] = value
    return joined


def _joined_arrays(
    parts: Sequence[tuple[Ints, NDArray[Any]]], count: int, arena: Arena | None
) -> NDArray[Any] | None:
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
