"""Mixtures of small data sets."""

import numpy as np

from lightning_shards.plan.mixture import MixtureComponent, MixtureOrder, component_seed
from lightning_shards.plan.mixture_schedule import (
    default_round,
    schedule_mixture,
    weigh_components,
)
from lightning_shards.plan.order import SampleOrder
from lightning_shards.plan.slots import MixtureSlots

NAMES = ("web", "labels", "synth", "code", "Zoo")


def component(name, counts, seed=0, sampling="shuffled", run=3, block=8):
    """A component with the order that its name gives it."""
    counts = np.array(counts, np.int64)
    order = SampleOrder(counts, component_seed(seed, name), sampling, run, block)
    return MixtureComponent(name, order, len(counts), "small")


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
