"""The order of a mixture: equal to a naive model, frozen by a golden file, cut anywhere."""

from fractions import Fraction

import numpy as np
import pytest
from small_mixtures import NAMES, component, example_mixture, mixture
from small_orders import philox, sorted_by

from lightning_shards.plan.draws import Purpose
from lightning_shards.plan.epoch import EpochSchedule
from lightning_shards.plan.mixture import MixtureOrder
from lightning_shards.plan.mixture_schedule import WeightChange
from lightning_shards.plan.pieces import pieces_ahead
from lightning_shards.plan.place import Cursor
from lightning_shards.plan.slots import MixtureSlots

# A naive model: Python's fractions and whole lists, one unit at a time.


def naive_counts(weights, units):
    """Units of each component among the first ones of a stage."""
    counts = [int(Fraction(units * weight, sum(weights)) + Fraction(1, 2)) for weight in weights]
    largest = weights.index(max(weights))
    counts[largest] += units - sum(counts)
    return counts


def naive_stretches(schedule, rounds):
    """Units of each component before each of the first rounds."""
    stage, start = schedule.stages[0], [0] * len(schedule.names)
    for number in range(rounds + 1):
        units = (number - stage.first_round) * schedule.round_units
        counts = [a + b for a, b in zip(start, naive_counts(stage.weights, units), strict=True)]
        for next_stage in schedule.stages:
            if next_stage.first_round == number:
                stage, start = next_stage, counts
        yield counts


def naive_units(order, rounds):
    """(name, number) of each unit."""
    schedule, size = order.slots.schedule, order.slots.schedule.round_units
    counts = list(naive_stretches(schedule, rounds))
    words = iter(philox(order.slots.seed, 0, Purpose.MIX_SLOTS, rounds * size))
    for number in range(rounds):
        slots = sorted_by(range(size), words)
        dealt = [
            name
            for name, begin, end in zip(
                schedule.names, counts[number], counts[number + 1], strict=True
            )
            for _ in range(end - begin)
        ]
        by_slot = dict(zip(slots, dealt, strict=True))
        following = dict(zip(schedule.names, counts[number], strict=True))
        for slot in range(size):
            name = by_slot[slot]
            yield name, following[name]
            following[name] += 1


def naive(order, rounds):
    """(component, shard, sample) at each position of the run."""
    unit = order.slots.schedule.unit
    names = [each.name for each in order.mix]
    found = []
    for name, number in naive_units(order, rounds):
        part = order.mix[names.index(name)]
        shards_before = sum(each.num_shards for each in order.mix[: names.index(name)])
        for sample in range(number * unit, (number + 1) * unit):
            pass_number, position = divmod(sample, part.order.samples)
            if part.order.sampling == "resampled":
                pass_number, position = 0, sample
            ((shard, in_shard),) = part.order.at(pass_number, position, position + 1).tolist()
            found.append((names.index(name), shard + shards_before, in_shard))
    return found


def served(order, rounds):
    """The same as the order gives it."""
    found, samples = [], rounds * order.slots.schedule.round_samples
    for epoch in range(-(-samples // order.samples)):
        stop = min(order.samples, samples - epoch * order.samples)
        numbers = order.slots.components(epoch, 0, stop).tolist()
        ids = order.at(epoch, 0, stop).tolist()
        found += [(number, *pair) for number, pair in zip(numbers, ids, strict=True)]
    return found


CHANGES = [
    WeightChange({"web": 1, "labels": 6, "synth": 1}, samples=72),
    WeightChange({"synth": 1}, epoch=4),
]
FIVE = [
    component("web", [40, 0, 31], 3, run=1, block=0),
    component("labels", [3], 3, "resampled", run=4),
    component("synth", [1], 3, "sequential"),
    component("code", [9, 9, 9], 3, run=5, block=20),
    component("Zoo", [5], 3, run=70, block=16),
]
SHARES = dict(zip(NAMES, (0.5, 12.25, 0, 1e-3, 30), strict=True))


@pytest.mark.parametrize(
    "order",
    [
        example_mixture(5),
        example_mixture(2**63 - 1, unit=3, rounds=2),
        example_mixture(7, changes=CHANGES, rounds=9),
        mixture(FIVE, SHARES, round_units=113, seed=3),
        mixture(FIVE, SHARES | {"synth": 7}, CHANGES[1:], round_units=40, unit=2, rounds=1),
        mixture(FIVE[:1], {"web": 1}, round_units=16, unit=5, seed=3),
    ],
)
def test_orders_equal_the_naive_model(order):
    rounds = min(60, 1_000 // order.slots.schedule.round_samples)
    assert served(order, rounds) == naive(order, rounds)


# What does not depend on what.


def positions_of(order, name, stop=400):
    """Where a component stands, and its samples as it numbers its own shards."""
    number = [each.name for each in order.mix].index(name)
    positions = np.flatnonzero(order.slots.components(0, 0, stop) == number)
    shards_before = sum(each.num_shards for each in order.mix[:number])
    return positions, order.at(0, 0, stop)[positions] - [shards_before, 0]


def test_the_order_of_names_changes_no_sample():
    forth, back = (example_mixture(rounds=50), example_mixture(rounds=50))
    back = MixtureOrder(
        forth.mix[::-1],
        MixtureSlots(forth.slots.names[::-1], forth.slots.schedule, 0, forth.samples),
    )
    for name in forth.slots.names:
        for one, other in zip(positions_of(forth, name), positions_of(back, name), strict=True):
            assert one.tolist() == other.tolist()


# The rest of what an order says.


def test_following_is_of_the_same_component_and_pass():
    order = example_mixture()
    for position, number in enumerate(order.slots.components(2, 0, 24).tolist()):
        bad, *others = order.at(2, position, position + 1).tolist()
        assert others == []
        following = order.following(2, position, order.mix[number].order.samples).tolist()
        shards = {shard for shard, _ in following}
        begin = sum(each.num_shards for each in order.mix[:number])
        assert shards <= set(range(begin, begin + order.mix[number].num_shards))
        if order.mix[number].name != "synth":
            assert following[-1] == bad
            assert len(set(map(tuple, following))) == order.mix[number].order.samples


def test_the_footing_has_a_block_of_each_component():
    components = [component(name, [4096], block=64, run=16) for name in ("a", "b", "c")]
    order = mixture(components, {"a": 6, "b": 2, "c": 0}, rounds=100)
    footing = order.footing(0, 10, 11)
    assert len(footing) == 2 * 64
    assert set(footing[:, 0].tolist()) == {0, 1}
    assert set(map(tuple, order.at(0, 10, 11).tolist())) <= set(map(tuple, footing.tolist()))


def test_pieces_are_looked_at_until_a_component_leaves_its_block():
    """Not until the next sample of another component, which would be the next position."""
    components = [component(name, [4096], block=64, run=16) for name in ("a", "b")]
    order = mixture(components, {"a": 3, "b": 1}, rounds=1000)
    epochs = EpochSchedule(order.samples, 32, "drop")
    ahead = pieces_ahead(order, epochs, Cursor(), ranks=[0], world_size=1, window=16)
    stretches = [(each.start, each.stop) for each, _ in zip(ahead, range(9), strict=False)]
    before = [order.slots.before(stop).tolist() for _, stop in stretches]
    assert [any(number % 64 == 0 for number in counts) for counts in before] == [True] * 9
