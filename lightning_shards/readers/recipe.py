"""The components of a source, each with a recipe: how the members of a sample become a row.

A data set is its only component. Components of one batch must have fields of the same names, and
values that fit into one tensor. It is enough to look at one sample of each before a fit: whether
the others of it are alike is checked where they are collated.
"""

import dataclasses
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from operator import attrgetter
from typing import Any, Self, TypeAlias

import numpy as np

from lightning_shards.errors import SampleError, ShardError
from lightning_shards.plan.epoch import EpochSchedule
from lightning_shards.plan.kept_order import KeptOrder
from lightning_shards.plan.order import Order, SampleOrder
from lightning_shards.plan.place import Place
from lightning_shards.plan.slots import MixtureSlots
from lightning_shards.readers.bad_samples import first_good
from lightning_shards.readers.source import SourceDescription
from lightning_shards.samples.collate import (
    BUILT_IN_COLLATION,
    BadSample,
    BatchFormat,
    Collation,
    Column,
    LoadedBatch,
    Sample,
    column_of,
    fields_of,
)
from lightning_shards.samples.decoders import OwnDecoder
from lightning_shards.samples.fields import (
    Field,
    decoding_loads_torch,
    with_arrays,
)
from lightning_shards.samples.generators import (
    SampleSeeds,
    are_same,
    may_draw_from_globals,
    preserved_globals,
    watched,
)
from lightning_shards.samples.member_bytes import Ints
from lightning_shards.samples.stage_clock import StageClock
from lightning_shards.samples.tensors import (
    Arena,
    bytes_of,
    is_tensor,
    map_columns,
    new_array,
    new_tensor,
    tensor_of,
)
from lightning_shards.samples.transforms import (
    SampleTransform,
    SampleTransforms,
    Transform,
    batch_fields_of,
    sample_steps,
)
from lightning_shards.shards.index import ShardIndex
from lightning_shards.shards.storage.schemes import MakeStorage

_REMEDY = (
    "give the field of one component a decoder or transform that makes them alike, or set unit to "
    "a multiple of the batch size, so that each batch is of one component"
)


Stage: TypeAlias = Callable[[Iterator[Any]], Iterator[Any]]
"""A webdataset-style stage: from an iterator of samples to an iterator of samples."""


