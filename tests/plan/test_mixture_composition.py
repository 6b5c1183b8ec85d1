"""What batches of a mixture hold at least and at most is what counting each of them gives."""

import numpy as np
import pytest

from lightning_shards.plan.epoch import plan_epoch
from lightning_shards.plan.mixture import (
    WeightStage,
    count_batches,
    left_out_of_epoch,
    samples_of_epoch,
    sizes_without_drop,
    stages_of,
)
from lightning_shards.plan.mixture_schedule import WeightChange, schedule_mixture
from lightning_shards.plan.slots import MixtureSlots
from tests.plan.small_mixtures import draw_mixture, drawn

EVERYTHING = 2**40


def slots_of(weights, rounds, changes=(), *, units=None, unit=1, seed=3):
    """A mixture whose epochs have this many rounds."""
    units = units or sum(weights.values())
    size = rounds * units * unit
    schedule = schedule_mixture(weights, changes, round_units=units, unit=unit, epoch_samples=size)
    return MixtureSlots(tuple(weights), schedule, seed, size)


def plan_of(slots, batch_size=2, world_size=3, remainder="drop"):
    return plan_epoch(slots.epoch_samples, batch_size, world_size, remainder)


def counted_one_by_one(slots, plan, stage, epochs, *, by_rank, steps=None):
    """The least and the most of each component over all batches that begin in the stage."""
    rows = []
    for epoch in range(epochs):
        for step in range(plan.steps if steps is None else steps):
            run_position = epoch * plan.samples + plan.span(step)[0]
            if run_position < stage.begin or (stage.end is not None and run_position >= stage.end):
                continue
            ranks = [plan.rank_span(step, rank) for rank in range(plan.world_size)]
            spans = ranks if by_rank else [plan.span(step)]
            held = (slots.components(epoch, *span) for span in spans)
            rows += [np.bincount(each, minlength=len(slots.names)) for each in held]
    if not rows:
        return None
    return tuple(np.min(rows, axis=0).tolist()), tuple(np.max(rows, axis=0).tolist())


def check_a_drawn_mixture(draws):
    """Any weights, stages, ways between stages, units, and batches of any size."""
    slots = draw_mixture(draws, most=50).slots
    size = slots.epoch_samples
    if size > 5_000:
        return False
    batch_size, world_size = (int(draws.integers(1, most)) for most in (40, 6))
    remainder = ("drop", "pad", "balanced")[draws.integers(3)]
    plan = plan_epoch(size, batch_size, world_size, remainder)
    epochs, steps = int(draws.integers(1, 4)), int(draws.integers(0, plan.steps + 1))
    stages = [stage for stage in stages_of(slots) if stage.begin < epochs * size]
    for stage in stages:
        end = epochs * size if stage.end is None else min(stage.end, epochs * size)
        part = WeightStage(stage.begin, end, stage.weights)
        for by_rank in (False, True):
            how = {"by_rank": by_rank, "steps": (steps, None)[draws.integers(2)]}
            found = count_batches(slots, plan, part, EVERYTHING, **how)
            wanted = counted_one_by_one(slots, plan, part, epochs, **how)
            assert (found and (found.least, found.most)) == wanted
            assert found is None or found.is_complete
    return True


def test_drawn_mixtures_are_counted_as_one_by_one():
    assert sum(drawn(check_a_drawn_mixture, 18, 150)) > 50


def test_whole_rounds_are_answered_by_arithmetic_for_a_run_without_end():
    slots = slots_of({"web": 5, "labels": 3}, rounds=10**9)
    (stage,) = stages_of(slots)
    in_step, in_batch = (
        count_batches(slots, plan_of(slots, 16, 3), stage, 0, by_rank=by_rank)
        for by_rank in (False, True)
    )
    assert (in_step.least, in_step.most, in_step.is_complete) == ((30, 18), (30, 18), True)
    assert (in_batch.least, in_batch.most, in_batch.is_complete) == ((10, 6), (10, 6), True)


