"""The plan: properties over all ranks and workers together, and a naive plan to agree with."""

from dataclasses import replace
from itertools import product

import pytest
from small_orders import SMALL_WORLD

from lightning_shards.errors import ConfigError, PlanError
from lightning_shards.plan.epoch import plan_epoch


def naive_ranks(plan):
    """Per step and rank the list of positions; those from `plan.samples` on are repeats."""
    left = list(range(plan.done, plan.samples))
    num_steps = len(left) // plan.global_batch
    if plan.remainder != "drop" and len(left) % plan.global_batch:
        num_steps += 1
    even = plan.remainder == "balanced" and num_steps * plan.world_size <= len(left)
    steps = []
    for steps_left in range(num_steps, 0, -1):
        if even:
            step, left = cut(left, -(-len(left) // steps_left))
        else:
            step, left = cut(left, plan.global_batch)
            missing = plan.global_batch - len(step)
            step += range(plan.samples, plan.samples + missing)
        ranks = []
        for ranks_left in range(plan.world_size, 0, -1):
            batch, step = cut(step, -(-len(step) // ranks_left))
            ranks.append(batch)
        steps.append(ranks)
    return steps


def cut(values, length):
    return values[:length], values[length:]


def repeats_in(plan, batch):
    return sum(position >= plan.samples for position in batch)


def facts(plan, step):
    return plan.sizes(step), plan.repeats(step), plan.span(step)


def test_small_world_equals_the_naive_plan():
    for plan in SMALL_WORLD:
        naive = naive_ranks(plan)
        repeats = [tuple(repeats_in(plan, batch) for batch in ranks) for ranks in naive]
        assert [plan.repeats(step) for step in range(plan.steps)] == repeats, plan
        spans = [
            [list(range(*plan.rank_span(step, rank))) for rank in range(plan.world_size)]
            for step in range(plan.steps)
        ]
        assert spans == naive, plan
        for rank, num_workers in product(range(plan.world_size), range(1, 4)):
            for worker in range(num_workers):
                mine = [ranks[rank] for ranks in naive[worker::num_workers]]
                distinct = sum(len(batch) - repeats_in(plan, batch) for batch in mine)
                assert plan.share(rank, worker, num_workers) == distinct, plan


def test_a_plan_from_any_cursor_is_the_rest_of_the_plan():
    for plan in SMALL_WORLD:
        whole = [facts(plan, step) for step in range(plan.steps)]
        for passed in range(plan.steps + 1):
            rest = replace(plan, done=plan.trained(passed))
            assert [facts(rest, step) for step in range(rest.steps)] == whole[passed:], (plan, rest)


@pytest.mark.parametrize("remainder", ["drop", "pad", "balanced"])
def test_a_trillion_samples_are_planned_at_once(remainder):
    plan = plan_epoch(10**12 + 1, 1, 8, remainder, done=3)
    last = plan.steps - 1
    assert plan.trained(last) + sum(plan.sizes(last)) - sum(plan.repeats(last)) == (
        plan.samples - plan.dropped
    )


def test_too_few_samples_for_a_step_say_what_to_change():
    with pytest.raises(
        PlanError, match=r"^999 samples do not fill one step of 8 ranks x 256 "
    ) as e:
        plan_epoch(999, 256, 8, "drop").require_steps()
    assert str(e.value).endswith("lower the batch size or set remainder='pad'")


def test_an_empty_data_set_is_refused_as_such():
    with pytest.raises(PlanError, match="the data set has no samples; check"):
        plan_epoch(0, 2, 4, "pad").require_steps()


def test_the_end_of_an_epoch_needs_no_steps():
    plan = plan_epoch(10, 2, 4, "drop", done=8)
    assert plan.require_steps() is plan


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"samples": -1}, "samples must be at least 0, got -1"),
        ({"done": 11}, "done must be from 0 to the 10 samples of the epoch, got 11;"),
        ({"remainder": "wrap"}, r"remainder must be one of \['drop', .*, got 'wrap'"),
    ],
)
def test_impossible_numbers_are_refused(changes, message):
    good = {"samples": 10, "batch_size": 2, "world_size": 4, "remainder": "drop", "done": 0}
    with pytest.raises(ConfigError, match=message):
        plan_epoch(**good | changes)


@pytest.mark.parametrize(
    ("query", "message"),
    [
        (lambda plan: plan.sizes(-1), "step must be at least 0 and below 2, got -1;"),
        (lambda plan: plan.rank_span(0, 5), "rank must be at least 0 and below 4, got 5;"),
        (lambda plan: plan.trained(3), "steps must be at least 0 and below 3, got 3;"),
        (lambda plan: plan.share(-1), "rank must be at least 0 and below 4, got -1;"),
        (lambda plan: plan.share(0, 2, 2), "worker must be at least 0 and below 2, got 2;"),
    ],
)
def test_questions_outside_of_the_plan_are_refused(query, message):
    with pytest.raises(ConfigError, match=message):
        query(plan_epoch(10, 2, 4, "pad"))
