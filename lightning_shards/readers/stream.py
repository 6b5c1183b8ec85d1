"""The stream reader: whole shards, read from their beginnings by pipelines of webdataset.

Each component of a mixture has a pipeline of its own, and the slots of the mixture say whose sample
comes next. A data set alone is one pipeline.
"""

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, nullcontext
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, NamedTuple, cast

from webdataset.filters import shuffle
from webdataset.pipeline import DataPipeline

from lightning_shards.errors import ConfigError, SampleError, StateError
from lightning_shards.plan.epoch import EpochSchedule, WorkerEpoch
from lightning_shards.plan.kept_order import KeptOrder
from lightning_shards.plan.mixture import MixtureIdentity, component_seed
from lightning_shards.plan.order import Order, SampleOrder, Sampling
from lightning_shards.plan.place import Cursor, Place
from lightning_shards.plan.slots import MixtureSlots
from lightning_shards.readers.bad_samples import (
    SAMPLES_TRIED,
    BadSampleLedger,
    epochs_to_try,
    weights_of,
)
from lightning_shards.readers.mixed import Components, described, of_component
from lightning_shards.readers.reading import FetchMeter
from lightning_shards.readers.recipe import Recipe
from lightning_shards.readers.source import ServedSample, SourceDescription, shard_identity
from lightning_shards.readers.stream_stages import (
    ApplyTransforms,
    DecodeFields,
    Draws,
    NamedStage,
    ReadSlices,
    ShardSlice,
    Stage,
    Watch,
    drawn_slices,
    exact_slices,
    lacking_members,
    read_again,
    require_no_stages,
)
from lightning_shards.samples.collate import (
    BUILT_IN_COLLATION,
    BatchFormat,
    Collation,
    LoadedBatch,
    Sample,
)
from lightning_shards.samples.fields import require_found
from lightning_shards.samples.generators import SampleSeeds, preserved_globals, python_generator
from lightning_shards.samples.stage_clock import StageClock
from lightning_shards.samples.tensors import Arena
from lightning_shards.shards.index import ShardIndex
from lightning_shards.shards.storage.schemes import MakeStorage, Storages

_STAGE_POSITIONS = 1 << 48
"""Where the positions that seed stages begin, far above those of samples."""

_SHUFFLE_POSITIONS = 1 << 49
"""Where the positions that seed shuffle buffers begin, far above those of stages."""

_OF_THE_MIX = ("order_version", "seed", "reader")
"""Entries of a component's identity that are those of the whole mix."""


@dataclass(frozen=True)
class Pipeline:
    """What makes the samples of one data set.

    Attributes:
        sampling: `resampled` draws shards with replacement; the others serve each sample once.
        recipe: How the members of a sample become a row.
        stages: The user's stages, after the fields are decoded and before the transforms.
        shuffle_buffer: Samples held by webdataset's shuffle; 0 for none, as `sequential` has.
    """

    sampling: Sampling
    recipe: Recipe
    stages: tuple[Stage, ...] = ()
    shuffle_buffer: int = 1000


class _Component(NamedTuple):
    """A component of a mixture, or all of a split.

    Attributes:
        number: As in `__component__`.
        name: Empty for all of a split.
        pipeline: What makes its samples.
        shards: Its shards.
        first_shard: The number that the first of them has in ids.
        seed: Keys its draws, shuffles and transforms.
    """

    number: int
    name: str
    pipeline: Pipeline
    shards: ShardIndex
    first_shard: int
    seed: int

    def identity(self) -> dict[str, int | str]:
        """What its samples depend on."""
        pipeline, recipe = self.pipeline, self.pipeline.recipe
        own = self.seed, self.shards, recipe.transforms, recipe.fields
        return shard_identity("stream", pipeline.sampling, *own) | self.shards.kept_identity


