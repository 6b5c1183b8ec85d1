"""Batches of several components of a mixture: what these must have in common, and their columns.

Their fields must have the same names, and values that fit into one tensor. It is enough to look at
one sample of each component: whether the others of it are alike is checked where it is collated.
"""

import dataclasses
from collections.abc import Collection, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise
from typing import Any, Final, cast

import numpy as np

from lightning_shards.errors import ConfigError, SampleError, ShardError
from lightning_shards.plan.place import Place
from lightning_shards.readers.bad_samples import first_good_sample
from lightning_shards.readers.recipe import Recipe
from lightning_shards.readers.source import Source
from lightning_shards.samples.collate import (
    BatchFormat,
    Collation,
    Column,
    LoadedBatch,
    PixelLayout,
    Sample,
)
from lightning_shards.samples.member_bytes import Ints
from lightning_shards.samples.tensors import (
    Arena,
    bytes_of,
    is_tensor,
    map_columns,
    new_array,
    new_tensor,
    tensor_of,
)
from lightning_shards.samples.transforms import fields_of

_APART = "set unit to a multiple of the batch size, so that each batch is of one component"

_REMEDY = (
    "give the field of one component a decoder or transform that makes them alike, or " + _APART
)


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
        self, rows: Sequence[Sample], numbers: Sequence[int]
    ) -> tuple[list[str], dict[str, PixelLayout]]:
        """The fields of a batch of these rows in their order, and the layouts of crops.

        `numbers` are the components of the rows; it is empty where there is no mixture.

        Raises:
            TransformError: The fields of the rows differ.
        """
        if numbers and not self.are_stacked:  # a `collate_fn` may take samples of other fields
            return [], self.layouts(numbers)
        recipe = self.recipes[numbers[0] if numbers else 0]
        names = recipe.batch_names(rows, self.batch_format)
        return self.in_order(names) if numbers else names, self.layouts(numbers or (0,))

    def in_order(self, names: Iterable[str]) -> list[str]:
        """The names as the first component of the mix has them, and then the others."""
        places = {name: place for place, name in enumerate(self.recipes[0].names)}
        return sorted(names, key=lambda name: places.get(name, len(places)))

    def layouts(self, numbers: Iterable[int] = (0,)) -> dict[str, PixelLayout]:
        """Of the fields that crops make alike in all of these components."""
        first, *others = (self._layouts[number] for number in sorted(set(numbers)))
        alike = (name for name in first if all(o.get(name) == first[name] for o in others))
        return {name: first[name] for name in alike}

    def first_of(
        self,
        tries: Sequence[Sequence[Source]],
        place: Place,
        reserved: Collection[str],
        *,
        are_apart: bool,
    ) -> LoadedBatch:
        """The largest of first samples, which are batches of one, and have to fit into one batch.

        Args:
            tries: Of each component what `first_good_sample` tries.
            place: The rank and the world size.
            reserved: The reserved entries of batches.
            are_apart: Whether each batch is of one component, so that they need not fit.

        Raises:
            ShardError: One cannot be made; a note says of which component it is.
            ConfigError: Their fields have other names.
            SampleError: The values of a field do not fit into one tensor.
        """
        made: list[LoadedBatch] = []
        for number, (name, sources) in enumerate(zip(self.names, tries, strict=True)):
            try:
                made.append(first_good_sample(sources, place))
            except ShardError as error:
                if name:
                    error.add_note(f"this is component {name!r} of the mixture")
                raise
            if name and isinstance(made[-1].batch, dict) and "__component__" in reserved:
                made[-1].batch.setdefault("__component__", np.array([number], np.int64))
        if self.are_stacked and not are_apart:
            self._require_alike(made)
        return max(made, key=_num_bytes)

    @contextmanager
    def named_in_errors(self, numbers: Collection[int]) -> Generator[None]:
        """Let an error of samples that do not fit together say of which components they are."""
        try:
            yield
        except SampleError as error:
            names = ", ".join(repr(self.names[number]) for number in sorted(set(numbers)))
            if len(set(numbers)) > 1:
                error.add_note(f"the batch has samples of {names}; {_REMEDY}")
            raise

    def _require_alike(self, made: Sequence[LoadedBatch]) -> None:
        """Check that the first samples of components, each a batch of one, fit into one batch."""
        columns = [
            cast("dict[str, Any]", loaded.batch)
            if self.batch_format == "dict"
            else dict(zip(recipe.names, cast("tuple[Any, ...]", loaded.batch), strict=True))
            for recipe, loaded in zip(self.recipes, made, strict=True)
        ]
        for (name, first), (other, others) in pairwise(zip(self.names, columns, strict=True)):
            fields, other_fields = sorted(fields_of(first)), sorted(fields_of(others))
            if fields != other_fields:
                raise ConfigError(
                    f"the components of one batch need the same fields, {name!r} has {fields} and "
                    f"{other!r} has {other_fields}; name them alike, or {_APART}, with "
                    "batch_format='dict'"
                )
            for field in fields:
                both = [(np.array([row]), of[field]) for row, of in enumerate((first, others))]
                is_missing = [None] in [column for _, column in both if isinstance(column, list)]
                if not is_missing and joined_column(both, 2) is None:
                    raise SampleError(
                        f"field {field!r} does not fit into one tensor: {_form(first[field])} in "
                        f"component {name!r}, but {_form(others[field])} in component {other!r}; "
                        f"{_REMEDY}"
                    )


