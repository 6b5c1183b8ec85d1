"""Mixtures drawn at random: 400 in CI, 200,000 by `pytest -m matrix tests/plan`.

Components have 1 to a million samples, weights are 1 to a million, decimals, passes or a
temperature, up to five stages some of which have steps, and rounds have up to 4,096 units of up to
64 samples. Each mixture is looked at where one of its stages begins, and far away.
"""

import pickle
from fractions import Fraction

import numpy as np
import pytest
from small_mixtures import draw_mixture, drawn

PARTS = 10
IN_CI = 40  # of each part
MANY_PARTS, BY_COMMAND = 100, 2_000
LOOKED_AT = 60
"""Positions, or a round if it has more."""


def ids_of(order, first, last):
    """The ids at run positions first to last, asked for epoch by epoch."""
    found = [np.empty((0, 2), np.int64)]
    while first < last:
        epoch, start = divmod(first, order.samples)
        stop = min(start + last - first, order.samples)
        found.append(order.at(epoch, start, stop))
        first += stop - start
    return np.concatenate(found)


def components_of(order, first, last):
    """The components at run positions first to last."""
    epoch, start = divmod(first, order.samples)
    rest = order.samples - start
    if last - first <= rest:
        return order.slots.components(epoch, start, start + last - first)
    here = order.slots.components(epoch, start, order.samples)
    return np.concatenate([here, components_of(order, first + rest, last)])


def check_components(order, first, last):
    """Each component is served what comes next in its own sequence, each pass as its order says."""
    ids, numbers = ids_of(order, first, last), components_of(order, first, last)
    begins, ends = order.slots.before(first), order.slots.before(last)
    assert int((ends - begins).sum()) == last - first
    first_shard = 0
    for number, component in enumerate(order.mix):
        found = ids[numbers == number] - [first_shard, 0]
        first_shard += component.num_shards
        sample, expected = int(begins[number]), [np.empty((0, 2), np.int64)]
        size = component.order.samples
        while sample < ends[number]:
            pass_number, start = divmod(sample, size)
            stop = min(size, start + int(ends[number]) - sample)
            if component.order.sampling == "resampled":
                pass_number, start, stop = 0, sample, int(ends[number])
            expected.append(component.order.at(pass_number, start, stop))
            sample += stop - start
            if stop - start == size and component.order.sampling != "resampled":
                assert len(set(map(tuple, expected[-1].tolist()))) == size, "no whole pass"
        assert found.tolist() == np.concatenate(expected).tolist()


def check_cuts(order, first, last, draws):
    """Cut anywhere, and asked of an order that remembers nothing, a stretch is the same."""
    cuts = np.sort(draws.integers(first, last + 1, 3)).tolist()
    fresh = pickle.loads(pickle.dumps(order))
    parts = [ids_of(fresh, *part) for part in zip([first, *cuts], [*cuts, last], strict=True)]
    assert np.concatenate(parts).tolist() == ids_of(order, first, last).tolist()


def check_quotas(order, number):
    """What a round holds, and what its stage had before it and has behind it."""
    schedule, names = order.slots.schedule, list(order.slots.names)
    size, unit = schedule.round_samples, schedule.unit
    stage = max(
        (each for each in schedule.stages if each.first_round <= number),
        key=lambda each: each.first_round,
    )
    total, active = sum(stage.weights), sum(map(bool, stage.weights))
    largest = stage.weights.index(max(stage.weights))
    begin = order.slots.before(stage.first_round * size)
    before, behind = (order.slots.before(each * size) for each in (number, number + 1))
    held = np.bincount(
        components_of(order, number * size, number * size + size), minlength=len(names)
    )
    assert held.tolist() == (behind - before).tolist()
    for rank, (name, weight) in enumerate(zip(schedule.names, stage.weights, strict=True)):
        component = names.index(name)
        quota, rest = divmod(int(held[component]), unit)
        assert rest == 0
        share = Fraction(schedule.round_units * weight, total)
        slack = active - 1 if rank == largest else 1
        assert abs(quota - share) < max(slack, 1) or (share.denominator, quota) == (1, share)
        for counts, rounds in ((before, number), (behind, number + 1)):
            had = int(counts[component] - begin[component]) // unit
            off = abs(had - (rounds - stage.first_round) * share)
            assert off <= Fraction(active - 1 if rank == largest else 1, 2)


def check_mixture(draws):
    order = draw_mixture(draws)
    schedule = order.slots.schedule
    size = schedule.round_samples
    near = [stage.first_round for stage in schedule.stages]
    far = int(draws.integers(2**62 // order.samples * order.samples // size - 2))
    for number in (near[draws.integers(len(near))], far):
        check_quotas(order, number)
        first = max(0, number * size - int(draws.integers(LOOKED_AT)))
        last = first + LOOKED_AT + int(draws.integers(LOOKED_AT))
        check_components(order, first, last)
        check_cuts(order, first, last, draws)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_drawn_mixtures_are_exact(part):
    assert len(list(drawn(check_mixture, part, IN_CI))) == IN_CI


@pytest.mark.matrix
@pytest.mark.parametrize("part", range(PARTS, PARTS + MANY_PARTS))
def test_many_drawn_mixtures_are_exact(part):
    assert len(list(drawn(check_mixture, part, BY_COMMAND))) == BY_COMMAND
