"""What the log says of a mixture when a fit begins: the components in its batches and epochs."""

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

from lightning_shards.errors import count_of
from lightning_shards.plan.epoch import EpochPlan
from lightning_shards.plan.mixtures.composition import (
    BatchCounts,
    WeightStage,
    count_batches,
    left_out_of_epoch,
    samples_of_epoch,
    sizes_without_drop,
    stages_of,
)
from lightning_shards.plan.mixtures.slots import MixtureSlots
from lightning_shards.plan.mixtures.weights import MAX_DEFAULT_ROUND
from lightning_shards.readers.source import SourceDescription
from lightning_shards.shards.index import ShardIndex

_MOST_COMPONENTS: Final = 16
_SAMPLES_COUNTED: Final = 2**18
"""Lines about 3 components take 30 ms of a core, lines about 100 take 100 ms."""


def mixture_lines(
    description: SourceDescription, plan: EpochPlan, epoch: int, steps: int
) -> list[str]:
    """A line about each component of a mixture, and about all of them; [] if it is no mixture.

    Args:
        description: The source of the split.
        plan: A whole epoch.
        epoch: The epoch in which the fit begins.
        steps: Steps of each epoch, less than those of the plan under a limit.
    """
    if description.mixture is None or description.index is None or not steps:
        return []
    slots = description.mixture.slots
    stage, is_shared = _stage_in(slots, epoch), plan.world_size > 1
    in_step, in_batch = (
        count_batches(slots, plan, stage, _SAMPLES_COUNTED, by_rank=by_rank, steps=steps)
        for by_rank in (False, True)
    )
    assert in_step is not None  # the first step of the epoch begins in the stage
    assert in_batch is not None
    parts = description.index.components
    rows = zip(slots.names, stage.weights, samples_of_epoch(slots, epoch), parts, strict=True)
    until = " until weights change" if stage.end != (epoch + 1) * slots.epoch_samples else ""
    lines = [f"{_head(slots, epoch, in_step, in_batch)}{until}:"]
    for number, (name, weight, in_epoch, part) in enumerate(rows):
        held = [_held_text(in_step, number, "step")]
        held += [_held_text(in_batch, number, "rank's batch")] if is_shared else []
        known = part.known_samples
        passes = f" ({_passes_text(int(in_epoch), known)})" if known else ""
        lines.append(
            f"  {name}: weight {weight:,} of {sum(stage.weights):,}, {', '.join(held)}, "
            f"{count_of(int(in_epoch), 'sample')} an epoch{passes}{_left_text(part)}"
        )
    if len(slots.names) > _MOST_COMPONENTS:
        more = count_of(len(slots.names) - _MOST_COMPONENTS, "more component")
        lines[_MOST_COMPONENTS + 1 :] = [f"  and {more}, which `lightning-shards plan` shows"]
    rounded = rounding_text(stage.weights, slots.schedule.round_units)
    lines += [f"  {rounded}"] if rounded else []
    return lines + _drop_lines(slots, plan, epoch, steps) + _change_lines(slots, epoch)


def rounding_text(weights: Sequence[int], round_units: int) -> str:
    """That a round holds shares that are not whole only rounded; empty if all are whole.

    >>> rounding_text((5, 2, 1), 4)
    'a round holds the shares of 2 components rounded up or down; in a new run round=8 is exact'
    """
    total = sum(weights)
    rounded = sum(weight * round_units % total > 0 for weight in weights)
    if not rounded:
        return ""
    is_short = total <= MAX_DEFAULT_ROUND
    remedy = f"in a new run round={total} is exact" if is_short else "they hold on the average"
    return f"a round holds the shares of {rounded} components rounded up or down; {remedy}"


def passes_text(samples: int, of_component: int) -> str:
    """How often a component is passed.

    >>> passes_text(240_000, 12_000), passes_text(5, 3), passes_text(1, 10**6)
    ('20', '1.667', '1e-06')
    """
    passes = samples / of_component
    return f"{passes:.4g}" if passes < 1000 else f"{passes:,.0f}"  # noqa: PLR2004


def _passes_text(samples: int, of_component: int) -> str:
    passes = passes_text(samples, of_component)
    return f"{passes} pass{'' if samples == of_component else 'es'}"


def _left_text(part: ShardIndex) -> str:
    """What is left of the samples of a component, if it has a filter."""
    if part.kept is None:
        return ""
    return f"; keep and exclude leave {part.kept.samples:,} of {part.samples:,}"


def _stage_in(slots: MixtureSlots, epoch: int) -> WeightStage:
    """The weights with which an epoch begins, as far as they hold in it."""
    begin, end = epoch * slots.epoch_samples, (epoch + 1) * slots.epoch_samples
    stages = stages_of(slots)
    stage = stages[bisect_right(stages, begin, key=lambda each: each.begin) - 1]
    return WeightStage(begin, end if stage.end is None else min(end, stage.end), stage.weights)


def _head(slots: MixtureSlots, epoch: int, in_step: BatchCounts, in_batch: BatchCounts) -> str:
    counted = f"epoch {epoch}"
    if not (in_step.is_complete and in_batch.is_complete):
        steps = min(each.steps for each in (in_step, in_batch) if not each.is_complete)
        counted = f"the first {count_of(steps, 'step')} of {counted}"
    return (
        f"  {count_of(len(slots.names), 'component')} in rounds of "
        f"{count_of(slots.schedule.round_samples, 'sample')}; least and most in {counted}"
    )


def _held_text(counts: BatchCounts, number: int, what: str) -> str:
    """How many samples of a component batches hold, where `what` is the name of such a batch."""
    least, most = counts.least[number], counts.most[number]
    if least < most:
        return f"{least:,} to {most:,} in a {what}"
    return f"{least:,} in {'each' if counts.is_complete else 'a'} {what}"


def _drop_lines(slots: MixtureSlots, plan: EpochPlan, epoch: int, steps: int) -> list[str]:
    """What an epoch leaves out of each component, and the sizes that leave out nothing."""
    left_out = left_out_of_epoch(slots, plan, epoch, steps)
    if not left_out.any():
        return []
    is_limited = steps < plan.steps
    named = zip(slots.names, left_out, strict=True)
    each = ", ".join(f"{name} {count:,}" for name, count in named if count)
    sizes = " or ".join(map(str, sizes_without_drop(slots, plan)))
    line = (
        f"  epoch {epoch} {f'ends after {steps:,} steps and ' if is_limited else ''}drops "
        f"{count_of(int(left_out.sum()), 'sample')} ({each}), which the passes of components skip"
    )
    return [line if is_limited else f"{line}; in a new run dataset_size={sizes} drops none"]


def _change_lines(slots: MixtureSlots, epoch: int) -> list[str]:
    """When the weights change next."""
    begun = epoch * slots.epoch_samples
    later = [stage.begin for stage in stages_of(slots) if stage.begin > begun]
    if not later:
        return []
    in_epoch = later[0] // slots.epoch_samples
    return [f"  weights change next in epoch {in_epoch}, after {later[0]:,} samples of the run"]
