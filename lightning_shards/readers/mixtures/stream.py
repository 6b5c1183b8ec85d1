"""Whether data sets can be streamed together as the components of one mixture."""

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate

from lightning_shards.errors import ConfigError, SampleError
from lightning_shards.plan.epoch import EpochSchedule, WorkerEpoch
from lightning_shards.plan.mixture import MixtureIdentity, component_seed
from lightning_shards.plan.place import Cursor, Place
from lightning_shards.plan.slots import MixtureSlots
from lightning_shards.readers.ahead.fetch_ahead import FetchMeter
from lightning_shards.readers.bad_samples import BadSampleLedger, weights_of
from lightning_shards.readers.mixtures.indexed import (
    first_samples,
    largest_of,
    require_alike_samples,
)
from lightning_shards.readers.mixtures.rows import ComponentRow, require_alike, with_one_kind
from lightning_shards.readers.shard_samples import lacking_members
from lightning_shards.readers.source import (
    ServedSample,
    SourceDescription,
    read_again,
    require_no_stages,
)
from lightning_shards.readers.stream import ComponentNumbers, StreamSource
from lightning_shards.samples.collate import LoadedBatch, PixelLayout, Sample
from lightning_shards.samples.collate_fn import BUILT_IN_COLLATION
from lightning_shards.samples.generators import preserved_globals
from lightning_shards.samples.optional_fields import lacking_in_all, require_found
from lightning_shards.samples.stage_clock import StageClock
from lightning_shards.samples.tensors import Arena
from lightning_shards.shards.index import ShardIndex, join_indexes
from lightning_shards.shards.storage.schemes import MakeStorage, Storages, shared_out

_OF_THE_SPLIT = ("epochs", "batch_format", "max_bad", "collation")
"""Settings that all components have from their split."""


def require_streamable(names: Sequence[str], components: Sequence[StreamSource]) -> None:
    """Check that these components can be streamed as one mixture.

    Raises:
        ConfigError: One serves each sample once, they are not of one split, or batches are tuples
            whose places would mean other fields in other batches.
    """
    first = components[0]
    for name, component in zip(names, components, strict=True):
        if component.sampling != "resampled":
            raise ConfigError(
                f"component {name!r} has sampling={component.sampling!r}, and a mixture that is "
                "streamed cannot serve each sample once a pass; take reader='indexed', or "
                "sampling='resampled' for it"
            )
        for setting in _OF_THE_SPLIT:
            value, expected = getattr(component, setting), getattr(first, setting)
            if value != expected:
                raise ConfigError(
                    f"{setting} must be the same in all components of a mixture, got {expected} "
                    f"and, in {name!r}, {value}; set it for the split"
                )
        fields, others = (sorted(each.name for each in of.fields) for of in (first, component))
        if first.batch_format == "tuple" and fields != others:
            raise ConfigError(
                f"batch_format='tuple' has the same places in all batches, and component "
                f"{names[0]!r} has the fields {fields}, {name!r} has {others}; take "
                "batch_format='dict', or name them alike"
            )


_OF_THE_MIX = ("order_version", "seed", "reader")
"""Entries of a component's identity that are those of the whole mix."""


