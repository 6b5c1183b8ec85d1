"""The stream reader: whole shards, read from their beginnings as by a pipeline of webdataset.

Each component of a mixture has a pipeline of its own, and the slots of the mixture say whose sample
comes next. A data set alone is one pipeline.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from itertools import chain, count, islice
from typing import Any

from lightning_shards.errors import ConfigError, DamagedShardError, SampleError, StateError
from lightning_shards.plan.epoch import EpochSchedule, WorkerEpoch
from lightning_shards.plan.mixture import MixtureIdentity, component_seed
from lightning_shards.plan.order import Sampling
from lightning_shards.plan.place import Cursor, Place
from lightning_shards.readers.bad_samples import SAMPLES_TRIED, BadSampleLedger, weights_of
from lightning_shards.readers.recipe import Recipe, ShardSource, in_turn, of_component
from lightning_shards.readers.source import (
    ServedSample,
    SourceDescription,
    metered,
    shard_identity,
)
from lightning_shards.readers.stream_stages import (
    ShardSlice,
    buffered,
    drawn_slices,
    exact_slices,
    read_again,
    read_shard,
    staged,
)
from lightning_shards.samples.collate import BUILT_IN_COLLATION, LoadedBatch, Sample
from lightning_shards.samples.generators import SampleSeeds, python_generator
from lightning_shards.samples.stage_clock import StageClock
from lightning_shards.samples.tensors import Arena, load_torch
from lightning_shards.shards.storage.schemes import Storages

_STAGE_POSITIONS = 1 << 48
"""Where the positions that seed stages begin, far above those of samples."""

_SHUFFLE_POSITIONS = 1 << 49
"""Where the positions that seed shuffle buffers begin, far above those of stages."""

_OF_THE_MIX = ("order_version", "seed", "reader")
"""Entries of a component's identity that are those of the whole mix."""

_KEPT = ("__key__", "__url__", "__local_path__", "__id__")
"""The keys of a sample that are not suffixes of members."""


