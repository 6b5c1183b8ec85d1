"""The weights of a mixture's components: whole numbers, made exactly from what users write.

Shares of a mixture are ratios of whole numbers, so that counts are exact and the same on every
machine. A decimal means what is written: 0.3 beside 0.7 is 3 beside 7.
"""

from collections.abc import Mapping, Sequence
from decimal import ROUND_HALF_EVEN, Decimal, localcontext
from fractions import Fraction
from math import gcd, lcm
from numbers import Rational
from sys import float_info
from typing import Final, cast

from lightning_shards.errors import ConfigError, PlanError

MAX_ROUND: Final = 2**20
"""More units a round are refused: a round is dealt as a whole, some 40 bytes a unit."""

MAX_DEFAULT_ROUND: Final = 4_096
"""A round of more units is taken only where it is asked for."""

_PARTS: Final = 1_000_000
_DIGITS: Final = 50
_LARGEST: Final = float_info.max
_RESERVED: Final = ("shortest", "longest")


def check_component_names(names: Sequence[str]) -> None:
    """Check that these are names of components.

    Raises:
        ConfigError: None at all, no identifier, or two that differ in case only.
    """
    if not names:
        raise ConfigError("a mixture needs at least one component, got none; name one below mix")
    by_folded: dict[str, str] = {}
    for name in names:
        if (
            not isinstance(cast("object", name), str)
            or not name.isidentifier()
            or name in _RESERVED
        ):
            raise ConfigError(
                f"the name of a component must be an identifier other than "
                f"{' and '.join(_RESERVED)}, got {name!r}; use letters, digits and underscores"
            )
        if (twin := by_folded.get(name.casefold())) is not None:
            raise ConfigError(
                "names of components must differ in more than upper and lower case, got "
                f"{twin!r} and {name!r}; rename one of them"
            )
        by_folded[name.casefold()] = name


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
        samples: Samples of each component, by name.
        weights: Weights as users write them. A name may be left out, or be None.
        passes: For components without a weight: how often each is passed while the others are
            passed as often as theirs say. It is a weight of that many times its samples.
        temperature: Instead of both: weights are samples to the power of this, 0 to 1, rounded to
            parts of a million, with at least one part for each component.

    Raises:
        ConfigError: Weights that give no mixture, or names that are not those of components.
        PlanError: A component without samples that is weighed by them.
    """
    check_component_names(list(samples))
    given = {name: value for name, value in weights.items() if value is not None}
    passed = {name: value for name, value in (passes or {}).items() if value is not None}
    _check_names(samples, [*given, *passed])
    if temperature is not None:
        if given or passed:
            raise ConfigError(
                f"temperature={temperature} takes the place of weights and passes, got some for "
                f"{', '.join([*given, *passed])}; remove one or the other"
            )
        return _whole(_by_temperature(samples, temperature))
    return _whole({name: _weight(name, given, passed, samples[name]) for name in samples})


def weigh_stage(names: Mapping[str, int], weights: Mapping[str, float]) -> dict[str, int]:
    """The whole weights of a stage: a component that it does not name has none.

    >>> weigh_stage({"web": 900, "labels": 50}, {"labels": 2.5})
    {'web': 0, 'labels': 1}

    Raises:
        ConfigError: Weights that give no mixture, or names that are not those of components.
    """
    _check_names(names, weights)
    return _whole({name: _exact(f"weight of {name!r}", weights.get(name, 0)) for name in names})


def whole_ratio(weights: Sequence[Fraction]) -> tuple[int, ...]:
    """Whole numbers of the same ratios as these, which are not all 0, without a common divisor.

    >>> whole_ratio([Fraction("0.3"), Fraction("0.75")])
    (2, 5)
    """
    scale = lcm(*(weight.denominator for weight in weights))
    whole = [int(weight * scale) for weight in weights]
    divisor = gcd(*whole)
    return tuple(weight // divisor for weight in whole)


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
    require_one_length(dataset_size, epoch_of)
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


def require_one_length(dataset_size: int | None, epoch_of: str | None) -> None:
    """Check that the epoch of a mixture has its length from one setting.

    Raises:
        ConfigError: It has none, or two.
    """
    if (dataset_size is None) == (epoch_of is None):
        raise ConfigError(
            "the epoch of a mixture needs either dataset_size or epoch_of, got "
            f"dataset_size={dataset_size} and epoch_of={epoch_of!r}; give one of them"
        )


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


def _weight(
    name: str, given: Mapping[str, float], passed: Mapping[str, float], samples: int
) -> Fraction:
    """The weight of a component, which has one of the two."""
    if (name in given) == (name in passed):
        both = f"weight={given[name]} and passes={passed[name]}" if name in given else "neither"
        raise ConfigError(
            f"component {name!r} needs either a weight or passes, got {both}; give one of them, "
            "0 to leave it out for now"
        )
    if name in given:
        return _exact(f"weight of {name!r}", given[name])
    return _exact(f"passes of {name!r}", passed[name]) * _counted(name, samples)


def _counted(name: str, samples: int) -> int:
    """The samples of a component that is weighed by them."""
    if samples < 1:
        raise PlanError(
            f"passes and temperature weigh by samples, and component {name!r} has {samples}; check "
            "its shards and the counts in their index, or give it a weight"
        )
    return samples


def _exact(what: str, value: float) -> Fraction:
    """The number as it is written, at least 0."""
    if not _is_number(value, _LARGEST):
        raise ConfigError(
            f"the {what} must be a number of at least 0, got {value!r:.40}; set it right"
        )
    return Fraction(repr(float(value))) if isinstance(value, float) else Fraction(value)


def _is_number(value: object, most: float) -> bool:
    """Whether it is a number from 0 to `most`; NaN is none, and neither is a bool."""
    is_number = not isinstance(value, bool) and isinstance(value, Rational | float)
    return is_number and 0 <= cast("float", value) <= most


def _whole(weights: Mapping[str, Fraction]) -> dict[str, int]:
    """Whole numbers of the same ratios, without a common divisor."""
    if not any(weights.values()):
        raise ConfigError(
            f"the weights of {', '.join(weights)} are all 0; give at least one component a weight"
        )
    return dict(zip(weights, whole_ratio(list(weights.values())), strict=True))


def _by_temperature(samples: Mapping[str, int], temperature: float) -> dict[str, Fraction]:
    """Decimal arithmetic is the same on every machine; the powers of floats are not."""
    if not _is_number(temperature, 1):
        raise ConfigError(
            f"temperature must be from 0 to 1, got {temperature!r:.40}; 1 weighs by samples, 0 "
            "weighs all alike, and where the power is said to be 1 / T, give that"
        )
    with localcontext() as context:
        context.prec, context.rounding = _DIGITS, ROUND_HALF_EVEN
        power = Decimal(repr(float(temperature)))
        powers = {name: Decimal(_counted(name, samples[name])) ** power for name in samples}
        scale = _PARTS / sum(powers.values(), Decimal(0))
        parts = {name: round(value * scale) for name, value in powers.items()}
    return {name: Fraction(max(part, 1)) for name, part in parts.items()}


def _shown(weights: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={weight}" for name, weight in weights.items())
