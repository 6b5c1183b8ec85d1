"""How many samples of each component steps, batches and epochs of a mixture hold.

Rounds hold exact numbers, and batches cut rounds wherever they end. Weights web=5 and labels=3 in
rounds of 8 samples, in steps of 6::

    slots         w w l w l l w w | l w w w l w w l
    step          0             1           2           ...
    labels        3             1           2
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import lcm
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lightning_shards.plan.epoch import EpochPlan
from lightning_shards.plan.mixtures.slots import MixtureSlots

_Ints = NDArray[np.int64]

_SAMPLES_AT_ONCE: Final = 2**18
"""Samples looked up together, of which each takes some 30 bytes."""


@dataclass(frozen=True, slots=True)
class WeightStage:
    """A stretch of the run in which weights stay the same.

    Attributes:
        begin: The samples of the run before it.
        end: The samples of the run before the next one; None: it is the last one.
        weights: The whole weight of each component.
    """

    begin: int
    end: int | None
    weights: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BatchCounts:
    """The least and the most samples of each component in the batches of some steps.

    Attributes:
        least: By component.
        most: By component.
        steps: How many steps these are. They are the first ones of those that were asked for.
        is_complete: Whether the numbers hold for all of those.
    """

    least: tuple[int, ...]
    most: tuple[int, ...]
    steps: int
    is_complete: bool


def stages_of(slots: MixtureSlots) -> list[WeightStage]:
    """The stages of a mixture from the beginning of its run on."""
    schedule = slots.schedule
    begins = [stage.first_round * schedule.round_samples for stage in schedule.stages]
    ends = [*begins[1:], None]
    return [
        WeightStage(begin, end, slots.weights_at(begin))
        for begin, end in zip(begins, ends, strict=True)
    ]


def count_batches(
    slots: MixtureSlots,
    plan: EpochPlan,
    stage: WeightStage,
    most_samples: int,
    *,
    by_rank: bool,
    steps: int | None = None,
) -> BatchCounts | None:
    """The least and the most samples of each component in a step, or in a rank's batch.

    The steps are those that begin in the stage; the last one may reach into the next stage. Where
    each batch is of rounds that hold the weights exactly, arithmetic answers for all of them. Else
    batches are counted one by one, repeats included, and only the first ones of a long stage.

    Args:
        slots: The mixture.
        plan: A whole epoch of it.
        stage: One of `stages_of`, or a part of it.
        most_samples: How many samples may be looked up; one step is counted in any case.
        by_rank: Whether a batch is what one rank takes of a step.
        steps: Steps of an epoch under a limit; None: those of the plan.

    Returns:
        None if no step begins in the stage.
    """
    in_epoch = plan.steps if steps is None else steps
    first = _steps_before(plan, in_epoch, stage.begin)
    last = None if stage.end is None else _steps_before(plan, in_epoch, stage.end)
    if first == last or not in_epoch:
        return None
    counted = range(first, first + max(1, most_samples // plan.global_batch))
    ranges = [counted if last is None else range(first, min(counted.stop, last))]
    is_complete = ranges[0].stop == last
    if not is_complete and _is_exact(slots, plan, stage, by_rank):
        ends = [] if last is None else [range(last - 1, last)]
        ranges, is_complete = [range(first, first + 1), *ends], True
    pieces = (each for part in ranges for each in _count(slots, plan, in_epoch, part, by_rank))
    least, most = _least_and_most(pieces)
    return BatchCounts(least, most, sum(map(len, ranges)), is_complete)


def samples_of_epoch(slots: MixtureSlots, epoch: int) -> _Ints:
    """Samples of each component in an epoch, int64, shape (components,)."""
    size = slots.epoch_samples
    return slots.before((epoch + 1) * size) - slots.before(epoch * size)


def left_out_of_epoch(
    slots: MixtureSlots, plan: EpochPlan, epoch: int, steps: int | None = None
) -> _Ints:
    """Samples of each component at the end of an epoch that no step serves.

    int64, shape (components,). They are skipped in the passes of their components as well. `steps`
    are those of an epoch under a limit.
    """
    served = plan.trained(plan.steps if steps is None else steps)
    left_out = slots.components(epoch, served, plan.samples)
    return np.bincount(left_out, minlength=len(slots.names))


def sizes_without_drop(slots: MixtureSlots, plan: EpochPlan) -> tuple[int, ...]:
    """The sizes of an epoch next to that of the plan that are whole rounds and whole steps.

    >>> from lightning_shards.plan.mixtures.schedule import schedule_mixture
    >>> schedule = schedule_mixture({"web": 5, "labels": 3}, round_units=8, epoch_samples=80)
    >>> slots = MixtureSlots(("web", "labels"), schedule, seed=0, epoch_samples=80)
    >>> sizes_without_drop(slots, EpochPlan(80, batch_size=6, world_size=2, remainder="drop"))
    (72, 96)
    """
    common = lcm(slots.schedule.round_samples, plan.global_batch)
    lower = plan.samples // common * common
    return tuple(size for size in (lower, lower + common) if size)


def _steps_before(plan: EpochPlan, steps: int, run_position: int) -> int:
    """How many steps of the run begin before this position, where each epoch has this many."""
    epoch, position = divmod(run_position, plan.samples)
    return epoch * steps + bisect_left(range(steps), position, key=plan.trained)


def _is_exact(slots: MixtureSlots, plan: EpochPlan, stage: WeightStage, by_rank: bool) -> bool:
    """Whether all batches are whole rounds, and each round holds the weights exactly."""
    sizes, schedule = _sizes_of_all_steps(plan), slots.schedule
    if sizes is None or plan.padded:
        return False
    cut = sizes if by_rank else (sum(sizes),)
    is_whole = all(size % schedule.round_samples == 0 for size in cut)
    return is_whole and schedule.round_units % sum(stage.weights) == 0


def _least_and_most(pieces: Iterable[_Ints]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """By component, over the batches of all pieces."""
    least, most = zip(*((each.min(axis=0), each.max(axis=0)) for each in pieces), strict=True)
    return tuple(np.min(least, axis=0).tolist()), tuple(np.max(most, axis=0).tolist())


def _count(
    slots: MixtureSlots, plan: EpochPlan, in_epoch: int, steps: range, by_rank: bool
) -> Iterator[_Ints]:
    """Samples of each component in the batches of these steps of the run, in pieces.

    Each is int64, of shape (batches, components); `in_epoch` are the steps of each epoch.
    """
    at_once = max(1, _SAMPLES_AT_ONCE // plan.global_batch)
    first = steps.start
    while first < steps.stop:
        epoch, step = divmod(first, in_epoch)
        last = min(first + at_once, steps.stop, (epoch + 1) * in_epoch)
        own = range(step, step + last - first)
        components = slots.components(epoch, plan.span(own[0])[0], plan.span(own[-1])[1])
        # sizes: samples of each batch, one behind the other as the components are.
        sizes = _sizes(plan, own, by_rank)
        starts = np.cumsum(sizes) - sizes
        of_each = [
            np.add.reduceat(components == number, starts, dtype=np.int64)
            for number in range(len(slots.names))
        ]
        yield np.stack(of_each, axis=1)
        first = last


def _sizes(plan: EpochPlan, steps: range, by_rank: bool) -> _Ints:
    """Samples of the batches of these steps of an epoch, step by step and rank by rank."""
    sizes_of_all = _sizes_of_all_steps(plan)
    if sizes_of_all is not None:
        return np.tile(sizes_of_all if by_rank else (sum(sizes_of_all),), len(steps))
    sizes = (plan.sizes(step) for step in steps)
    return np.array([size for each in sizes for size in (each if by_rank else (sum(each),))])


def _sizes_of_all_steps(plan: EpochPlan) -> tuple[int, ...] | None:
    """The batch sizes of the ranks, repeats included; None if they differ between steps."""
    sizes = plan.sizes(0)
    return sizes if sizes == plan.sizes(plan.steps - 1) else None