@dataclass(frozen=True, kw_only=True)
class StreamSource(ShardSource):
    """Streams whole shards, over the ends of epochs; restarts from any cursor.

    The draws of a run are one sequence, of which each worker takes every n-th. Where the counts of
    shards are known, a worker that starts in a later epoch finds its place in them by arithmetic.
    Without counts, and with stages, which may drop samples, it begins there with another shard.

    Attributes:
        sampling: `resampled` draws shards with replacement; the others serve each sample once.
    """

    sampling: Sampling

    def identity(self) -> dict[str, int | str]:
        """The values that a resumed run must have, too; each start has draws of its own."""
        mixture = self._mixture_identity
        return self._identity_of(0) if mixture is None else mixture.values() | {"reader": "stream"}

    def describe(self) -> SourceDescription:
        """All components together; whole shards are kept together."""
        is_unknown = self.index.kept_counts is None or self.sampling == "resampled"
        return self.described(
            "stream",
            self.sampling if self.slots is None else "mixture",
            is_streamed=True,
            run=0,
            order=None if is_unknown else in_turn(self.index, self.seed),
            mixture=self._mixture_identity,
        )

    def prepare(self) -> None:
        """Nothing: a stream needs no tables."""

    def batches(
        self, place: Place, cursor: Cursor, arena: Arena | None = None
    ) -> Iterator[LoadedBatch]:
        """The batches of one worker from the cursor on, over the ends of epochs, without end.

        Raises:
            StateError: The cursor is inside an epoch that serves each sample once. Ranks and
                workers read stretches of their own, not the epoch's first samples.
            ShardError: A shard, a sample or a stage cannot give what was planned, or samples of
                several components do not fit into one batch.
        """
        if cursor.samples and self.sampling != "resampled":
            raise StateError(
                f"the stream reader cannot begin {cursor.samples} samples into an epoch with "
                f"sampling={self.sampling!r}; resume from a checkpoint of an epoch's end, or train "
                "with sampling='resampled'"
            )
        with closing(Storages(self.storages)) as storages, ExitStack() as stack:
            clock = StageClock()
            made = [_Pipeline(self, n, clock, storages) for n in range(len(self.recipes))]
            pipelines = [stack.enter_context(closing(each)) for each in made]
            batches = (
                self._batches_of(worker_epoch, pipelines, arena, clock)
                for worker_epoch in self.epochs.worker_epochs(place, cursor)
            )
            yield from metered(chain.from_iterable(batches), storages.fetch_totals)

    @contextmanager
    def trying(self, place: Place) -> Generator[Callable[[int, int], Sample]]:
        """As of `ShardSource`; the first try reads a shard from its start, which costs least."""
        epoch = next(EpochSchedule(place.world_size, 1, "drop").worker_epochs(place, Cursor()))
        recipes = tuple(replace(recipe, shuffle_buffer=0) for recipe in self.recipes)
        drawn = replace(self, recipes=recipes, sampling="resampled")
        with closing(Storages(self.storages)) as storages:

            def made(number: int, attempt: int) -> Sample:
                with closing(_Pipeline(drawn, number, StageClock(), storages)) as pipeline:
                    return pipeline.row_alone(epoch, attempt)

            yield made

    def replay(
        self, place: Place, epoch: int, steps: range, num_workers: int
    ) -> list[list[ServedSample]]:
        """The rows of a rank's batches: the shards are read again, and nothing is decoded.

        Raises:
            ConfigError: As of `Source`; or shards are drawn, their counts are unknown, and it is
                not the first epoch: how far the draws went before is unknown.
        """
        for recipe, shards in zip(self.recipes, self.index.parts, strict=True):
            is_late = epoch and self.sampling == "resampled" and shards.kept_counts is None
            if recipe.stages or is_late:
                why = "the counts of the shards, and so what was read before, are unknown"
                if recipe.stages:
                    why = "`stages` may drop, add or move samples"
                raise ConfigError(
                    f"the keys of these batches of epoch {epoch} are told by a run alone: {why}; "
                    "iterate over ShardDataModule.loader() and read `__key__` of its batches"
                )
        undecoded = tuple(Recipe(shuffle_buffer=each.shuffle_buffer) for each in self.recipes)
        bare = replace(self, recipes=undecoded, batch_format="dict", collation=BUILT_IN_COLLATION)
        return read_again(bare, place, epoch, steps, num_workers)

    def _identity_of(self, number: int) -> dict[str, int | str]:
        """What the samples of a component depend on."""
        index, recipe = self.index.parts[number], self.recipes[number]
        own = self.seed, index, recipe.transforms, recipe.fields
        return shard_identity("stream", self.sampling, *own) | index.kept_identity

    @property
    def _mixture_identity(self) -> MixtureIdentity | None:
        if self.slots is None:
            return None
        described: dict[str, str] = {}
        for number, name in enumerate(self.slots.names):
            own = self._identity_of(number).items()
            described[name] = " ".join(f"{k}={of}" for k, of in own if k not in _OF_THE_MIX)
        return MixtureIdentity(self.slots, described)

    def _batches_of(
        self,
        worker_epoch: WorkerEpoch,
        pipelines: "Sequence[_Pipeline]",
        arena: Arena | None,
        clock: StageClock,
    ) -> Iterator[LoadedBatch]:
        for each in pipelines:
            each.begin(worker_epoch)
        for step in worker_epoch.own_steps():
            rows, numbers = self._rows(pipelines, worker_epoch, step)
            weights = worker_epoch.weights(step)
            weights = weights if self.max_bad is None else weights_of(rows, weights)
            with clock.on("collate"):
                begun = self.batch_of(rows, numbers, weights, arena=arena)
                loaded = self.collation.finished(begun)
            bad = tuple(bad for each in pipelines for bad in each.ledger.take())
            yield loaded._replace(bad=bad, stages=clock.take())

    def _rows(
        self, pipelines: Sequence["_Pipeline"], worker_epoch: WorkerEpoch, step: int
    ) -> tuple[list[Sample], list[int]]:
        """The rows of the batch of a step, and the component of each; none if it is no mixture."""
        if self.slots is None:
            size = worker_epoch.plan.size(step, worker_epoch.place.rank)
            return pipelines[0].rows(size, step), []
        span = worker_epoch.span(step)
        numbers: list[int] = self.slots.components(worker_epoch.epoch, *span).tolist()
        in_turns = {
            number: iter(pipelines[number].rows(numbers.count(number), step))
            for number in sorted(set(numbers))
        }
        return [next(in_turns[number]) for number in numbers], numbers


