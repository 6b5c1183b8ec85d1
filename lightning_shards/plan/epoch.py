"""The arithmetic of one epoch: how many steps, and what every rank takes at each of them.

Numbers in, numbers out: the plan knows no shard, no file and no clock. All ranks compute the same
plan, so they stay in lockstep without talking. Every answer is a formula, so a plan of a trillion
samples costs no more than one of ten.

Ten samples, four ranks, batch size 2. Numbers are positions of the epoch's global sequence, ``*``
marks a repeat (weight 0), ``|`` separates the ranks::

    remainder   step 0               step 1                   dropped   padded
    drop        0 1|2 3|4 5|6 7      -                              2        0
    pad         0 1|2 3|4 5|6 7      8 9|0*1*|2*3*|4*5*             0        6
    balanced    0 1| 2 | 3 | 4       5 6| 7  | 8  | 9               0        0
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, get_args

from lightning_shards.errors import ConfigError, PlanError, count_of, require_choice
from lightning_shards.plan.place import Cursor, Place

Remainder = Literal["drop", "pad", "balanced"]
"""What happens to the samples that fill no whole step."""


@dataclass(frozen=True)
class EpochPlan:
    """The rest of one epoch, cut into steps; made by `plan_epoch`.

    Steps are numbered from 0 at `done`. A step or rank that is out of range is a `ConfigError`.

    Attributes:
        samples: Samples of the whole epoch.
        batch_size: Samples per rank and step.
        world_size: Number of data-parallel ranks.
        remainder: What happens to the samples that fill no whole step.
        done: Samples of this epoch that were trained before this plan begins.
    """

    samples: int
    batch_size: int
    world_size: int
    remainder: Remainder
    done: int = 0

    def __post_init__(self) -> None:
        """Refuse numbers that no epoch can have.

        Raises:
            ConfigError: A size below its least value, `done` outside the epoch, or an unknown
                remainder.
        """
        for name, least in (("batch_size", 1), ("world_size", 1), ("samples", 0)):
            if (value := getattr(self, name)) < least:
                raise ConfigError(f"{name} must be at least {least}, got {value}")
        if not 0 <= self.done <= self.samples:
            raise ConfigError(
                f"done must be from 0 to the {self.samples} samples of the epoch, got {self.done}; "
                "give the samples trained in this epoch, repeats not counted"
            )
        require_choice("remainder", self.remainder, get_args(Remainder))

    @property
    def global_batch(self) -> int:
        """Samples of a full step over all ranks: batch size x world size."""
        return self.batch_size * self.world_size

    @cached_property
    def steps(self) -> int:
        """Steps still to run, the same on every rank."""
        if self.remainder == "drop":
            return self._left // self.global_batch
        return -(-self._left // self.global_batch)

    @property
    def served(self) -> int:
        """Distinct samples still to be served, over all ranks."""
        return min(self._left, self.steps * self.global_batch)

    @property
    def dropped(self) -> int:
        """Samples at the end of the epoch that no step serves."""
        return self._left - self.served

    @property
    def padded(self) -> int:
        """Repeats over all ranks; all of them are in the last step."""
        return 0 if self._is_even else self.steps * self.global_batch - self.served

    def require_steps(self, split: str = "", *, is_nominal: bool = False) -> "EpochPlan":
        """This plan, if its epoch has a step at all.

        The rest of an epoch (`done` > 0) may be empty: the next epoch follows it.

        Args:
            split: Name of the split, for the message.
            is_nominal: Whether `dataset_size` may make the epoch longer.

        Raises:
            PlanError: A whole epoch (`done` == 0) without a single step.
        """
        if self.steps or self.done:
            return self
        if not self.samples:
            raise PlanError(
                "the data set has no samples; check the shard pattern and the counts in its index"
            )
        ranks, longer = count_of(self.world_size, "rank"), ", raise dataset_size" * is_nominal
        raise PlanError(
            f"{split}{': ' if split else ''}{self.samples} samples do not fill one step of {ranks} "
            f"x {self.batch_size} samples; lower the batch size{longer} or set remainder='pad'"
        )

    def size(self, step: int, rank: int) -> int:
        """Samples in the batch of this rank at this step, repeats included."""
        start, stop = self.rank_span(step, rank)
        return stop - start

    def num_repeats(self, step: int, rank: int) -> int:
        """How many samples, at the end of this rank's batch, are repeats (weight 0)."""
        start, stop = self.rank_span(step, rank)
        return max(0, stop - max(start, self.samples))

    def sizes(self, step: int) -> tuple[int, ...]:
        """Batch sizes at this step, repeats included, one per rank.

        >>> plan = plan_epoch(10, batch_size=2, world_size=4, remainder="balanced")
        >>> [plan.sizes(step) for step in range(plan.steps)]
        [(2, 1, 1, 1), (2, 1, 1, 1)]
        """
        return tuple(self.size(step, rank) for rank in range(self.world_size))

    def repeats(self, step: int) -> tuple[int, ...]:
        """Number of repeats at the end of each rank's batch at this step, one per rank.

        >>> plan = plan_epoch(10, batch_size=2, world_size=4, remainder="pad")
        >>> plan.sizes(1), plan.repeats(1)
        ((2, 2, 2, 2), (0, 2, 2, 2))
        """
        return tuple(self.num_repeats(step, rank) for rank in range(self.world_size))

    def span(self, step: int) -> tuple[int, int]:
        """Positions (start, stop) of this step in the epoch's global sequence.

        The ranks take consecutive slices of it (`rank_span`), whose lengths are `sizes(step)`. In
        a padded step `stop` exceeds `samples`: position p >= samples repeats position p % samples.

        >>> plan_epoch(10, batch_size=2, world_size=4, remainder="pad").span(1)
        (8, 16)
        """
        self._check("step", step, self.steps)
        start = self.trained(step)
        return start, self.trained(step + 1) if self._is_even else start + self.global_batch

    def rank_span(self, step: int, rank: int) -> tuple[int, int]:
        """Positions (start, stop) of this rank at this step: its slice of `span(step)`.

        >>> plan = plan_epoch(10, batch_size=2, world_size=4, remainder="balanced")
        >>> [plan.rank_span(1, rank) for rank in range(plan.world_size)]
        [(5, 7), (7, 8), (8, 9), (9, 10)]
        """
        start, stop = self.span(step)
        self._check("rank", rank, self.world_size)
        size, num_larger = divmod(stop - start, self.world_size)
        start += rank * size + min(rank, num_larger)
        return start, start + size + (rank < num_larger)

    def trained(self, steps: int) -> int:
        """The cursor's samples after `steps` further steps, 0 <= steps <= `self.steps`.

        Plans are memoryless: the plan with this number as its `done` is the rest of this plan.
        """
        self._check("steps", steps, self.steps + 1)
        first_steps, first_total, later_total = self._totals
        first = min(steps, first_steps)
        return self.done + first * first_total + (steps - first) * later_total

    def share(self, rank: int, worker: int = 0, num_workers: int = 1) -> int:
        """Distinct samples of this rank in the steps `worker`, `worker` + `num_workers`, ...

        >>> plan = plan_epoch(10, batch_size=2, world_size=4, remainder="balanced")
        >>> plan.share(rank=0), plan.share(rank=0, worker=1, num_workers=2)
        (4, 2)
        """
        self._check("worker", worker, num_workers)
        first_steps = self._totals[0]
        num_first = len(range(worker, first_steps, num_workers))
        num_later = len(range(worker, self.steps, num_workers)) - num_first
        # the first steps are alike, and so are the later ones
        return sum(
            number * (self.size(step, rank) - self.num_repeats(step, rank))
            for number, step in ((num_first, 0), (num_later, first_steps))
            if number
        )

    @property
    def _left(self) -> int:
        return self.samples - self.done

    @cached_property
    def _is_even(self) -> bool:
        """Whether the plan is balanced, and every rank gets a sample at every step."""
        return self.remainder == "balanced" and self._left >= self.steps * self.world_size

    @cached_property
    def _totals(self) -> tuple[int, int, int]:
        """Number of first steps, and distinct samples in each first step and each later step."""
        if self._is_even and self.steps:
            # The larger steps come first, so that the rest of a plan is a balanced plan too.
            total, num_larger = divmod(self._left, self.steps)
            return num_larger, total + 1, total
        full_steps, rest = divmod(self._left, self.global_batch)
        return full_steps, self.global_batch, rest

    def _check(self, name: str, value: int, total: int) -> None:
        if not 0 <= value < total:
            raise ConfigError(
                f"{name} must be at least 0 and below {total}, got {value}; stay inside {self}"
            )


