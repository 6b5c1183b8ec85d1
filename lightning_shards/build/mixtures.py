"""The order of a mixture, from the settings of its split and the shards of its components."""

from collections.abc import Mapping, Sequence

from lightning_shards.config.splits import SplitConfig
from lightning_shards.errors import ConfigError
from lightning_shards.plan.mixture import (
    MixtureComponent,
    MixtureOrder,
    require_samples,
)
from lightning_shards.plan.mixture_schedule import (
    default_round,
    epoch_of_mixture,
    schedule_mixture,
    weigh_components,
)
from lightning_shards.plan.order import Order
from lightning_shards.plan.slots import MixtureSlots
from lightning_shards.readers.recipe import Recipe
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
        [each.change for each in config.schedule],
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
        if samples is not None:
            require_samples(name, samples)
    return {name: samples or 0 for name, samples in known.items()}


def make_order(
    slots: MixtureSlots,
    indexes: Sequence[ShardIndex],
    recipes: Sequence[Recipe],
    orders: Sequence[Order],
) -> MixtureOrder:
    """The order of a mixture of components with these shards, recipes and orders of their own.

    Raises:
        PlanError: One has no sample.
    """
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
