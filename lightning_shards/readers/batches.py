"""The batches of one worker: field by field, or sample by sample to name or replace a bad one."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final

from lightning_shards.errors import TransformError
from lightning_shards.plan.epoch import WorkerEpoch
from lightning_shards.plan.order import Order
from lightning_shards.readers.bad_samples import BAD, StandIn, bad_sample, refused, weights_of
from lightning_shards.readers.batch_reader import BatchReader
from lightning_shards.readers.mixed import Components
from lightning_shards.readers.open_shards import OpenShards, read_sample
from lightning_shards.samples.collate import BadSample, Collation, LoadedBatch, Sample
from lightning_shards.samples.generators import SampleSeeds
from lightning_shards.samples.stage_clock import StageClock
from lightning_shards.samples.tensors import Arena, torch_if_loaded
from lightning_shards.samples.transforms import SampleTransforms

STRETCH: Final = 16_384
"""Positions of an epoch that are looked up together; as many as a block has by default."""

_MOST_STRETCHES: Final = 4
"""At most so many stretches of a single data set are looked up together, one for each component.
A stretch that needs only a part of each component's block reads nearly all of the block, and the
next stretch reads it again."""


@dataclass
class WorkerBatches:
    """Makes the batches of one worker.

    The first good sample that follows in the order replaces a bad one. It does not depend on the
    worker, so batches are equal under any number of workers.

    Attributes:
        order: Gives the sample at each position of an epoch.
        seed: Key of the randomness of transforms.
        components: The recipes of its samples.
        max_bad: Bad samples that may be replaced; None: the first one raises.
        collation: The `collate_fn` and the reserved entries of the batches.
        shards: The open shards that samples are read from.
        clock: Measures the time of each stage.
        arena: Memory for the tensors of batches, as far as they fit.
        reader: Makes batches field by field; None if that is not possible.
        unreadable: Ids of samples that could not be read. They are not tried again: n of them in a
            row would cost n**2 reads.
    """

    order: Order
    seed: int
    components: Components
    max_bad: int | None
    collation: Collation
    shards: OpenShards
    clock: StageClock
    arena: Arena | None
    reader: BatchReader | None
    unreadable: set[tuple[int, int]] = field(default_factory=set[tuple[int, int]])

    def batches(self, worker_epoch: WorkerEpoch) -> Iterator[LoadedBatch]:
        """The batches of one epoch.

        Raises:
            ShardError: A shard has changed or is damaged, or a sample cannot be made.
        """
        epoch = _Epoch(self, worker_epoch)
        stretch = STRETCH * min(len(self.components.recipes), _MOST_STRETCHES)
        spans = ((step, worker_epoch.span(step)) for step in worker_epoch.own_steps())
        for _, together in groupby(spans, lambda step_span: step_span[1][0] // stretch):
            steps, spans_of_steps = map(list, zip(*together, strict=True))
            epoch.look_up(steps, spans_of_steps)
            for number, step in enumerate(steps):
                loaded = epoch.batch(number, step)
                if self.collation.collate_fn is not None:
                    with self.clock.on("collate"):  # told with the next batch
                        loaded = self.collation.finished(loaded)
                yield loaded

    def numbers_of(self, samples: Sequence[Sample]) -> list[int]:
        """The component of each of these samples; empty if it is no mixture."""
        if not self.components.is_mixture:
            return []
        return [self.components.of_shard(sample["__id__"][0]) for sample in samples]


class _Epoch:
    """One epoch of a worker, with the transforms that its number keys."""

    def __init__(self, maker: WorkerBatches, worker_epoch: WorkerEpoch) -> None:
        self._maker, self._worker_epoch, self._epoch = maker, worker_epoch, worker_epoch.epoch
        seeds, components = SampleSeeds(maker.seed, worker_epoch.epoch), maker.components
        made: dict[int, SampleTransforms] = {}
        for number in set(components.made_by):
            made[number] = components.recipes[number].keyed(seeds, maker.clock)
        self._transforms = [made[number] for number in components.made_by]

    def look_up(self, steps: Sequence[int], spans: Sequence[tuple[int, int]]) -> None:
        """Find where the members of the batches of these steps lie."""
        if (reader := self._maker.reader) is None:
            return
        planned = (self._worker_epoch.weights(step) for step in steps)
        weights = [
            own if own or self._maker.max_bad is None else [1] * (stop - start)
            for own, (start, stop) in zip(planned, spans, strict=True)
        ]
        ids = self._maker.order.at_spans(self._epoch, spans)
        reader.look_up(ids, [range(*span) for span in spans], self._transforms, weights)

    def batch(self, number: int, step: int) -> LoadedBatch:
        """The batch of a step, which is number `number` of those that were looked up."""
        had_torch = torch_if_loaded() is not None
        made = self._batch(number, step)
        if had_torch or torch_if_loaded() is None:
            return made
        return self._batch(number, step)  # what loaded torch may draw from it, seeded only now

    def _batch(self, number: int, step: int) -> LoadedBatch:
        maker = self._maker
        if maker.reader is not None:
            try:
                return maker.reader.batch(number)
            except BAD as error:
                if maker.max_bad is None and isinstance(error, TransformError):
                    refused(error)
                    raise  # it names the bad sample; a second try might succeed and hide it
        return self.batch_by_samples(step)

    def batch_by_samples(self, step: int) -> LoadedBatch:
        """The batch of a step, made sample by sample; its errors name the bad sample.

        Raises:
            ShardError: It cannot be made.
        """
        maker, planned = self._maker, self._worker_epoch.weights(step)
        with ExitStack() as stack:
            for transforms in {id(each): each for each in self._transforms}.values():
                stack.enter_context(transforms.keeping_globals())
            rows, bad = self._rows(*self._worker_epoch.span(step))
        weights = planned if maker.max_bad is None else weights_of(rows, planned)
        # a bad sample that is repeated is counted only where it is no repeat
        reported = [bad[row] for row in bad if not planned or planned[row]]
        numbers = maker.numbers_of(rows)
        with maker.clock.on("collate"), maker.components.named_in_errors(numbers):
            names, layouts = maker.components.collated(rows, numbers)
            made = (rows, names, weights, maker.components.batch_format, reported, maker.arena)
            loaded = maker.collation.begun(*made, layouts, components=numbers)
        return loaded._replace(stages=maker.clock.take())

    def _rows(self, start: int, stop: int) -> tuple[list[Sample], dict[int, BadSample]]:
        """The rows at these positions of the epoch, and the bad samples by row."""
        rows: list[Sample] = []
        bad: dict[int, BadSample] = {}
        ids = self._maker.order.at(self._epoch, start, stop).tolist()
        for position, (shard, sample) in enumerate(ids, start):
            with self._maker.clock.on("open"):
                self._maker.shards.reader(shard)  # a changed shard is not a bad sample
            try:
                rows.append(self._row(position, shard, sample))
            except BAD as error:
                rows.append(self._stand_in(position, (shard, sample), error))
                bad[position - start] = bad_sample(shard, sample, error)
        return rows, bad

    def _row(self, position: int, shard: int, sample: int) -> Sample:
        maker, number = self._maker, self._maker.components.of_shard(shard)
        transforms, fields = self._transforms[number], maker.components.recipes[number].fields
        transforms.seed_decoders(position)
        try:
            row = read_sample(maker.shards, fields, shard, sample, maker.clock)
        except BAD:
            maker.unreadable.add((shard, sample))
            raise
        return transforms.apply(row, position)

    def _stand_in(self, position: int, bad: tuple[int, int], error: Exception) -> Sample:
        """The substitute of a bad sample; its error, if the budget ends before a good one."""
        maker, tried = self._maker, {bad}
        if maker.max_bad is None:
            raise refused(error)
        # what follows in a small component begins again with the same ones
        for sample_id in self._following(position):
            if sample_id in tried:
                continue
            tried.add(sample_id)
            if sample_id in maker.unreadable:
                continue
            maker.shards.reader(sample_id[0])
            with suppress(*BAD):
                return StandIn(self._row(position, *sample_id))
        error.add_note(_none_is_good(len(tried) - 1))
        raise error

    def _following(self, position: int) -> Iterator[tuple[int, int]]:
        """Ids of possible substitutes; most often one is enough, so the first look-up is small."""
        order = self._maker.order
        tries = min((self._maker.max_bad or 0) + 1, order.samples)
        tried, size = 0, 1
        while tried < tries:
            following = order.following(self._epoch, position, size).tolist()
            yield from ((shard, sample) for shard, sample in following[tried:])
            tried, size = size, min(2 * size, tries)


def _none_is_good(tried: int) -> str:
    """What to say of a bad sample after so many others, none of which is good."""
    if not tried:
        return "there is no other sample that could stand for it"
    follow = "sample that follows" if tried == 1 else f"{tried} samples that follow"
    return f"the {follow} it in the order {'is' if tried == 1 else 'are'} bad, too"