class _Pipeline:
    """What makes the samples of a component in one worker; the first row opens a shard.

    Attributes:
        ledger: Its bad samples, whose substitutes are its own.
    """

    def __init__(
        self, source: StreamSource, number: int, clock: StageClock, storages: Storages
    ) -> None:
        self._source, self._number, self._clock, self._storages = source, number, clock, storages
        self._name = source.names[number]
        self._seed = component_seed(source.seed, self._name) if self._name else source.seed
        self._index = source.index.parts[number]
        self._first_shard = int(source.index.first_shards[number])
        self._is_planned = source.sampling != "resampled"  # each sample is served once
        self.ledger = BadSampleLedger(source.max_bad)
        self._recipe = source.recipes[number]
        self._draws_from_globals = bool(self._recipe.draw_from_globals)
        # where samples may be bad, it is their number that ends the stream
        buffered = self._recipe.shuffle_buffer + 16 + (source.max_bad or 0)
        self._most_opened, self._num_opened = 2 * self._index.num_shards + buffered, 0
        # samples: those of the epoch. opened: what goes on over the ends of epochs, and drawn: the
        # same, shuffled where its place is unknown, which is how many of the run were taken of it.
        self._samples = self._opened = (sample for sample in list[Sample]())
        self._drawn: Iterator[Sample] = self._opened
        self._slot, self._num_drawn = -1, 0

    def begin(self, worker_epoch: WorkerEpoch) -> None:
        """Begin an epoch."""
        self._samples.close()
        self._worker_epoch, place = worker_epoch, worker_epoch.place
        self._stride = place.world_size * place.num_workers
        self._own = place.worker * place.world_size + place.rank  # its number among these
        self._at: tuple[int, int] = worker_epoch.epoch, worker_epoch.plan.done
        self._seeds = SampleSeeds(self._seed, *self._at)
        self.ledger.begin(worker_epoch.epoch)
        samples = self._each_once() if self._is_planned else self._all_of()
        self._samples = self.ledger.fill(samples, self._spare)

    def rows(self, size: int, step: int) -> list[Sample]:
        """The next rows, for the batch of this step.

        Raises:
            SampleError: A stage has ended the stream or given another number of samples than it
                was given, or a sample cannot be made.
        """
        place = self._worker_epoch.place
        if self._draws_from_globals:
            self._seeds.seed_globals(_STAGE_POSITIONS + step * place.world_size + place.rank)
        rows = list(islice(self._samples, size))
        if len(rows) < size:
            if self._is_planned:
                raise SampleError(
                    f"only {len(rows)} of {size} samples are left for a batch: a stage dropped "
                    "some, but each is planned once; stages that drop samples need "
                    "sampling='resampled'"
                )
            raise SampleError(
                f"{of_component(self._name, 'the stream')} gave {len(rows)} of {size} samples for "
                "a batch: one of its stages has ended it; let it go on as long as it is given "
                "samples"
            )
        if self._is_planned and self._is_last(step) and any(self._samples):
            raise SampleError(
                "a stage made more samples than it was given, but each sample is planned once; "
                "stages that add samples need sampling='resampled'"
            )
        return rows

    def row_alone(self, worker_epoch: WorkerEpoch, attempt: int) -> Sample:
        """A row for a try: each attempt and each rank takes it from another part of the shards."""
        self.begin(worker_epoch)
        self._samples = self._run(self._read(self._apart(attempt), self.ledger), self.ledger)
        return self.rows(1, 0)[0]

    def _apart(self, attempt: int) -> Iterator[ShardSlice]:
        counts = self._index.kept_counts
        for number in count(self._own + attempt):
            shard = number % self._index.num_shards
            skip = 0 if counts is None else int(counts[shard]) * attempt // SAMPLES_TRIED
            yield ShardSlice(shard, skip)

    def close(self) -> None:
        """End the pipeline and close what it has open."""
        self._samples.close()
        self._opened.close()

    def _is_last(self, step: int) -> bool:
        """Whether this batch is the end of all that was planned for this worker and epoch."""
        is_whole = self._worker_epoch.steps == self._worker_epoch.plan.steps
        return is_whole and step == self._worker_epoch.own_steps()[-1]

    def _each_once(self) -> Iterator[Sample]:
        """The samples of one epoch; repeats (weight 0) come last, by a pipeline of their own."""
        for weight in (1, 0):
            self.ledger.are_counted = weight == 1
            shuffled = self._source.sampling == "shuffled"
            parts = exact_slices(self._index, self._seed, self._worker_epoch, weight, shuffled)
            yield from self._run(self._shuffled(self._read(parts, self.ledger)), self.ledger)

    def _all_of(self) -> Iterator[Sample]:
        """The samples of one epoch that are drawn; what they are drawn from stays open behind them.

        Raises:
            SampleError: No sample comes out.
        """
        slot, before, size = self._share()
        is_there = (self._slot, self._num_drawn) == (slot, before)
        goes_on = self._slot >= 0 if before is None else size and is_there
        if self._source.epochs.pinned or not goes_on:
            self._opened.close()
            self._slot, self._num_drawn = slot, before or 0
            begin = self._at if before is None else (0, 0)
            draws = slot, self._stride
            parts = drawn_slices(self._index, self._seed, begin, draws, self._num_drawn)
            self._opened = self._read(parts, self.ledger)
            self._drawn = self._opened if size is not None else self._shuffled(self._opened)
        taken = self._drawn
        if size is not None:
            taken = self._shuffled(islice(self._counted(taken), size))
        yield from self._run(taken, self.ledger)

    def _share(self) -> tuple[int, int | None, int | None]:
        """What this worker takes in an epoch of what is drawn.

        Batches are counted through the run, by whole epochs: number i is of the worker
        i % num_workers, whatever number that one has in this epoch.

        Returns:
            The first of its draws; samples that it took in the run before this epoch, or about so
            many, None where that is unknown; and samples that it takes, None where more are read
            for them.
        """
        plan, place, epochs = self._worker_epoch.plan, self._worker_epoch.place, self._source.epochs
        steps = epochs.plan(place.world_size).steps
        done = self._worker_epoch.epoch * steps + steps - plan.steps
        worker = (place.worker + done) % place.num_workers
        slot, slots = worker * place.world_size + place.rank, self._source.slots
        if self._recipe.stages:
            return slot, None, None
        before = len(range(worker, done, place.num_workers)) * plan.batch_size
        size = len(range(place.worker, plan.steps, place.num_workers)) * plan.batch_size
        if slots is not None:
            of_all = slots.before(self._worker_epoch.epoch * slots.epoch_samples + plan.done)
            before, size = int(of_all[self._number]) // self._stride, None
        return slot, None if self._index.kept_counts is None else before, size

    def _counted(self, samples: Iterator[Sample]) -> Iterator[Sample]:
        for sample in samples:
            self._num_drawn += 1
            yield sample

    def _shuffled(self, samples: Iterator[Sample]) -> Iterator[Sample]:
        """The samples as they leave the shuffle buffer."""
        buffer = self._recipe.shuffle_buffer
        if self._source.sampling == "sequential" or buffer < 2:  # noqa: PLR2004 one is no buffer
            return samples
        rng = python_generator(self._seeds, _SHUFFLE_POSITIONS + self._own)
        return buffered(samples, buffer, rng.randint)

    def _spare(self) -> Sample:
        """A good sample from anywhere, for a worker that has none of its own."""
        ledger = BadSampleLedger(self.ledger.max_bad)
        parts = map(ShardSlice, range(self._index.num_shards))
        with closing(self._read(parts, ledger)) as read:
            for sample in self._run(read, ledger):
                return sample
        raise SampleError(
            "not one sample of these shards is good, so none can stand for a bad one; "
            "on_bad_sample='raise' shows what is wrong with the first"
        )

    def _read(self, slices: Iterator[ShardSlice], ledger: BadSampleLedger) -> Generator[Sample]:
        """The samples of these slices, undecoded; each knows its `__id__`.

        Raises:
            SampleError: Shards or stages give no sample, because the stream would read for ever.
        """
        for part in slices:
            numbers = self._wanted(part)
            if numbers is not None and not numbers:
                continue  # not worth opening, and no sign of a stream that gives nothing
            self._num_opened += 1
            if self._num_opened > self._most_opened:
                raise SampleError(
                    f"no sample came out of {self._most_opened} shards in a row: they are empty, "
                    "or a stage or a filter drops every sample; look at the shards, `stages`, "
                    "`keep` and `exclude`"
                )
            yield from self._read_slice(part, numbers, ledger)

    def _wanted(self, part: ShardSlice) -> Sequence[int] | None:
        """The numbers of the samples of a slice, ascending; None where they are not known.

        Those of a filter may be known where the counts are not.
        """
        counts, kept = self._index.kept_counts, self._index.kept
        if kept is not None:
            return kept.of_shard(part.shard)[part.skip : part.stop].tolist()
        if counts is not None:
            return range(int(counts[part.shard]))[part.skip : part.stop]
        return None

    def _read_slice(
        self, part: ShardSlice, numbers: Sequence[int] | None, ledger: BadSampleLedger
    ) -> Iterator[Sample]:
        """The samples of a slice with these numbers.

        A damaged shard costs samples, which the ledger replaces if it may. An error of the store
        does not: it is raised, since others could read what this process could not.
        """
        shard, url, index, done = part.shard, self._index.urls[part.shard], self._index, 0
        count = None if index.counts is None else int(index.counts[shard])
        number = part.skip if numbers is None else numbers[0]
        try:
            with closing(read_shard(url, count, number, self._storages)) as samples:
                for sample in self._clock.each(samples, "read"):
                    if numbers is None or (done < len(numbers) and numbers[done] == number):
                        sample["__id__"] = (self._first_shard + shard, number)
                        yield sample
                        done += 1
                    number += 1
                    if part.stop is not None and numbers is not None and done == len(numbers):
                        return
        except DamagedShardError as error:
            left = None if numbers is None else numbers[done:]
            if left is not None and not left and count is not None and number >= count:
                raise  # nothing is lost: there is more than there was
            if left and self._is_planned:
                ledger.lose_planned(self._first_shard + shard, left, error)
            else:
                ledger.lose_rest(self._first_shard + shard, [number], error)

    def _run(self, samples: Iterator[Sample], ledger: BadSampleLedger) -> Generator[Sample]:
        """These samples through all stages."""
        recipe, transforms = self._recipe, self._recipe.keyed(self._seeds, self._clock)

        def decode(members: Sample, _position: int) -> Sample:
            kept = {key: members[key] for key in _KEPT if key in members}
            with self._clock.on("decode"):
                return kept | {field.name: field.decode(members) for field in recipe.fields}

        decoded = self._made(decode, ledger, samples)
        made: Iterator[Sample] = decoded
        if recipe.stages:
            load_torch()  # so that its generators are seeded for them
            webdataset: Any = import_module("webdataset.pipeline")
            steps = (partial(staged, number, stage) for number, stage in enumerate(recipe.stages))
            made = iter(webdataset.DataPipeline(lambda: decoded, *steps))
        for sample in self._made(transforms.apply, ledger, made):
            self._num_opened = 0  # these shards give some
            yield sample

    def _made(
        self,
        make: Callable[[Sample, int], Sample],
        ledger: BadSampleLedger,
        samples: Iterator[Sample],
    ) -> Iterator[Sample]:
        """What is made of each sample by its position, which no other worker or rank has."""
        for number, sample in enumerate(samples):
            try:
                made = make(sample, self._own + number * self._stride)
            except SampleError as error:
                ledger.lose(sample, error)
                continue
            yield made
