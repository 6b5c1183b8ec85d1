"""The order of a mixture, from the settings of its split and the shards of its components."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Final

from lightning_shards.config.splits import SplitConfig
from lightning_shards.errors import ConfigError, count_of
from lightning_shards.plan.epoch import EpochPlan
from lightning_shards.plan.mixture import (
    BatchCounts,
    MixtureComponent,
    MixtureOrder,
    WeightStage,
    count_batches,
    left_out_of_epoch,
    require_samples,
    samples_of_epoch,
    sizes_without_drop,
    stages_of,
)
from lightning_shards.plan.mixture_schedule import (
    MAX_DEFAULT_ROUND,
    default_round,
    epoch_of_mixture,
    schedule_mixture,
    weigh_components,
)
from lightning_shards.plan.slots import MixtureSlots
from lightning_shards.readers.indexed import IndexedSource
from lightning_shards.readers.reader_choice import ReaderChoice, reader_of_mixture
from lightning_shards.readers.source import SourceDescription
from lightning_shards.samples.fields import Field, classes_identity
from lightning_shards.samples.transforms import image_backend
from lightning_shards.shards.classes import ClassNames
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


def choose_reader(split: str, config: SplitConfig, index: ShardIndex) -> str:
    """The one reader of all components of a mixture of these shards: `stream` or `indexed`.

    Raises:
        ConfigError: A component cannot be read by the reader that is asked for.
    """
    parts = config.component_splits()
    choices = {
        name: ReaderChoice(
            split=f"{split}.mix.{name}",
            reader=part.reader,
            sampling=str(part.sampling),
            has_stages=bool(part.stages),
        )
        for name, part in parts.items()
    }
    return reader_of_mixture(choices, dict(zip(parts, index.components, strict=True)))


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
        is_filtered = components[unknown[0]].key_tests is not None
        without = "keep or exclude, and no member tables" if is_filtered else "no counts"
        raise ConfigError(
            f"the number of samples of component {unknown[0]!r} is unknown, as it is remote and "
            f"has {without} beside it; give all components a weight, and the split a dataset_size, "
            "or make what is lacking by `lightning-shards index`"
        )
    for name, samples in known.items():
        if samples is not None:
            require_samples(name, samples)
    return {name: samples or 0 for name, samples in known.items()}


def require_same_classes(components: Mapping[str, tuple[Field, ...]]) -> None:
    """Check that no label has one number in one component and another one in the next.

    Args:
        components: Their fields, with their classes.

    Raises:
        ConfigError: The classes of a field differ.
    """
    first_of: dict[str, tuple[str, ClassNames]] = {}
    for name, fields in components.items():
        for field in fields:
            if field.classes is None:
                continue
            other, classes = first_of.setdefault(field.name, (name, field.classes))
            if classes.numbers != field.classes.numbers:
                raise ConfigError(
                    f"components {other!r} and {name!r} number the classes of {field.name!r} "
                    f"differently, by {classes.source} and {field.classes.source}; give the split "
                    f"one list for both: classes: {{{field.name}: [...]}}"
                )


def make_order(components: Mapping[str, IndexedSource], slots: MixtureSlots) -> MixtureOrder:
    """The order of a mixture of these components, each as a source of its data set alone.

    Raises:
        PlanError: One has no sample.
    """
    mix: list[MixtureComponent] = []
    for name, source in components.items():
        classes = "".join(f" classes={text}" for text in classes_identity(source.fields).values())
        known_by = source.index.fingerprint() + classes + _backend_text(source)
        mix.append(MixtureComponent(name, source.order, source.index.num_shards, known_by))
    return MixtureOrder(tuple(mix), slots)


def _backend_text(source: IndexedSource) -> str:
    """What changes the pixels of a component; the default is not told."""
    backend = image_backend(source.transforms)
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
