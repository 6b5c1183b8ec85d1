"""The indexed reader: a batch is a pure function of (shards, seed, epoch, position).

Sample ids come from an `Order`, and bytes are found by the member table of each shard. A batch is
the same whichever worker makes it and wherever the stream was started. The samples may be those of
one data set, or of the components of a mixture, each with a recipe of its own.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

import numpy as np

from lightning_shards.errors import ConfigError
from lightning_shards.plan.epoch import EpochSchedule
from lightning_shards.plan.order import Order
from lightning_shards.plan.place import Cursor, Place
from lightning_shards.readers.bad_samples import SAMPLES_TRIED, epochs_to_try
from lightning_shards.readers.batch_reader import BatchReader, can_decode
from lightning_shards.readers.batches import STRETCH, WorkerBatches
from lightning_shards.readers.mixed import Components, described
from lightning_shards.readers.open_shards import OpenShards, lacking_fields
from lightning_shards.readers.reading import reading_shards
from lightning_shards.readers.recipe import Recipe
from lightning_shards.readers.source import ServedSample, SourceDescription, shard_identity
from lightning_shards.samples.collate import BUILT_IN_COLLATION, BatchFormat, Collation, LoadedBatch
from lightning_shards.samples.fields import LackingField, require_found
from lightning_shards.samples.stage_clock import StageClock
from lightning_shards.samples.tensors import Arena
from lightning_shards.shards.index import ShardIndex
from lightning_shards.shards.members import MemberTable
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.storage.schemes import MakeStorage, Storages
from lightning_shards.shards.tables import TableStore, build_tables
from lightning_shards.shards.urls import is_local, redact

if TYPE_CHECKING:
    from lightning_shards.plan.mixture import MixtureOrder
    from lightning_shards.readers.joined import Joined

_MOST_CHECKED = 1000
"""Local shards whose samples are checked before a fit: about 2 ms each."""


@dataclass(frozen=True)
class IndexedSource:
    """Reads samples of shards by their offsets, and gives equal batches for equal cursors.

    Attributes:
        index: The shards and their counts; of a mixture those of all components, one after the
            other.
        epochs: The schedule that cuts the sequence of samples into epochs and steps.
        order: Gives the sample at each position of an epoch.
        seed: Key of the randomness of transforms.
        recipes: How samples become rows, one recipe for each component; a data set is the only
            component.
        cache: Folder of the member tables.
        batch_format: A dict, or the fields in order as a tuple.
        max_bad: Bad samples that may be replaced, per epoch and job; None: the first one raises.
        storages: By scheme, what makes the storages that read remote shards, with the cache of the
            run, in the process that reads; it is pickled. None: all shards are local, or are read
            by the defaults.
        collation: The `collate_fn` and the reserved entries of the batches.
        joined: The joins that fields come from; None if there are none.
        allows_gaps: Whether a sample that lacks a member is an error only when it is read.
        fetches_ahead: Whether remote shards are fetched ahead of the batches; not where one sample
            is tried.
    """

    index: ShardIndex
    epochs: EpochSchedule
    order: Order
    seed: int
    recipes: tuple[Recipe, ...]
    cache: CacheFolder
    batch_format: BatchFormat = "dict"
    max_bad: int | None = None
    storages: Mapping[str, MakeStorage] | None = None
    collation: Collation = BUILT_IN_COLLATION
    joined: "Joined | None" = None
    allows_gaps: bool = False
    fetches_ahead: bool = True

    def __post_init__(self) -> None:
        """Refuse two seeds, because a checkpoint holds only one.

        Raises:
            ConfigError: The order has another seed.
        """
        if self.order.identity().get("seed", self.seed) != self.seed:
            raise ConfigError(
                f"the order has seed={self.order.identity()['seed']}, its transforms have "
                f"{self.seed}; give both the same"
            )

    def with_epochs(self, epochs: EpochSchedule) -> "IndexedSource":
        """The same samples, cut into other epochs."""
        return replace(self, epochs=epochs)

    def identity(self) -> dict[str, int | str]:
        """The values that a resumed run must have, too: those of the shards and of the order."""
        order = self.order.identity() | (self.joined.identity() if self.joined else {})
        if self._mixture is not None:
            return order | {"reader": "indexed"}
        own = str(order["sampling"]), self.seed, self.index, self.recipes[0].transforms
        return shard_identity("indexed", *own, self.recipes[0].fields) | order

    def describe(self) -> SourceDescription:
        """The properties of all components; the order's identity gives the sampling and the run."""
        order, mixture = self.order, self._mixture
        parts = [order] if mixture is None else [each.order for each in mixture.mix]
        takes_arrays = self.collation.takes_arrays
        return SourceDescription(
            reader="indexed",
            sampling=str(order.identity()["sampling"]),
            index=self.index,
            run=min(int(part.identity().get("shuffle_run", 1)) for part in parts),
            max_bad=self.max_bad,
            loads_torch=any(each.loads_torch(takes_arrays=takes_arrays) for each in self.recipes),
            storages=self.storages,
            order=order,
            mixture=None if mixture is None else mixture.mixture_identity,
            **described(self._names, self.recipes, [()] * len(self.recipes), self.collation),
        )

    def prepare(self) -> None:
        """List the members of all shards that are scanned, make the joins, and check all samples.

        Raises:
            ShardError: A shard or a joined table cannot be read, or a sample lacks a member.
        """
        with closing(Storages(self.storages)) as storages:
            store = TableStore(self.cache, storages=storages)
            build_tables(self.index.urls, store)
            if self.joined is not None:
                self.joined.prepare(self.cache, store)
        store = TableStore(self.cache)
        for part, first in zip(self.index.parts, self.index.first_shards, strict=True):
            if part.num_shards <= _MOST_CHECKED and all(map(is_local, part.urls)):
                for shard, url in enumerate(part.urls, first):
                    self._require_members(shard, store.table_of(url))

    def first_sample(self, place: Place) -> LoadedBatch:
        """A batch of one sample, to check fields and transforms; no bad sample is replaced.

        Of a mixture it is the largest of those that are made, one of each component. Nothing is
        fetched ahead for it, so it needs one table of a component and no more.

        Raises:
            ShardError: The sample cannot be made, or those of several components do not fit into
                one batch where they have to.
        """
        alone = [self._alone(number, place) for number in range(len(self.recipes))]
        components = self._components(self._recipes)
        require_found([source.lacking_fields() for source in alone])
        tries = [[source] * (1 if self.max_bad is None else SAMPLES_TRIED) for source in alone]
        unit = 1 if self._mixture is None else self._mixture.slots.schedule.unit
        are_apart = unit % self.epochs.batch_size == 0
        return components.first_of(tries, place, self.collation.reserved, are_apart=are_apart)

    def batches(
        self, place: Place, cursor: Cursor, arena: Arena | None = None
    ) -> Iterator[LoadedBatch]:
        """The batches of one worker from the cursor on, beyond the ends of epochs, without end.

        Raises:
            ShardError: A shard has changed or is damaged, or a sample cannot be made.
        """
        if not self.fetches_ahead:  # of what is tried one sample is looked up
            place = place.with_worker(0, STRETCH)
        worker_epochs, clock = self.epochs.worker_epochs(place, cursor), StageClock()
        known = self.index, self.cache, self.storages, self.order, self.epochs
        with reading_shards(
            *known,
            joined=self.joined,
            place=place,
            cursor=cursor,
            fetches_ahead=self.fetches_ahead,
        ) as reading:
            reading.shards.on_open = self._require_members
            plain = self.collation.takes_arrays
            components = self._components([each.with_arrays(plain=plain) for each in self._recipes])
            reader = None
            if all(can_decode(field) for recipe in self.recipes for field in recipe.fields):
                reader = BatchReader(
                    reading.shards,
                    components,
                    clock,
                    arena=arena,
                    buffer=reading.new_buffer(),
                    collation=self.collation,
                )
            made = self.seed, components, self.max_bad, self.collation
            maker = WorkerBatches(self.order, *made, reading.shards, clock, arena, reader)
            for turn, worker_epoch in enumerate(worker_epochs):
                yield from reading.followed(turn, worker_epoch, maker.batches(worker_epoch))

    def replay(
        self, place: Place, epoch: int, steps: range, num_workers: int
    ) -> list[list[ServedSample]]:
        """The rows of one rank's batches: ids from the order, and keys from the member tables.

        Raises:
            ShardError: A shard cannot be read, or has changed.
        """
        plan = self.epochs.plan(place.world_size)
        with OpenShards(self.index, self.cache, storages=self.storages) as shards:
            return [
                [
                    ServedSample(shards.members(shard, sample)["__key__"], shard, sample)
                    for shard, sample in self.order.at(epoch, start, stop).tolist()
                ]
                for start, stop in (plan.rank_span(step, place.rank) for step in steps)
            ]

    @property
    def _mixture(self) -> "MixtureOrder | None":
        """The order, if it is that of a mixture."""
        return cast("MixtureOrder", self.order) if self.index.components else None

    @property
    def _names(self) -> tuple[str, ...]:
        """Of the components; of a data set alone it is empty."""
        return ("",) if self._mixture is None else self._mixture.slots.names

    @property
    def _recipes(self) -> tuple[Recipe, ...]:
        """The recipes, whose fields are in the order of the first one's."""
        places = {name: place for place, name in enumerate(self.recipes[0].names)}

        def in_order(recipe: Recipe) -> Recipe:
            of = sorted(recipe.fields, key=lambda field: places.get(field.name, len(places)))
            return replace(recipe, fields=tuple(of))

        return tuple(map(in_order, self.recipes))

    def _components(self, recipes: Sequence[Recipe]) -> Components:
        are_stacked = self.collation.collate_fn is None
        first_shards, batch_format = self.index.first_shards, self.batch_format
        return Components(tuple(recipes), self._names, first_shards, batch_format, are_stacked)

    def _alone(self, number: int, place: Place) -> "IndexedSource":
        """A component as a data set alone, to try samples of it before a fit."""
        index, order, seed, joined = self.index, self.order, self.seed, self.joined
        collation = self.collation.watched()
        if self._mixture is not None:
            index, order = index.components[number], self._mixture.mix[number].order
            seed = int(order.identity().get("seed", seed))
            joined = joined and joined.alone(number)
            collation = replace(collation, component=number)
        has_weights = self.epochs.remainder != "drop" or self.max_bad is not None
        return replace(
            self,
            index=index,
            epochs=epochs_to_try(place, self.epochs.samples, has_weights=has_weights),
            order=order,
            seed=seed,
            recipes=(self._recipes[number].watched(),),
            collation=collation,
            joined=joined,
            max_bad=None,
            allows_gaps=self.max_bad is not None,
            fetches_ahead=False,
        )

    def lacking_fields(self) -> list[LackingField]:
        """The optional fields that are in none of the samples of a few shards."""
        fields = self.recipes[0].fields
        if not self.recipes[0].optional or self.index.counts is None:
            return []
        with OpenShards(self.index, self.cache, storages=self.storages) as shards:
            return lacking_fields(shards, fields, self.index.counts)

    def _require_members(self, shard: int, table: MemberTable) -> None:
        """Check that all samples of a shard that a filter keeps have all fields that they need.

        Raises:
            MissingFieldError: One lacks a field, and no other sample may stand for it.
        """
        if self.max_bad is not None or self.allows_gaps:
            return
        number = self.index.component_of(shard)
        kept, first = self.index.parts[number].kept, int(self.index.first_shards[number])
        for field in self.recipes[number].fields:
            suffixes = field.suffixes_in(table.suffixes) if field.is_list else field.suffixes
            lacking = np.flatnonzero(table.members_with(suffixes) < 0)
            if len(lacking) and kept is not None:
                lacking = np.intersect1d(lacking, kept.of_shard(shard - first))
            if len(lacking) and not (field.is_optional or field.is_joined):
                where = f"sample {table.key(lacking[0])!r} of {redact(self.index.urls[shard])}"
                raise field.lacking(where, table.suffixes_of(lacking[0]))