def test_the_last_step_of_a_stage_reaches_into_the_next_one():
    """Steps of two rounds, and a stage of three: the second step is a round of each stage."""
    changes = [WeightChange({"web": 1, "labels": 3}, samples=12)]
    slots = slots_of({"web": 3, "labels": 1}, 100, changes)
    first, second = stages_of(slots)
    found = count_batches(slots, plan_of(slots, 8, 1), first, 0, by_rank=False)
    assert (found.least, found.most) == ((4, 2), (6, 4))
    assert found.is_complete
    found = count_batches(slots, plan_of(slots, 8, 1), second, 0, by_rank=False)
    assert (found.least, found.most) == ((2, 6), (2, 6))


@pytest.mark.parametrize(
    ("batch_size", "rounds"), [(16, 10), (12, 6)], ids=["some dropped", "none dropped"]
)
def test_whole_rounds_of_inexact_quotas_are_counted(batch_size, rounds):
    """Weights 5 and 3 in rounds of 4: two rounds hold one sample more, or one fewer."""
    slots = slots_of({"web": 5, "labels": 3}, rounds, units=4)
    plan = plan_of(slots, batch_size, 1)
    (stage,) = stages_of(slots)
    found = count_batches(slots, plan, stage, 10**4, by_rank=False)
    part = WeightStage(0, 100 * slots.epoch_samples, stage.weights)
    wanted = counted_one_by_one(slots, plan, part, 100, by_rank=False)
    assert (found.least, found.most) == wanted
    assert not found.is_complete


def test_a_long_stage_is_counted_as_far_as_asked_and_says_so():
    slots = slots_of({"web": 5, "labels": 3}, rounds=1000)
    (stage,) = stages_of(slots)
    plan = plan_of(slots, 5, 1)
    found = count_batches(slots, plan, stage, 500, by_rank=False)
    assert (found.steps, found.is_complete) == (100, False)
    part = WeightStage(0, 500, stage.weights)
    wanted = counted_one_by_one(slots, plan, part, 1, by_rank=False)
    assert (found.least, found.most) == wanted


def test_a_stage_within_a_step_has_no_batches():
    changes = [
        WeightChange({"web": 1, "labels": 1}, samples=8),
        WeightChange({"labels": 1}, samples=12),
    ]
    slots = slots_of({"web": 3, "labels": 1}, 9, changes)
    stages = stages_of(slots)
    assert [(stage.begin, stage.end) for stage in stages] == [(0, 8), (8, 12), (12, None)]
    assert [stage.weights for stage in stages] == [(3, 1), (1, 1), (0, 1)]
    plan = plan_of(slots, 6, 1)
    found = [count_batches(slots, plan, stage, EVERYTHING, by_rank=False) for stage in stages[:2]]
    assert [each and each.steps for each in found] == [2, None]


def test_weights_are_in_the_order_in_which_users_name_components():
    slots = slots_of({"web": 5, "labels": 3}, rounds=2)
    assert stages_of(slots)[0].weights == (5, 3)


@pytest.mark.parametrize("world_size", [1, 3])
def test_what_is_dropped_is_what_no_step_serves(world_size):
    slots = slots_of({"web": 5, "labels": 2, "synth": 1}, rounds=5)
    plan = plan_of(slots, 3, world_size)
    for epoch in range(3):
        served = slots.components(epoch, 0, plan.served)
        dropped = left_out_of_epoch(slots, plan, epoch)
        assert dropped.sum() == plan.dropped > 0
        whole = np.bincount(served, minlength=3) + dropped
        assert whole.tolist() == samples_of_epoch(slots, epoch).tolist() == [25, 10, 5]


def test_the_sizes_named_drop_nothing_and_no_size_between_does():
    slots = slots_of({"web": 5, "labels": 3}, rounds=10)
    sizes = sizes_without_drop(slots, plan_of(slots, 2, 3))
    assert sizes == (72, 96)
    between = range(sizes[0], sizes[1] + 1, slots.schedule.round_samples)
    assert [size for size in between if plan_epoch(size, 2, 3, "drop").dropped == 0] == list(sizes)
    assert sizes_without_drop(slots, plan_of(slots, 100, 1)) == (200,)
