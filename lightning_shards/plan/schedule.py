"""The schedule of epochs: the endless stream of a split, cut into epochs and a worker's steps.

A stream has no state but its cursor: what a worker makes follows from the cursor and its place
alone. Resuming, changing the number of workers and beginning an epoch are thus one operation.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from lightning_shards.errors import PlanError
from lightning_shards.plan.cursor import Cursor
from lightning_shards.plan.epoch import EpochPlan, Remainder, plan_epoch
from lightning_shards.plan.place import Place


@dataclass(frozen=True, slots=True)
class WorkerEpoch:
    """The part of one epoch that one worker makes.

    The worker's number is rotated by the batches that came before: the i-th batch of a stream comes
    from worker i % num_workers, and an epoch need not have a multiple of num_workers batches. As
    `place.worker` is counted from the epoch's own first batch, an epoch holds the same batches
    whether the stream rolled into it or was started at it.

    Attributes:
        epoch: Number of the epoch.
        plan: What is left of the epoch.
        steps: How many steps of the plan are run, less than `plan.steps` under a limit.
        place: The place, with the worker's number counted from the first batch of this epoch.
    """

    epoch: int
    plan: EpochPlan
    steps: int
    place: Place

    def span(self, step: int) -> tuple[int, int]:
        """First position of the rank's batch, and the position behind its last one."""
        return self.plan.rank_span(step, self.place.rank)

    def weights(self, step: int) -> list[int]:
        """1 for each sample of the rank's batch, 0 for each repeat at its end; [] under `drop`."""
        if self.plan.remainder == "drop":
            return []
        size = self.plan.size(step, self.place.rank)
        repeats = self.plan.num_repeats(step, self.place.rank)
        return [1] * (size - repeats) + [0] * repeats

    def own_steps(self) -> range:
        """The steps of the plan whose batches this worker makes."""
        return range(self.place.worker, self.steps, self.place.num_workers)


@dataclass(frozen=True, slots=True)
class EpochSchedule:
    """How a stream of samples is cut into epochs; the same on every rank.

    Attributes:
        samples: Samples of an epoch.
        batch_size: Samples per rank and step.
        remainder: What happens to samples that fill no whole step.
        limit: Steps after which an epoch ends early, None for no limit.
        pinned: Whether each epoch is epoch 0 again (evaluation rewinds).
    """

    samples: int
    batch_size: int
    remainder: Remainder
    limit: int | None = None
    pinned: bool = False

    def plan(self, world_size: int, done: int = 0) -> EpochPlan:
        """The plan of what is left of an epoch after `done` samples, without the limit."""
        return plan_epoch(self.samples, self.batch_size, world_size, self.remainder, done)

    def steps(self, world_size: int, done: int = 0) -> int:
        """Steps left in an epoch after `done` samples, up to the plan's end or the limit."""
        whole, left = self.plan(world_size).steps, self.plan(world_size, done).steps
        if self.limit is None:
            return left
        return max(0, min(whole, self.limit) - (whole - left))

    def next_epoch(self, cursor: Cursor) -> Cursor:
        """The beginning of the epoch that follows."""
        return Cursor(0 if self.pinned else cursor.epoch + 1)

    def with_a_step(self, cursor: Cursor, world_size: int) -> Cursor:
        """The cursor, or the beginning of the next epoch if no step is left in this one."""
        return cursor if self.steps(world_size, cursor.samples) else self.next_epoch(cursor)

    def worker_epochs(self, place: Place, cursor: Cursor) -> Iterator[WorkerEpoch]:
        """The worker's part of each epoch from the cursor on, without end."""
        before = 0
        while True:
            steps = self.steps(place.world_size, cursor.samples)
            if steps == 0 and cursor.samples == 0:
                raise PlanError(f"an epoch of no steps would never end: {self}")
            worker = (place.worker - before) % place.num_workers
            yield WorkerEpoch(
                epoch=cursor.epoch,
                plan=self.plan(place.world_size, cursor.samples),
                steps=steps,
                place=place.with_worker(worker, place.num_workers),
            )
            before += steps
            cursor = self.next_epoch(cursor)

    def with_limit(self, limit: int | None) -> "EpochSchedule":
        """The same epochs, ended after `limit` steps."""
        return replace(self, limit=limit)


def limited_steps(limit: float | None, steps: int) -> int:
    """How many of an epoch's steps are run under a limit of a trainer.

    >>> limited_steps(None, 10), limited_steps(3, 10), limited_steps(0.25, 10)
    (10, 3, 2)

    Args:
        limit: A whole number of steps, or a fraction of all; None: all.
        steps: Steps of a whole epoch.
    """
    if limit is None:
        return steps
    return min(steps, limit) if isinstance(limit, int) else int(steps * limit)
