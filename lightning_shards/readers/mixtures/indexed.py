"""The first samples of a mixture: one of each component, before the batches are made."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter
from typing import Any, Final, cast

import numpy as np

from lightning_shards.errors import ShardError
from lightning_shards.plan.epoch import EpochSchedule
from lightning_shards.plan.mixture import MixtureOrder
from lightning_shards.plan.place import Cursor, Place
from lightning_shards.readers.ahead.reading import Reading
from lightning_shards.readers.batch_reader import BatchReader
from lightning_shards.readers.batches import STRETCH, RowSettings, batches_of_worker
from lightning_shards.readers.indexed import IndexedSource
from lightning_shards.readers.mixtures.fields import ComponentFields
from lightning_shards.readers.mixtures.rows import (
    ComponentReaders,
    ComponentRow,
    DifferingColumns,
    MixtureRows,
    require_alike,
)
from lightning_shards.readers.source import ServedSample, Source, SourceDescription
from lightning_shards.readers.stages import own_decoders
from lightning_shards.samples.collate import RESERVED_KEYS, BatchFormat, LoadedBatch
from lightning_shards.samples.fields import Field
from lightning_shards.samples.optional_fields import lacking_in_all, require_found
from lightning_shards.samples.stage_clock import StageClock
from lightning_shards.samples.tensors import Arena, bytes_of, map_columns
from lightning_shards.samples.transforms import fields_of, first_taking
from lightning_shards.shards.index import ShardIndex
from lightning_shards.shards.joins.finding import JoinedShards, joins_identity
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.storage.schemes import MakeStorage


def first_samples(
    names: Sequence[str], components: Sequence[Source], place: Place
) -> list[LoadedBatch]:
    """A batch of one sample of each component.

    Raises:
        ShardError: One cannot be made; a note says of which component it is.
    """
    return [
        _first_of(number, name, component, place)
        for number, (name, component) in enumerate(zip(names, components, strict=True))
    ]


def require_alike_samples(
    names: Sequence[str],
    fields: Sequence[Sequence[Field]],
    made: Sequence[LoadedBatch],
    batch_format: BatchFormat,
) -> None:
    """Check that these samples of components, which are batches of one, fit into one batch.

    Raises:
        ConfigError: Their fields have other names.
        SampleError: The values of a field do not fit into one tensor.
    """
    rows: list[ComponentRow] = []
    for name, of_component, loaded in zip(names, fields, made, strict=True):
        columns = cast("dict[str, Any]", loaded.batch)
        if batch_format == "tuple":
            configured = [field.name for field in of_component]
            columns = dict(zip(configured, cast("tuple[Any, ...]", loaded.batch), strict=True))
        sample = {key: column[0] for key, column in columns.items()}
        rows.append(ComponentRow(name, fields_of(sample), sample))
    require_alike(rows)


def largest_of(made: Sequence[LoadedBatch]) -> LoadedBatch:
    """The batch with the most bytes in arrays and tensors."""
    return max(made, key=_num_bytes)


def _first_of(number: int, name: str, component: Source, place: Place) -> LoadedBatch:
    try:
        loaded = component.first_sample(place)
    except ShardError as error:
        error.add_note(f"this is component {name!r} of the mixture")
        raise
    if isinstance(loaded.batch, dict) and "__component__" in component.describe().reserved:
        loaded.batch.setdefault("__component__", np.array([number], np.int64))
    return loaded


def _num_bytes(loaded: LoadedBatch) -> int:
    sizes: list[int] = []
    map_columns(loaded.batch, lambda column: sizes.append(bytes_of(column)))
    return sum(sizes)


_MOST_STRETCHES: Final = 4
"""At most so many stretches of a single data set are looked up together, one for each component.
A stretch that needs only a part of each component's block reads nearly all of the block, and the
next stretch reads it again."""


@dataclass(frozen=True)
class MixtureSource:
    """Reads samples of several data sets by their offsets, each batch composed exactly.

    Attributes:
        components: In the order of the mix, each as a source of its data set alone, with a seed
            and an order of its own. Epochs, batch format, `max_bad`, collation, cache and storages
            are those of the split, the same in all of them.
        order: The order of the mix.
        index: The shards of all components, one after the other.
    """

    components: tuple[IndexedSource, ...]
    order: MixtureOrder
    index: ShardIndex

    def __reduce__(self) -> "tuple[type[MixtureSource], tuple[object, ...]]":
        """Pickle the arguments only: workers compute the rest again."""
        return MixtureSource, (self.components, self.order, self.index)

    @property
    def epochs(self) -> EpochSchedule:
        """The schedule that cuts the sequence of the mixture into epochs."""
        return self.components[0].epochs

    @property
    def storages(self) -> Mapping[str, MakeStorage] | None:
        """By scheme, what makes the storages that read remote shards; see `IndexedSource`."""
        return self.components[0].storages

    @property
    def cache(self) -> CacheFolder:
        """Folder of the member tables."""
        return self.components[0].cache

    def with_epochs(self, epochs: EpochSchedule) -> "MixtureSource":
        """The same samples, cut into other epochs."""
        changed = tuple(component.with_epochs(epochs) for component in self.components)
        return replace(self, components=changed)

    def identity(self) -> dict[str, int | str]:
        """The values that a resumed run must have, too, as far as the stages before it go."""
        joins: dict[str, str] = {}
        for name, component in zip(self.order.slots.names, self.components, strict=True):
            joins |= joins_identity(component.joins, name)
        return self.order.identity() | joins | {"reader": "indexed"}

    def describe(self) -> SourceDescription:
        """All components together."""
        named = [
            (name, component.describe())
            for name, component in zip(self.order.slots.names, self.components, strict=True)
        ]
        of_split = self.components[0].collation.callables
        callables = [
            (f"{called} of component {name!r}", function)
            for name, description in named
            for called, function in description.callables
            if (called, function) not in of_split
        ]
        return replace(
            named[0][1],
            sampling="mixture",
            index=self.index,
            run=min(description.run for _, description in named),
            fields=tuple(field for _, description in named for field in description.fields),
            draws_from_globals=tuple(
                f"{drawing} of component {name!r}"
                for name, description in named
                for drawing in description.draws_from_globals
            ),
            callables=(*callables, *of_split),
            loads_torch=any(description.loads_torch for _, description in named),
            mixture=self.order.mixture_identity,
        )

    def prepare(self) -> None:
        """List the members of all shards that are scanned, and make the joins of all components.

        Raises:
            ShardError: A shard or a joined table cannot be read, or a sample lacks a member.
        """
        self._makers[0].prepare(self._joined_shards)
        for component in self.components:
            component.require_all_members()

    def first_sample(self, place: Place) -> LoadedBatch:
        """A batch of one sample: the largest of those that are made, one of each component.

        Raises:
            ShardError: One cannot be made, or they do not fit into one batch where they have to.
        """
        names = self.order.slots.names
        alone = [
            replace(component, collation=replace(component.collation, component=number))
            for number, component in enumerate(self.components)
        ]
        lacking = [component.lacking_fields() for component in self.components]
        require_found(lacking_in_all(names, lacking))
        made = first_samples(names, alone, place)
        if not self._is_apart and self.components[0].collation.collate_fn is None:
            fields = [component.fields for component in self.components]
            require_alike_samples(names, fields, made, self.components[0].batch_format)
        return largest_of(made)

    def batches(
        self, place: Place, cursor: Cursor, arena: Arena | None = None
    ) -> Iterator[LoadedBatch]:
        """The batches of one worker from the cursor on, beyond the ends of epochs, without end.

        Raises:
            ShardError: A shard has changed or is damaged, or a sample cannot be made.
        """
        makers, clock, unreadable = self._makers, StageClock(), set[tuple[int, int]]()
        stretch = STRETCH * min(len(makers), _MOST_STRETCHES)
        settings = replace(self.components[0].row_settings, order=self.order, stretch=stretch)

        def begin(reading: Reading) -> Callable[[int], MixtureRows]:
            reader = self._reader(reading, settings, clock, arena)
            reading.shards.on_open = lambda shard, table: makers[
                self._component_of(shard)
            ].require_members(shard, table)

            def rows_of(epoch: int) -> MixtureRows:
                of_components = tuple(
                    maker.rows_of(epoch, reading, None, unreadable, clock, arena)
                    for maker in makers
                )
                return MixtureRows(self.order, settings, of_components, reader)

            return rows_of

        worker_epochs = self.epochs.worker_epochs(place, cursor)
        return batches_of_worker(
            makers[0].reading(place, cursor, self._joined_shards), worker_epochs, begin
        )

    def _reader(
        self, reading: Reading, settings: RowSettings, clock: StageClock, arena: Arena | None
    ) -> BatchReader | ComponentReaders | None:
        """What makes batches field by field; None if one component cannot be so read."""
        makers = self._makers
        if (together := self._fields_together) is not None:
            return makers[0].reader(
                reading, clock, arena, of_components=DifferingColumns(together, arena)
            )
        own_arena = arena if self._is_apart else None
        readers = [maker.reader(reading, clock, own_arena, len(makers)) for maker in makers]
        by_fields = [reader for reader in readers if reader is not None]
        if len(by_fields) < len(makers):
            return None
        names = [field.name for field in settings.fields]
        made_by = (by_fields, names, settings.batch_format, settings.collation)
        return ComponentReaders(*made_by, clock, arena)

    def expected_digest(self, epoch: int, start: int, stop: int, place: Place) -> int:
        """A rank's share of the digest of the samples at these positions of an epoch."""
        return self._makers[0].expected_digest(epoch, start, stop, place)

    def replay(
        self, place: Place, epoch: int, steps: range, num_workers: int
    ) -> list[list[ServedSample]]:
        """The rows of one rank's batches: ids from the order, and keys from the member tables.

        Raises:
            ShardError: A shard cannot be read, or has changed.
        """
        return self._makers[0].replay(place, epoch, steps, num_workers)

    @property
    def _joined_shards(self) -> list[JoinedShards]:
        """The joins of each component, whose shards lie one after the other."""
        joined: list[JoinedShards] = []
        first = 0
        for name, component in zip(self.order.slots.names, self.components, strict=True):
            joined.append(JoinedShards(component.joins, component.index, first, name))
            first += component.index.num_shards
        return joined

    @property
    def _is_apart(self) -> bool:
        """Whether each batch is of one component."""
        unit = self.order.slots.schedule.unit
        return unit % self.epochs.batch_size == 0

    @cached_property
    def _fields_together(self) -> ComponentFields | None:
        """The fields of all components, if their samples are made as those of one data set.

        They may be found and decoded otherwise, if no code of the user's is given what is decoded
        otherwise.
        """
        first, *others = self.components
        if others and any(component.joins for component in self.components):
            return None
        made_by = attrgetter("transforms", "sample_transforms")
        by_name = [
            {field.name: field for field in component.row_settings.fields}
            for component in self.components
        ]
        if any(made_by(other) != made_by(first) for other in others) or any(
            fields.keys() != by_name[0].keys() for fields in by_name
        ):
            return None
        in_order = [[fields[name] for name in by_name[0]] for fields in by_name]
        together = ComponentFields(in_order, self._component_of)
        is_taken = any(
            name in first.transforms
            or first_taking(first.sample_transforms, name) is not None
            or own_decoders(fields)
            for name, fields in together.differing.items()
        )
        if together.differing and (is_taken or first.collation.collate_fn is not None):
            return None
        return together

    def _component_of(self, shard: int) -> int:
        return int(self.order.components_of(shard))

    @cached_property
    def _makers(self) -> tuple[IndexedSource, ...]:
        """What makes the samples of each component in the order of the mix."""
        seed = self.order.slots.seed
        makers = tuple(
            replace(component, index=self.index, order=self.order, seed=seed)
            for component in self.components
        )
        if self._fields_together is not None:
            return makers
        # Their batches are joined, so all entries are needed.
        collation = replace(makers[0].collation, reserved=RESERVED_KEYS)
        return tuple(replace(maker, batch_format="dict", collation=collation) for maker in makers)
