"""The weights of a mixture's components: whole numbers, made exactly from what users write.

Shares of a mixture are ratios of whole numbers, so that counts are exact and the same on every
machine. A decimal means what is written: 0.3 beside 0.7 is 3 beside 7.
"""

import json
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Decimal, localcontext
from fractions import Fraction
from functools import cached_property
from itertools import zip_longest
from math import gcd, lcm
from numbers import Rational
from sys import float_info
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from lightning_shards.errors import ConfigError, StateError

MAX_ROUND: Final = 2**20
"""More units a round are refused: a round is dealt as a whole, some 40 bytes a unit."""

MAX_DEFAULT_ROUND: Final = 4_096
"""A round of more units is taken only where it is asked for."""

_PARTS: Final = 1_000_000
_DIGITS: Final = 50
_RESERVED: Final = ("shortest", "longest")


def check_component_names(names: Sequence[str]) -> None:
    """Check that these are names of components.

    Raises:
        ConfigError: None at all, or no identifier.
    """
    if not names:
        raise ConfigError("a mixture needs at least one component, got none; name one below mix")
    for name in names:
        if not str(name).isidentifier() or name in _RESERVED:
            raise ConfigError(
                f"the name of a component must be an identifier other than "
                f"{' and '.join(_RESERVED)}, got {name!r}; use letters, digits and underscores"
            )


def weigh_components(
    samples: Mapping[str, int],
    weights: Mapping[str, float | None],
    passes: Mapping[str, float | None] | None = None,
    temperature: float | None = None,
) -> dict[str, int]:
    """The whole weight of each component, without a common divisor.

    >>> weigh_components({"web": 900, "labels": 50}, {"web": 0.7, "labels": 0.3})
    {'web': 7, 'labels': 3}
    >>> weigh_components({"web": 900, "labels": 50}, {}, {"web": 1, "labels": 2})
    {'web': 9, 'labels': 1}

    Args:
        samples: Samples of each component, by name; at least 1 where it is weighed by them.
        weights: Weights as users write them. A name may be left out, or be None.
        passes: For components without a weight: how often each is passed while the others are
            passed as often as theirs say. It is a weight of that many times its samples.
        temperature: Instead of both: weights are samples to the power of this, 0 to 1, rounded to
            parts of a million, with at least one part for each component.

    Raises:
        ConfigError: Weights that give no mixture, or names that are not those of components.
    """
    check_component_names(list(samples))
    passes = passes or {}
    _check_names(samples, [*weights, *passes])
    if temperature is not None:
        given = [name for each in (weights, passes) for name in each if each[name] is not None]
        if given:
            raise ConfigError(
                f"temperature={temperature} takes the place of weights and passes, got some for "
                f"{', '.join(given)}; remove one or the other"
            )
        return _whole(_by_temperature(samples, temperature))
    return _whole({name: _weight(name, weights, passes, samples[name]) for name in samples})


def weigh_stage(names: Mapping[str, int], weights: Mapping[str, float]) -> dict[str, int]:
    """The whole weights of a stage: a component that it does not name has none.

    >>> weigh_stage({"web": 900, "labels": 50}, {"labels": 2.5})
    {'web': 0, 'labels': 1}

    Raises:
        ConfigError: Weights that give no mixture, or names that are not those of components.
    """
    _check_names(names, weights)
    return _whole({name: _exact(f"weight of {name!r}", weights.get(name, 0)) for name in names})


def default_round(weights: Mapping[str, int]) -> int:
    """The least round in which whole weights hold exactly, or 4,096 if it would be larger."""
    return min(sum(weights.values()), MAX_DEFAULT_ROUND)


