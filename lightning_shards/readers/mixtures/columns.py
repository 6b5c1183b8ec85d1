"""Columns of fields that the components of a mixture decode in different ways.

A component has few rows in a small batch, and to decode them costs more in calls than in bytes. So
the rows of several batches are decoded together where a value depends on its own bytes alone.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lightning_shards.errors import SampleError
from lightning_shards.readers.ahead.read_ahead import LargeMembers, ReadAhead
from lightning_shards.readers.batch_reader import column_at_once, decode_column
from lightning_shards.readers.mixtures.fields import ComponentFields
from lightning_shards.readers.mixtures.scatter import joined_arrays, joined_column
from lightning_shards.samples.arena import Arena, new_array
from lightning_shards.samples.collate import Column
from lightning_shards.samples.decoders import Decoding
from lightning_shards.samples.fields import Field
from lightning_shards.samples.member_bytes import ColumnError, FieldMembers, Ints, MemberBytes

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
