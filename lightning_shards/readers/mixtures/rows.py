"""What the components of a mixture must have in common where they are in one batch.

Their fields must have the same names, and values that fit into one tensor. It is enough to look at
one sample of each component: whether the others of it are alike is checked where it is collated.
"""

from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Final, NamedTuple, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from lightning_shards.errors import ConfigError, SampleError
from lightning_shards.plan.digest import add_digests
from lightning_shards.plan.mixture import MixtureOrder
from lightning_shards.readers.ahead.read_ahead import LargeMembers, ReadAhead
from lightning_shards.readers.batch_reader import BatchReader, column_at_once, decode_column
from lightning_shards.readers.batches import EpochRows, RowSettings
from lightning_shards.readers.mixtures.fields import (
    ComponentFields,
    Part,
    joined_arrays,
    joined_column,
)
from lightning_shards.samples.collate import (
    RESERVED_KEYS,
    BadSample,
    BatchFormat,
    Column,
    Layouts,
    LoadedBatch,
    Sample,
    join_columns,
)
from lightning_shards.samples.collate_fn import Collation
from lightning_shards.samples.decoders import Decoding
from lightning_shards.samples.fields import Field
from lightning_shards.samples.member_bytes import ColumnError, FieldMembers, Ints, MemberBytes
from lightning_shards.samples.stage_clock import StageClock
from lightning_shards.samples.tensors import Arena, as_tensor, is_tensor, new_array
from lightning_shards.samples.transforms import SampleTransforms

_APART = "set unit to a multiple of the batch size, so that each batch is of one component"


class ComponentRow(NamedTuple):
    """One sample of a component, by the name of the component."""

    name: str
    fields: Collection[str]
    sample: Mapping[str, Any]


def require_alike(rows: Sequence[ComponentRow]) -> None:
    """Check that samples of these components fit into one batch.

    Raises:
        ConfigError: Their fields have other names.
        SampleError: The values of a field are not of one kind, shape and type of numbers.
    """
    for first, other in pairwise(rows):
        require_same_names(first.name, first.fields, other.name, other.fields)
        for field in first.fields:
            value, other_value = first.sample.get(field), other.sample.get(field)
            if not _are_alike(value, other_value):
                raise SampleError(
                    f"field {field!r} does not fit into one tensor: {_form(value)} in "
                    f"{_described(first)}, but {_form(other_value)} in {_described(other)}; give "
                    "the field of one component a decoder or transform that makes them alike, or "
                    f"{_APART}"
                )


def require_same_names(
    name: str, fields: Collection[str], other_name: str, other_fields: Collection[str]
) -> None:
    """Check that two components, which are in one batch, have fields of the same names.

    Raises:
        ConfigError: They have not.
    """
    if set(fields) != set(other_fields):
        raise ConfigError(
            f"the components of one batch need the same fields, {name!r} has {sorted(fields)} and "
            f"{other_name!r} has {sorted(other_fields)}; name them alike, or {_APART}, with "
            "batch_format='dict'"
        )


def with_one_kind(rows: list[Sample], fields: Sequence[str]) -> list[Sample]:
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


def _described(row: ComponentRow) -> str:
    key = row.sample.get("__key__")
    return f"component {row.name!r}" if key is None else f"sample {key!r} of component {row.name!r}"


def _is_array_like(value: object) -> bool:
    return is_tensor(value) or _is_array(value)


def _is_array(value: object) -> bool:
    return isinstance(value, np.ndarray) and cast("Any", value).dtype.kind in "buif"


_MOST_BYTES: Final = 2**18
_MOST_SAMPLES: Final = 2**12
"""What is decoded together at most: it fits into the processor's caches."""

_JSON: Final = Decoding("json")
"""Whose numbers are an array of a type that depends on all numbers of the batch."""


Members: TypeAlias = FieldMembers | LargeMembers


class _Group(NamedTuple):
    """The column of some consecutive samples; None if each batch has to be made by itself."""

    samples: range
    column: NDArray[Any] | None