@dataclass(frozen=True)
class MixtureStreamSource:
    """Streams a mixture of data sets; quotas are exact, and each start has draws of its own.

    Attributes:
        components: In the order of `slots.names`. Epochs, batch format, `max_bad` and collation are
            those of the split, the same in all of them, and an epoch has `slots.epoch_samples`.
            Which seed they are given does not matter: the mix gives each of them
            `component_seed(slots.seed, name)`. Components that read by one scheme share one
            storage, that of the last of them.
        slots: Where in the sequence each of them stands.
    """

    components: tuple[StreamSource, ...]
    slots: MixtureSlots

    def __post_init__(self) -> None:
        """Refuse components that cannot be streamed together.

        Raises:
            ConfigError: One serves each sample once, or they are not those of the slots and of one
                split.
        """
        if len(self.components) != len(self.slots.names):
            raise ConfigError(
                f"a mixture needs one source for each of its components, "
                f"{', '.join(self.slots.names)}, got {len(self.components)}; give one for each"
            )
        if self.epochs.samples != self.slots.epoch_samples:
            raise ConfigError(
                f"an epoch of the components must have the {self.slots.epoch_samples} samples of "
                f"the mixture's, got {self.epochs.samples}; take them from the slots"
            )
        require_streamable(self.slots.names, self.components)

    def __reduce__(self) -> "tuple[type[MixtureStreamSource], tuple[object, ...]]":
        """Pickle the arguments only: workers compute the rest again."""
        return MixtureStreamSource, (self.components, self.slots)

    @property
    def epochs(self) -> EpochSchedule:
        """The schedule that cuts the sequence of the mixture into epochs."""
        return self.components[0].epochs

    def with_epochs(self, epochs: EpochSchedule) -> "MixtureStreamSource":
        """The same samples, cut into other epochs."""
        changed = (component.with_epochs(epochs) for component in self.components)
        return replace(self, components=tuple(changed))

    def identity(self) -> dict[str, int | str]:
        """The values that a resumed run must have, too; each start has draws of its own."""
        return self._identity.values() | {"reader": "stream"}

    def describe(self) -> SourceDescription:
        """All components together; whole shards are kept together."""
        descriptions = [
            replace(each, collation=BUILT_IN_COLLATION).describe() for each in self._streams
        ]
        named = list(zip(self.slots.names, descriptions, strict=True))
        collation = self.components[0].collation
        return SourceDescription(
            reader="stream",
            sampling="mixture",
            index=self._index,
            is_streamed=True,
            run=0,
            shuffle_buffer=sum(each.shuffle_buffer for each in descriptions),
            max_bad=self.components[0].max_bad,
            fields=tuple(field for each in descriptions for field in each.fields),
            draws_from_globals=tuple(
                _of(name, drawing) for name, each in named for drawing in each.draws_from_globals
            ),
            callables=tuple(
                (_of(name, called), function)
                for name, each in named
                for called, function in each.callables
            )
            + collation.callables,
            reserved=collation.reserved,
            storages=self._storages,
            mixture=self._identity,
        )

    def prepare(self) -> None:
        """Nothing: streams need no tables."""

    def batches(
        self, place: Place, cursor: Cursor, arena: Arena | None = None
    ) -> Iterator[LoadedBatch]:
        """The batches of one worker from the cursor on, over the ends of epochs, without end.

        Raises:
            ShardError: A shard, a sample or a stage cannot give what was planned, or samples of
                several components do not fit into one batch.
        """
        storages_here = shared_out(self._storages, len(place.ranks_of_node))
        with closing(Storages(storages_here)) as storages:
            meter = FetchMeter(storages.fetch_totals)
            for worker_epoch in self.epochs.worker_epochs(place, cursor):
                yield from meter.each(self._batches_of(worker_epoch, arena, storages))

    def first_sample(self, place: Place) -> LoadedBatch:
        """A batch of one sample: the largest of those that are made, one of each component.

        Raises:
            ShardError: One cannot be made, or they do not fit into one batch where they have to.
        """
        names, split = self.slots.names, self.components[0]
        lacking = [
            lacking_members(each.index, each.fields, each.storages) for each in self.components
        ]
        require_found(lacking_in_all(names, lacking))
        made = first_samples(names, self._streams, place)
        if (
            split.collation.collate_fn is None
            and self.slots.schedule.unit % split.epochs.batch_size
        ):
            fields = [component.fields for component in self.components]
            require_alike_samples(names, fields, made, split.batch_format)
        return largest_of(made)

    def expected_digest(self, epoch: int, start: int, stop: int, place: Place) -> int | None:
        """None: which samples come depends on the numbers of ranks and workers."""

    def replay(
        self, place: Place, epoch: int, steps: range, num_workers: int
    ) -> list[list[ServedSample]]:
        """The rows of a rank's batches: the shards are read again, and nothing is decoded."""
        for component in self.components:
            require_no_stages(component.stages)
        undecoded = tuple(component.undecoded() for component in self.components)
        bare = replace(self, components=undecoded)
        return read_again(bare, place, epoch, steps, num_workers)

    @cached_property
    def _streams(self) -> tuple[StreamSource, ...]:
        """The components as they are read: with the seeds and the numbers that they have here."""
        shards = (component.index.num_shards for component in self.components)
        first_shards = accumulate(shards, initial=0)
        named = zip(self.slots.names, self.components, first_shards, strict=False)
        return tuple(
            replace(
                component,
                seed=component_seed(self.slots.seed, name),
                numbers=ComponentNumbers(number, first_shard),
            )
            for number, (name, component, first_shard) in enumerate(named)
        )

    @cached_property
    def _index(self) -> ShardIndex:
        """The shards of all components, numbered as in `__id__`."""
        return join_indexes([component.index for component in self.components])

    @property
    def _identity(self) -> MixtureIdentity:
        described = {
            name: " ".join(
                f"{key}={value}"
                for key, value in component.identity().items()
                if key not in _OF_THE_MIX
            )
            for name, component in zip(self.slots.names, self.components, strict=True)
        }
        return MixtureIdentity(self.slots, described)

    @property
    def _storages(self) -> dict[str, MakeStorage] | None:
        given = [component.storages or {} for component in self.components]
        return {scheme: make for each in given for scheme, make in each.items()} or None

    def _batches_of(
        self, worker_epoch: WorkerEpoch, arena: Arena | None, storages: Storages
    ) -> Iterator[LoadedBatch]:
        clock = StageClock()
        with ExitStack() as stack:
            pipelines = [
                stack.enter_context(closing(_Pipeline(*each, worker_epoch, clock, storages)))
                for each in zip(self.slots.names, self._streams, strict=True)
            ]
            draws_from_globals = any(pipeline.draws_from_globals for pipeline in pipelines)
            for step in worker_epoch.own_steps():
                with preserved_globals() if draws_from_globals else nullcontext():
                    loaded = self._batch(pipelines, worker_epoch, step, clock, arena)
                bad = tuple(bad for pipeline in pipelines for bad in pipeline.ledger.take())
                yield loaded._replace(bad=bad, stages=clock.take())

    def _batch(
        self,
        pipelines: "list[_Pipeline]",
        worker_epoch: WorkerEpoch,
        step: int,
        clock: StageClock,
        arena: Arena | None,
    ) -> LoadedBatch:
        span = worker_epoch.span(step)
        numbers: list[int] = self.slots.components(worker_epoch.epoch, *span).tolist()
        taken = {
            number: pipelines[number].rows(numbers.count(number), step)
            for number in sorted(set(numbers))
        }
        in_turn = {number: iter(rows) for number, rows in taken.items()}
        rows = [next(in_turn[number]) for number in numbers]
        split, planned = self.components[0], worker_epoch.weights(step)
        weights = planned if split.max_bad is None else weights_of(rows, planned)
        with clock.on("collate"):
            names = self._names_of(taken)
            if split.collation.collate_fn is None and len(taken) > 1:
                rows = with_one_kind(rows, names)
            layouts = self._layouts_of(taken)
            made = (rows, names, weights, split.batch_format, (), arena, layouts)
            begun = split.collation.begun(*made, components=numbers)
            return split.collation.finished(begun, layouts)

    def _names_of(self, taken: Mapping[int, list[Sample]]) -> list[str]:
        """The fields of a batch of these rows by component, in one order for all batches.

        Raises:
            ConfigError: Those of the components differ.
            SampleError: The values of a field do not fit into one tensor.
        """
        firsts = [
            ComponentRow(self.slots.names[number], self._streams[number].names_of(rows), rows[0])
            for number, rows in taken.items()
        ]
        if self.components[0].collation.collate_fn is None:
            require_alike(firsts)
        configured = {field.name: place for place, field in enumerate(self.components[0].fields)}
        return sorted(firsts[0].fields, key=lambda name: configured.get(name, len(configured)))

    def _layouts_of(self, taken: Mapping[int, list[Sample]]) -> dict[str, PixelLayout]:
        """Of the fields that crops make alike in all of these components."""
        first, *others = (self._streams[number].layouts for number in taken)
        return {
            name: layout
            for name, layout in first.items()
            if all(other.get(name) == layout for other in others)
        }


