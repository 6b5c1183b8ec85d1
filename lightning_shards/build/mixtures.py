"""The order of a mixture, and what its epochs hold of each component."""

from collections.abc import Mapping, Sequence
from typing import Any

from lightning_shards.config.splits import SplitConfig
from lightning_shards.errors import ConfigError, PlanError, count_of
from lightning_shards.plan.epoch import EpochPlan
from lightning_shards.plan.mixture import MixtureComponent, MixtureOrder
from lightning_shards.plan.mixture_schedule import (
    default_round,
    epoch_of_mixture,
    schedule_mixture,
    weigh_components,
)
from lightning_shards.plan.order import Order
from lightning_shards.plan.slots import MixtureSlots
from lightning_shards.readers.recipe import Recipe
from lightning_shards.readers.source import SourceDescription
from lightning_shards.samples.fields import classes_identity
from lightning_shards.samples.transforms import image_backend
from lightning_shards.shards.index import ShardIndex


def make_slots(config: SplitConfig, index: ShardIndex, seed: int) -> MixtureSlots:
    """Where in the sequence of a mixture each of its components stands.

    Args:
        config: The settings of the split, complete.
        index: Its shards, with those of each component.
        seed: Of the run.

    Raises:
        ConfigError: Weights, round, epoch or schedule that give no mixture, or batches that would
            cut a unit.
        PlanError: A component has no sample.
    """
    _require_whole_units(config)
    mix = config.mix or {}
    samples = _samples_of(config, dict(zip(mix, index.components, strict=True)))
    weights = weigh_components(
        samples,
        {name: component.weight for name, component in mix.items()},
        {name: component.passes for name, component in mix.items()},
        config.temperature,
    )
    round_units = default_round(weights) if config.round is None else config.round
    epoch_samples = epoch_of_mixture(
        samples,
        weights,
        round_units * config.unit,
        dataset_size=config.dataset_size,
        epoch_of=config.epoch_of,
    )
    schedule = schedule_mixture(
        weights,
        config.schedule,
        round_units=round_units,
        unit=config.unit,
        epoch_samples=epoch_samples,
    )
    return MixtureSlots(tuple(mix), schedule, seed, epoch_samples)


def _samples_of(config: SplitConfig, components: Mapping[str, ShardIndex]) -> dict[str, int]:
    """The samples of each component; 0 for one of which they are neither known nor needed.

    Raises:
        ConfigError: They are needed and unknown.
        PlanError: A component has none.
    """
    known = {name: index.known_samples for name, index in components.items()}
    unknown = sorted(name for name, samples in known.items() if samples is None)
    is_weighed = all(component.weight is not None for component in (config.mix or {}).values())
    if unknown and (config.epoch_of is not None or not is_weighed):
        raise ConfigError(
            f"the number of samples of component {unknown[0]!r} is unknown, as it is remote and "
            "has no counts beside it; give all components a weight, and the split a dataset_size, "
            "or make what is lacking by `lightning-shards index`"
        )
    for name, samples in known.items():
        if samples == 0:
            raise PlanError(
                f"component {name!r} has 0 samples; check its shards and the counts in their "
                "index, or remove it from the mix"
            )
    return {name: samples or 0 for name, samples in known.items()}


def make_order(
    slots: MixtureSlots,
    indexes: Sequence[ShardIndex],
    recipes: Sequence[Recipe],
    orders: Sequence[Order],
) -> MixtureOrder:
    """The order of a mixture of components with these shards, recipes and orders of their own."""
    mix: list[MixtureComponent] = []
    for name, index, recipe, order in zip(slots.names, indexes, recipes, orders, strict=True):
        classes = "".join(f" classes={text}" for text in classes_identity(recipe.fields).values())
        known_by = index.fingerprint() + classes + _backend_text(recipe)
        mix.append(MixtureComponent(name, order, index.num_shards, known_by))
    return MixtureOrder(tuple(mix), slots)


def _backend_text(recipe: Recipe) -> str:
    """What changes the pixels of a component; the default is not told."""
    backend = image_backend(recipe.transforms)
    is_default = backend == image_backend({})
    return "" if is_default else f" image_backend={backend.replace(' ', '')}"


def _require_whole_units(config: SplitConfig) -> None:
    """Refuse batches that would cut a unit, which is of one component."""
    batch_size = config.batch_size or 1
    if config.unit > 1 and config.unit % batch_size:
        raise ConfigError(
            f"unit={config.unit} must be a multiple of batch_size={batch_size}, so that each batch "
            f"is of one component; set unit={config.unit + -config.unit % batch_size}, leave it "
            "out, or, as in a run that is resumed, take a batch size that divides it"
        )
    if config.unit > 1 and config.remainder == "balanced":
        raise ConfigError(
            f"remainder='balanced' makes smaller batches at the end of an epoch, which would cut "
            f"units of {config.unit} samples; take remainder='drop' or 'pad'"
        )


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
    rows: list[dict[str, Any]] = [
        {"component": name, "samples": part.known_samples, "shards": part.num_shards}
        for name, part in zip(slots.names, description.index.components, strict=True)
    ]
    for span, end in {"epoch_0": 1, "run": epochs or 0}.items():
        held = _samples_between(slots, 0, end * slots.epoch_samples)
        for row, samples in zip(rows, held, strict=True) if end else ():
            row[f"in_{span}"] = samples
            row[f"passes_of_{span}"] = samples / row["samples"] if row["samples"] else None
    return rows


def _samples_between(slots: MixtureSlots, begin: int, end: int) -> list[int]:
    """Samples of each component between two positions of the run."""
    return (slots.before(end) - slots.before(begin)).tolist()
