"""The indexed reader: a batch is a pure function of (shards, seed, epoch, position).

Sample ids come from an `Order`, and bytes are found by the member table of each shard. A batch is
the same whichever worker makes it and wherever the stream was started.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby

from lightning_shards.errors import ConfigError, TransformError
from lightning_shards.plan.cursor import Cursor
from lightning_shards.plan.digest import digest_share
from lightning_shards.plan.order import Order
from lightning_shards.plan.place import Place
from lightning_shards.plan.schedule import EpochSchedule, WorkerEpoch
from lightning_shards.readers.ahead.fetch_meter import FetchMeter
from lightning_shards.readers.ahead.piece_plan import PiecePlan, share_of_process
from lightning_shards.readers.ahead.remote_batches import (
    ShardTables,
    buffer_beside,
    fetched_ahead,
)
from lightning_shards.readers.bad_samples import (
    BAD,
    SAMPLES_TRIED,
    StandIn,
    bad_sample,
    epochs_to_try,
    first_good_sample,
    refused,
    weights_of,
)
from lightning_shards.readers.batch_reader import BatchReader, can_decode
from lightning_shards.readers.open_shards import OpenShards, read_sample, require_optional_fields
from lightning_shards.readers.source import ServedSample, SourceDescription, shard_identity
from lightning_shards.readers.user_stages import drawing_names, named_callables
from lightning_shards.samples.arena import Arena
from lightning_shards.samples.collate import BadSample, BatchFormat, LoadedBatch, Sample
from lightning_shards.samples.collate_fn import BUILT_IN_COLLATION, Collation
from lightning_shards.samples.fields import (
    Field,
    counted,
    decoding_loads_torch,
    optional_names,
    own_decoders,
    with_arrays,
)
from lightning_shards.samples.sample_transforms import SampleTransform, batch_fields_of
from lightning_shards.samples.seeds import SampleSeeds
from lightning_shards.samples.stage_clock import StageClock
from lightning_shards.samples.transforms import (
    SampleTransforms,
    TorchLoadedError,
    Transform,
    layouts_of,
    repeated,
    repeated_of_samples,
)
from lightning_shards.shards.index import ShardIndex
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.storage.schemes import MakeStorage, Storages, shared_out, without_cache
from lightning_shards.shards.tables import TableStore, build_tables

_STRETCH = 16_384
"""Positions of an epoch that are looked up together; as many as a block has by default."""


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
        storages: Storages of schemes that the package does not read by itself: scheme to a
            callable, which is pickled and makes the storage in the process that reads.
        sample_transforms: Callables for whole samples, which are applied before `transforms`.
        collation: The `collate_fn` and the reserved entries of the batches.
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
        return shard_identity("indexed", *own) | order

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
        )

    def prepare(self) -> None:
        """List the members of all shards that are scanned; the tables of others are fetched later.

        Raises:
            ShardError: A shard cannot be read.
        """
        storages = Storages(self.storages)
        build_tables(self.index.urls, TableStore(self.cache, storages=storages, takes_dali=True))
        storages.close()

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
            epochs=epochs_to_try(place, has_weights=has_weights),
            max_bad=None,
            transforms=repeated(self.transforms),
            sample_transforms=repeated_of_samples(self.sample_transforms),
            storages=without_cache(self.storages),
        )
        if optional_names(self.fields) and self.index.counts is not None:
            with OpenShards(self.index, self.cache, storages=alone.storages) as shards:
                require_optional_fields(shards, self.fields, self.index.counts)
        return first_good_sample([alone] * (1 if self.max_bad is None else SAMPLES_TRIED), place)

    def batches(
        self, place: Place, cursor: Cursor, arena: Arena | None = None
    ) -> Iterator[LoadedBatch]:
        """The batches of one worker from the cursor on, beyond the ends of epochs, without end.

        Raises:
            ShardError: A shard has changed or is damaged, or a sample cannot be made.
        """
        clock = StageClock()
        fields = with_arrays(self.fields, *self._steps, plain=self.collation.takes_arrays)
        unreadable: set[tuple[int, int]] = set()
        storages = shared_out(self.storages, len(place.ranks_of_node))
        share = share_of_process(place, place.ranks_of_node)
        tables = ShardTables(self.index, self.cache, storages, share)
        plan = PiecePlan(
            *(self.order, self.epochs, cursor, place, place.ranks_of_node, self.index.urls),
            *(tables.tables_of, tables.require_same),
        )
        with (
            OpenShards(self.index, self.cache, storages=storages) as shards,
            fetched_ahead(shards, plan, tables) as ahead,
        ):
            buffer = buffer_beside(ahead, shards)
            reader = BatchReader(
                *(shards, fields, self.batch_format, clock),
                arena=arena,
                buffer=buffer,
                collation=self.collation,
            )
            meter = FetchMeter(lambda: shards.fetch_totals().plus(tables.fetch_totals()), ahead)
            for turn, worker_epoch in enumerate(self.epochs.worker_epochs(place, cursor)):
                epoch = worker_epoch.epoch
                transforms = self._transforms_of(epoch, clock)
                rows = _Rows(self, fields, epoch, shards, transforms, unreadable, clock, arena)
                batches = self._batches_of(worker_epoch, rows, reader)
                if ahead is not None:
                    batches = ahead.told(turn, worker_epoch, batches)
                yield from batches if self.storages is None else meter.each(batches)

    def _transforms_of(self, epoch: int, clock: StageClock) -> SampleTransforms:
        return SampleTransforms(
            *(self.transforms, SampleSeeds(self.seed, epoch), clock, self.sample_transforms),
            decoders=own_decoders(self.fields),
            optional=optional_names(self.fields),
        )

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

    def _batches_of(
        self, worker_epoch: WorkerEpoch, rows: "_Rows", reader: BatchReader
    ) -> Iterator[LoadedBatch]:
        """The batches of one epoch: field by field, or sample by sample if that is not possible."""
        rank, by_fields = worker_epoch.place.rank, all(map(can_decode, self.fields))
        spans = (
            (step, worker_epoch.plan.rank_span(step, rank)) for step in worker_epoch.own_steps()
        )
        for _, stretch in groupby(spans, lambda step_span: step_span[1][0] // _STRETCH):
            steps, spans_of_steps = map(list, zip(*stretch, strict=True))
            planned = [worker_epoch.weights(step) for step in steps]
            if by_fields:
                ids = self.order.at_spans(rows.epoch, spans_of_steps)
                weights = list(map(self._weights, planned, spans_of_steps))
                reader.look_up(ids, spans_of_steps, rows.transforms, weights)
            for number, span in enumerate(spans_of_steps):
                by_field = partial(reader.batch, number) if by_fields else None
                by_sample = partial(self._batch_by_samples, rows, span, planned[number])
                loaded = self._batch(by_field, by_sample)
                if self.collation.collate_fn is not None:
                    loaded = self.collation.finished_on(loaded, rows.clock)
                yield loaded

    def _batch(
        self, by_field: Callable[[], LoadedBatch] | None, by_sample: Callable[[], LoadedBatch]
    ) -> LoadedBatch:
        """The batch that one of the two ways gives; `by_field` is None if it cannot be used."""
        try:
            return by_field() if by_field else by_sample()
        except TorchLoadedError:
            return self._batch(by_field, by_sample)  # now that torch is loaded, it is seeded
        except BAD as error:
            if by_field is None:
                raise
            if self.max_bad is None and isinstance(error, TransformError):
                refused(error)
                raise  # it names the bad sample; a second try might succeed and hide it
        return self._batch(None, by_sample)

    def _weights(self, planned: list[int], span: tuple[int, int]) -> list[int]:
        """The weights of a batch without a bad sample."""
        return planned if planned or self.max_bad is None else [1] * (span[1] - span[0])

    def _batch_by_samples(
        self, rows: "_Rows", span: tuple[int, int], planned: list[int]
    ) -> LoadedBatch:
        """A batch made sample by sample; its errors name the bad sample."""
        with rows.transforms.keeping_globals():
            samples, bad = rows.between(*span)
        weights = planned if self.max_bad is None else weights_of(samples, planned)
        # a bad sample that is repeated is counted only where it is no repeat
        counted = [bad[row] for row in bad if not planned or planned[row]]
        configured = [field.name for field in self.fields]
        with rows.clock.on("collate"):
            names = batch_fields_of(samples, configured, self.batch_format, self.sample_transforms)
            layouts = rows.transforms.layouts
            loaded = self.collation.begun(
                samples, names, weights, self.batch_format, counted, rows.arena, layouts
            )
        return loaded._replace(stages=rows.clock.take())


@dataclass(frozen=True)
class _Rows:
    """Makes the rows of one epoch.

    The first good sample that follows in the order replaces a bad one. It does not depend on the
    worker, so batches are equal under any number of workers.

    Attributes:
        source: The source whose rows are made.
        fields: Its fields; their pixels are arrays where no transform wants tensors.
        epoch: Number of the epoch.
        shards: The open shards that samples are read from.
        transforms: The transforms, keyed by this epoch.
        unreadable: Ids of samples that could not be read. They are not tried again: n of them in a
            row would cost n**2 reads.
        clock: Measures the time of each stage.
        arena: Memory for the tensors of batches, as far as they fit.
    """

    source: IndexedSource
    fields: tuple[Field, ...]
    epoch: int
    shards: OpenShards
    transforms: SampleTransforms
    unreadable: set[tuple[int, int]]
    clock: StageClock
    arena: Arena | None

    def between(self, start: int, stop: int) -> tuple[list[Sample], dict[int, BadSample]]:
        """The rows at these positions of the epoch, and the bad samples by row."""
        bad: dict[int, BadSample] = {}
        rows = self._made_between(start, stop, bad)
        source = self.source
        return list(counted(rows, self.fields, source.transforms, source.sample_transforms)), bad

    def _made_between(self, start: int, stop: int, bad: dict[int, BadSample]) -> Iterator[Sample]:
        ids = self.source.order.at(self.epoch, start, stop).tolist()
        for position, (shard, sample) in enumerate(ids, start):
            with self.clock.on("open"):
                self.shards.reader(shard)  # before the try: a changed shard is not a bad sample
            try:
                row = self._row(position, shard, sample)
            except BAD as error:
                row = self._stand_in(position, error)
                bad[position - start] = bad_sample(shard, sample, error)
            yield row

    def _row(self, position: int, shard: int, sample: int) -> Sample:
        self.transforms.seed_decoders(position)
        try:
            row = read_sample(self.shards, self.fields, shard, sample, self.clock)
        except BAD:
            self.unreadable.add((shard, sample))
            raise
        return self.transforms.apply(row, position)

    def _stand_in(self, position: int, error: Exception) -> Sample:
        """The substitute of a bad sample; its error, if the budget ends before a good one."""
        if self.source.max_bad is None:
            raise refused(error)
        tries = min(self.source.max_bad + 1, self.source.order.samples)
        for shard, sample in self._following(position, tries):
            self.shards.reader(shard)
            with suppress(*BAD):
                return StandIn(self._row(position, shard, sample))
        error.add_note(f"the {tries} samples that follow it in the order are bad, too")
        raise error

    def _following(self, position: int, tries: int) -> Iterator[tuple[int, int]]:
        """Ids of possible substitutes; most often one is enough, so the first look-up is small."""
        tried, size = 0, 1
        while tried < tries:
            following = self.source.order.following(self.epoch, position, size).tolist()
            ids = ((shard, sample) for shard, sample in following[tried:])
            yield from (sample_id for sample_id in ids if sample_id not in self.unreadable)
            tried, size = size, min(2 * size, tries)
