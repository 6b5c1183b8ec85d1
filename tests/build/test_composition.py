"""What batches of a mixture hold at least and at most is what counting each of them gives."""

import numpy as np
import pytest

from lightning_shards.build import composition
from lightning_shards.build.composition import count_batches
from lightning_shards.plan.epoch import plan_epoch
from lightning_shards.plan.mixture_schedule import WeightChange, schedule_mixture
from lightning_shards.plan.slots import MixtureSlots
from tests.plan.small_mixtures import draw_mixture, drawn


def slots_of(weights, rounds, changes=(), *, units=None, unit=1, seed=3):
    """A mixture whose epochs have this many rounds."""
    units = units or sum(weights.values())
    size = rounds * units * unit
    schedule = schedule_mixture(weights, changes, round_units=units, unit=unit, epoch_samples=size)
    return MixtureSlots(tuple(weights), schedule, seed, size)


def plan_of(slots, batch_size=2, world_size=3, remainder="drop"):
    return plan_epoch(slots.epoch_samples, batch_size, world_size, remainder)


def counted_one_by_one(slots, plan, epoch, steps, *, by_rank):
    """The least and the most of each component over these first steps of an epoch."""
    rows = []
    for step in range(steps):
        ranks = [plan.rank_span(step, rank) for rank in range(plan.world_size)]
        held = (
            slots.components(epoch, *span) for span in (ranks if by_rank else [plan.span(step)])
        )
        rows += [np.bincount(each, minlength=len(slots.names)) for each in held]
    return np.min(rows, axis=0).tolist(), np.max(rows, axis=0).tolist()


def steps_before_change(slots, plan, epoch):
    """How many steps of the epoch begin before weights change in it."""
    begin, size = epoch * plan.samples, slots.schedule.round_samples
    changes = [stage.first_round * size for stage in slots.schedule.stages]
    change = min([each for each in changes if each > begin], default=begin + plan.samples)
    return sum(begin + plan.span(step)[0] < change for step in range(plan.steps))


def check_a_drawn_mixture(draws):
    """Any weights, stages, ways between stages, units, and batches of any size."""
    slots = draw_mixture(draws, most=50).slots
    size = slots.epoch_samples
    if size > 5_000:
        return False
    batch_size, world_size = (int(draws.integers(1, most)) for most in (40, 6))
    remainder = ("drop", "pad", "balanced")[draws.integers(3)]
    plan = plan_epoch(size, batch_size, world_size, remainder)
    for epoch in range(draws.integers(1, 4)) if plan.steps else ():
        steps = int(draws.integers(1, steps_before_change(slots, plan, epoch) + 1))
        for by_rank in (False, True):
            found = count_batches(slots, plan, epoch, steps, by_rank=by_rank)
            wanted = counted_one_by_one(slots, plan, epoch, steps, by_rank=by_rank)
            assert (found.least, found.most) == wanted
            assert (found.steps, found.is_complete) == (steps, True)
    return True


def test_drawn_mixtures_are_counted_as_one_by_one():
    assert sum(drawn(check_a_drawn_mixture, 18, 150)) > 50


@pytest.fixture
def one_step_at_most(monkeypatch):
    monkeypatch.setattr(composition, "_SAMPLES_COUNTED", 0)


@pytest.mark.usefixtures("one_step_at_most")
def test_whole_rounds_are_answered_by_arithmetic_in_an_epoch_of_any_length():
    slots = slots_of({"web": 5, "labels": 3}, rounds=10**9)
    plan = plan_of(slots, 16, 3)
    in_step, in_batch = (
        count_batches(slots, plan, 0, plan.steps, by_rank=by_rank) for by_rank in (False, True)
    )
    assert (in_step.least, in_step.most, in_step.is_complete) == ([30, 18], [30, 18], True)
    assert (in_batch.least, in_batch.most, in_batch.is_complete) == ([10, 6], [10, 6], True)


@pytest.mark.usefixtures("one_step_at_most")
def test_the_last_step_reaches_into_the_next_weights():
    """Steps of two rounds, and weights of three: the second step is a round of each."""
    changes = [WeightChange({"web": 1, "labels": 3}, samples=12)]
    slots = slots_of({"web": 3, "labels": 1}, 100, changes)
    plan = plan_of(slots, 8, 1)
    assert steps_before_change(slots, plan, 0) == 2
    assert count_batches(slots, plan, 0, 2, by_rank=False) == ([4, 2], [6, 4], 1, True)
    assert count_batches(slots, plan, 1, 50, by_rank=False) == ([2, 6], [2, 6], 1, True)


@pytest.mark.usefixtures("one_step_at_most")
@pytest.mark.parametrize(
    ("batch_size", "rounds"), [(16, 10), (12, 6)], ids=["some dropped", "none dropped"]
)
def test_whole_rounds_of_inexact_quotas_are_not_answered_by_arithmetic(batch_size, rounds):
    """Weights 5 and 3 in rounds of 4: two rounds hold one sample more, or one fewer."""
    slots = slots_of({"web": 5, "labels": 3}, rounds, units=4)
    plan = plan_of(slots, batch_size, 1)
    found = count_batches(slots, plan, 0, plan.steps, by_rank=False)
    assert (found.steps, found.is_complete) == (1, False)
    assert (found.least, found.most) == counted_one_by_one(slots, plan, 0, 1, by_rank=False)


def test_a_long_epoch_is_counted_as_far_as_allowed_and_says_so(monkeypatch):
    monkeypatch.setattr(composition, "_SAMPLES_COUNTED", 500)
    slots = slots_of({"web": 5, "labels": 3}, rounds=1000)
    plan = plan_of(slots, 5, 1)
    found = count_batches(slots, plan, 0, plan.steps, by_rank=False)
    assert (found.steps, found.is_complete) == (100, False)
    assert (found.least, found.most) == counted_one_by_one(slots, plan, 0, 100, by_rank=False)
