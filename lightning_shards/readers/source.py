"""The source protocol: a source gives the batches of a split from any cursor on.

`batches(place, cursor)` gives the share of one worker, in order, from the cursor on and beyond the
ends of epochs. A source keeps no progress: a second call with the same cursor begins there again.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from lightning_shards.errors import ConfigError, count_of
from lightning_shards.plan.alike import AlikeOrder
from lightning_shards.plan.digest import digest_share
from lightning_shards.plan.draws import ORDER_VERSION
from lightning_shards.plan.epoch import EpochPlan, EpochSchedule
from lightning_shards.plan.order import Order
from lightning_shards.plan.place import Cursor, Place
from lightning_shards.samples.collate import RESERVED_KEYS, LoadedBatch
from lightning_shards.samples.fields import Field, classes_identity
from lightning_shards.samples.stage_clock import STAGES
from lightning_shards.samples.tensors import Arena
from lightning_shards.samples.transforms import image_backend
from lightning_shards.shards.index import ShardIndex
from lightning_shards.shards.storage.protocol import NO_FETCHES, FetchTotals
from lightning_shards.shards.storage.schemes import MakeStorage

if TYPE_CHECKING:
    from lightning_shards.plan.mixture import MixtureIdentity


@dataclass(frozen=True)
class SourceDescription:
    """The properties of a source, for logs, tools, budgets and pools.

    Attributes:
        reader: Name of the reader in logs and tools.
        sampling: Name of the sampling; `resampled` draws with replacement.
        index: The shards that the source reads; None if it has no shards.
        is_streamed: Whether whole shards are read from the beginning, not samples by their offsets.
        run: Number of consecutive samples of a shard kept together; 0 for whole shards.
        max_bad: Bad samples that may be replaced, per epoch and job; None: the first one raises.
        fields: The fields of each sample; empty if they do not come from members.
        draws_from_globals: Names of transforms and stages that may draw from the global generators.
            If there is one, threads may not run the source.
        callables: The user's transforms and stages, each with its name in errors.
        loads_torch: Whether decoding makes tensors, so that each worker imports torch.
        reserved: The reserved entries that batches have, as far as the split has them.
        storages: By scheme, what makes the storages that read remote shards, with the cache of the
            run; None: all shards are local, or are read by the defaults.
        order: The order of the samples; of a stream, any one of a whole epoch that serves each
            sample once. None: the samples of an epoch are unknown.
        mixture: All that the samples of a mixture depend on: its components' names, and the slots
            that say where they stand; `index.components` has their shards. None: no mixture.
    """

    reader: str
    sampling: str
    index: ShardIndex | None = None
    is_streamed: bool = False
    run: int = 1
    max_bad: int | None = None
    fields: tuple[Field, ...] = ()
    draws_from_globals: tuple[str, ...] = ()
    callables: tuple[tuple[str, object], ...] = ()
    loads_torch: bool = False
    reserved: tuple[str, ...] = RESERVED_KEYS
    storages: Mapping[str, MakeStorage] | None = None
    order: Order | None = None
    mixture: "MixtureIdentity | None" = None

    def state_at(self, cursor: Cursor) -> dict[str, int | str]:
        """The cursor, and what a checkpoint holds of the samples that stand there."""
        state: dict[str, int | str] = {"epoch": cursor.epoch, "samples": cursor.samples}
        if isinstance(self.order, AlikeOrder):
            state["alike_sizes"] = self.order.checksum(cursor.epoch, cursor.samples)
        return state

    def expected_digest(self, epoch: int, start: int, stop: int, place: Place) -> int | None:
        """A rank's share of the digest of the samples at these positions of an epoch.

        None if these samples are unknown: in a stream, which of them come first depends on the
        numbers of ranks and workers. See `plan.digest`.
        """
        order = self.order
        if order is None or (self.is_streamed and (start, stop) != (0, order.samples)):
            return None
        return digest_share(order, epoch, start, stop, place)

    @property
    def is_nominal(self) -> bool:
        """Whether `dataset_size` may be any number of samples."""
        return self.mixture is not None or self.sampling == "resampled"

    def component_of(self, shard: int) -> str:
        """The name of the component that a shard is of; empty where there is no mixture."""
        if self.mixture is None or self.index is None:
            return ""
        return self.mixture.slots.names[self.index.component_of(shard)]

    def epoch_text(self, plan: EpochPlan, steps: int) -> str:
        """An epoch in words, for logs and `repr`; `steps` is less than the plan's under a limit."""
        num_shards = 0 if self.index is None else self.index.num_shards
        shards = f" from {count_of(num_shards, 'shard')}" if num_shards else ""
        if self.index is not None and self.index.kept is not None:
            left = f"{self.index.kept.samples:,} of {self.index.samples:,} samples"
            shards += f" (keep and exclude leave {left})"
        in_steps = f"{count_of(steps, 'step')} of {plan.world_size} x {plan.batch_size} samples"
        return (
            f"{count_of(plan.samples, 'sample')}{shards}, {self.sampling} by the {self.reader} "
            f"reader{self._draws_text()}, {in_steps}"
        )

    def _draws_text(self) -> str:
        """What is drawn with replacement, if anything is."""
        if self.sampling != "resampled" or self.mixture is not None:
            return ""
        drawn = "shards" if self.is_streamed else f"runs of {count_of(self.run, 'sample')}"
        return f" ({drawn} are drawn with replacement; sampling: shuffled gives each sample once)"


