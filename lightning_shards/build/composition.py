"""What epochs and a run hold of each component of a mixture, for the log and the tools."""

from typing import Any

from lightning_shards.errors import count_of
from lightning_shards.plan.epoch import EpochPlan
from lightning_shards.plan.slots import MixtureSlots
from lightning_shards.readers.source import SourceDescription


def mixture_lines(description: SourceDescription, plan: EpochPlan, epoch: int) -> list[str]:
    """A line about each component of a mixture, and about all of them; [] if it is no mixture.

    `plan` is that of a whole epoch, and `epoch` the one in which the fit begins.
    """
    if description.mixture is None or description.index is None:
        return []
    slots, begin = description.mixture.slots, epoch * plan.samples
    weights, held = slots.weights_at(begin), _samples_between(slots, begin, begin + plan.samples)
    of_round = count_of(slots.schedule.round_samples, "sample")
    lines = [f"  {count_of(len(held), 'component')} in rounds of {of_round}, in epoch {epoch}:"]
    of_each = zip(slots.names, description.index.components, weights, held, strict=True)
    for name, part, weight, samples in of_each:
        line = f"  {name}: weight {weight:,} of {sum(weights):,}, "
        line += f"{count_of(samples, 'sample')} an epoch"
        if known := part.known_samples:
            line += f" ({samples / known:,.4g} pass{'' if samples == known else 'es'})"
        if part.kept is not None:
            line += f"; keep and exclude leave {part.kept.samples:,} of {part.samples:,}"
        lines.append(line)
    return lines


def component_rows(description: SourceDescription, epochs: int | None) -> list[dict[str, Any]]:
    """What epoch 0 and a run of so many epochs hold of each component; [] if it is no mixture."""
    if description.mixture is None or description.index is None:
        return []
    slots = description.mixture.slots
    ends = {"epoch_0": 1} | ({} if epochs is None else {"run": epochs})
    size = slots.epoch_samples
    spans = {span: _samples_between(slots, 0, end * size) for span, end in ends.items()}
    rows: list[dict[str, Any]] = []
    for number, part in enumerate(description.index.components):
        known = part.known_samples
        row: dict[str, Any] = {
            "component": slots.names[number],
            "samples": known,
            "shards": part.num_shards,
        }
        for span, samples in spans.items():
            row[f"in_{span}"] = samples[number]
            row[f"passes_of_{span}"] = samples[number] / known if known else None
        rows.append(row)
    return rows


def _samples_between(slots: MixtureSlots, begin: int, end: int) -> list[int]:
    """Samples of each component between two positions of the run."""
    return (slots.before(end) - slots.before(begin)).tolist()
