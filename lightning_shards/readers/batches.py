"""The rows of one epoch, and the substitutes of bad ones."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Final, Protocol, cast

from lightning_shards.errors import TransformError
from lightning_shards.plan.epoch import WorkerEpoch
from lightning_shards.plan.order import Order
from lightning_shards.readers.ahead.reading import Reading
from lightning_shards.readers.bad_samples import BAD, StandIn, bad_sample, refused, weights_of
from lightning_shards.readers.batch_reader import BatchReader
from lightning_shards.readers.open_shards import OpenShards, read_sample
from lightning_shards.samples.collate import BadSample, BatchFormat, Layouts, LoadedBatch, Sample
from lightning_shards.samples.collate_fn import Collation
from lightning_shards.samples.fields import Field
from lightning_shards.samples.member_bytes import Ints
from lightning_shards.samples.stage_clock import StageClock
from lightning_shards.samples.tensors import Arena
from lightning_shards.samples.transforms import (
    SampleTransform,
    SampleTransforms,
    TorchLoadedError,
    Transform,
    batch_fields_of,
)

STRETCH: Final = 16_384
"""Positions of an epoch that are looked up together; as many as a block has by default."""


@dataclass(frozen=True)
class RowSettings:
    """What rows and batches of a source follow from, in all epochs.

    Attributes:
        order: Gives the sample at each position of an epoch.
        fields: The fields; their pixels are arrays where no transform wants tensors.
        steps: The transforms of fields, and those of samples.
        batch_format: A dict, or the fields in order as a tuple.
        max_bad: Bad samples that may be replaced; None: the first one raises.
        collation: The `collate_fn` and the reserved entries of the batches.
        stretch: Positions of an epoch that are looked up together.
    """

    order: Order
    fields: tuple[Field, ...]
    steps: tuple[dict[str, Transform], tuple[SampleTransform, ...]]
    batch_format: BatchFormat
    max_bad: int | None
    collation: Collation
    stretch: int = STRETCH


@dataclass(frozen=True)
class EpochRows:
    """Makes the rows of one epoch.

    The first good sample that follows in the order replaces a bad one. It does not depend on the
    worker, so batches are equal under any number of workers.

    Attributes:
        settings: What they follow from.
        epoch: Number of the epoch.
        shards: The open shards that samples are read from.
        transforms: The transforms, keyed by this epoch.
        unreadable: Ids of samples that could not be read. They are not tried again: n of them in a
            row would cost n**2 reads.
        clock: Measures the time of each stage.
        arena: Memory for the tensors of batches, as far as they fit.
        reader: Makes batches field by field; None if that is not possible.
    """

    settings: RowSettings
    epoch: int
    shards: OpenShards
    transforms: SampleTransforms
    unreadable: set[tuple[int, int]]
    clock: StageClock
    arena: Arena | None
    reader: BatchReader | None

    @property
    def reads_by_fields(self) -> bool:
        """Whether batches can be made field by field."""
        return self.reader is not None

    def look_up(
        self, ids: Ints, spans: Sequence[tuple[int, int]], weights: Sequence[Sequence[int]]
    ) -> Callable[[int], LoadedBatch]:
        """Find where the members of a stretch lie; what comes back gives its batches by number."""
        assert self.reader is not None
        self.reader.look_up(ids, [range(*span) for span in spans], self.transforms, weights)
        return self.reader.batch

    def keeping_globals(self) -> AbstractContextManager[None]:
        """A context for one batch, which restores the global generators if these may use them."""
        return self.transforms.keeping_globals()

    def components_of(self, samples: Sequence[Sample]) -> list[int]:
        """Empty, as this is no mixture."""
        return []

    def layouts_of(self, samples: Sequence[Sample]) -> Layouts:
        """Of the fields that crops make."""
        return self.transforms.layouts

    def collated(self, samples: list[Sample]) -> tuple[list[Sample], list[str]]:
        """The samples as they are collated, and the fields of their batch in their order.

        Raises:
            TransformError: As of `batch_fields_of`.
        """
        configured = [field.name for field in self.settings.fields]
        batch_format, (_, of_samples) = self.settings.batch_format, self.settings.steps
        return samples, batch_fields_of(samples, configured, batch_format, of_samples)

    def between(self, start: int, stop: int) -> tuple[list[Sample], dict[int, BadSample]]:
        """The rows at these positions of the epoch, and the bad samples by row."""
        bad: dict[int, BadSample] = {}
        return list(self._made_between(start, stop, bad)), bad

    def _made_between(self, start: int, stop: int, bad: dict[int, BadSample]) -> Iterator[Sample]:
        ids = self.settings.order.at(self.epoch, start, stop).tolist()
        for position, (shard, sample) in enumerate(ids, start):
            row, replaced = self.made(position, shard, sample)
            if replaced is not None:
                bad[position - start] = replaced
            yield row

    def made(self, position: int, shard: int, sample: int) -> tuple[Sample, BadSample | None]:
        """The row at a position, and the bad sample that it stands for, if it stands for one.

        Raises:
            ShardError: The shard has changed, or the sample is bad and may not be replaced.
        """
        with self.clock.on("open"):
            self.shards.reader(shard)  # before the try: a changed shard is not a bad sample
        try:
            return self._row(position, shard, sample), None
        except BAD as error:
            return self._stand_in(position, (shard, sample), error), bad_sample(
                shard, sample, error
            )

    def _row(self, position: int, shard: int, sample: int) -> Sample:
        self.transforms.seed_decoders(position)
        try:
            row = read_sample(self.shards, self.settings.fields, shard, sample, self.clock)
        except BAD:
            self.unreadable.add((shard, sample))
            raise
        return self.transforms.apply(row, position)

    def _stand_in(self, position: int, bad: tuple[int, int], error: Exception) -> Sample:
        """The substitute of a bad sample; its error, if the budget ends before a good one."""
        if self.settings.max_bad is None:
            raise refused(error)
        tried = {bad}  # what follows in a small component begins again with the same ones
        for sample_id in self._following(position):
            if sample_id in tried:
                continue
            tried.add(sample_id)
            if sample_id in self.unreadable:
                continue
            self.shards.reader(sample_id[0])
            with suppress(*BAD):
                return StandIn(self._row(position, *sample_id))
        error.add_note(_none_is_good(len(tried) - 1))
        raise error

    def _following(self, position: int) -> Iterator[tuple[int, int]]:
        """Ids of possible substitutes; most often one is enough, so the first look-up is small."""
        tries = min((self.settings.max_bad or 0) + 1, self.settings.order.samples)
        tried, size = 0, 1
        while tried < tries:
            following = self.settings.order.following(self.epoch, position, size).tolist()
            yield from ((shard, sample) for shard, sample in following[tried:])
            tried, size = size, min(2 * size, tries)


def _none_is_good(tried: int) -> str:
    """What to say of a bad sample after so many others, none of which is good."""
    if not tried:
        return "there is no other sample that could stand for it"
    follow = "sample that follows" if tried == 1 else f"{tried} samples that follow"
    return f"the {follow} it in the order {'is' if tried == 1 else 'are'} bad, too"


class RowMaker(Protocol):
    """Makes the rows of one epoch: `rows.EpochRows`, or those of a mixture."""

    @property
    def settings(self) -> RowSettings:
        """What they follow from; of a mixture what all components have in common."""
        ...

    @property
    def epoch(self) -> int:
        """Number of the epoch."""
        ...

    @property
    def clock(self) -> StageClock:
        """Measures the time of each stage."""
        ...

    @property
    def arena(self) -> Arena | None:
        """Memory for the tensors of batches."""
        ...

    @property
    def reads_by_fields(self) -> bool:
        """Whether batches can be made field by field."""
        ...

    def look_up(
        self, ids: Ints, spans: Sequence[tuple[int, int]], weights: Sequence[Sequence[int]]
    ) -> Callable[[int], LoadedBatch]:
        """Find where the members of a stretch lie; what comes back gives its batches by number.

        A `collate_fn` is still to be called for these.
        """
        ...

    def keeping_globals(self) -> AbstractContextManager[None]:
        """A context for one batch, which restores the global generators if these may use them."""
        ...

    def between(self, start: int, stop: int) -> tuple[list[Sample], dict[int, BadSample]]:
        """The rows at these positions of the epoch, and the bad samples by row."""
        ...

    def collated(self, samples: list[Sample]) -> tuple[list[Sample], list[str]]:
        """The samples as they are collated, and the fields of their batch in their order."""
        ...

    def layouts_of(self, samples: Sequence[Sample]) -> Layouts:
        """Of the fields that crops make."""
        ...

    def components_of(self, samples: Sequence[Sample]) -> list[int]:
        """The component of each of these samples; empty where there is no mixture."""
        ...


def batches_of_worker(
    reading: AbstractContextManager[Reading],
    worker_epochs: Iterator[WorkerEpoch],
    begin: Callable[[Reading], Callable[[int], RowMaker]],
) -> Iterator[LoadedBatch]:
    """The batches of one worker, beyond the ends of epochs, without end.

    Args:
        reading: What they are read by; it is entered for the first of them.
        worker_epochs: The worker's part of each epoch.
        begin: Gives what makes the rows of each epoch, by its number.

    Raises:
        ShardError: A shard has changed or is damaged, or a sample cannot be made.
    """
    with reading as opened:
        rows_of = begin(opened)
        for turn, worker_epoch in enumerate(worker_epochs):
            batches = _batches_of_epoch(worker_epoch, rows_of(worker_epoch.epoch))
            yield from opened.followed(turn, worker_epoch, batches)


def _batches_of_epoch(worker_epoch: WorkerEpoch, rows: RowMaker) -> Iterator[LoadedBatch]:
    """The batches of one epoch: field by field, or sample by sample if that is not possible."""
    by_fields, settings = rows.reads_by_fields, rows.settings
    spans = ((step, worker_epoch.span(step)) for step in worker_epoch.own_steps())
    for _, stretch in groupby(spans, lambda step_span: step_span[1][0] // settings.stretch):
        steps, spans_of_steps = map(list, zip(*stretch, strict=True))
        planned = [worker_epoch.weights(step) for step in steps]
        make_by_fields = None
        if by_fields:
            ids = settings.order.at_spans(rows.epoch, spans_of_steps)
            of_spans = zip(planned, spans_of_steps, strict=True)
            weights = [_weights(*each, settings.max_bad) for each in of_spans]
            make_by_fields = rows.look_up(ids, spans_of_steps, weights)
        for number, span in enumerate(spans_of_steps):
            by_field = partial(make_by_fields, number) if make_by_fields else None
            by_sample = partial(batch_by_samples, rows, span, planned[number])
            loaded = _batch(by_field, by_sample, settings.max_bad)
            if settings.collation.collate_fn is not None:
                layouts = rows.layouts_of(cast("list[Sample]", loaded.batch))
                loaded = settings.collation.finished_on(loaded, rows.clock, layouts)
            yield loaded


def _batch(
    by_field: Callable[[], LoadedBatch] | None,
    by_sample: Callable[[], LoadedBatch],
    max_bad: int | None,
) -> LoadedBatch:
    """The batch that one of the two ways gives; `by_field` is None if it cannot be used."""
    try:
        return by_field() if by_field else by_sample()
    except TorchLoadedError:
        # now that torch is loaded, it is seeded
        return _batch(by_field, by_sample, max_bad)
    except BAD as error:
        if by_field is None:
            raise
        if max_bad is None and isinstance(error, TransformError):
            refused(error)
            raise  # it names the bad sample; a second try might succeed and hide it
    return _batch(None, by_sample, max_bad)


def _weights(planned: list[int], span: tuple[int, int], max_bad: int | None) -> list[int]:
    """The weights of a batch without a bad sample."""
    return planned if planned or max_bad is None else [1] * (span[1] - span[0])


def batch_by_samples(rows: RowMaker, span: tuple[int, int], planned: list[int]) -> LoadedBatch:
    """A batch made sample by sample; its errors name the bad sample.

    Raises:
        ShardError: It cannot be made.
    """
    settings = rows.settings
    with rows.keeping_globals():
        samples, bad = rows.between(*span)
    weights = planned if settings.max_bad is None else weights_of(samples, planned)
    # a bad sample that is repeated is counted only where it is no repeat
    reported = [bad[row] for row in bad if not planned or planned[row]]
    with rows.clock.on("collate"):
        samples, names = rows.collated(samples)
        made = (samples, names, weights, settings.batch_format, reported, rows.arena)
        layouts, components = rows.layouts_of(samples), rows.components_of(samples)
        loaded = settings.collation.begun(*made, layouts, components=components)
    return loaded._replace(stages=rows.clock.take())
