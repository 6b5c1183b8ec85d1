"""Mixtures of every kind: by hand, and drawn at random."""

import numpy as np

from lightning_shards.errors import ConfigError
from lightning_shards.plan.mixture import MixtureComponent, MixtureOrder, component_seed
from lightning_shards.plan.mixture_schedule import (
    WeightChange,
    default_round,
    schedule_mixture,
    weigh_components,
)
from lightning_shards.plan.order import SampleOrder
from lightning_shards.plan.slots import MixtureSlots

NAMES = ("web", "labels", "synth", "code", "Zoo", "math", "art", "b_2")
KINDS = ("whole", "decimal", "passes", "temperature")


def component(name, counts, seed=0, sampling="shuffled", run=3, block=8):
    """A component with the order that its name gives it."""
    counts = np.array(counts, np.int64)
    order = SampleOrder(counts, component_seed(seed, name), sampling, run, block)
    return MixtureComponent(name, order, len(counts))


def mixture(components, weights, changes=(), *, rounds=3, round_units=None, unit=1, seed=0):
    """A mixture whose epochs have this many rounds."""
    samples = {each.name: each.order.samples for each in components}
    whole = weigh_components(samples, weights)
    round_units = round_units or default_round(whole)
    epoch_samples = rounds * round_units * unit
    schedule = schedule_mixture(
        whole, changes, round_units=round_units, unit=unit, epoch_samples=epoch_samples
    )
    slots = MixtureSlots(tuple(samples), schedule, seed, epoch_samples)
    return MixtureOrder(tuple(components), slots)


def example_mixture(seed=0, **settings):
    """Three components, shuffled, in file order and with replacement; weights 5, 2 and 1."""
    components = [
        component("web", [7, 0, 12, 3], seed),
        component("labels", [2, 3], seed, "sequential"),
        component("synth", [4], seed, "resampled"),
    ]
    return mixture(components, {"web": 5, "labels": 2, "synth": 1}, seed=seed, **settings)


def numbers_between(draws, low, high, size=None):
    """Whole numbers of all magnitudes."""
    return np.exp(draws.uniform(np.log(low), np.log(high + 1), size)).astype(np.int64)


def draw_components(draws, seed, most):
    """1 to 8 components of 1 to `most` samples."""
    components = []
    for name in draws.permutation(NAMES)[: draws.integers(1, 9)].tolist():
        samples, shards = int(numbers_between(draws, 1, most)), int(draws.integers(1, 5))
        cuts = np.sort(draws.integers(0, samples + 1, shards - 1))
        counts = np.diff(cuts, prepend=0, append=samples)
        sampling = ("shuffled", "shuffled", "sequential", "resampled")[draws.integers(4)]
        run, block = (int(draws.integers(1, 70)), int(draws.integers(0, 600)))
        components.append(component(name, counts, seed, sampling, run, block))
    return components


def draw_weights(draws, names, kind="whole"):
    """Weights of up to a million, some of them 0; never all."""
    if kind == "whole":
        weights = numbers_between(draws, 1, 10**6, len(names))
    else:
        digits = int(draws.integers(1, 7))
        weights = np.round(draws.uniform(0, 100, len(names)), digits)
    weights[draws.random(len(names)) < 0.15] = 0
    if not weights.any():
        weights[0] = 1
    return dict(zip(names, weights.tolist(), strict=True))


def draw_changes(draws, names, round_samples):
    """Up to four changes of weights."""
    changes, at_round = [], 0
    for _ in range(draws.integers(5)):
        at_round += int(numbers_between(draws, 1, 30))
        weights = draw_weights(draws, names, KINDS[draws.integers(2)])
        samples = at_round * round_samples + int(draws.integers(round_samples))
        changes.append(WeightChange(weights, samples=samples))
    return changes


def draw_mixture(draws, most=10**6):
    """A mixture of any kind."""
    seed = int(draws.integers(2**63))
    components = draw_components(draws, seed, most)
    samples = {each.name: each.order.samples for each in components}
    kind = KINDS[draws.integers(4)]
    weights = draw_weights(draws, list(samples), kind)
    whole = {
        "whole": lambda: weigh_components(samples, weights),
        "decimal": lambda: weigh_components(samples, weights),
        "passes": lambda: weigh_components(samples, {}, weights),
        "temperature": lambda: weigh_components(samples, {}, temperature=draws.random()),
    }[kind]()
    unit = int((1, 1, 1, draws.integers(2, 65))[draws.integers(4)])
    # Few rounds are long enough for many components, so longer ones are tried until one is.
    for units in (default_round(whole), *numbers_between(draws, 2, 4096, 2).tolist(), 4096)[
        draws.integers(3) :
    ]:
        changes = draw_changes(draws, list(samples), units * unit)
        epoch_samples = units * unit * int(draws.integers(1, 20))
        try:
            schedule = schedule_mixture(
                whole, changes, round_units=units, unit=unit, epoch_samples=epoch_samples
            )
        except ConfigError as error:
            assert "is too short" in str(error)  # noqa: PT017 anything else is a mistake here
            continue
        slots = MixtureSlots(tuple(samples), schedule, seed, epoch_samples)
        return MixtureOrder(tuple(components), slots)
    raise AssertionError
