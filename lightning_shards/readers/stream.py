"""The stages of a stream that decode the fields of samples and transform them."""

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, NamedTuple

from webdataset.filters import shuffle
from webdataset.pipeline import DataPipeline

from lightning_shards.errors import (
    SampleError,
    StateError,
)
from lightning_shards.plan.digest import digest_share
from lightning_shards.plan.epoch import EpochSchedule, WorkerEpoch
from lightning_shards.plan.kept_order import KeptOrder
from lightning_shards.plan.order import SampleOrder, Sampling
from lightning_shards.plan.place import Cursor, Place
from lightning_shards.readers.ahead.fetch_ahead import FetchMeter
from lightning_shards.readers.bad_samples import (
    SAMPLES_TRIED,
    BadSampleLedger,
    epochs_to_try,
    first_good_sample,
    weights_of,
)
from lightning_shards.readers.shard_samples import (
    ReadSlices,
    ShardSlice,
    Watch,
    exact_slices,
    lacking_members,
    resampled_slices,
)
from lightning_shards.readers.source import (
    ServedSample,
    SourceDescription,
    read_again,
    require_no_stages,
    shard_identity,
)
from lightning_shards.readers.stages import (
    ApplyTransforms,
    DecodeFields,
    NamedStage,
    Stage,
    drawing_names,
    named_callables,
    own_decoders,
    watched_settings,
)
from lightning_shards.samples.collate import BatchFormat, LoadedBatch, PixelLayout, Sample
from lightning_shards.samples.collate_fn import BUILT_IN_COLLATION, Collation
from lightning_shards.samples.fields import Field, optional_names, with_arrays
from lightning_shards.samples.generators import SampleSeeds, preserved_globals, python_generator
from lightning_shards.samples.optional_fields import require_found
from lightning_shards.samples.stage_clock import StageClock
from lightning_shards.samples.tensors import Arena
from lightning_shards.samples.transforms import (
    SampleTransform,
    SampleTransforms,
    Transform,
    batch_fields_of,
    layouts_of,
)
from lightning_shards.shards.index import ShardIndex
from lightning_shards.shards.remote.proxies import require_hosts
from lightning_shards.shards.storage.schemes import MakeStorage, Storages, shared_out

_STAGE_POSITIONS = 1 << 48
"""Where the positions that seed stages begin, far above those of samples."""

_SHUFFLE_POSITIONS = 1 << 49
"""Where the positions that seed shuffle buffers begin, far above those of stages."""


class ComponentNumbers(NamedTuple):
    """Where a data set stands in a mixture.

    Attributes:
        component: Its number, which is the `__component__` of its samples.
        first_shard: The shards of the components before it, with which those of its ids begin.
    """

    component: int
    first_shard: int


