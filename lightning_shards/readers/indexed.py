"""The indexed reader: a batch is a pure function of (shards, seed, epoch, position).

Sample ids come from `SampleOrder`, bytes from each shard's table of members. Which worker makes a
batch, and where the stream was started, changes nothing in it.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import groupby

from lightning_shards.errors import TransformError
from lightning_shards.plan.cursor import Cursor
from lightning_shards.plan.digest import digest_share
from lightning_shards.plan.order import SampleOrder, Sampling
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
from lightning_shards.readers.columns import BatchReader, can_decode
from lightning_shards.readers.open_shards import OpenShards, read_sample
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

_STRETCH = 16_384
"""Positions of an epoch that are looked up together: a default block."""

_MAX_LOOKED_UP = 4096
"""Positions looked up at once in the search for a substitute."""


@dataclass(frozen=True)
class IndexedSource:
    """Reads samples by their offsets in local shards; restarts from any cursor and repeats itself.

    Attributes:
        index: the shards and how many samples each holds.
        epochs: how the sequence of an epoch is cut into steps.
        sampling: how the sequence is made, see `SampleOrder`.
        seed: keys the order and every transform.
        fields: what is taken from each sample.
        transforms: one callable per field that has one.
        run: samples kept together when shards are mixed; 0 for whole shards.
        block: samples shuffled together.
        batch_format: a dict, or the fields in order as a tuple.
        cache_dir: where the tables of members are kept, None for the default.
        max_bad: bad samples of an epoch, over all ranks, that are replaced; None: the first raises.
    """

    index: ShardIndex
    epochs: EpochSchedule
    sampling: Sampling
    seed: int
    fields: tuple[Field, ...]
    transforms: dict[str, Transform]
    run: int = 64
    block: int = 16_384
    batch_format: BatchFormat = "dict"
    cache_dir: str | None = None
    max_bad: int | None = None

    @property
    def reader(self) -> dict[str, int | str]:
        """The reader's name, and its settings that the order depends on, for a checkpoint."""
        return {"reader": "indexed", "shuffle_run": self.run, "shuffle_block": self.block}

    def with_epochs(self, epochs: EpochSchedule) -> "IndexedSource":
        """The same samples, cut into other epochs."""
        return replace(self, epochs=epochs)

    def order(self) -> SampleOrder:
        """The sequence of samples of every epoch."""
        assert self.index.counts is not None  # the data module sees to it
        return SampleOrder(self.index.counts, self.seed, self.sampling, self.run, self.block)

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

    def batches(self, place: Place, cursor: Cursor) -> Iterator[LoadedBatch]:
        """The batches of one worker from the cursor on, over the ends of epochs, without end.

        Raises:
            ShardError: a shard changed or is damaged, or a sample cannot give what was asked for.
        """
        order, clock = self.order(), StageClock()
        unreadable: set[tuple[int, int]] = set()
        with OpenShards(self.index, self.cache_dir) as shards:
            for worker_epoch in self.epochs.worker_epochs(place, cursor):
                seeds = SampleSeeds(self.seed, worker_epoch.epoch)
                transforms = SampleTransforms(self.transforms, seeds, clock)
                rows = _Rows(self, order, worker_epoch.epoch, shards, transforms, unreadable, clock)
                yield from self._batches_of(worker_epoch, rows)

    def expected_digest(self, epoch: int, start: int, stop: int, place: Place) -> int:
        """A rank's share of the digest of the samples at these positions of an epoch."""
        return digest_share(self.order(), epoch, start, stop, place)

    def _batches_of(self, worker_epoch: WorkerEpoch, rows: "_Rows") -> Iterator[LoadedBatch]:
        """The batches of one epoch: by columns, or by samples where that cannot be."""
        rank, by_columns = worker_epoch.place.rank, all(map(can_decode, self.fields))
        spans = (
            (step, worker_epoch.plan.rank_span(step, rank)) for step in worker_epoch.own_steps()
        )
        for _, stretch in groupby(spans, lambda each: each[1][0] // _STRETCH):
            steps = dict(stretch)
            columns = self._columns(rows, list(steps.values())) if by_columns else None
            for number, (step, span) in enumerate(steps.items()):
                planned = worker_epoch.weights(step)
                with rows.transforms.keeping_globals():
                    try:
                        loaded = columns and columns.batch(number, self._weights(planned, span))
                    except BAD as error:
                        if self.max_bad is None and isinstance(error, TransformError):
                            raise  # it says which sample is bad; a second try might hide it
                        loaded = None
                    loaded = loaded or self._batch_by_samples(rows, span, planned)
                yield loaded

    def _columns(self, rows: "_Rows", spans: list[tuple[int, int]]) -> BatchReader:
        return BatchReader(
            rows.shards,
            self.fields,
            rows.transforms,
            rows.order.at_spans(rows.epoch, spans),
            spans,
            self.batch_format,
            rows.clock,
        )

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
            loaded = make_batch(samples, names, weights, self.batch_format, counted)
        return loaded._replace(stages=rows.clock.take())


@dataclass(frozen=True)
class _Rows:
    """Makes the rows of one epoch.

    In the place of a bad sample stands the first good one that follows it in the order. Which one
    is no matter of who asks: batches stay equal under any number of workers.

    Attributes:
        source: what the rows are made by.
        order: the sequence of samples.
        epoch: number of the epoch.
        shards: where they are read from.
        transforms: those of this epoch.
        unreadable: samples that could not be read, not tried again: a search would take the square
            of their number where they follow each other.
        clock: told of the time that each stage takes.
    """

    source: IndexedSource
    order: SampleOrder
    epoch: int
    shards: OpenShards
    transforms: SampleTransforms
    unreadable: set[tuple[int, int]]
    clock: StageClock

    def between(self, start: int, stop: int) -> tuple[list[Sample], dict[int, BadSample]]:
        """The rows at these positions of the epoch, and the bad samples by number of the row."""
        bad: dict[int, BadSample] = {}
        rows = self._made_between(start, stop, bad)
        return list(counted(rows, self.source.fields, self.source.transforms)), bad

    def _made_between(self, start: int, stop: int, bad: dict[int, BadSample]) -> Iterator[Sample]:
        for position, (shard, sample) in enumerate(self._ids(start, stop), start):
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
        tries = min(self.source.max_bad + 1, self.order.samples)
        for shard, sample in self._following(position, tries):
            self.shards.reader(shard)
            with suppress(*BAD):
                return StandIn(self._row(position, shard, sample))
        error.add_note(f"the {tries} samples that follow it in the order are bad, too")
        raise error

    def _following(self, position: int, tries: int) -> Iterator[tuple[int, int]]:
        """Samples behind a position that are not known to be bad; some are looked up at once."""
        start, stop, size = position + 1, position + 1 + tries, 1
        while start < stop:
            following = self._ids(start, min(start + size, stop))
            yield from (each for each in following if each not in self.unreadable)
            start, size = start + size, min(2 * size, _MAX_LOOKED_UP)

    def _ids(self, start: int, stop: int) -> list[tuple[int, int]]:
        return [
            (shard, sample) for shard, sample in self.order.at(self.epoch, start, stop).tolist()
        ]
