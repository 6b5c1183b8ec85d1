"""What every reader offers: the batches of a split, from any cursor on.

A source is asked `batches(place, cursor)` and gives that worker's share of the batches, in order,
from there on and over the ends of epochs. It holds no progress: asked again with the same cursor it
begins there again.
"""

from collections.abc import Iterator
from typing import Protocol

from lightning_shards.plan.cursor import Cursor
from lightning_shards.plan.place import Place
from lightning_shards.plan.schedule import EpochSchedule
from lightning_shards.samples.arena import Arena
from lightning_shards.samples.collate import LoadedBatch


class Source(Protocol):
    """Gives the batches of a split; frozen and picklable, as it travels to worker processes."""

    @property
    def epochs(self) -> EpochSchedule:
        """How the stream is cut into epochs."""
        ...

    @property
    def max_bad(self) -> int | None:
        """Bad samples that are replaced, per epoch and job; None: the first one raises."""
        ...

    @property
    def draws_from_globals(self) -> list[str]:
        """What may draw from the generators of the whole process: names of transforms, stages."""
        ...

    def with_epochs(self, epochs: EpochSchedule) -> "Source":
        """The same samples, cut into other epochs."""
        ...

    def first_sample(self, place: Place) -> LoadedBatch:
        """A batch of one sample, to see that fields and transforms fit the shards."""
        ...

    def batches(
        self, place: Place, cursor: Cursor, arena: Arena | None = None
    ) -> Iterator[LoadedBatch]:
        """The batches of one worker from the cursor on, over the ends of epochs, without end.

        Large tensors that are made in the arena (`samples.arena.new_tensor`) need no copy on their
        way from a worker process to the trainer; a source may leave it alone.
        """
        ...

    def expected_digest(self, epoch: int, start: int, stop: int, place: Place) -> int | None:
        """A rank's share of the digest of the samples at these positions of an epoch.

        None where nobody can tell; see `plan.digest`.
        """
        ...