@dataclass(frozen=True)
class StreamSource:
    """Streams whole shards; restarts from any cursor, with fresh draws.

    Attributes:
        index: The shards and, where known, how many samples each holds.
        epochs: How the stream is cut into epochs.
        sampling: `resampled` draws shards with replacement; the others serve each sample once.
        seed: Keys every draw, shuffle and transform.
        fields: What is taken from each sample.
        transforms: One callable per field that has one.
        stages: The user's stages, after the fields are decoded and before the transforms.
        shuffle_buffer: Samples held by webdataset's shuffle; 0 for none, as `sequential` has.
        batch_format: A dict, or the fields in order as a tuple.
        max_bad: Bad samples of an epoch, over all ranks, that are replaced; None: the first raises.
        storages: Storages by scheme, where other ones are to read the shards than by default: a
            callable, which is pickled and makes the storage in the process that reads.
        sample_transforms: Callables for whole samples, which are applied before `transforms`.
        collation: The `collate_fn` and the reserved entries of the batches.
        numbers: Of a component of a mixture: how its samples are numbered; None: it is none.
    """

    index: ShardIndex
    epochs: EpochSchedule
    sampling: Sampling
    seed: int
    fields: tuple[Field, ...]
    transforms: dict[str, Transform]
    stages: tuple[Stage, ...] = ()
    shuffle_buffer: int = 1000
    batch_format: BatchFormat = "dict"
    max_bad: int | None = None
    storages: Mapping[str, MakeStorage] | None = None
    sample_transforms: tuple[SampleTransform, ...] = ()
    collation: Collation = BUILT_IN_COLLATION
    numbers: ComponentNumbers | None = None

    def identity(self) -> dict[str, int | str]:
        """The values that a resumed run must have, too; each start has draws of its own."""
        own = (self.sampling, self.seed, self.index, self.transforms, self.fields)
        return shard_identity("stream", *own) | self.index.kept_identity

    def describe(self) -> SourceDescription:
        """Whole shards are kept together."""
        return SourceDescription(
            reader="stream",
            sampling=self.sampling,
            index=self.index,
            is_streamed=True,
            run=0,
            shuffle_buffer=self.shuffle_buffer,
            max_bad=self.max_bad,
            fields=self.fields,
            draws_from_globals=tuple(self.draws_from_globals),
            callables=named_callables(*self._steps, self.stages, self.fields)
            + self.collation.callables,
            reserved=self.collation.reserved,
            storages=self.storages,
        )

    def prepare(self) -> None:
        """Nothing: a stream needs no tables."""

    def with_epochs(self, epochs: EpochSchedule) -> "StreamSource":
        """The same samples, cut into other epochs."""
        return replace(self, epochs=epochs)

    def batches(
        self, place: Place, cursor: Cursor, arena: Arena | None = None
    ) -> Iterator[LoadedBatch]:
        """The batches of one worker from the cursor on, over the ends of epochs, without end.

        Raises:
            StateError: The cursor is inside an epoch that serves each sample once. Ranks and
                workers read stretches of their own, not the epoch's first samples.
            ShardError: A shard, a sample or a stage cannot give what was planned.
        """
        if cursor.samples and self.sampling != "resampled":
            raise StateError(
                f"the stream reader cannot begin {cursor.samples} samples into an epoch with "
                f"sampling={self.sampling!r}; resume from a checkpoint of an epoch's end, or train "
                "with sampling='resampled'"
            )
        storages_here = shared_out(self.storages, len(place.ranks_of_node))
        with closing(Storages(storages_here)) as storages:
            meter = FetchMeter(storages.fetch_totals)
            for worker_epoch in self.epochs.worker_epochs(place, cursor):
                yield from meter.each(self._batches_of(worker_epoch, arena, storages))

    @property
    def draws_from_globals(self) -> list[str]:
        """Transforms and stages that may draw from the generators of the whole process."""
        return drawing_names(*self._steps, self.stages, self.fields)

    @property
    def _steps(self) -> tuple[dict[str, Transform], tuple[SampleTransform, ...]]:
        """The transforms of fields and those of samples."""
        return self.transforms, self.sample_transforms

    def first_sample(self, place: Place) -> LoadedBatch:
        """A batch of one sample, to see that fields, stages and transforms fit; none is replaced.

        Raises:
            ShardError: They do not.
        """
        require_hosts(self.index.urls)
        has_weights = self.epochs.remainder != "drop" or self.max_bad is not None
        alone = replace(
            self,
            sampling="resampled",
            shuffle_buffer=0,
            epochs=epochs_to_try(place, has_weights=has_weights),
            max_bad=None,
            **watched_settings(self.fields, *self._steps),
            collation=self.collation.watched(),
        )
        # without counts a shard is read from its start, which costs least; with them from anywhere
        first = replace(alone, index=replace(self.index, counts=None))
        others = [] if self.max_bad is None else [alone] * (SAMPLES_TRIED - 1)
        if self.numbers is None:  # of a component the mixture looks at all components
            require_found(lacking_members(self.index, self.fields, self.storages))
        return first_good_sample([first, *others], place)

    def expected_digest(self, epoch: int, start: int, stop: int, place: Place) -> int | None:
        """A rank's share of the digest of a whole epoch that serves each sample once.

        None for the rest: in which order they come depends on the numbers of ranks and workers.
        """
        counts, kept = self.index.kept_counts, self.index.kept
        if self.sampling == "resampled" or counts is None or (start, stop) != (0, counts.sum()):
            return None
        inner = SampleOrder(counts, self.seed, "sequential")
        order = inner if kept is None else KeptOrder(inner, kept)
        return digest_share(order, epoch, start, stop, place)

    def replay(
        self, place: Place, epoch: int, steps: range, num_workers: int
    ) -> list[list[ServedSample]]:
        """The rows of a rank's batches: the shards are read again, and nothing is decoded."""
        require_no_stages(self.stages)
        return read_again(self.undecoded(), place, epoch, steps, num_workers)

    def undecoded(self) -> "StreamSource":
        """The same samples without fields, in batches that are dicts."""
        return replace(
            self,
            fields=(),
            transforms={},
            sample_transforms=(),
            batch_format="dict",
            collation=BUILT_IN_COLLATION,
        )

    def samples_of(
        self,
        worker_epoch: WorkerEpoch,
        ledger: BadSampleLedger,
        clock: StageClock,
        storages: Storages,
    ) -> Generator[Sample]:
        """The samples of one worker in one epoch, with substitutes for the bad ones.

        Nothing is opened before the first of them.
        """
        return ledger.fill(
            self._samples(worker_epoch, ledger, clock, storages),
            lambda: self._spare(worker_epoch, storages),
        )

    def rows(self, samples: Iterator[Sample], size: int) -> list[Sample]:
        """The next samples for one batch: `size`, or as many as are left.

        Raises:
            SampleError: A sample cannot be made.
        """
        return list(islice(samples, size))

    def names_of(self, rows: Sequence[Sample]) -> list[str]:
        """The fields of a batch of these rows, in their order; errors as of `batch_fields_of`."""
        configured = [field.name for field in self.fields]
        return batch_fields_of(rows, configured, self.batch_format, self.sample_transforms)

    @property
    def layouts(self) -> dict[str, PixelLayout]:
        """Of the fields that crops make."""
        return layouts_of(self.transforms, optional_names(self.fields))

    def _batches_of(
        self, worker_epoch: WorkerEpoch, arena: Arena | None, storages: Storages
    ) -> Iterator[LoadedBatch]:
        ledger, clock = BadSampleLedger(self.max_bad, worker_epoch.epoch), StageClock()
        samples = self.samples_of(worker_epoch, ledger, clock, storages)
        draws_from_globals = bool(self.draws_from_globals)
        for step in worker_epoch.own_steps():
            if draws_from_globals:
                with preserved_globals():
                    self.seed_stages(worker_epoch, step)
                    loaded = self._batch(samples, worker_epoch, step, clock, arena)
            else:
                loaded = self._batch(samples, worker_epoch, step, clock, arena)
            yield loaded._replace(bad=tuple(ledger.take()), stages=clock.take())

    def _batch(
        self,
        samples: Iterator[Sample],
        worker_epoch: WorkerEpoch,
        step: int,
        clock: StageClock,
        arena: Arena | None,
    ) -> LoadedBatch:
        size = worker_epoch.plan.size(step, worker_epoch.place.rank)
        rows = self.rows(samples, size)
        if len(rows) < size:
            raise SampleError(
                f"only {len(rows)} of {size} samples are left for a batch: a stage dropped some, "
                "but each is planned once; stages that drop samples need sampling='resampled'"
            )
        if self._is_last(worker_epoch, step) and any(samples):
            raise SampleError(
                "a stage made more samples than it was given, but each sample is planned once; "
                "stages that add samples need sampling='resampled'"
            )
        planned = worker_epoch.weights(step)
        weights = planned if self.max_bad is None else weights_of(rows, planned)
        with clock.on("collate"):
            made = (rows, self.names_of(rows), weights, self.batch_format, (), arena, self.layouts)
            components = [] if self.numbers is None else [self.numbers.component] * size
            return self.collation.finished(
                self.collation.begun(*made, components=components), self.layouts
            )

    def _is_last(self, worker_epoch: WorkerEpoch, step: int) -> bool:
        """Whether this batch is the end of all that was planned for this worker and epoch."""
        is_whole = self.sampling != "resampled" and worker_epoch.steps == worker_epoch.plan.steps
        return is_whole and step == worker_epoch.own_steps()[-1]

    def _samples(
        self,
        worker_epoch: WorkerEpoch,
        ledger: BadSampleLedger,
        clock: StageClock,
        storages: Storages,
    ) -> Iterator[Sample]:
        """The samples of one epoch; repeats (weight 0) come last, by a pipeline of their own."""
        if self.sampling == "resampled":
            parts = resampled_slices(self.index, self.seed, worker_epoch)
            yield from self._pipeline(worker_epoch, parts, ledger, clock, storages)
            return
        for weight in (1, 0):
            ledger.are_counted = weight == 1
            is_shuffled = self.sampling == "shuffled"
            parts = exact_slices(self.index, self.seed, worker_epoch, weight, is_shuffled)
            yield from self._pipeline(worker_epoch, parts, ledger, clock, storages)

    def _spare(self, worker_epoch: WorkerEpoch, storages: Storages) -> Sample:
        """A good sample from anywhere, for a worker that has none of its own."""
        ledger = BadSampleLedger(self.max_bad, worker_epoch.epoch)
        parts = map(ShardSlice, range(self.index.num_shards))
        for sample in self._pipeline(worker_epoch, parts, ledger, StageClock(), storages):
            return sample
        raise SampleError(
            "not one sample of these shards is good, so none can stand for a bad one; "
            "on_bad_sample='raise' shows what is wrong with the first"
        )

    def _pipeline(
        self,
        worker_epoch: WorkerEpoch,
        parts: Iterator[ShardSlice],
        ledger: BadSampleLedger,
        clock: StageClock,
        storages: Storages,
    ) -> Iterator[Sample]:
        place = worker_epoch.place
        seeds = SampleSeeds(self.seed, worker_epoch.epoch, worker_epoch.plan.done)
        slot = place.worker * place.world_size + place.rank
        # where samples may be bad, it is their number that ends the stream
        limit = 2 * self.index.num_shards + self.shuffle_buffer + 16 + (self.max_bad or 0)
        watch = Watch(limit)
        is_planned = self.sampling != "resampled"
        first_shard = 0 if self.numbers is None else self.numbers.first_shard
        read = ReadSlices(self.index, watch, ledger, is_planned, clock, storages, first_shard)
        stages: list[Any] = [lambda: parts, read]
        if self.sampling != "sequential" and self.shuffle_buffer > 1:
            rng = python_generator(seeds, _SHUFFLE_POSITIONS + slot)
            stages.append(shuffle(self.shuffle_buffer, rng=rng))
        # stages get tensors, whatever comes after them
        plain = self.collation.collate_fn is not None and self.collation.takes_arrays
        plain = plain and not self.stages
        fields = with_arrays(self.fields, *self._steps, plain=plain)
        decoders, optional = own_decoders(fields), optional_names(self.fields)
        transforms = SampleTransforms(
            self.transforms, seeds, clock, self.sample_transforms, decoders, optional
        )
        stride = place.world_size * place.num_workers

        def seed_decoders(number: int) -> None:
            transforms.seed_decoders(slot + number * stride)

        stages.append(DecodeFields(fields, ledger.lose, clock, seed_decoders))
        stages += [NamedStage(number, stage) for number, stage in enumerate(self.stages)]
        stages.append(ApplyTransforms(transforms, slot, stride, ledger.lose))
        stages.append(watch.arrived)
        return iter(DataPipeline(*stages))

    def seed_stages(self, worker_epoch: WorkerEpoch, step: int) -> None:
        """Seed the global generators, from which stages may draw, for this source and step."""
        position = _STAGE_POSITIONS + step * worker_epoch.place.world_size + worker_epoch.place.rank
        SampleSeeds(self.seed, worker_epoch.epoch, worker_epoch.plan.done).seed_globals(position)
