"""The indexed reader: a batch is a pure function of (shards, seed, epoch, position).

Sample ids come from an `Order`, bytes from each shard's table of members. Which worker makes a
batch, and where the stream was started, changes nothing in it.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import groupby

from lightning_shards.errors import ConfigError, TransformError
from lightning_shards.plan.cursor import Cursor
from lightning_shards.plan.digest import digest_share
from lightning_shards.plan.order import Order
from lightning_shards.plan.place import Place
from lightning_shards.plan.schedule import EpochSchedule, WorkerEpoch
from lightning_shards.readers.bad_samples import (
    BAD,
    SAMPLES_TRIED,
    StandIn,
    bad_sample,
    epochs_to_try,
    first_good_sample,
    weights_of,
)
from lightning_shards.readers.batch_reader import BatchReader, can_decode
from lightning_shards.readers.open_shards import OpenShards, read_sample
from lightning_shards.readers.source import ServedSample, SourceDescription, shard_identity
from lightning_shards.samples.arena import Arena
from lightning_shards.samples.collate import BadSample, BatchFormat, LoadedBatch, Sample, make_batch
from lightning_shards.samples.fields import (
    Field,
    SampleTransforms,
    Transform,
    counted,
    draw_from_globals,
    repeated,
)
from lightning_shards.samples.seeds import SampleSeeds
from lightning_shards.samples.stage_clock import StageClock
from lightning_shards.shards.index import ShardIndex
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.tables import TableStore, build_tables

_STRETCH = 16_384
"""Positions of an epoch that are looked up together: a default block."""


@dataclass(frozen=True)
class IndexedSource:
    """Reads samples by their offsets in local shards; restarts from any cursor and repeats itself.

    Attributes:
        index: the shards and how many samples each holds.
        epochs: how the sequence of an epoch is cut into steps.
        order: which sample stands at which position of an epoch.
        seed: keys every transform.
        fields: what is taken from each sample.
        transforms: one callable per field that has one.
        cache: where the tables of members are kept.
        batch_format: a dict, or the fields in order as a tuple.
        max_bad: bad samples of an epoch, over all ranks, that are replaced; None: the first raises.
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

    def __post_init__(self) -> None:
        """Refuse two seeds: a checkpoint has room for one.

        Raises:
            ConfigError: the order says that it has another seed.
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
        """What the batches depend on, for a checkpoint: the shards and all that the order names."""
        order = self.order.identity()
        sampling = str(order["sampling"])
        own = shard_identity("indexed", sampling, self.seed, self.index, self.transforms)
        return own | order

    def describe(self) -> SourceDescription:
        """The order's own word for the sampling; `run` is 1 if the order names none."""
        order = self.order.identity()
        return SourceDescription(
            reader="indexed",
            sampling=str(order["sampling"]),
            index=self.index,
            run=int(order.get("shuffle_run", 1)),
            max_bad=self.max_bad,
            draws_from_globals=tuple(self.draws_from_globals),
        )

    def prepare(self) -> None:
        """List the members of all shards.

        Raises:
            ShardError: a shard cannot be read.
        """
        build_tables(self.index.urls, TableStore(self.cache))

    @property
    def draws_from_globals(self) -> list[str]:
        """Names of transforms that may draw from the generators of the whole process."""
        return [f"the transform of {name!r}" for name in draw_from_globals(self.transforms)]

    def first_sample(self, place: Place) -> LoadedBatch:
        """A batch of one sample, to see that fields and transforms fit; none is replaced.

        Raises:
            ShardError: they do not.
        """
        transforms = repeated(self.transforms)
        alone = replace(self, epochs=epochs_to_try(place), max_bad=None, transforms=transforms)
        return first_good_sample([alone] * (1 if self.max_bad is None else SAMPLES_TRIED), place)

    def batches(
        self, place: Place, cursor: Cursor, arena: Arena | None = None
    ) -> Iterator[LoadedBatch]:
        """The batches of one worker from the cursor on, over the ends of epochs, without end.

        Raises:
            ShardError: a shard changed or is damaged, or a sample cannot give what was asked for.
        """
        clock = StageClock()
        unreadable: set[tuple[int, int]] = set()
        with OpenShards(self.index, self.cache) as shards:
            reader = BatchReader(shards, self.fields, self.batch_format, clock, arena=arena)
            for worker_epoch in self.epochs.worker_epochs(place, cursor):
                seeds = SampleSeeds(self.seed, worker_epoch.epoch)
                transforms = SampleTransforms(self.transforms, seeds, clock)
                epoch = worker_epoch.epoch
                rows = _Rows(self, epoch, shards, transforms, unreadable, clock, arena)
                yield from self._batches_of(worker_epoch, rows, reader)

    def expected_digest(self, epoch: int, start: int, stop: int, place: Place) -> int:
        """A rank's share of the digest of the samples at these positions of an epoch."""
        return digest_share(self.order, epoch, start, stop, place)

    def replay(
        self, place: Place, epoch: int, steps: range, num_workers: int
    ) -> list[list[ServedSample]]:
        """The rows of a rank's batches: the order's, with the keys that the tables have.

        Raises:
            ShardError: a shard cannot be read, or changed.
        """
        plan = self.epochs.plan(place.world_size)
        with OpenShards(self.index, self.cache) as shards:
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
        """The batches of one epoch: by fields, or by samples where that cannot be."""
        rank, by_fields = worker_epoch.place.rank, all(map(can_decode, self.fields))
        spans = (
            (step, worker_epoch.plan.rank_span(step, rank)) for step in worker_epoch.own_steps()
        )
        for _, stretch in groupby(spans, lambda each: each[1][0] // _STRETCH):
            steps = dict(stretch)
            if by_fields:
                ids = self.order.at_spans(rows.epoch, list(steps.values()))
                reader.look_up(ids, list(steps.values()), rows.transforms)
            for number, (step, span) in enumerate(steps.items()):
                planned, loaded = worker_epoch.weights(step), None
                with rows.transforms.keeping_globals():
                    try:
                        if by_fields:
                            loaded = reader.batch(number, self._weights(planned, span))
                    except BAD as error:
                        if self.max_bad is None and isinstance(error, TransformError):
                            raise  # it says which sample is bad; a second try might hide it
                    loaded = loaded or self._batch_by_samples(rows, span, planned)
                yield loaded

    def _weights(self, planned: list[int], span: tuple[int, int]) -> list[int]:
        """The weights of a batch without a bad sample."""
        return planned if planned or self.max_bad is None else [1] * (span[1] - span[0])

    def _batch_by_samples(
        self, rows: "_Rows", span: tuple[int, int], planned: list[int]
    ) -> LoadedBatch:
        """A batch made sample by sample; errors say which sample is bad."""
        samples, bad = rows.between(*span)
        weights = planned if self.max_bad is None else weights_of(samples, planned)
        # a repeat that is bad is counted where it is no repeat
        counted = [bad[row] for row in bad if not planned or planned[row]]
        names = [field.name for field in self.fields]
        with rows.clock.on("collate"):
            loaded = make_batch(samples, names, weights, self.batch_format, counted, rows.arena)
        return loaded._replace(stages=rows.clock.take())


@dataclass(frozen=True)
class _Rows:
    """Makes the rows of one epoch.

    In the place of a bad sample stands the first good one that follows it in the order. Which one
    is no matter of who asks: batches stay equal under any number of workers.

    Attributes:
        source: what the rows are made by.
        epoch: number of the epoch.
        shards: where they are read from.
        transforms: those of this epoch.
        unreadable: samples that could not be read, not tried again: a search would take the square
            of their number where they follow each other.
        clock: told of the time that each stage takes.
        arena: where the tensors of batches are made, as far as they fit.
    """

    source: IndexedSource
    epoch: int
    shards: OpenShards
    transforms: SampleTransforms
    unreadable: set[tuple[int, int]]
    clock: StageClock
    arena: Arena | None

    def between(self, start: int, stop: int) -> tuple[list[Sample], dict[int, BadSample]]:
        """The rows at these positions of the epoch, and the bad samples by number of the row."""
        bad: dict[int, BadSample] = {}
        rows = self._made_between(start, stop, bad)
        return list(counted(rows, self.source.fields, self.source.transforms)), bad

    def _made_between(self, start: int, stop: int, bad: dict[int, BadSample]) -> Iterator[Sample]:
        ids = self.source.order.at(self.epoch, start, stop).tolist()
        for position, (shard, sample) in enumerate(ids, start):
            with self.clock.on("open"):
                self.shards.reader(shard)  # not in the try: a shard that changed is no bad sample
            try:
                row = self._row(position, shard, sample)
            except BAD as error:
                row = self._stand_in(position, error)
                bad[position - start] = bad_sample(shard, sample, error)
            yield row

    def _row(self, position: int, shard: int, sample: int) -> Sample:
        try:
            row = read_sample(self.shards, self.source.fields, shard, sample, self.clock)
        except BAD:
            self.unreadable.add((shard, sample))
            raise
        return self.transforms.apply(row, position)

    def _stand_in(self, position: int, error: Exception) -> Sample:
        """What is there instead; the error of the bad sample if the budget does not reach far."""
        if self.source.max_bad is None:
            raise error
        tries = min(self.source.max_bad + 1, self.source.order.samples)
        for shard, sample in self._following(position, tries):
            self.shards.reader(shard)
            with suppress(*BAD):
                return StandIn(self._row(position, shard, sample))
        error.add_note(f"the {tries} samples that follow it in the order are bad, too")
        raise error

    def _following(self, position: int, tries: int) -> Iterator[tuple[int, int]]:
        """What may stand for a bad sample and is not known to be bad; first few are looked up."""
        tried, size = 0, 1
        while tried < tries:
            following = self.source.order.following(self.epoch, position, size).tolist()
            ids = ((shard, sample) for shard, sample in following[tried:])
            yield from (each for each in ids if each not in self.unreadable)
            tried, size = size, min(2 * size, tries)