class DifferingColumns:
    """Makes the columns of one worker's batches, one stretch of an epoch after the other.

    Args:
        fields: Of each component.
        arena: Where the arrays of a batch are made, as far as they fit.
    """

    def __init__(self, fields: ComponentFields, arena: Arena | None) -> None:
        self.fields: Final = fields
        self._differing = fields.differing
        self._arena = arena

    def begin(self, components: Sequence[Ints], read: Sequence[str], ahead: ReadAhead) -> None:
        """As of `ComponentColumns`."""
        self._groups: dict[str, _Group] = {}
        self._read, self._ahead = read, ahead
        self._components = np.concatenate(components)

    def column(self, name: str, batch: range, members: Members) -> Column:
        """As of `ComponentColumns`."""
        has_gaps = members.has_gaps
        if name in self.fields.alike_without_gaps and not has_gaps:
            return decode_column(self._differing[name][0], members, self._arena)
        if not has_gaps and isinstance(members, MemberBytes):
            column = self._of_group(name, batch, members)
            if column is not None:
                return column
        parts = [
            (rows, _decoded(field, members.at(rows), has_gaps=has_gaps))
            for rows, field in self._rows(name, batch)
        ]
        joined = joined_column(parts, len(batch), self._arena)
        if joined is None:
            raise SampleError(f"field {name!r} of several components fits into no column")
        return joined

    def _of_group(self, name: str, batch: range, members: MemberBytes) -> NDArray[Any] | None:
        """A copy of the batch's part of what is decoded together."""
        group = self._groups.get(name, _Group(range(0), None))
        if batch.start not in group.samples:
            most = min(_MOST_SAMPLES // len(batch), _MOST_BYTES // max(members.size_bytes, 1))
            batches = min(most, (self._ahead.samples.stop - batch.start) // len(batch))
            samples = range(batch.start, batch.start + max(batches, 1) * len(batch))
            column = self._together(name, samples) if batches > 1 else None
            group = self._groups[name] = _Group(samples, column)
        if group.column is None or batch.stop > group.samples.stop:
            return None
        first = group.samples.start
        part = group.column[batch.start - first : batch.stop - first]
        column = new_array(part.shape, part.dtype, self._arena)
        column[...] = part
        return column

    def _together(self, name: str, samples: range) -> NDArray[Any] | None:
        """The column of these samples; None if that of a batch may be another one."""
        fields = self._differing[name]
        if any(field.default is not None or _JSON in field.decodings for field in fields):
            return None
        try:
            members = self._ahead.members(samples.start, samples.stop)[self._read.index(name)]
        except ColumnError:  # one batch lacks a member, and the others do not
            return None
        if not isinstance(members, MemberBytes) or members.has_gaps:
            return None
        parts: list[tuple[Ints, NDArray[Any]]] = []
        for rows, field in self._rows(name, samples):
            column = column_at_once(field, members.at(rows))
            if not isinstance(column, np.ndarray) or (parts and column.dtype != parts[0][1].dtype):
                return None
            parts.append((rows, column))
        return joined_arrays(parts, len(samples))

    def _rows(self, name: str, samples: range) -> Iterator[tuple[Ints, Field]]:
        """The rows of each component that has some among these samples, and its field."""
        components = self._components[samples.start : samples.stop]
        for component, field in enumerate(self._differing[name]):
            rows = np.flatnonzero(components == component)
            if rows.size:
                yield rows, field


def _decoded(field: Field, members: Members, *, has_gaps: bool) -> Column:
    if has_gaps and not field.is_optional and members.has_gaps:
        raise SampleError(f"a sample has no member for field {field.name!r}")
    return decode_column(field, members)


@dataclass(frozen=True)
class _Part:
    """The rows of one component in one batch, and their number among the batches of its reader."""

    component: int
    number: int
    rows: Ints


class ComponentReaders:
    """Makes the batches of one worker, of rows whose fields differ by component.

    Args:
        readers: Of each component; their batches are dicts with all reserved entries.
        fields: The names of the fields of batches, in their order.
        batch_format: A dict, or the fields in order as a tuple.
        collation: The `collate_fn` and the reserved entries of the batches.
        clock: Told of the time that each stage takes.
        arena: Where the arrays of a batch are made, as far as they fit.
    """

    def __init__(
        self,
        readers: Sequence[BatchReader],
        fields: Sequence[str],
        batch_format: BatchFormat,
        collation: Collation,
        clock: StageClock,
        arena: Arena | None = None,
    ) -> None:
        self._readers, self._fields = readers, fields
        self._format: BatchFormat = batch_format
        self._collation, self._clock, self._arena = collation, clock, arena

    def look_up(
        self,
        ids: Ints,
        spans: Sequence[tuple[int, int]],
        transforms: Sequence[SampleTransforms],
        weights: Sequence[Sequence[int]],
        components: Ints,
    ) -> None:
        """Find where the members of a stretch lie; `batch` then gives its batches.

        Args:
            ids: Of the samples of all batches, int64 of shape (n, 2).
            spans: The positions of each batch in the epoch.
            transforms: Of this epoch, of each component.
            weights: Of the samples of each batch, 1 or 0; empty where the split has none.
            components: Of the samples of all batches, int64 of shape (n,).

        Raises:
            ShardError: As of `BatchReader.look_up`.
        """
        self._ids, self._weights, self._components = ids, weights, components
        self._stops = np.cumsum([0, *(stop - start for start, stop in spans)]).tolist()
        self._parts: list[list[_Part]] = [[] for _ in spans]
        for component in range(len(self._readers)):
            self._look_up_of(component, spans, transforms[component])

    def _look_up_of(
        self, component: int, spans: Sequence[tuple[int, int]], transforms: SampleTransforms
    ) -> None:
        own = np.flatnonzero(self._components == component)
        # rows: of this component in each batch, counted from the batch's first one
        cuts: list[int] = np.searchsorted(own, np.array(self._stops)).tolist()
        rows = [
            own[cuts[batch] : cuts[batch + 1]] - self._stops[batch] for batch in range(len(spans))
        ]
        batches = [batch for batch, of_batch in enumerate(rows) if of_batch.size]
        if not batches:
            return
        for number, batch in enumerate(batches):
            self._parts[batch].append(_Part(component, number, rows[batch]))
        positions = [(rows[batch] + spans[batch][0]).tolist() for batch in batches]
        weights = [_taken(self._weights[batch], rows[batch]) for batch in batches]
        numbers = [np.full(len(rows[batch]), component, np.int64) for batch in batches]
        self._readers[component].look_up(self._ids[own], positions, transforms, weights, numbers)

    def batch(self, number: int) -> LoadedBatch:
        """One of them; a `collate_fn` is still to be called for it.

        Raises:
            SampleError: A sample is bad, or the columns of components do not fit together.
        """
        parts = self._parts[number]
        made = [self._readers[part.component].batch(part.number) for part in parts]
        digest = add_digests(*(each.digest for each in made))
        with self._clock.on("collate"):
            if self._collation.collate_fn is not None:
                batch = self._joined_samples(parts, made)
            else:
                batch = self._joined(number, parts, [cast("Any", each.batch) for each in made])
        of_parts = [*(each.stages for each in made), self._clock.take()]
        return LoadedBatch(batch, digest, stages=tuple(map(sum, zip(*of_parts, strict=True))))

    def _joined_samples(self, parts: Sequence[_Part], made: Sequence[LoadedBatch]) -> Any:
        """The samples of a batch in its order."""
        samples: list[Sample] = [{}] * sum(len(part.rows) for part in parts)
        for part, each in zip(parts, made, strict=True):
            for row, sample in zip(part.rows.tolist(), cast("Any", each.batch), strict=True):
                samples[row] = sample
        return samples

    def _joined(self, number: int, parts: Sequence[_Part], made: Sequence[dict[str, Any]]) -> Any:
        start, stop = self._stops[number : number + 2]
        places = {name: place for place, name in enumerate(self._fields)}
        names = [name for name in made[0] if name not in RESERVED_KEYS]
        if any(columns_of.keys() != made[0].keys() for columns_of in made[1:]):
            raise SampleError(f"components have the fields {names} and others")  # told by its rows
        names.sort(key=lambda name: places.get(name, len(places)))
        columns: dict[str, Column] = {}
        for name in ["__key__", *names]:
            pieces: list[Part] = [
                (part.rows, columns_of[name])
                for part, columns_of in zip(parts, made, strict=True)
                if name in columns_of
            ]
            joined = pieces[0][1] if len(parts) == 1 else None
            if joined is None and len(pieces) == len(parts):
                joined = joined_column(pieces, stop - start, self._arena)
            if joined is None:
                raise SampleError(f"field {name!r} of several components fits into no column")
            columns[name] = joined
        keys = cast("list[str]", columns.pop("__key__"))
        ids, weights = self._ids[start:stop].copy(), self._weights[number]
        reserved, components = self._collation.reserved, self._components[start:stop]
        return join_columns(keys, columns, ids, weights, self._format, reserved, components)


def _taken(weights: Sequence[int], rows: Ints) -> list[int]:
    """The weights of these rows; empty where there are none."""
    return [weights[row] for row in rows.tolist()] if weights else []


@dataclass(frozen=True)
class MixtureRows:
    """Makes the rows of one epoch of a mixture.

    Attributes:
        order: The order of the mixture.
        settings: What all of its rows follow from.
        of_components: Make the rows of each component.
        reader: Makes batches field by field; None if that is not possible.
    """

    order: MixtureOrder
    settings: RowSettings
    of_components: tuple[EpochRows, ...]
    reader: BatchReader | ComponentReaders | None

    @property
    def epoch(self) -> int:
        """Number of the epoch."""
        return self.of_components[0].epoch

    @property
    def clock(self) -> StageClock:
        """Measures the time of each stage."""
        return self.of_components[0].clock

    @property
    def arena(self) -> Arena | None:
        """Memory for the tensors of batches."""
        return self.of_components[0].arena

    @property
    def reads_by_fields(self) -> bool:
        """Whether batches can be made field by field."""
        return self.reader is not None

    def look_up(
        self, ids: Ints, spans: Sequence[tuple[int, int]], weights: Sequence[Sequence[int]]
    ) -> Callable[[int], LoadedBatch]:
        """Find where the members of a stretch lie; what comes back gives its batches by number."""
        components = self.order.components_of(ids[:, 0])
        transforms = [rows.transforms for rows in self.of_components]
        assert self.reader is not None
        if isinstance(self.reader, ComponentReaders):
            self.reader.look_up(ids, spans, transforms, weights, components)
            return self.reader.batch
        stops = accumulate((stop - start for start, stop in spans), initial=0)
        of_batches = [components[start:stop] for start, stop in pairwise(stops)]
        positions = [range(*span) for span in spans]
        self.reader.look_up(ids, positions, transforms[0], weights, of_batches)
        return self.reader.batch

    @contextmanager
    def keeping_globals(self) -> Generator[None]:
        """A context for one batch, which restores the global generators if these may use them."""
        with ExitStack() as stack:
            for rows in self.of_components:
                stack.enter_context(rows.keeping_globals())
            yield

    def between(self, start: int, stop: int) -> tuple[list[Sample], dict[int, BadSample]]:
        """The rows at these positions of the epoch, and the bad samples by row."""
        ids = self.order.at(self.epoch, start, stop)
        numbers: list[int] = self.order.components_of(ids[:, 0]).tolist()
        samples: list[Sample] = []
        bad: dict[int, BadSample] = {}
        for row, ((shard, sample), number) in enumerate(zip(ids.tolist(), numbers, strict=True)):
            made, replaced = self.of_components[number].made(start + row, shard, sample)
            samples.append(made)
            if replaced is not None:
                bad[row] = replaced
        return samples, bad

    def collated(self, samples: list[Sample]) -> tuple[list[Sample], list[str]]:
        """The samples as they are collated, and the fields of their batch in their order.

        Raises:
            ConfigError: Components in it have fields of other names.
            SampleError: The values of a field do not fit into one tensor.
        """
        firsts: list[ComponentRow] = []
        for number, own in _by_component(samples, self.components_of(samples)).items():
            _, names = self.of_components[number].collated(own)
            firsts.append(ComponentRow(self.order.slots.names[number], names, own[0]))
        configured = [field.name for field in self.settings.fields]
        names = in_order(list(firsts[0].fields), configured)
        if self.settings.collation.collate_fn is None and len(firsts) > 1:
            require_alike(firsts)
            samples = with_one_kind(samples, names)
        return samples, names

    def layouts_of(self, samples: Sequence[Sample]) -> Layouts:
        """Of the fields that crops make alike in all components of these samples."""
        numbers = sorted(set(self.components_of(samples)))
        first, *others = (self.of_components[number].transforms.layouts for number in numbers)
        return {
            name: layout
            for name, layout in first.items()
            if all(other.get(name) == layout for other in others)
        }

    def components_of(self, samples: Sequence[Sample]) -> list[int]:
        """The component of each of these samples."""
        shards = np.array([sample["__id__"][0] for sample in samples], np.int64)
        return self.order.components_of(shards).tolist()


def in_order(names: list[str], configured: Sequence[str]) -> list[str]:
    """The names as the first component of the mix has them, and then the others."""
    places = {name: place for place, name in enumerate(configured)}
    return sorted(names, key=lambda name: places.get(name, len(places)))


def _by_component(samples: Sequence[Sample], numbers: Sequence[int]) -> dict[int, list[Sample]]:
    """The samples of each component, which come in the order of their numbers."""
    found: dict[int, list[Sample]] = {number: [] for number in sorted(set(numbers))}
    for sample, number in zip(samples, numbers, strict=True):
        found[number].append(sample)
    return found
