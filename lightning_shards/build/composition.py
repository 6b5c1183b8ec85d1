"""What batches, epochs and a run hold of each component of a mixture, for the log and the tools."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from math import lcm
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lightning_shards.errors import count_of
from lightning_shards.plan.epoch import EpochPlan
from lightning_shards.plan.mixture_schedule import MAX_DEFAULT_ROUND
from lightning_shards.plan.slots import MixtureSlots
from lightning_shards.readers.source import SourceDescription
from lightning_shards.shards.index import ShardIndex

_MOST_COMPONENTS: Final = 16
_SAMPLES_COUNTED: Final = 2**18
"""Lines about 3 components take 30 ms of a core, lines about 100 take 100 ms."""


class BatchCounts(NamedTuple):
    """The least and the most samples of each component in the batches of some steps.

    Attributes:
        least: By component.
        most: By component.
        steps: How many steps were counted, from the first one of the epoch on.
        is_complete: Whether the numbers hold for all steps that were asked for.
    """

    least: list[int]
    most: list[int]
    steps: int
    is_complete: bool


def count_batches(
    slots: MixtureSlots, plan: EpochPlan, epoch: int, steps: int, *, by_rank: bool
) -> BatchCounts:
    """The least and the most samples of each component in a step, or in a rank's batch.

    Where batches are of rounds that hold the weights exactly, the first and the last step tell of
    all. Else batches are counted one by one, repeats included, and only the first ones of many.

    Args:
        slots: The mixture.
        plan: A whole epoch of it.
        epoch: The number of the epoch.
        steps: How many steps from its first one on; no weights change before the last of them.
        by_rank: Whether a batch is what one rank takes of a step.
    """
    counted = range(min(steps, max(1, _SAMPLES_COUNTED // plan.global_batch)))
    if len(counted) == steps or not _is_exact(slots, plan, epoch, by_rank):
        held = _held(slots, plan, epoch, counted, by_rank)
        is_complete = len(counted) == steps
    else:
        ends = (range(1), range(steps - 1, steps))
        held = np.hstack([_held(slots, plan, epoch, each, by_rank) for each in ends])
        is_complete = True
    return BatchCounts(
        held.min(axis=1).tolist(), held.max(axis=1).tolist(), len(counted), is_complete
    )


def _is_exact(slots: MixtureSlots, plan: EpochPlan, epoch: int, by_rank: bool) -> bool:
    """Whether all batches are whole rounds, and each round holds the weights exactly."""
    sizes, schedule = plan.sizes(0), slots.schedule
    if sizes != plan.sizes(plan.steps - 1) or plan.padded:
        return False
    cut = sizes if by_rank else (sum(sizes),)
    is_whole = all(size % schedule.round_samples == 0 for size in cut)
    total = sum(slots.weights_at(epoch * slots.epoch_samples))
    return is_whole and schedule.round_units % total == 0


def _held(
    slots: MixtureSlots, plan: EpochPlan, epoch: int, steps: range, by_rank: bool
) -> NDArray[np.int64]:
    """Samples of each component in the batches of these steps, shape (components, batches)."""
    # table: samples by step and rank. sizes: those of each batch, one after the other.
    first, last = plan.sizes(0), plan.sizes(plan.steps - 1)
    are_equal = first == last
    table = np.array([first] * len(steps) if are_equal else [plan.sizes(step) for step in steps])
    sizes = table.ravel() if by_rank else table.sum(axis=1)
    components = slots.components(epoch, plan.span(steps[0])[0], plan.span(steps[-1])[1])
    starts = np.cumsum(sizes) - sizes
    numbers = range(len(slots.names))
    held = [np.add.reduceat(components == each, starts, dtype=np.int64) for each in numbers]
    return np.stack(held)


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
    slots, begin = description.mixture.slots, epoch * plan.samples
    schedule, end = slots.schedule, begin + plan.samples
    changes = [stage.first_round * schedule.round_samples for stage in schedule.stages]
    change = next((sample for sample in changes if sample > begin), end)
    alike = bisect_left(range(steps), change - begin, key=plan.trained)
    counts = {"step": count_batches(slots, plan, epoch, alike, by_rank=False)}
    if plan.world_size > 1:
        counts["rank's batch"] = count_batches(slots, plan, epoch, alike, by_rank=True)
    counted = [each.steps for each in counts.values() if not each.is_complete]
    first = f"the first {count_of(min(counted), 'step')} of " if counted else ""
    head = (
        f"  {count_of(len(slots.names), 'component')} in rounds of "
        f"{count_of(schedule.round_samples, 'sample')}; least and most in {first}epoch {epoch}"
        f"{' until weights change' if change < end else ''}:"
    )
    lines = [head, *_lines_of_components(slots, epoch, description.index.components, counts)]
    lines += _remarks(slots, plan, epoch, steps)
    if change in changes:
        when = f"epoch {change // plan.samples}, after {change:,} samples of the run"
        lines.append(f"  weights change next in {when}")
    return lines


def _lines_of_components(
    slots: MixtureSlots,
    epoch: int,
    components: Sequence[ShardIndex],
    counts: Mapping[str, BatchCounts],
) -> list[str]:
    """What batches, an epoch and a filter hold of each; `counts` by the name of such a batch."""
    lines: list[str] = []
    begin, end = epoch * slots.epoch_samples, (epoch + 1) * slots.epoch_samples
    weights, in_epoch = slots.weights_at(begin), _samples_between(slots, begin, end)
    for number, part in enumerate(components[:_MOST_COMPONENTS]):
        line = f"  {slots.names[number]}: weight {weights[number]:,} of {sum(weights):,}, "
        for what, (least, most, _, is_complete) in counts.items():
            if least[number] < most[number]:
                line += f"{least[number]:,} to {most[number]:,} in a {what}, "
            else:
                line += f"{least[number]:,} in {'each' if is_complete else 'a'} {what}, "
        samples, known = in_epoch[number], part.known_samples
        line += f"{count_of(samples, 'sample')} an epoch"
        if known:
            line += f" ({passes_text(samples, known)} pass{'' if samples == known else 'es'})"
        if part.kept is not None:
            line += f"; keep and exclude leave {part.kept.samples:,} of {part.samples:,}"
        lines.append(line)
    if len(components) > _MOST_COMPONENTS:
        more = count_of(len(components) - _MOST_COMPONENTS, "more component")
        lines.append(f"  and {more}, which `lightning-shards plan` shows")
    return lines


def _remarks(slots: MixtureSlots, plan: EpochPlan, epoch: int, steps: int) -> list[str]:
    """That a round holds shares rounded only, and what an epoch leaves out of each component."""
    lines, schedule = list[str](), slots.schedule
    begin, end = epoch * plan.samples, (epoch + 1) * plan.samples
    weights = slots.weights_at(begin)
    total = sum(weights)
    if rounded := sum(weight * schedule.round_units % total > 0 for weight in weights):
        is_short = total <= MAX_DEFAULT_ROUND
        remedy = f"in a new run round={total} is exact" if is_short else "they hold on the average"
        shares = f"the shares of {rounded} components rounded up or down"
        lines.append(f"  a round holds {shares}; {remedy}")
    left_out = _samples_between(slots, begin + plan.trained(steps), end)
    if any(left_out):
        each = ", ".join(
            f"{name} {count:,}" for name, count in zip(slots.names, left_out, strict=True) if count
        )
        is_limited = steps < plan.steps
        # the sizes next to that of the plan that are whole rounds and whole steps
        common = lcm(schedule.round_samples, plan.global_batch)
        lower = plan.samples // common * common
        sizes = " or ".join(str(size) for size in (lower, lower + common) if size)
        lines.append(
            f"  epoch {epoch} {f'ends after {steps:,} steps and ' if is_limited else ''}drops "
            f"{count_of(sum(left_out), 'sample')} ({each}), which the passes of components skip"
            f"{'' if is_limited else f'; in a new run dataset_size={sizes} drops none'}"
        )
    return lines


def component_rows(description: SourceDescription, epochs: int | None) -> list[dict[str, Any]]:
    """What epoch 0 and a run of so many epochs hold of each component; [] if it is no mixture."""
    if description.mixture is None or description.index is None:
        return []
    slots = description.mixture.slots
    ends = {"epoch_0": 1} | ({} if epochs is None else {"run": epochs})
    spans = {span: slots.before(end * slots.epoch_samples).tolist() for span, end in ends.items()}
    rows: list[dict[str, Any]] = []
    for number, part in enumerate(description.index.components):
        known = part.known_samples
        row = {"component": slots.names[number], "samples": known, "shards": part.num_shards}
        for span, samples in spans.items():
            row[f"in_{span}"] = samples[number]
            row[f"passes_of_{span}"] = samples[number] / known if known else None
        rows.append(row)
    return rows


def passes_text(samples: int, of_component: int) -> str:
    """How often a component is passed.

    >>> passes_text(240_000, 12_000), passes_text(5, 3), passes_text(1, 10**6)
    ('20', '1.667', '1e-06')
    """
    passes = samples / of_component
    return f"{passes:.4g}" if passes < 1000 else f"{passes:,.0f}"  # noqa: PLR2004


def _samples_between(slots: MixtureSlots, begin: int, end: int) -> list[int]:
    """Samples of each component between two positions of the run."""
    return (slots.before(end) - slots.before(begin)).tolist()