class _Pipeline:
    """The samples of one component for one worker in one epoch; the first row opens a shard.

    Attributes:
        ledger: The bad samples of this component, whose substitutes are its own.
        draws_from_globals: Whether its transforms and stages may draw from the global generators.
    """

    def __init__(
        self,
        name: str,
        source: StreamSource,
        worker_epoch: WorkerEpoch,
        clock: StageClock,
        storages: Storages,
    ) -> None:
        self.ledger = BadSampleLedger(source.max_bad, worker_epoch.epoch)
        self.draws_from_globals = bool(source.draws_from_globals)
        self._name, self._source, self._worker_epoch = name, source, worker_epoch
        self._samples: Generator[Sample] = source.samples_of(
            worker_epoch, self.ledger, clock, storages
        )

    def rows(self, size: int, step: int) -> list[Sample]:
        """Its next rows for the batch of this step.

        Raises:
            SampleError: A stage has ended the stream, or a sample cannot be made.
        """
        if self.draws_from_globals:
            self._source.seed_stages(self._worker_epoch, step)
        rows = self._source.rows(self._samples, size)
        if len(rows) < size:
            raise SampleError(
                f"component {self._name!r} gave {len(rows)} of {size} samples for a batch: one of "
                "its stages has ended the stream; let it go on as long as it is given samples"
            )
        return rows

    def close(self) -> None:
        """End the pipeline and close what it has open."""
        self._samples.close()


def _of(name: str, what: str) -> str:
    return f"{what} of component {name!r}"
