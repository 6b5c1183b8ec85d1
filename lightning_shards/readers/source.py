"""What every reader offers: the batches of a split, from any cursor on.

A source is asked `batches(place, cursor)` and gives that worker's share of the batches, in order,
from there on and over the ends of epochs. It holds no progress: asked again with the same cursor it
begins there again.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from lightning_shards.plan.cursor import Cursor
from lightning_shards.plan.draws import ORDER_VERSION
from lightning_shards.plan.place import Place
from lightning_shards.plan.schedule import EpochSchedule
from lightning_shards.samples.arena import Arena
from lightning_shards.samples.collate import LoadedBatch
from lightning_shards.samples.fields import image_backend
from lightning_shards.shards.index import ShardIndex


@dataclass(frozen=True)
class SourceDescription:
    """What a source is, for logs, tools, budgets and pools.

    Attributes:
        reader: its name in logs and tools.
        sampling: the word for the sequence of its samples; `resampled` is with replacement.
        index: the shards that it reads; None for a source without shards.
        is_streamed: whether whole shards are read forward, and not samples by their offsets.
        run: consecutive samples of a shard that it keeps together; 0 for whole shards.
        shuffle_buffer: samples that each worker holds undecoded.
        max_bad: bad samples that are replaced, per epoch and job; None: the first one raises.
        draws_from_globals: names of transforms and stages that may draw from the generators of the
            whole process; where there is one, no threads may run the source.
    """

    reader: str
    sampling: str
    index: ShardIndex | None = None
    is_streamed: bool = False
    run: int = 1
    shuffle_buffer: int = 0
    max_bad: int | None = None
    draws_from_globals: tuple[str, ...] = ()


class ServedSample(NamedTuple):
    """One row of a batch: a sample's key, and its id."""

    key: str
    shard: int
    sample: int


class Source(Protocol):
    """Gives the batches of a split; frozen and picklable, as it travels to worker processes.

    Whoever takes a batch owns it. What an iterator has open, it closes when it is closed or
    dropped; the source itself has nothing open. Two that compare equal give equal batches.
    """

    @property
    def epochs(self) -> EpochSchedule:
        """How the stream is cut into epochs."""
        ...

    def with_epochs(self, epochs: EpochSchedule) -> "Source":
        """The same samples, cut into other epochs."""
        ...

    def identity(self) -> dict[str, int | str]:
        """All that the batches depend on, by name: a checkpoint that goes on must agree with it."""
        ...

    def describe(self) -> SourceDescription:
        """What it is, for logs, tools, budgets and pools."""
        ...

    def prepare(self) -> None:
        """Make on this node what the batches need and others can share, such as tables of members.

        One process of a node calls it before any batch is asked for; nothing depends on it.

        Raises:
            ShardError: a shard cannot be read.
        """
        ...

    def first_sample(self, place: Place) -> LoadedBatch:
        """A batch of one sample, to see that fields and transforms fit; other ranks get others.

        Raises:
            ShardError: they do not.
        """
        ...

    def batches(
        self, place: Place, cursor: Cursor, arena: Arena | None = None
    ) -> Iterator[LoadedBatch]:
        """The batches of one worker from the cursor on, over the ends of epochs, without end.

        They are those of `epochs.worker_epochs(place, cursor)`: each of its steps is one batch, and
        equal arguments give equal batches. Large tensors that are made in the arena
        (`samples.arena.new_tensor`) need no copy on their way from a worker process to the trainer;
        a source may leave it alone.

        Raises:
            StateError: it cannot begin at this cursor.
            ShardError: a sample cannot give what was asked for.
        """
        ...

    def expected_digest(self, epoch: int, start: int, stop: int, place: Place) -> int | None:
        """A rank's share of the digest of the samples at these positions of an epoch.

        None where that is unknown; see `plan.digest`.
        """
        ...

    def replay(
        self, place: Place, epoch: int, steps: range, num_workers: int
    ) -> list[list[ServedSample]]:
        """The rows of one rank's batches at these steps of an epoch begun at its start.

        `num_workers` are those of the rank. Callers take `readers.replay.batch_keys`, which checks
        the numbers.

        Raises:
            ConfigError: its samples have no keys, or they are unknown without running the job.
            ShardError: a shard cannot be read, or changed.
        """
        ...


def shard_identity(
    reader: str, sampling: str, seed: int, index: ShardIndex, transforms: Mapping[str, Any]
) -> dict[str, int | str]:
    """The identity that all readers of shards have."""
    return {
        "order_version": ORDER_VERSION,
        "seed": seed,
        "sampling": sampling,
        "shards": index.fingerprint(),
        "image_backend": image_backend(transforms),
        "reader": reader,
    }
