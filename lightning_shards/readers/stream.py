"""The stream reader: whole shards, read from their beginnings by pipelines of webdataset.

Each component of a mixture has a pipeline of its own, and the slots of the mixture say whose sample
comes next. A data set alone is one pipeline.
"""

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, nullcontext
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, NamedTuple

from webdataset.filters import shuffle
from webdataset.pipeline import DataPipeline

from lightning_shards.errors import SampleError, StateError
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
from lightning_shards.readers.source import (
    ServedSample,
    SourceDescription,
    read_again,
    require_no_stages,
    shard_identity,
)
from lightning_shards.readers.stream_stages import (
    ApplyTransforms,
    DecodeFields,
    NamedStage,
    ReadSlices,
    ShardSlice,
    Stage,
    Watch,
    exact_slices,
    lacking_members,
    resampled_slices,
)
from lightning_shards.samples.collate import BatchFormat, LoadedBatch, Sample
from lightning_shards.samples.collate_fn import BUILT_IN_COLLATION, Collation
from lightning_shards.samples.generators import SampleSeeds, preserved_globals, python_generator
from lightning_shards.samples.stage_clock import StageClock
from lightning_shards.samples.tensors import Arena
from lightning_shards.shards.index import ShardIndex
from lightning_shards.shards.remote.proxies import require_hosts
from lightning_shards.shards.storage.schemes import MakeStorage, Storages, shared_out

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
    """Streams whole shards; restarts from any cursor, with fresh draws.

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
        storages_here = shared_out(self.storages, len(place.ranks_of_node))
        with closing(Storages(storages_here)) as storages:
            meter = FetchMeter(storages.fetch_totals)
            for worker_epoch in self.epochs.worker_epochs(place, cursor):
                yield from meter.each(self._batches_of(worker_epoch, arena, storages))

    def first_sample(self, place: Place) -> LoadedBatch:
        """A batch of one sample, to see that fields, stages and transforms fit; none is replaced.

        Of a mixture it is the largest of those that are made, one of each component.

        Raises:
            ShardError: They do not, or samples of several components do not fit into one batch.
        """
        require_hosts(self.index.urls)
        self._together.require_found(
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
        """The rows of a rank's batches: the shards are read again, and nothing is decoded."""
        for pipeline in self.pipelines:
            require_no_stages(pipeline.stages)
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
        recipe, collation = component.pipeline.recipe.watched(), self.collation.watched()
        if component.name:
            collation = replace(collation, component=component.number)
        watched = replace(component.pipeline, sampling="resampled", shuffle_buffer=0, recipe=recipe)
        alone = replace(
            self,
            index=component.shards,
            epochs=epochs_to_try(place, has_weights=has_weights),
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

    def _batches_of(
        self, worker_epoch: WorkerEpoch, arena: Arena | None, storages: Storages
    ) -> Iterator[LoadedBatch]:
        clock, together = StageClock(), self._together
        with ExitStack() as stack:
            running: list[_Running] = [
                stack.enter_context(closing(_Running(each, self, worker_epoch, clock, storages)))
                for each in self._components
            ]
            draws_from_globals = any(each.draws_from_globals for each in running)
            for step in worker_epoch.own_steps():
                with preserved_globals() if draws_from_globals else nullcontext():
                    rows, numbers = self._rows(running, worker_epoch, step)
                    weights = worker_epoch.weights(step)
                    weights = weights if self.max_bad is None else weights_of(rows, weights)
                    with clock.on("collate"), together.named_in_errors(numbers):
                        names, layouts = together.collated(rows, numbers)
                        made = (rows, names, weights, self.batch_format, (), arena, layouts)
                        begun = self.collation.begun(*made, components=numbers)
                        loaded = self.collation.finished(begun, layouts)
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


class _Running:
    """A pipeline of one worker in one epoch; the first row opens a shard.

    Attributes:
        ledger: Its bad samples, whose substitutes are its own.
        draws_from_globals: Whether its transforms and stages may draw from the global generators.
    """

    def __init__(
        self,
        component: _Component,
        source: StreamSource,
        worker_epoch: WorkerEpoch,
        clock: StageClock,
        storages: Storages,
    ) -> None:
        self._component, self._storages = component, storages
        self._pipeline, self._index = component.pipeline, component.shards
        self._worker_epoch, self._collation = worker_epoch, source.collation
        self.ledger = BadSampleLedger(source.max_bad, worker_epoch.epoch)
        recipe, stages = self._pipeline.recipe, self._pipeline.stages
        self.draws_from_globals = bool(recipe.draw_from_globals(stages))
        samples = self._all(clock)
        self._samples: Generator[Sample] = self.ledger.fill(samples, self._spare)

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
        self._samples.close()

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

    def _all(self, clock: StageClock) -> Iterator[Sample]:
        """The samples of one epoch; repeats (weight 0) come last, by a pipeline of their own."""
        index, seed, worker_epoch = self._index, self._component.seed, self._worker_epoch
        if not self._is_planned:
            parts = resampled_slices(index, seed, worker_epoch)
            yield from self._run(parts, self.ledger, clock)
            return
        for weight in (1, 0):
            self.ledger.are_counted = weight == 1
            is_shuffled = self._pipeline.sampling == "shuffled"
            parts = exact_slices(index, seed, worker_epoch, weight, is_shuffled)
            yield from self._run(parts, self.ledger, clock)

    def _spare(self) -> Sample:
        """A good sample from anywhere, for a worker that has none of its own."""
        ledger = BadSampleLedger(self.ledger.max_bad, self._worker_epoch.epoch)
        parts = map(ShardSlice, range(self._index.num_shards))
        for sample in self._run(parts, ledger, StageClock()):
            return sample
        raise SampleError(
            "not one sample of these shards is good, so none can stand for a bad one; "
            "on_bad_sample='raise' shows what is wrong with the first"
        )

    def _run(
        self, parts: Iterator[ShardSlice], ledger: BadSampleLedger, clock: StageClock
    ) -> Iterator[Sample]:
        """The samples of these slices, through all stages."""
        place, seeds, pipeline = self._worker_epoch.place, self._seeds, self._pipeline
        slot = place.worker * place.world_size + place.rank
        stride = place.world_size * place.num_workers
        # where samples may be bad, it is their number that ends the stream
        limit = 2 * self._index.num_shards + pipeline.shuffle_buffer + 16 + (ledger.max_bad or 0)
        watch = Watch(limit)
        read_by = self._is_planned, clock, self._storages, self._component.first_shard
        stages: list[Any] = [lambda: parts, ReadSlices(self._index, watch, ledger, *read_by)]
        if pipeline.sampling != "sequential" and pipeline.shuffle_buffer > 1:
            rng = python_generator(seeds, _SHUFFLE_POSITIONS + slot)
            stages.append(shuffle(pipeline.shuffle_buffer, rng=rng))
        # stages get tensors, whatever comes after them
        plain = self._collation.collate_fn is not None and self._collation.takes_arrays
        recipe = pipeline.recipe.with_arrays(plain=plain and not pipeline.stages)
        transforms = recipe.keyed(seeds, clock)

        def seed_decoders(number: int) -> None:
            transforms.seed_decoders(slot + number * stride)

        stages.append(DecodeFields(recipe.fields, ledger.lose, clock, seed_decoders))
        stages += [NamedStage(number, stage) for number, stage in enumerate(pipeline.stages)]
        stages.append(ApplyTransforms(transforms, slot, stride, ledger.lose))
        stages.append(watch.arrived)
        return iter(DataPipeline(*stages))