@dataclass(frozen=True)
class Recipe:
    """How each sample of a split, or of one component of a mixture, becomes a row of a batch.

    Attributes:
        fields: The fields that are taken from each sample.
        transforms: One callable per field that has one.
        sample_transforms: Callables for whole samples, which are applied before `transforms`.
        stages: Those of a stream, after the fields are decoded and before all transforms.
        shuffle_buffer: Samples that webdataset's shuffle of a stream holds; 0 for none.
    """

    fields: tuple[Field, ...] = ()
    transforms: Mapping[str, Transform] = dataclasses.field(default_factory=dict[str, Transform])
    sample_transforms: tuple[SampleTransform, ...] = ()
    stages: tuple[Stage, ...] = ()
    shuffle_buffer: int = 0

    @property
    def names(self) -> list[str]:
        """The names of its fields."""
        return [field.name for field in self.fields]

    @property
    def callables(self) -> tuple[tuple[str, object], ...]:
        """The user's decoders, transforms and stages, each with its name in errors."""
        of_samples, transforms = enumerate(self.sample_transforms), self.transforms.items()
        return (
            *(
                (f"the decoder of {field.name!r}", field.decoder.function)
                for field in self.fields
                if isinstance(field.decoder, OwnDecoder)
            ),
            *((f"sample_transforms[{number}]", each) for number, each in of_samples),
            *((f"the transform of {name!r}", transform) for name, transform in transforms),
            *((f"stages[{number}]", stage) for number, stage in enumerate(self.stages)),
        )

    @property
    def draw_from_globals(self) -> tuple[str, ...]:
        """Those that may draw from the generators of the whole process, as errors call them."""
        own: Any = replace(self, fields=(), stages=()).callables
        drawing = [name for name, function in own if may_draw_from_globals(function)]
        drawing += [  # whatever a stage takes, one object serves all threads
            f"stages[{number}]"
            for number, stage in enumerate(self.stages)
            if getattr(stage, "deterministic", False) is not True
        ]
        return tuple(drawing)

    @property
    def loads_torch(self) -> bool:
        """Whether rows hold tensors, or stages may."""
        return bool(self.stages) or decoding_loads_torch(self.fields, self.transforms)

    def with_arrays(self, *, plain: bool) -> "Recipe":
        """The recipe whose fields give pixels as arrays where they may (`with_arrays`).

        Stages get tensors, whatever comes after them.
        """
        steps = self.transforms, self.sample_transforms
        plain = plain and not self.stages
        return replace(self, fields=with_arrays(self.fields, *steps, plain=plain))

    def watched(self) -> "Recipe":
        """The recipe, whose callables are watched as by `watched`."""
        return replace(
            self,
            fields=tuple(map(_with_watched_decoder, self.fields)),
            transforms={
                name: watched(f"the transform of field {name!r}", transform)
                for name, transform in self.transforms.items()
            },
            sample_transforms=tuple(
                watched(step.called, step.function) for step in sample_steps(self.sample_transforms)
            ),
        )

    def keyed(self, seeds: SampleSeeds, clock: StageClock | None = None) -> SampleTransforms:
        """Its transforms with the randomness of one epoch."""
        optional = [field.name for field in self.fields if field.is_optional]
        arrays = [field.name for field in self.fields if field.gives_arrays]
        called = self.sample_transforms, optional, arrays
        return SampleTransforms(self.transforms, seeds, clock, *called)

    def batch_names(self, rows: Sequence[Sample], batch_format: BatchFormat) -> list[str]:
        """The fields of a batch of these rows in their order; errors as of `batch_fields_of`."""
        return batch_fields_of(rows, self.names, batch_format, self.sample_transforms)

    def makes_alike(self, other: "Recipe") -> bool:
        """Whether rows are made of the same bytes in the same way as by another recipe.

        The suffixes by which members are found may differ. Joins belong to the samples of one
        component, so none of them is like another.
        """
        others = {field.name: field for field in other.fields}
        steps = self.transforms, self.sample_transforms
        return (
            steps == (other.transforms, other.sample_transforms)
            and {*self.names} == others.keys()
            and all(_decodes_alike(field, others[field.name]) for field in self.fields)
        )


def agreed_recipes(recipes: Sequence[Recipe], collation: Collation) -> tuple[Recipe, ...]:
    """The recipes of all components as rows are made by them, with arrays where they may be.

    Fields are decoded in the order of those of the first one, then the others.
    """
    places = {name: place for place, name in enumerate(recipes[0].names)}
    agreed: list[Recipe] = []
    for recipe in recipes:
        fields = sorted(recipe.fields, key=lambda field: places.get(field.name, len(places)))
        ordered = replace(recipe, fields=tuple(fields))
        agreed.append(ordered.with_arrays(plain=collation.takes_arrays))
    return tuple(agreed)


def _decodes_alike(field: Field, other: Field) -> bool:
    """Whether the same bytes become the same values in both fields."""
    kinds = attrgetter("decodings", "classes", "gives_arrays", "is_optional")
    is_joined = field.is_joined or other.is_joined
    return not is_joined and kinds(field) == kinds(other) and are_same(field.default, other.default)


def _with_watched_decoder(field: Field) -> Field:
    """The field, whose decoder is watched if it is the user's own."""
    own = field.decoder
    if not isinstance(own, OwnDecoder):
        return field
    function = watched(f"the decoder of {field.name!r}", own.function, is_seeded=False)
    return replace(field, decoder=replace(own, function=function))


