"""Batches of a mixture made field by field: each component's rows by a reader of its own."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from lightning_shards.errors import SampleError
from lightning_shards.plan.digest import add_digests
from lightning_shards.readers.batch_reader import BatchReader
from lightning_shards.readers.mixtures.scatter import Part, joined_column
from lightning_shards.samples.arena import Arena
from lightning_shards.samples.collate import (
    RESERVED_KEYS,
    BatchFormat,
    Column,
    LoadedBatch,
    Sample,
    join_columns,
)
from lightning_shards.samples.collate_fn import Collation
from lightning_shards.samples.member_bytes import Ints
from lightning_shards.samples.stage_clock import StageClock
from lightning_shards.samples.transforms import SampleTransforms


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