def _form(column: Column) -> str:
    """What must be equal in columns of one field, in words."""
    if isinstance(column, list):
        return "no number"
    return f"{tuple(column.shape[1:])} {str(column.dtype).removeprefix('torch.')}"


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


_NUMBERS: Final = (np.dtype(np.float64), np.dtype(np.int64), np.dtype(np.bool_))
"""The types of columns of numbers: of several the first one holds all."""


def joined_column(
    parts: Sequence[tuple[Ints, Column]],
    count: int,
    layout: PixelLayout | None = None,
    arena: Arena | None = None,
) -> "Column | None":
    """A column of `count` rows from columns of some of them; None if these do not fit together.

    Numbers may be of several types, as in a batch that is made sample by sample; arrays next to
    tensors become tensors.

    Args:
        parts: The rows of each part, int64 of shape (n,), and its column.
        count: Rows of all parts.
        layout: How pixels of crops lie in memory, where all parts are of such.
        arena: Where the column is made, if it fits.
    """
    rows, columns = [rows for rows, _ in parts], [column for _, column in parts]
    if all(isinstance(column, list) for column in columns):
        values: list[Any] = [None] * count
        for row, value in zip(np.concatenate(rows).tolist(), chain(*columns), strict=True):
            values[row] = value
        return values
    has_tensors = any(map(is_tensor, columns))
    if any(isinstance(column, list) for column in columns):
        return None
    if has_tensors:
        columns = list(map(tensor_of, columns))
    dtype = _dtype_of(columns)
    if dtype is None:
        return None
    if layout is not None and not has_tensors:
        joined: Any = layout.new_column(count, arena)
    else:
        new: Any = new_tensor if has_tensors else new_array
        joined = new((count, *cast("Any", columns[0]).shape[1:]), dtype, arena)
    for places, column in zip(rows, columns, strict=True):
        joined[places] = column
    return joined


def _dtype_of(columns: Sequence[Any]) -> Any:
    """The type of a column with all of these in it; None if there is none."""
    shapes = {tuple(column.shape[1:]) for column in columns}
    dtypes = {column.dtype for column in columns}
    if len(shapes) == len(dtypes) == 1:
        return dtypes.pop()
    are_numbers = shapes == {()} and dtypes.issubset(_NUMBERS)
    return next(dtype for dtype in _NUMBERS if dtype in dtypes) if are_numbers else None