def check_round(round_units: int, weights: Mapping[str, int], when: str = "") -> None:
    """Check that a round is long enough for weights, so that no quota is negative.

    A round in which all weights are whole is always long enough. Otherwise each of the smaller
    components may have a unit more than its share, and the largest must have these to give.

    Args:
        round_units: Units of a round.
        weights: Whole weights without a common divisor.
        when: Names the stage in the message.

    Raises:
        ConfigError: The round is too short or too long.
    """
    total, components = sum(weights.values()), sum(map(bool, weights.values()))
    least = -(-(components - 1) * total // max(weights.values()))
    if not 1 <= round_units <= MAX_ROUND:
        raise ConfigError(
            f"round must be from 1 to {MAX_ROUND} units, got {round_units}; weights that are exact "
            f"in no such round hold on the average: take {MAX_DEFAULT_ROUND}"
        )
    if round_units % total and round_units < least:
        exact = f"{total}, in which these weights are whole, or " if total < least else ""
        raise ConfigError(
            f"round={round_units} is too short for the weights {_shown(weights)}{when}; the least "
            f"round is {exact}{least}; set round to it, or, in a run that is resumed, take weights "
            f"whose sum divides {round_units}"
        )


def epoch_of_mixture(
    samples: Mapping[str, int],
    weights: Mapping[str, int],
    round_samples: int,
    *,
    dataset_size: int | None = None,
    epoch_of: str | None = None,
) -> int:
    """Samples of an epoch: whole rounds, as many as are in what is asked for.

    Args:
        samples: Samples of each component, by name.
        weights: Their whole weights at the beginning of the run.
        round_samples: Samples of a round.
        dataset_size: Samples of an epoch before they are cut to whole rounds.
        epoch_of: Instead: the component of which an epoch is one pass; ``shortest`` and ``longest``
            are those whose pass ends first and last.

    Raises:
        ConfigError: Not one of the two, an unknown name, or less than a round.
    """
    if (dataset_size is None) == (epoch_of is None):
        raise ConfigError(
            "the epoch of a mixture needs either dataset_size or epoch_of, got "
            f"dataset_size={dataset_size} and epoch_of={epoch_of!r}; give one of them"
        )
    wanted, length = dataset_size or 0, f"dataset_size={dataset_size}"
    if epoch_of is not None:
        wanted = _samples_of_pass(samples, weights, epoch_of)
        length = f"epoch_of={epoch_of!r}, whose pass takes {wanted}"
    if wanted < round_samples:
        raise ConfigError(
            f"an epoch must hold at least one round of {round_samples} samples, got {length}; make "
            "the epoch longer or the round shorter"
        )
    return wanted - wanted % round_samples


def _samples_of_pass(samples: Mapping[str, int], weights: Mapping[str, int], name: str) -> int:
    """Samples of the whole mixture while a component is passed once."""
    total = sum(weights.values())
    by_name = {each: samples[each] * total // weights[each] for each in samples if weights[each]}
    by_name |= {"shortest": min(by_name.values()), "longest": max(by_name.values())}
    if name not in by_name:
        raise ConfigError(
            f"epoch_of must be one of {', '.join(by_name)}, which have a weight from the start on, "
            f"got {name!r}; name one of them or set dataset_size"
        )
    return by_name[name]


def _check_names(samples: Mapping[str, int], names: Mapping[str, object] | list[str]) -> None:
    unknown = [name for name in names if name not in samples]
    if unknown:
        raise ConfigError(
            f"weights must name components of the mix, got {', '.join(map(repr, unknown))}; its "
            f"components are {', '.join(samples)}"
        )


_Written = Mapping[str, float | None]
"""By component, where one is given."""


def _weight(name: str, weights: _Written, passes: _Written, samples: int) -> Fraction:
    """The weight of a component, which has one of the two."""
    weight, times = weights.get(name), passes.get(name)
    if weight is not None and times is None:
        return _exact(f"weight of {name!r}", weight)
    if weight is None and times is not None:
        return _exact(f"passes of {name!r}", times) * samples
    both = "neither" if weight is None else f"weight={weight} and passes={times}"
    raise ConfigError(
        f"component {name!r} needs either a weight or passes, got {both}; give one of them, "
        "0 to leave it out for now"
    )


def _exact(what: str, value: float) -> Fraction:
    """The number as it is written, at least 0."""
    if not is_number(value):
        raise ConfigError(
            f"the {what} must be a number of at least 0, got {value!r:.40}; set it right"
        )
    return Fraction(repr(float(value))) if isinstance(value, float) else Fraction(value)


def is_number(value: object, most: float = float_info.max) -> bool:
    """Whether it is a number from 0 to `most`; NaN is none, and neither is a bool."""
    is_real = not isinstance(value, bool) and isinstance(value, Rational | float)
    return is_real and 0 <= cast("float", value) <= most


def _whole(weights: Mapping[str, Fraction]) -> dict[str, int]:
    """Whole numbers of the same ratios, without a common divisor."""
    if not any(weights.values()):
        raise ConfigError(
            f"the weights of {', '.join(weights)} are all 0; give at least one component a weight"
        )
    scale = lcm(*(weight.denominator for weight in weights.values()))
    whole = {name: int(weight * scale) for name, weight in weights.items()}
    divisor = gcd(*whole.values())
    return {name: weight // divisor for name, weight in whole.items()}


def _by_temperature(samples: Mapping[str, int], temperature: float) -> dict[str, Fraction]:
    """Decimal arithmetic is the same on every machine; the powers of floats are not."""
    if not is_number(temperature, 1):
        raise ConfigError(
            f"temperature must be from 0 to 1, got {temperature!r:.40}; 1 weighs by samples, 0 "
            "weighs all alike, and where the power is said to be 1 / T, give that"
        )
    with localcontext() as context:
        context.prec, context.rounding = _DIGITS, ROUND_HALF_EVEN
        power = Decimal(repr(float(temperature)))
        powers = {name: Decimal(number) ** power for name, number in samples.items()}
        scale = _PARTS / sum(powers.values(), Decimal(0))
        parts = {name: round(value * scale) for name, value in powers.items()}
    return {name: Fraction(max(part, 1)) for name, part in parts.items()}


def _shown(weights: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={weight}" for name, weight in weights.items())


@dataclass(frozen=True)
class WeightChange:
    """The weights of a mixture from a later point of the run on.

    Args:
        weights: By the names of components; those that are left out have none.
        epoch: The epoch at whose beginning they hold first.
        samples: Instead of an epoch: the samples of the run before them, cut to whole rounds.
    """

    weights: dict[str, Any]
    epoch: int | None = None
    samples: int | None = None


@dataclass(frozen=True, slots=True)
class MixtureStage:
    """Weights from a round on, one per component."""

    first_round: int
    weights: tuple[int, ...]


@dataclass(frozen=True)
class MixtureSchedule:
    """The weights of all components in the whole run; made by `schedule_mixture`.

    Attributes:
        names: The components, sorted.
        stages: By their first rounds, of which the first is 0. Weights have no common divisor,
            and neighbours differ.
        round_units: Units of a round.
        unit: Samples of a unit.
    """

    names: tuple[str, ...]
    stages: tuple[MixtureStage, ...]
    round_units: int
    unit: int

    @property
    def round_samples(self) -> int:
        """Samples of a round."""
        return self.round_units * self.unit

    def counts(self, first: int, last: int) -> NDArray[np.int64]:
        """Units of each component before each of the rounds from first to last, both included.

        int64, shape (last - first + 1, components).
        """
        rows: list[NDArray[np.int64]] = []
        for number in range(self.stage_at(first), self.stage_at(last) + 1):
            stage = self.stages[number]
            is_last = number + 1 == len(self.stages)
            end = last + 1 if is_last else min(last + 1, self.stages[number + 1].first_round)
            begin = max(first, stage.first_round)
            within = self._counts_of(stage.weights, begin - stage.first_round, end - begin)
            rows.append(self._bases[number] + within)
        return np.concatenate(rows)

    def to_text(self) -> str:
        """The stages for a checkpoint: the sample at which each begins, and its weights by name."""
        return json.dumps(self._readable)

    def require_same(self, saved: object, trained: int) -> None:
        """Check that the samples trained so far were mixed by the stages of this schedule.

        Stages that begin behind them may be others.

        Args:
            saved: What `to_text` gave in the run that was saved, with rounds and units as here.
            trained: Samples of the run that were trained.

        Raises:
            StateError: A stage before differs.
        """
        before = [
            [stage for stage in stages if stage[0] < trained]
            for stages in (json.loads(str(saved)), self._readable)
        ]
        for stages in zip_longest(*before):
            if stages[0] != stages[1]:
                free = -(-trained // self.round_samples) * self.round_samples
                was, now = map(_described, stages)
                raise StateError(
                    f"the checkpoint was made with {was}, this run has {now}; {trained} samples of "
                    f"the run are trained, so weights may change from sample {free} of the run on: "
                    "set the stages before it back, or start anew without the loader's state"
                )

    def names_before(self, trained: int) -> set[str]:
        """The components that have a weight in a stage that begins before these samples."""
        return {name for start, weights in self._readable if start < trained for name in weights}

    def stage_at(self, round_number: int) -> int:
        """The number of the stage that a round is in."""
        return bisect_right(self.stages, round_number, key=lambda stage: stage.first_round) - 1

    @cached_property
    def _bases(self) -> NDArray[np.int64]:
        """Units of each component before each stage, shape (stages, components)."""
        bases = [np.zeros(len(self.names), np.int64)]
        for stage, after in zip(self.stages, self.stages[1:], strict=False):
            length = after.first_round - stage.first_round
            bases.append(bases[-1] + self._counts_of(stage.weights, length, 1)[0])
        return np.stack(bases)

    def _counts_of(self, weights: tuple[int, ...], first: int, rows: int) -> NDArray[np.int64]:
        """Units of each component since a stage began, before each of `rows` rounds of it.

        int64, shape (rows, components).
        """
        # units: of all components, before each round, shape (rows, 1).
        total, largest = sum(weights), weights.index(max(weights))
        most = 2 * (first + rows) * self.round_units * max(weights) + total
        # Python's integers where int64 could overflow: weights have any size.
        dtype: Any = np.int64 if most < 2**63 else np.object_
        units = np.arange(first, first + rows).astype(dtype)[:, np.newaxis] * self.round_units
        counts = (2 * units * np.array(weights, dtype) + total) // (2 * total)
        counts[:, largest] += units[:, 0] - counts.sum(axis=1)
        return counts.astype(np.int64)

    @cached_property
    def _readable(self) -> list[list[Any]]:
        """The first sample of each stage, and its weights by name where they are not 0."""
        return [
            [
                stage.first_round * self.round_samples,
                {name: each for name, each in zip(self.names, stage.weights, strict=True) if each},
            ]
            for stage in self.stages
        ]


def schedule_mixture(
    weights: Mapping[str, int],
    changes: Sequence[WeightChange] = (),
    *,
    round_units: int,
    unit: int = 1,
    epoch_samples: int,
) -> MixtureSchedule:
    """The weights of a run that begins with `weights`, with each change one after the other.

    Args:
        weights: The whole weight of each component, of those that have none at first as well.
        changes: In the order in which they take effect.
        round_units: Units of a round.
        unit: Samples of a unit, at least 1.
        epoch_samples: Samples of an epoch.

    Raises:
        ConfigError: A round that is too short for its weights, or changes out of order.
    """
    names, round_samples = tuple(sorted(weights)), round_units * unit
    check_round(round_units, weights)
    stages = [MixtureStage(0, tuple(weights[name] for name in names))]
    before = 0
    for change in changes:
        first = _first_sample(change, epoch_samples) // round_samples
        whole = weigh_stage(weights, change.weights)
        if first <= before:
            raise ConfigError(
                f"stages must begin one after the other, by a round of {round_samples} samples at "
                f"least, got one at sample {first * round_samples} of the run behind one "
                f"at {before * round_samples}; put them in order, and write the weights of the "
                "first round of the run as those of its components"
            )
        check_round(round_units, whole, f" from sample {first * round_samples} of the run on")
        stage = MixtureStage(first, tuple(whole[name] for name in names))
        if stage.weights != stages[-1].weights:
            stages.append(stage)
        before = first
    return MixtureSchedule(names, tuple(stages), round_units, unit)


def _first_sample(change: WeightChange, epoch_samples: int) -> int:
    if (change.epoch is None) == (change.samples is None):
        raise ConfigError(
            "a stage begins either at an epoch or at samples of the run, got "
            f"epoch={change.epoch} and samples={change.samples}; give one of them"
        )
    return change.samples if change.samples is not None else (change.epoch or 0) * epoch_samples


def _described(stage: list[Any] | None) -> str:
    if stage is None:
        return "no other stage"
    return f"the weights {_shown(stage[1])} from sample {stage[0]} of the run on"
