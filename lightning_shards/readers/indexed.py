"""The indexed reader: a batch is a pure function of (shards, seed, epoch, position).

Sample ids come from an `Order`, and bytes are found by the member table of each shard. A batch is
the same whichever worker makes it and wherever the stream was started.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from lightning_shards.errors import ConfigError
from lightning_shards.plan.alike import AlikeOrder
from lightning_shards.plan.digest import digest_share
from lightning_shards.plan.epoch import EpochSchedule
from lightning_shards.plan.order import Order
from lightning_shards.plan.place import Cursor, Place
from lightning_shards.readers.ahead.reading import Reading, reading_shards
from lightning_shards.readers.bad_samples import SAMPLES_TRIED, epochs_to_try, first_good_sample
from lightning_shards.readers.batch_reader import BatchReader, can_decode
from lightning_shards.readers.batches import EpochRows, RowSettings, batches_of_worker
from lightning_shards.readers.mixtures.fields import ComponentColumns
from lightning_shards.readers.open_shards import OpenShards, lacking_fields
from lightning_shards.readers.source import ServedSample, SourceDescription, shard_identity
from lightning_shards.readers.stages import (
    drawing_names,
    named_callables,
    own_decoders,
    watched_settings,
)
from lightning_shards.samples.collate import BatchFormat, LoadedBatch
from lightning_shards.samples.collate_fn import BUILT_IN_COLLATION, Collation
from lightning_shards.samples.fields import Field, decoding_loads_torch, optional_names, with_arrays
from lightning_shards.samples.generators import SampleSeeds
from lightning_shards.samples.optional_fields import LackingField, require_found
from lightning_shards.samples.stage_clock import StageClock
from lightning_shards.samples.tensors import Arena
from lightning_shards.samples.transforms import (
    SampleTransform,
    SampleTransforms,
    Transform,
    layouts_of,
)
from lightning_shards.shards.index import ShardIndex
from lightning_shards.shards.joins.finding import Join, JoinedShards, joins_identity
from lightning_shards.shards.joins.kept_joins import prepare_joins
from lightning_shards.shards.members import MemberTable
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.storage.schemes import MakeStorage, Storages, without_cache
from lightning_shards.shards.tables import TableStore, build_tables
from lightning_shards.shards.urls import is_local, redact

_MOST_CHECKED = 1000
"""Local shards whose samples are checked before a fit: about 2 ms each."""


@dataclass(frozen=True)
class IndexedSource:
    """Reads samples of shards by their offsets, and gives equal batches for equal cursors.

    Attributes:
        index: The shards and their counts.
        epochs: The schedule that cuts the sequence of samples into epochs and steps.
        order: Gives the sample at each position of an epoch.
        seed: Key of the randomness of transforms.
        fields: The fields that are taken from each sample.
        transforms: One callable per field that has one.
        cache: Folder of the member tables.
        batch_format: A dict, or the fields in order as a tuple.
        max_bad: Bad samples that may be replaced, per epoch and job; None: the first one raises.
        storages: By scheme, what makes the storages that read remote shards, with the cache of the
            run, in the process that reads; it is pickled. None: all shards are local, or are read
            by the defaults.
        sample_transforms: Callables for whole samples, which are applied before `transforms`.
        collation: The `collate_fn` and the reserved entries of the batches.
        joins: Where joined fields come from.
        allows_gaps: Whether a sample that lacks a member is an error only when it is read.
    """

    index: ShardIndex
    epochs: EpochSchedule
    order: Order
    seed: int
    fields: tuple[Field, ...]
    transforms: dict[str, Transform]
    cache: CacheFolder
    batch_format: BatchFormat = "dict"
    max_bad: int | None = None
    storages: Mapping[str, MakeStorage] | None = None
    sample_transforms: tuple[SampleTransform, ...] = ()
    collation: Collation = BUILT_IN_COLLATION
    joins: tuple[Join, ...] = ()
    allows_gaps: bool = False

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
        order = self.order.identity()
        sampling = str(order["sampling"])
        own = (sampling, self.seed, self.index, self.transforms, self.fields)
        return shard_identity("indexed", *own) | order | joins_identity(self.joins)

    def describe(self) -> SourceDescription:
        """The properties of this source; the order's identity gives the sampling and the run."""
        order = self.order.identity()
        return SourceDescription(
            reader="indexed",
            sampling=str(order["sampling"]),
            index=self.index,
            run=int(order.get("shuffle_run", 1)),
            max_bad=self.max_bad,
            fields=self.fields,
            draws_from_globals=tuple(self.draws_from_globals),
            callables=named_callables(*self._steps, fields=self.fields) + self.collation.callables,
            loads_torch=self._loads_torch,
            reserved=self.collation.reserved,
            storages=self.storages,
            alike=self.order if isinstance(self.order, AlikeOrder) else None,
        )

    def prepare(self, joined: Sequence[JoinedShards] | None = None) -> None:
        """List the members of all shards that are scanned, and make the joins, or these ones.

        The members of all samples are checked, too, unless it is a component of a mixture.

        Raises:
            ShardError: A shard or a joined table cannot be read, or a sample lacks a member.
        """
        with closing(Storages(self.storages)) as storages:
            store = TableStore(self.cache, storages=storages)
            build_tables(self.index.urls, store)
            prepare_joins(self._joined if joined is None else joined, self.cache, store)
        if joined is None:
            self.require_all_members()

    def require_all_members(self) -> None:
        """Check the members of all samples, if the shards are local and at most 1,000.

        Raises:
            ShardError: A sample lacks a member, or a shard cannot be read.
        """
        urls, store = self.index.urls, TableStore(self.cache)
        if len(urls) <= _MOST_CHECKED and all(map(is_local, urls)):
            for shard, url in enumerate(urls):
                self.require_members(shard, store.table_of(url))

    def require_members(self, shard: int, table: MemberTable) -> None:
        """Check that all samples of a shard that a filter keeps have all fields that they need.

        Raises:
            MissingFieldError: One lacks a field, and no other sample may stand for it.
        """
        for field in self.fields if self.max_bad is None and not self.allows_gaps else ():
            suffixes = field.suffixes_in(table.suffixes) if field.is_list else field.suffixes
            lacking = np.flatnonzero(table.members_with(suffixes) < 0)
            if len(lacking) and self.index.kept is not None:
                lacking = np.intersect1d(lacking, self.index.kept.of_shard(shard))
            if len(lacking) and not (field.is_optional or field.is_joined):
                where = f"sample {table.key(lacking[0])!r} of {redact(self.index.urls[shard])}"
                raise field.lacking(where, table.suffixes_of(lacking[0]))

    @property
    def draws_from_globals(self) -> list[str]:
        """Names of transforms that may draw from the global generators."""
        return drawing_names(*self._steps, fields=self.fields)

    @property
    def _steps(self) -> tuple[dict[str, Transform], tuple[SampleTransform, ...]]:
        """The transforms of fields and those of samples."""
        return self.transforms, self.sample_transforms

    @property
    def _loads_torch(self) -> bool:
        if self.collation.takes_arrays:
            return decoding_loads_torch(self.fields, *self._steps)
        made_by_crops = bool(layouts_of(self.transforms))
        return made_by_crops or decoding_loads_torch(self.fields, *self._steps, plain=False)

    def first_sample(self, place: Place) -> LoadedBatch:
        """A batch of one sample, to check fields and transforms; no bad sample is replaced.

        Nothing is fetched ahead for it, so it needs one table and no more.

        Raises:
            ShardError: The sample cannot be made.
        """
        has_weights = self.epochs.remainder != "drop" or self.max_bad is not None
        alone = replace(
            self,
            epochs=epochs_to_try(place, self.epochs.samples, has_weights=has_weights),
            max_bad=None,
            allows_gaps=self.max_bad is not None,
            **watched_settings(self.fields, *self._steps),
            collation=self.collation.watched(),
            storages=without_cache(self.storages),
        )
        if self.collation.component is None:  # of a component the mixture looks at all components
            require_found(self.lacking_fields())
        return first_good_sample([alone] * (1 if self.max_bad is None else SAMPLES_TRIED), place)

    def lacking_fields(self) -> list[LackingField]:
        """The optional fields that are in none of the samples of a few shards."""
        if not optional_names(self.fields) or self.index.counts is None:
            return []
        storages = without_cache(self.storages)
        with OpenShards(self.index, self.cache, storages=storages) as shards:
            return lacking_fields(shards, self.fields, self.index.counts)

    def batches(
        self, place: Place, cursor: Cursor, arena: Arena | None = None
    ) -> Iterator[LoadedBatch]:
        """The batches of one worker from the cursor on, beyond the ends of epochs, without end.

        Raises:
            ShardError: A shard has changed or is damaged, or a sample cannot be made.
        """
        clock, unreadable = StageClock(), set[tuple[int, int]]()

        def begin(reading: Reading) -> Callable[[int], EpochRows]:
            reader = self.reader(reading, clock, arena)
            reading.shards.on_open = self.require_members
            return lambda epoch: self.rows_of(epoch, reading, reader, unreadable, clock, arena)

        worker_epochs = self.epochs.worker_epochs(place, cursor)
        return batches_of_worker(self.reading(place, cursor), worker_epochs, begin)

    def reading(
        self, place: Place, cursor: Cursor, joined: Sequence[JoinedShards] | None = None
    ) -> AbstractContextManager[Reading]:
        """What one worker reads its shards by from the cursor on, with its joins or these ones."""
        known = (self.index, self.cache, self.storages, self.order, self.epochs)
        joined = self._joined if joined is None else joined
        return reading_shards(*known, joined=joined, place=place, cursor=cursor)

    @property
    def _joined(self) -> list[JoinedShards]:
        return [JoinedShards(self.joins, self.index)]

    def rows_of(
        self,
        epoch: int,
        reading: Reading,
        reader: BatchReader | None,
        unreadable: set[tuple[int, int]],
        clock: StageClock,
        arena: Arena | None,
    ) -> EpochRows:
        """What makes its rows in an epoch."""
        transforms = SampleTransforms(
            transforms=self.transforms,
            seeds=SampleSeeds(self.seed, epoch),
            clock=clock,
            sample_transforms=self.sample_transforms,
            decoders=own_decoders(self.fields),
            optional=optional_names(self.fields),
        )
        made_by = (self.row_settings, epoch, reading.shards, transforms)
        return EpochRows(*made_by, unreadable, clock, arena, reader)

    def reader(
        self,
        reading: Reading,
        clock: StageClock,
        arena: Arena | None,
        share: int = 1,
        of_components: ComponentColumns | None = None,
    ) -> BatchReader | None:
        """What makes its batches field by field, if so many do; None if that is not possible.

        `of_components` is as of `BatchReader`.
        """
        fields = chain(*of_components.fields.of_components) if of_components else self.fields
        if not all(map(can_decode, fields)):
            return None
        return BatchReader(
            reading.shards,
            self.row_settings.fields,
            self.batch_format,
            clock,
            arena=arena,
            buffer=reading.new_buffer(share),
            collation=self.collation,
            of_components=of_components,
        )

    @property
    def row_settings(self) -> RowSettings:
        """What its rows follow from."""
        fields = with_arrays(self.fields, *self._steps, plain=self.collation.takes_arrays)
        settings = (self.batch_format, self.max_bad, self.collation)
        return RowSettings(self.order, fields, self._steps, *settings)

    def expected_digest(self, epoch: int, start: int, stop: int, place: Place) -> int:
        """A rank's share of the digest of the samples at these positions of an epoch."""
        return digest_share(self.order, epoch, start, stop, place)

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