@dataclass(frozen=True, kw_only=True)
class ShardSource:
    """What the sources of both readers have.

    Attributes:
        index: The shards and, where known, how many samples each holds; of a mixture those of all
            components, one after the other.
        epochs: The schedule that cuts the sequence of samples into epochs and steps.
        seed: Keys the randomness of transforms, and every draw and shuffle of a stream.
        recipes: How samples become rows, one recipe for each component; a data set is the only
            component.
        slots: Where in the sequence of a mixture each component stands; None: it is no mixture.
        batch_format: A dict, or the fields in order as a tuple.
        max_bad: Bad samples of an epoch, over all ranks, that are replaced; None: the first raises.
        storages: By scheme, what makes the storages that read remote shards, with the cache of the
            run, in the process that reads; it is pickled. None: all shards are local, or are read
            by the defaults.
        collation: The `collate_fn` and the reserved entries of the batches.
    """

    index: ShardIndex
    epochs: EpochSchedule
    seed: int
    recipes: tuple[Recipe, ...]
    slots: MixtureSlots | None = None
    batch_format: BatchFormat = "dict"
    max_bad: int | None = None
    storages: Mapping[str, MakeStorage] | None = None
    collation: Collation = BUILT_IN_COLLATION

    def with_epochs(self, epochs: EpochSchedule) -> Self:
        """The same samples, cut into other epochs."""
        return replace(self, epochs=epochs)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the components, in the order of the mix; empty of a data set alone."""
        return ("",) if self.slots is None else self.slots.names

    @cached_property
    def made_by(self) -> list[int]:
        """By component the number of the first one whose rows are made in the same way."""
        firsts: list[int] = []
        for number, recipe in enumerate(self.recipes):
            alike = (first for first in firsts if self.recipes[first].makes_alike(recipe))
            firsts.append(next(alike, number))
        return firsts

    def components_of(self, shards: Ints) -> Ints:
        """The components of these shards; empty if it is no mixture."""
        if self.slots is None:
            return np.empty(0, np.int64)
        return np.searchsorted(self.index.first_shards, shards, side="right") - 1

    def first_sample(self, place: Place) -> LoadedBatch:
        """A batch of one sample, to see that fields, stages and transforms fit; none is replaced.

        Of a mixture it is the largest of those that are made, one of each component. Nothing is
        fetched ahead for it, so it needs one table of a component and no more.

        Raises:
            ShardError: It cannot be made, which a note says of which component it is, or samples of
                several components do not fit into one batch where they have to.
        """
        tried = replace(
            self,
            recipes=tuple(recipe.watched() for recipe in self.recipes),
            max_bad=None,
            collation=self.collation.watched(),
        )
        rows = list[Sample]()
        with preserved_globals(), tried.trying(place) as make:
            for number, name in enumerate(tried.names):
                try:
                    rows.append(first_good(partial(make, number), self.max_bad))
                except ShardError as error:
                    if name:
                        error.add_note(f"this is component {name!r} of the mixture")
                    raise
        are_apart = self.slots is None or self.slots.schedule.unit % self.epochs.batch_size == 0
        if not (are_apart or self.collation.collate_fn):
            tried.require_alike(rows)
        weights = [1] if self.epochs.remainder != "drop" or self.max_bad is not None else []
        made: list[LoadedBatch] = []
        for number, row in enumerate(rows):
            begun = tried.batch_of([row], [] if self.slots is None else [number], weights)
            made.append(tried.collation.finished(begun))
        return max(made, key=_num_bytes)

    def batch_of(
        self,
        rows: Sequence[Sample],
        numbers: Sequence[int],
        weights: Sequence[int] = (),
        bad: Sequence[BadSample] = (),
        arena: Arena | None = None,
    ) -> LoadedBatch:
        """The batch of these rows, of which `finished` makes the user's.

        `numbers` are the components of the rows, empty where there is no mixture; the others are as
        of `Collation.begun`.

        Raises:
            TransformError: The fields of the rows differ.
            SampleError: As of `Collation.begun`; a note says of which components the rows are.
        """
        names: list[str] = []
        with self._named_in_errors(numbers):
            if not (numbers and self.collation.collate_fn):  # which may take other fields of each
                names = self.recipes[numbers[0] if numbers else 0].batch_names(
                    rows, self.batch_format
                )
            made = (rows, names, weights, self.batch_format, bad, arena)
            return self.collation.begun(*made, components=numbers)

    @contextmanager
    def _named_in_errors(self, numbers: Collection[int]) -> Generator[None]:
        """Let an error of samples that do not fit together say of which components they are."""
        try:
            yield
        except SampleError as error:
            names = ", ".join(repr(self.names[number]) for number in sorted(set(numbers)))
            if len(set(numbers)) > 1:
                error.add_note(f"the batch has samples of {names}; {_REMEDY}")
            raise

    def require_alike(self, rows: Sequence[Sample]) -> None:
        """Check that rows of all components, one of each, fit into one batch.

        Raises:
            SampleError: The fields differ, or values of one do not fit into one tensor.
        """
        numbers = range(len(rows))
        self.batch_of(rows, numbers)
        for name in fields_of(rows[0]):
            having = [row for row in rows if row[name] is not None]
            if len({isinstance(column_of([row], name), list) for row in having}) > 1:
                with self._named_in_errors(numbers):
                    raise SampleError(f"field {name!r} has numbers in some components, not in all")

    def trying(self, place: Place) -> AbstractContextManager[Callable[[int, int], Sample]]:
        """Gives what makes a row of a component for a try, by the numbers of both."""
        raise NotImplementedError

    def described(self, reader: str, sampling: str, **others: Any) -> SourceDescription:
        """Its properties, with the others that the reader knows."""
        named = list(zip(self.names, self.recipes, strict=True))
        drawing = [(name, each) for name, recipe in named for each in recipe.draw_from_globals]
        called = [(name, *each) for name, recipe in named for each in recipe.callables]
        functions = [(of_component(name, each), function) for name, each, function in called]
        return SourceDescription(
            reader=reader,
            sampling=sampling,
            index=self.index,
            max_bad=self.max_bad,
            fields=tuple(field for recipe in self.recipes for field in recipe.fields),
            draws_from_globals=tuple(of_component(*each) for each in drawing),
            callables=(*functions, *self.collation.callables),
            reserved=self.collation.reserved,
            loads_torch=any(recipe.loads_torch for recipe in self.recipes),
            storages=self.storages,
            **others,
        )


def of_component(name: str, what: str) -> str:
    """What is said of a component; of a data set alone, which has no name, as it is."""
    return f"{what} of component {name!r}" if name else what


def in_turn(index: ShardIndex, seed: int = 0) -> Order:
    """The order of all samples of shards with counts, one after the other."""
    assert index.kept_counts is not None  # the caller asks for it
    order = SampleOrder(index.kept_counts, seed, "sequential")
    return order if index.kept is None else KeptOrder(order, index.kept)


def _num_bytes(loaded: LoadedBatch) -> int:
    """The bytes in its arrays and tensors."""
    sizes: list[int] = []
    map_columns(loaded.batch, lambda column: sizes.append(bytes_of(column)))
    return sum(sizes)


def joined_column(
    parts: Sequence[tuple[Ints, Column]], count: int, arena: Arena | None = None
) -> "Column | None":
    """A column of `count` rows from columns of some of them; None if these are not all alike.

    Arrays next to tensors become tensors.

    Args:
        parts: The rows of each part, int64 of shape (n,), and its column.
        count: Rows of all parts.
        arena: Where the column is made, if it fits.
    """
    if all(isinstance(column, list) for _, column in parts):
        values: list[Any] = [None] * count
        for rows, column in parts:
            for row, value in zip(rows.tolist(), column, strict=True):
                values[row] = value
        return values
    columns: list[Any] = [column for _, column in parts if not isinstance(column, list)]
    has_tensors = any(map(is_tensor, columns))
    columns = list(map(tensor_of, columns)) if has_tensors else columns
    kinds = [(column.dtype, column.shape[1:]) for column in columns]
    if len(columns) < len(parts) or kinds != kinds[:1] * len(kinds):
        return None
    new: Any = new_tensor if has_tensors else new_array
    joined = new((count, *columns[0].shape[1:]), columns[0].dtype, arena)
    for (rows, _), column in zip(parts, columns, strict=True):
        joined[rows] = column
    return joined
