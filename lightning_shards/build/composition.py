"""What epochs and a run hold of each component of a mixture, for the log and the tools."""

from math import lcm
from typing import Any, Final

from lightning_shards.errors import count_of
from lightning_shards.plan.epoch import EpochPlan
from lightning_shards.plan.mixture_schedule import MAX_DEFAULT_ROUND
from lightning_shards.plan.slots import MixtureSlots
from lightning_shards.readers.source import SourceDescription

_MOST_COMPONENTS: Final = 16


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
    schedule, weights = slots.schedule, slots.weights_at(begin)
    of_round = count_of(schedule.round_samples, "sample")
    lines = [
        f"  {count_of(len(slots.names), 'component')} in rounds of {of_round}, in epoch {epoch}:"
    ]
    held = _samples_between(slots, begin, begin + plan.samples)
    for number, part in enumerate(description.index.components[:_MOST_COMPONENTS]):
        samples, known = held[number], part.known_samples
        line = f"  {slots.names[number]}: weight {weights[number]:,} of {sum(weights):,}, "
        line += f"{count_of(samples, 'sample')} an epoch"
        if known:
            line += f" ({passes_text(samples, known)} pass{'' if samples == known else 'es'})"
        if part.kept is not None:
            line += f"; keep and exclude leave {part.kept.samples:,} of {part.samples:,}"
        lines.append(line)
    if len(slots.names) > _MOST_COMPONENTS:
        more = count_of(len(slots.names) - _MOST_COMPONENTS, "more component")
        lines.append(f"  and {more}, which `lightning-shards plan` shows")
    lines += _remarks(slots, plan, epoch, steps)
    changes = [stage.first_round * schedule.round_samples for stage in schedule.stages]
    if change := next((sample for sample in changes if sample > begin), None):
        when = f"epoch {change // plan.samples}, after {change:,} samples of the run"
        lines.append(f"  weights change next in {when}")
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