@dataclass(frozen=True)
class StreamSource:
    """Streams whole shards, over the ends of epochs; restarts from any cursor.

    The draws of a run are one sequence, of which each worker takes every n-th. Where the counts of
    shards are known, a worker that starts in a later epoch finds its place in them by arithmetic.
    Without counts, and with stages, which may drop samples, it begins there with another shard.

    Attributes:
        index: The shards and, where known, how many samples each holds; of a mixture those of all
            components, one after the other.
        epochs: How the stream is cut into epochs.
        seed: Keys every draw, shuffle and transform.
        pipelines: One for each component; a data set is the only component.
        slots: Where in the sequence of a mixture each component stands; None: it is no mixture.
        batch_format: A dict, or the fields in order as a tuple.
        max_bad: Bad samples of an epoch, over all ranks, that are replaced; None: the first raises.
        storages: Storages by scheme, where other ones are to read the shards than by default: a
            callable, which is pickled and makes the storage in the process that reads.
        collation: The `collate_fn` and the reserved entries of the batches.
    """

    index: ShardIndex
    epochs: EpochSchedule
    seed: int
    pipelines: tuple[Pipeline, ...]
    slots: MixtureSlots | None = None
    batch_format: BatchFormat = "dict"
    max_bad: int | None = None
    storages: Mapping[str, MakeStorage] | None = None
    collation: Collation = BUILT_IN_COLLATION

    def with_epochs(self, epochs: EpochSchedule) -> "StreamSource":
        """The same samples, cut into other epochs."""
        return replace(self, epochs=epochs)

    def identity(self) -> dict[str, int | str]:
        """The values that a resumed run must have, too; each start has draws of its own."""
        mixture = self._mixture_identity
        if mixture is None:
            return self._components[0].identity()
        return mixture.values() | {"reader": "stream"}

    def describe(self) -> SourceDescription:
        """All components together; whole shards are kept together."""
        stages = [pipeline.stages for pipeline in self.pipelines]
        return SourceDescription(
            reader="stream",
            sampling=self.pipelines[0].sampling if self.slots is None else "mixture",
            index=self.index,
            is_streamed=True,
            run=0,
            shuffle_buffer=sum(pipeline.shuffle_buffer for pipeline in self.pipelines),
            max_bad=self.max_bad,
            storages=self.storages,
            order=self._order_of_epoch,
            mixture=self._mixture_identity,
            **described(self._names, self._recipes, stages, self.collation),
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
        sampling = self.pipelines[0].sampling
        if cursor.samples and sampling != "resampled":
            raise StateError(
                f"the stream reader cannot begin {cursor.samples} samples into an epoch with "
                f"sampling={sampling!r}; resume from a checkpoint of an epoch's end, or train "
                "with sampling='resampled'"
            )
        clock = StageClock()
        with closing(Storages(self.storages)) as storages, ExitStack() as stack:
            made = [_Running(each, self, clock, storages) for each in self._components]
            running = [stack.enter_context(closing(each)) for each in made]
            meter = FetchMeter(storages.fetch_totals)
            for worker_epoch in self.epochs.worker_epochs(place, cursor):
                for each, share in zip(running, self._shares(worker_epoch), strict=True):
                    each.begin(worker_epoch, share)
                yield from meter.each(self._batches_of(worker_epoch, running, arena, clock))

    def first_sample(self, place: Place) -> LoadedBatch:
        """A batch of one sample, to see that fields, stages and transforms fit; none is replaced.

        Of a mixture it is the largest of those that are made, one of each component.

        Raises:
            ShardError: They do not, or samples of several components do not fit into one batch.
        """
        require_found(
            [
                lacking_members(each.shards, each.pipeline.recipe.fields, self.storages)
                for each in self._components
            ]
        )
        tries = [self._tries(each, place) for each in self._components]
        unit = 1 if self.slots is None else self.slots.schedule.unit
        are_apart = unit % self.epochs.batch_size == 0
        return self._together.first_of(tries, place, self.collation.reserved, are_apart=are_apart)

    def replay(
        self, place: Place, epoch: int, steps: range, num_workers: int
    ) -> list[list[ServedSample]]:
        """The rows of a rank's batches: the shards are read again, and nothing is decoded.

        Raises:
            ConfigError: As of `Source`; or shards are drawn, their counts are unknown, and it is
                not the first epoch: how far the draws went before is unknown.
        """
        for pipeline, shards in zip(self.pipelines, self.index.parts, strict=True):
            require_no_stages(pipeline.stages)
            if epoch and pipeline.sampling == "resampled" and shards.kept_counts is None:
                raise ConfigError(
                    f"which samples come in epoch {epoch} depends on how far the shards were read "
                    "before it, and their counts are unknown; ask of epoch 0, or make counts by "
                    "`lightning-shards index`"
                )
        undecoded = tuple(replace(each, recipe=Recipe()) for each in self.pipelines)
        made = {"batch_format": "dict", "collation": BUILT_IN_COLLATION}
        bare = replace(self, pipelines=undecoded, **made)
        return read_again(bare, place, epoch, steps, num_workers)

    @property
    def _order_of_epoch(self) -> Order | None:
        """One with the samples of a whole epoch; None if it may not serve each of them once."""
        counts, kept = self.index.kept_counts, self.index.kept
        if counts is None or self.pipelines[0].sampling == "resampled":
            return None
        order = SampleOrder(counts, self.seed, "sequential")
        return order if kept is None else KeptOrder(order, kept)

    @property
    def _names(self) -> tuple[str, ...]:
        """Of the components; of a data set alone it is empty."""
        return ("",) if self.slots is None else self.slots.names

    @property
    def _components(self) -> list[_Component]:
        firsts: list[int] = self.index.first_shards.tolist()
        named = zip(self._names, self.pipelines, self.index.parts, firsts, strict=True)
        return [
            _Component(number, *each, component_seed(self.seed, each[0]) if each[0] else self.seed)
            for number, each in enumerate(named)
        ]

    @property
    def _recipes(self) -> tuple[Recipe, ...]:
        return tuple(pipeline.recipe for pipeline in self.pipelines)

    @property
    def _together(self) -> Components:
        are_stacked = self.collation.collate_fn is None
        first_shards = self.index.first_shards
        given = self._names, first_shards, self.batch_format, are_stacked
        return Components(self._recipes, *given)

    @property
    def _mixture_identity(self) -> MixtureIdentity | None:
        if self.slots is None:
            return None
        described: dict[str, str] = {}
        for each in self._components:
            own = {key: of for key, of in each.identity().items() if key not in _OF_THE_MIX}
            described[each.name] = " ".join(f"{key}={value}" for key, value in own.items())
        return MixtureIdentity(self.slots, described)

    def _tries(self, component: _Component, place: Place) -> "list[StreamSource]":
        """A component as a data set alone, once for each sample that is tried before a fit."""
        has_weights = self.epochs.remainder != "drop" or self.max_bad is not None
        samples = component.shards.kept_samples or 0
        recipe, collation = component.pipeline.recipe.watched(), self.collation.watched()
        if component.name:
            collation = replace(collation, component=component.number)
        watched = replace(component.pipeline, sampling="resampled", shuffle_buffer=0, recipe=recipe)
        alone = replace(
            self,
            index=component.shards,
            epochs=epochs_to_try(place, samples, has_weights=has_weights),
            seed=component.seed,
            pipelines=(watched,),
            slots=None,
            max_bad=None,
            collation=collation,
        )
        # without counts a shard is read from its start, which costs least; with them from anywhere
        first = replace(alone, index=replace(component.shards, counts=None))
        others = [] if self.max_bad is None else [alone] * (SAMPLES_TRIED - 1)
        return [first, *others]

    def _shares(self, worker_epoch: WorkerEpoch) -> "list[_Share]":
        """What this worker takes of each component in an epoch.

        Batches are counted through the run, by whole epochs: number i is of the worker
        i % num_workers, whatever number that one has in this epoch.
        """
        plan, place = worker_epoch.plan, worker_epoch.place
        steps = self.epochs.plan(place.world_size).steps
        done = worker_epoch.epoch * steps + steps - plan.steps
        worker = (place.worker + done) % place.num_workers
        slot, stride = worker * place.world_size + place.rank, place.world_size * place.num_workers
        if self.slots is not None:
            at = worker_epoch.epoch * self.slots.epoch_samples + plan.done
            shares = [_Share(slot, stride, int(each) // stride) for each in self.slots.before(at)]
        else:
            before = len(range(worker, done, place.num_workers)) * plan.batch_size
            size = len(range(place.worker, plan.steps, place.num_workers)) * plan.batch_size
            shares = [_Share(slot, stride, before, size)]
        return [
            _Share(slot, stride)
            if each.pipeline.stages
            else share._replace(before=None if each.shards.kept_counts is None else share.before)
            for each, share in zip(self._components, shares, strict=True)
        ]

    def _batches_of(
        self,
        worker_epoch: WorkerEpoch,
        running: "Sequence[_Running]",
        arena: Arena | None,
        clock: StageClock,
    ) -> Iterator[LoadedBatch]:
        together = self._together
        draws_from_globals = any(each.draws_from_globals for each in running)
        for step in worker_epoch.own_steps():
            with preserved_globals() if draws_from_globals else nullcontext():
                rows, numbers = self._rows(running, worker_epoch, step)
                weights = worker_epoch.weights(step)
                weights = weights if self.max_bad is None else weights_of(rows, weights)
                with clock.on("collate"):
                    with together.named_in_errors(numbers):
                        names, layouts = together.collated(rows, numbers)
                        made = (rows, names, weights, self.batch_format, (), arena, layouts)
                        begun = self.collation.begun(*made, components=numbers)
                    loaded = self.collation.finished(begun)
            bad = tuple(bad for each in running for bad in each.ledger.take())
            yield loaded._replace(bad=bad, stages=clock.take())

    def _rows(
        self, running: Sequence["_Running"], worker_epoch: WorkerEpoch, step: int
    ) -> tuple[list[Sample], list[int]]:
        """The rows of the batch of a step, and the component of each; none if it is no mixture."""
        if self.slots is None:
            size = worker_epoch.plan.size(step, worker_epoch.place.rank)
            return running[0].rows(size, step), []
        numbers: list[int] = self.slots.components(
            worker_epoch.epoch, *worker_epoch.span(step)
        ).tolist()
        in_turn = {
            number: iter(running[number].rows(numbers.count(number), step))
            for number in sorted(set(numbers))
        }
        return [next(in_turn[number]) for number in numbers], numbers


class _Share(NamedTuple):
    """What one worker takes of a component in an epoch.

    Attributes:
        slot: The first of its draws.
        stride: How many draws later the next one of its own comes.
        before: Samples that it took in the run before this epoch, or about so many; None where
            that is unknown.
        size: Samples that it takes; None where more are read for them.
    """

    slot: int
    stride: int
    before: int | None = None
    size: int | None = None


class _Running:
    """A pipeline of one worker; the first row opens a shard.

    Attributes:
        ledger: Its bad samples, whose substitutes are its own.
        draws_from_globals: Whether its transforms and stages may draw from the global generators.
    """

    def __init__(
        self, component: _Component, source: StreamSource, clock: StageClock, storages: Storages
    ) -> None:
        self._component, self._clock, self._storages = component, clock, storages
        self._pipeline, self._index = component.pipeline, component.shards
        self._collation, self._is_pinned = source.collation, source.epochs.pinned
        self.ledger = BadSampleLedger(source.max_bad)
        recipe, stages = self._pipeline.recipe, self._pipeline.stages
        self.draws_from_globals = bool(recipe.draw_from_globals(stages))
        # where samples may be bad, it is their number that ends the stream
        buffered = self._pipeline.shuffle_buffer + 16 + (source.max_bad or 0)
        self._watch = Watch(2 * self._index.num_shards + buffered)
        self._opened: Generator[Sample] | None = None  # goes on over the ends of epochs
        self._drawn: Iterator[Sample] = iter(())  # the same, shuffled where its place is unknown
        self._slot, self._num_drawn = 0, 0  # its place: samples of the run that were taken of it
        self._samples: Generator[Sample] | None = None

    def begin(self, worker_epoch: WorkerEpoch, share: _Share) -> None:
        """Begin an epoch."""
        self._end_epoch()
        self._worker_epoch = worker_epoch
        self.ledger.begin(worker_epoch.epoch)
        samples = self._each_once() if self._is_planned else self._all_of(share)
        self._samples = self.ledger.fill(samples, self._spare)

    def rows(self, size: int, step: int) -> list[Sample]:
        """The next rows, for the batch of this step.

        Raises:
            SampleError: A stage has ended the stream or given another number of samples than it
                was given, or a sample cannot be made.
        """
        worker_epoch = self._worker_epoch
        if self.draws_from_globals:
            at = _STAGE_POSITIONS + step * worker_epoch.place.world_size + worker_epoch.place.rank
            self._seeds.seed_globals(at)
        assert self._samples is not None  # an epoch has begun
        rows = list(islice(self._samples, size))
        if len(rows) < size:
            if self._is_planned:
                raise SampleError(
                    f"only {len(rows)} of {size} samples are left for a batch: a stage dropped "
                    "some, but each is planned once; stages that drop samples need "
                    "sampling='resampled'"
                )
            raise SampleError(
                f"{of_component(self._component.name, 'the stream')} gave {len(rows)} of {size} "
                "samples for a batch: one of its stages has ended it; let it go on as long as it "
                "is given samples"
            )
        if self._is_planned and self._is_last(step) and any(self._samples):
            raise SampleError(
                "a stage made more samples than it was given, but each sample is planned once; "
                "stages that add samples need sampling='resampled'"
            )
        return rows

    def close(self) -> None:
        """End the pipeline and close what it has open."""
        self._end_epoch()
        self._end_draws()

    def _end_epoch(self) -> None:
        if self._samples is not None:
            self._samples.close()
            self._samples = None

    def _end_draws(self) -> None:
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    @property
    def _is_planned(self) -> bool:
        """Whether each sample is served once."""
        return self._pipeline.sampling != "resampled"

    @property
    def _seeds(self) -> SampleSeeds:
        return SampleSeeds(
            self._component.seed, self._worker_epoch.epoch, self._worker_epoch.plan.done
        )

    def _is_last(self, step: int) -> bool:
        """Whether this batch is the end of all that was planned for this worker and epoch."""
        is_whole = self._worker_epoch.steps == self._worker_epoch.plan.steps
        return is_whole and step == self._worker_epoch.own_steps()[-1]

    def _each_once(self) -> Iterator[Sample]:
        """The samples of one epoch; repeats (weight 0) come last, by a pipeline of their own."""
        for weight in (1, 0):
            self.ledger.are_counted = weight == 1
            is_shuffled = self._pipeline.sampling == "shuffled"
            seed = self._component.seed
            parts = exact_slices(self._index, seed, self._worker_epoch, weight, is_shuffled)
            yield from self._run(self._shuffled(self._read(parts, self.ledger)), self.ledger)

    def _all_of(self, share: _Share) -> Iterator[Sample]:
        """The samples of one epoch that are drawn; what they are drawn from stays open behind them.

        Raises:
            SampleError: As of `Watch`.
        """
        at = share.size and (self._slot, self._num_drawn)
        goes_on = share.before is None or at == (share.slot, share.before)
        if self._opened is None or self._is_pinned or not goes_on:
            self._begin_draws(share)
        taken = self._drawn
        if share.size is not None:
            taken = self._shuffled(islice(self._counted(self._drawn), share.size))
        yield from self._run(taken, self.ledger)

    def _begin_draws(self, share: _Share) -> None:
        """Open what samples are drawn from, at the place of this worker where that is known."""
        self._end_draws()
        epoch, done = self._worker_epoch.epoch, self._worker_epoch.plan.done
        key = (epoch, done) if share.before is None else (0, 0)
        draws = Draws(self._component.seed, *key, share.slot, share.stride)
        self._slot, self._num_drawn = share.slot, share.before or 0
        parts = drawn_slices(self._index, draws, self._num_drawn)
        self._opened = self._read(parts, self.ledger)
        self._drawn = self._opened if share.size is not None else self._shuffled(self._opened)

    def _counted(self, samples: Iterator[Sample]) -> Iterator[Sample]:
        for sample in samples:
            self._num_drawn += 1
            yield sample

    def _shuffled(self, samples: Iterator[Sample]) -> Iterator[Sample]:
        """The samples as they leave webdataset's shuffle buffer."""
        buffer, place = self._pipeline.shuffle_buffer, self._worker_epoch.place
        if self._pipeline.sampling == "sequential" or buffer < 2:  # noqa: PLR2004 one is no buffer
            return samples
        slot = place.worker * place.world_size + place.rank
        rng = python_generator(self._seeds, _SHUFFLE_POSITIONS + slot)
        return cast("Iterator[Sample]", shuffle(buffer, rng=rng)(samples))

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

    def _read(self, parts: Iterator[ShardSlice], ledger: BadSampleLedger) -> Generator[Sample]:
        """The samples of these slices, undecoded."""
        read_by = self._is_planned, self._clock, self._storages, self._component.first_shard
        return ReadSlices(self._index, self._watch, ledger, *read_by)(parts)

    def _run(self, samples: Iterator[Sample], ledger: BadSampleLedger) -> Iterator[Sample]:
        """These samples through all stages."""
        place, seeds, pipeline = self._worker_epoch.place, self._seeds, self._pipeline
        slot = place.worker * place.world_size + place.rank
        stride = place.world_size * place.num_workers
        # an iterator of its own: to close a pipeline would close what goes on in the next epoch
        stages: list[Any] = [lambda: (sample for sample in samples)]
        # stages get tensors, whatever comes after them
        plain = self._collation.collate_fn is not None and self._collation.takes_arrays
        recipe = pipeline.recipe.with_arrays(plain=plain and not pipeline.stages)
        transforms = recipe.keyed(seeds, self._clock)

        def seed_decoders(number: int) -> None:
            transforms.seed_decoders(slot + number * stride)

        stages.append(DecodeFields(recipe.fields, ledger.lose, self._clock, seed_decoders))
        stages += [NamedStage(number, stage) for number, stage in enumerate(pipeline.stages)]
        stages.append(ApplyTransforms(transforms, slot, stride, ledger.lose))
        stages.append(self._watch.arrived)
        return iter(DataPipeline(*stages))