def plan_epoch(
    samples: int, batch_size: int, world_size: int, remainder: Remainder, done: int = 0
) -> EpochPlan:
    """The plan of what is left of an epoch after `done` of its samples were trained.

    With R = samples - done and G = batch_size x world_size:

    - ``drop``: R // G full steps; the rest is not served.
    - ``pad``: the rest gets one more full step, filled up with repeats.
    - ``balanced``: as many steps as ``pad``, without repeats. The sizes of steps differ by at most
      one sample, larger steps first, and so do the sizes of the ranks of one step. It pads exactly
      like ``pad`` when some step would leave a rank without a sample (R // steps < world_size).

    A plan may have no step at all; `EpochPlan.require_steps` refuses such a plan.

    >>> plan = plan_epoch(10, batch_size=2, world_size=4, remainder="drop")
    >>> plan.steps, plan.served, plan.dropped, plan.padded
    (1, 8, 2, 0)
    >>> plan_epoch(10, 2, 4, "balanced", done=5).span(0)
    (5, 10)
    >>> plan_epoch(3, 2, 4, "balanced").repeats(0)    # fewer samples than ranks
    (0, 1, 2, 2)

    Raises:
        ConfigError: See `EpochPlan`.
    """
    return EpochPlan(samples, batch_size, world_size, remainder, done)


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
        return [int(position < self.plan.samples) for position in range(*self.span(step))]

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

    def cursor_after(self, cursor: Cursor, world_size: int, steps: int) -> Cursor:
        """The cursor of the batch that a stream begun at `cursor` gives after `steps` others.

        >>> EpochSchedule(10, batch_size=2, remainder="drop").cursor_after(Cursor(0, 4), 1, 5)
        Cursor(epoch=1, samples=4)
        """
        left = self.steps(world_size, cursor.samples)
        if steps >= left:  # whole epochs have equal numbers of steps
            whole, steps = divmod(steps - left, self.steps(world_size))
            cursor = self.next_epoch(cursor)
            cursor = cursor if self.pinned else Cursor(cursor.epoch + whole)
        return Cursor(cursor.epoch, self.plan(world_size, cursor.samples).trained(steps))

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