class ServedSample(NamedTuple):
    """The sample in one row of a batch: its key and its id."""

    key: str
    shard: int
    sample: int


class Source(Protocol):
    """Gives the batches of a split; frozen and picklable, because it is sent to worker processes.

    A batch belongs to the caller who takes it. The source itself has no open files: an iterator of
    batches opens them, and closes them when it is closed or dropped. Sources that compare equal
    give equal batches.
    """

    @property
    def epochs(self) -> EpochSchedule:
        """The schedule that cuts the sequence of samples into epochs."""
        ...

    def with_epochs(self, epochs: EpochSchedule) -> "Source":
        """The same samples, cut into other epochs."""
        ...

    def identity(self) -> dict[str, int | str]:
        """The values, by name, that a resumed run must have, too.

        The order of samples depends on them, and so does what comes out of the same decoders and
        transforms. Fields, decoders and transforms are not among them: a run may go on with others.
        """
        ...

    def describe(self) -> SourceDescription:
        """The properties of this source, for logs, tools, budgets and pools."""
        ...

    def prepare(self) -> None:
        """Make on this node the files that the batches need, such as member tables.

        One process of each node calls it before the first batch. It only saves time: batches are
        the same without it.

        Raises:
            ShardError: A shard cannot be read.
        """
        ...

    def first_sample(self, place: Place) -> LoadedBatch:
        """A batch of one sample, to check fields and transforms; each rank gets another sample.

        Raises:
            ShardError: The sample cannot be made.
        """
        ...

    def batches(
        self, place: Place, cursor: Cursor, arena: Arena | None = None
    ) -> Iterator[LoadedBatch]:
        """The batches of one worker from the cursor on, beyond the ends of epochs, without end.

        They are those of `epochs.worker_epochs(place, cursor)`: each of its steps is one batch, and
        equal arguments give equal batches. Arrays of numbers that are entries of a batch become
        tensors when it is handed to the user. Large arrays and tensors that are made in the arena
        (`samples.tensors.new_array`, `new_tensor`) need no copy on their way from a worker process
        to the trainer; a source may ignore the arena.

        Raises:
            StateError: The source cannot begin at this cursor.
            ShardError: A shard cannot be read, or a sample cannot be made.
        """
        ...

    def replay(
        self, place: Place, epoch: int, steps: range, num_workers: int
    ) -> list[list[ServedSample]]:
        """The rows of one rank's batches at these steps of an epoch, begun at its first sample.

        `num_workers` is the number of workers of the rank. Call `batch_keys` instead, which checks
        the numbers.

        Raises:
            ConfigError: The samples have no keys, or the keys are unknown without running the job.
            ShardError: A shard cannot be read, or has changed.
        """
        ...


def shard_identity(
    reader: str,
    sampling: str,
    seed: int,
    index: ShardIndex,
    transforms: Mapping[str, Any],
    fields: Iterable[Field] = (),
) -> dict[str, int | str]:
    """The identity that all readers of shards have, with the classes that `fields` may have."""
    return {
        "order_version": ORDER_VERSION,
        "seed": seed,
        "sampling": sampling,
        "shards": index.fingerprint(),
        "image_backend": image_backend(transforms),
        "reader": reader,
        **classes_identity(fields),
    }


def metered(
    batches: Iterator[LoadedBatch], fetched: Callable[[], FetchTotals]
) -> Iterator[LoadedBatch]:
    """The batches; the time in which they waited for bytes from afar counts as `fetch`.

    Args:
        batches: Those of one worker, over the ends of epochs.
        fetched: Gives what was fetched so far, with the waits of who makes the batches.
    """
    taken = NO_FETCHES
    for loaded in batches:
        totals = fetched()
        new, taken = totals.since(taken), totals
        if new == NO_FETCHES:
            yield loaded
            continue
        stages = dict(zip(STAGES, loaded.stages, strict=False))
        stages["open"] = max(0.0, stages["open"] - new.table_wait_s)
        stages["read"] = max(0.0, stages["read"] - new.member_wait_s)
        yield loaded._replace(stages=(*stages.values(), new.wait_s), fetched=new)


def batch_keys(
    source: Source, place: Place, epoch: int, steps: range, *, num_workers: int
) -> list[list[ServedSample]]:
    """The rows of one rank's batch at each of these steps of an epoch, begun at its first sample.

    Args:
        source: The source that makes the batches in training.
        place: The rank and the world size.
        epoch: Number of the epoch; an evaluation split reads epoch 0 each time.
        steps: Consecutive steps, counted from the beginning of the epoch.
        num_workers: Number of workers of each rank; the stream reader's order depends on it.

    Raises:
        ConfigError: There is no such epoch or step, or the samples are unknown: the effect of
            stages is unknown without running them.
        ShardError: A shard cannot be read, or has changed.
    """
    planned = source.epochs.steps(place.world_size)
    if epoch < 0:
        raise ConfigError(f"epoch must be at least 0, got {epoch}; epochs count from 0")
    if not 0 <= steps.start < steps.stop <= planned:
        raise ConfigError(
            f"steps {steps.start}:{steps.stop} are not in an epoch of {planned} steps; take A:B "
            f"with 0 <= A < B <= {planned}"
        )
    epoch = 0 if source.epochs.pinned else epoch
    return source.replay(place, epoch, steps, num_workers)
