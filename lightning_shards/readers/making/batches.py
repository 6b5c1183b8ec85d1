"""The loop over the batches of one epoch: each is made by fields, or else sample by sample."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import groupby
from typing import Protocol, cast

from lightning_shards.errors import TransformError
from lightning_shards.plan.epoch import WorkerEpoch
from lightning_shards.readers.ahead.reading import Reading
from lightning_shards.readers.bad_samples import BAD, refused, weights_of
from lightning_shards.readers.making.rows import RowSettings
from lightning_shards.samples.arena import Arena
from lightning_shards.samples.collate import BadSample, Layouts, LoadedBatch, Sample
from lightning_shards.samples.member_bytes import Ints
from lightning_shards.samples.stage_clock import StageClock
from lightning_shards.samples.transforms import TorchLoadedError


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
