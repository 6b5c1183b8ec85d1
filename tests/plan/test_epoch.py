"""The plan: properties over all ranks and workers together, and a naive plan to agree with."""

from itertools import product

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from lightning_shards.errors import ConfigError, PlanError
from lightning_shards.plan.epoch import EpochPlan, plan_epoch

REMAINDERS = ("drop", "pad", "balanced")
SMALL_WORLD = [
    plan_epoch(samples, batch_size, world_size, remainder, done)
    for samples, batch_size, world_size, remainder in product(
        range(13), range(1, 4), range(1, 5), REMAINDERS
    )
    for done in range(samples + 1)
]


@st.composite
def plans(draw, max_samples=10**6, remainders=REMAINDERS):
    """A plan whose `done` was reached by steps of another world and batch size."""
    samples = draw(st.integers(0, max_samples))
    remainder = draw(st.sampled_from(remainders))
    before = plan_epoch(samples, draw(batch_sizes), draw(world_sizes), remainder)
    done = before.trained(draw(st.integers(0, before.steps)))
    return plan_epoch(samples, draw(batch_sizes), draw(world_sizes), remainder, done)


# Small numbers often: there the remainders are large beside the rest.
batch_sizes = st.one_of(st.integers(1, 3), st.integers(1, 256))
world_sizes = st.one_of(st.integers(1, 4), st.integers(1, 64))


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


def some_steps(plan, few=3):
    """The first, middle and last steps, where a plan changes its sizes."""
    middle = plan._totals[0]
    near = (*range(few), *range(middle - few, middle + few), *range(plan.steps - few, plan.steps))
    return sorted({step for step in near if 0 <= step < plan.steps})


@pytest.mark.parametrize(
    ("remainder", "sizes"),
    [
        ("drop", [(2, 2, 2, 2)]),
        ("pad", [(2, 2, 2, 2), (2, 2, 2, 2)]),
        ("balanced", [(2, 1, 1, 1), (2, 1, 1, 1)]),
    ],
)
def test_ten_samples_on_four_ranks_give_the_sizes_of_the_design(remainder, sizes):
    plan = plan_epoch(10, 2, 4, remainder)
    assert [plan.sizes(step) for step in range(plan.steps)] == sizes


def test_larger_steps_come_first():
    plan = plan_epoch(17, 2, 3, "balanced")
    assert [sum(plan.sizes(step)) for step in range(plan.steps)] == [6, 6, 5]


def test_repeats_are_at_the_ranks_whose_positions_pass_the_end():
    plan = plan_epoch(12, 3, 3, "pad")
    assert plan.repeats(1) == (0, 3, 3)


def test_small_world_equals_the_naive_plan_in_sizes():
    for plan in SMALL_WORLD:
        naive = [tuple(map(len, ranks)) for ranks in naive_ranks(plan)]
        assert [plan.sizes(step) for step in range(plan.steps)] == naive, plan


def test_small_world_equals_the_naive_plan_in_repeats():
    for plan in SMALL_WORLD:
        naive = [tuple(repeats_in(plan, batch) for batch in ranks) for ranks in naive_ranks(plan)]
        assert [plan.repeats(step) for step in range(plan.steps)] == naive, plan


def test_small_world_equals_the_naive_plan_in_spans():
    for plan in SMALL_WORLD:
        naive = [
            (ranks[0][0], max(map(max, filter(None, ranks))) + 1) for ranks in naive_ranks(plan)
        ]
        assert [plan.span(step) for step in range(plan.steps)] == naive, plan


def test_small_world_equals_the_naive_plan_in_the_positions_of_each_rank():
    for plan in SMALL_WORLD:
        spans = [
            [list(range(*plan.rank_span(step, rank))) for rank in range(plan.world_size)]
            for step in range(plan.steps)
        ]
        assert spans == naive_ranks(plan), plan


def test_small_world_equals_the_naive_plan_in_shares_of_workers():
    for plan in SMALL_WORLD:
        naive = naive_ranks(plan)
        for rank, num_workers in product(range(plan.world_size), range(1, 4)):
            for worker in range(num_workers):
                mine = [ranks[rank] for ranks in naive[worker::num_workers]]
                distinct = sum(len(batch) - repeats_in(plan, batch) for batch in mine)
                assert plan.share(rank, worker, num_workers) == distinct, plan


@given(plans(max_samples=2000))
def test_larger_worlds_equal_the_naive_plan(plan):
    naive = [
        (
            tuple(map(len, ranks)),
            tuple(repeats_in(plan, batch) for batch in ranks),
            (ranks[0][0], max(max(batch) for batch in ranks if batch) + 1),
        )
        for ranks in naive_ranks(plan)
    ]
    assert [facts(plan, step) for step in range(plan.steps)] == naive


@given(plans())
def test_every_rank_has_a_sample_at_every_step(plan):
    assert all(min(plan.sizes(step)) >= 1 for step in some_steps(plan))


@given(plans())
def test_no_batch_is_larger_than_the_batch_size(plan):
    assert all(max(plan.sizes(step)) <= plan.batch_size for step in some_steps(plan))


@given(plans(remainders=("drop", "pad")))
def test_drop_and_pad_have_full_steps_only(plan):
    full = (plan.batch_size,) * plan.world_size
    assert all(plan.sizes(step) == full for step in some_steps(plan))


@given(plans(remainders=("drop",)))
def test_drop_runs_the_whole_steps_that_are_left(plan):
    assert plan.steps == (plan.samples - plan.done) // plan.global_batch


@given(plans(remainders=("pad", "balanced")))
def test_pad_and_balanced_serve_every_sample(plan):
    assert plan.served == plan.samples - plan.done


@given(plans(remainders=("pad", "balanced")))
def test_pad_and_balanced_run_no_step_too_many(plan):
    assert 0 <= plan.steps * plan.global_batch - plan.served < plan.global_batch


@given(plans())
def test_served_and_dropped_samples_are_what_is_left(plan):
    assert plan.served + plan.dropped == plan.samples - plan.done


@given(plans())
def test_less_than_a_global_batch_is_dropped(plan):
    assert 0 <= plan.dropped < plan.global_batch


@given(plans())
def test_shares_of_the_ranks_add_up_to_what_is_served(plan):
    assert sum(plan.share(rank) for rank in range(plan.world_size)) == plan.served


@given(plans(), st.integers(1, 9))
def test_shares_of_the_workers_add_up_to_the_rank(plan, num_workers):
    rank = plan.world_size - 1
    shares = [plan.share(rank, worker, num_workers) for worker in range(num_workers)]
    assert sum(shares) == plan.share(rank)


@given(plans(max_samples=5000))
def test_sizes_without_repeats_add_up_to_what_is_served(plan):
    distinct = [sum(plan.sizes(step)) - sum(plan.repeats(step)) for step in range(plan.steps)]
    assert sum(distinct) == plan.served


@given(plans(max_samples=5000))
def test_repeats_add_up_to_padded(plan):
    assert sum(sum(plan.repeats(step)) for step in range(plan.steps)) == plan.padded


@given(plans())
def test_only_the_last_step_has_repeats(plan):
    assert not any(any(plan.repeats(step)) for step in some_steps(plan) if step < plan.steps - 1)


@given(plans())
def test_repeats_are_at_the_end_of_the_step(plan):
    for step in some_steps(plan):
        start, stop = plan.span(step)
        assert sum(plan.repeats(step)) == max(0, stop - max(start, plan.samples))


@given(plans())
def test_spans_follow_each_other_without_gap(plan):
    for step in some_steps(plan)[1:]:
        if step - 1 in some_steps(plan):
            assert plan.span(step)[0] == plan.span(step - 1)[1]


@given(plans())
def test_a_span_is_as_long_as_its_sizes(plan):
    for step in some_steps(plan):
        start, stop = plan.span(step)
        assert stop - start == sum(plan.sizes(step))


@given(plans())
def test_spans_of_the_ranks_tile_the_span_of_the_step(plan):
    for step in some_steps(plan):
        spans = [plan.rank_span(step, rank) for rank in range(plan.world_size)]
        borders = [start for start, _ in spans] + [plan.span(step)[1]]
        assert borders[0] == plan.span(step)[0]
        assert [stop for _, stop in spans] == borders[1:]


@given(plans())
def test_a_span_of_a_rank_is_as_long_as_its_size(plan):
    for step in some_steps(plan):
        spans = [plan.rank_span(step, rank) for rank in range(plan.world_size)]
        assert tuple(stop - start for start, stop in spans) == plan.sizes(step)


@given(plans())
def test_positions_of_a_rank_behind_the_last_sample_are_its_repeats(plan):
    for step in some_steps(plan):
        for rank in range(plan.world_size):
            start, stop = plan.rank_span(step, rank)
            repeats = max(0, stop - max(start, plan.samples))
            assert repeats == plan.num_repeats(step, rank)


@given(plans(remainders=("balanced",)))
def test_balanced_sizes_differ_by_at_most_one_over_all_steps(plan):
    assume(not plan.padded)
    sizes = {size for step in some_steps(plan) for size in plan.sizes(step)}
    assert max(sizes, default=0) - min(sizes, default=0) <= 1


@given(plans(remainders=("balanced",)))
def test_balanced_pads_exactly_when_a_rank_would_go_without_a_sample(plan):
    assume(plan.steps)
    lacks = plan.served // plan.steps < plan.world_size
    assert (plan.padded > 0) == lacks


@pytest.mark.parametrize(("samples", "batch_size"), [(3, 5), (1, 1), (9, 1), (4001, 1)])
def test_balanced_that_pads_equals_pad(samples, batch_size):
    balanced, pad = (plan_epoch(samples, batch_size, 4, name) for name in ("balanced", "pad"))
    assert balanced.padded
    every = range(balanced.steps)
    assert [facts(balanced, step) for step in every] == [facts(pad, step) for step in every]


@given(plans(), st.data())
def test_plan_from_any_cursor_is_the_rest_of_the_plan(plan, data):
    passed = data.draw(st.integers(0, plan.steps), label="passed")
    rest = plan_epoch(
        plan.samples, plan.batch_size, plan.world_size, plan.remainder, plan.trained(passed)
    )
    assert rest.steps == plan.steps - passed
    for step in some_steps(rest):
        assert facts(rest, step) == facts(plan, step + passed)


def test_small_world_is_memoryless():
    for plan in SMALL_WORLD:
        for passed in range(plan.steps + 1):
            done = plan.trained(passed)
            rest = EpochPlan(plan.samples, plan.batch_size, plan.world_size, plan.remainder, done)
            tail = [facts(plan, step) for step in range(passed, plan.steps)]
            assert [facts(rest, step) for step in range(rest.steps)] == tail, (plan, passed)


@given(plans())
def test_trained_ends_where_the_served_samples_end(plan):
    assert plan.trained(plan.steps) == plan.done + plan.served


def test_trained_does_not_count_repeats():
    assert plan_epoch(10, 2, 4, "pad").trained(2) == 10


@pytest.mark.parametrize("remainder", REMAINDERS)
def test_the_last_rank_of_a_million_is_found_at_once(remainder):
    plan = plan_epoch(10**12, 256, 10**6, remainder)
    assert plan.rank_span(0, 10**6 - 1)[1] == plan.span(0)[1]


@pytest.mark.parametrize("remainder", REMAINDERS)
def test_a_trillion_samples_are_planned_at_once(remainder):
    plan = plan_epoch(10**12 + 1, 1, 8, remainder, done=3)
    last = plan.steps - 1
    assert plan.trained(last) + sum(plan.sizes(last)) - sum(plan.repeats(last)) == (
        plan.samples - plan.dropped
    )


@pytest.mark.parametrize("remainder", ["drop", "pad", "balanced"])
def test_an_epoch_without_samples_has_no_steps(remainder):
    assert plan_epoch(0, 2, 4, remainder).steps == 0


def test_too_few_samples_for_a_step_say_what_to_change():
    with pytest.raises(
        PlanError, match=r"^999 samples do not fill one step of 8 ranks x 256 "
    ) as e:
        plan_epoch(999, 256, 8, "drop").require_steps()
    assert str(e.value).endswith("lower the batch size or set remainder='pad'")


@pytest.mark.parametrize("remainder", REMAINDERS)
def test_an_empty_data_set_is_refused_as_such(remainder):
    with pytest.raises(PlanError, match="the data set has no samples; check"):
        plan_epoch(0, 2, 4, remainder).require_steps()


def test_the_end_of_an_epoch_needs_no_steps():
    plan = plan_epoch(10, 2, 4, "drop", done=8)
    assert plan.require_steps() is plan


def test_a_plan_with_steps_passes():
    plan = plan_epoch(8, 2, 4, "drop")
    assert plan.require_steps() is plan


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1, got 0;"),
        ({"world_size": -2}, "world_size must be at least 1, got -2;"),
        ({"samples": -1}, "samples must be at least 0, got -1;"),
        ({"done": 11}, "done must be from 0 to the 10 samples of the epoch, got 11;"),
        ({"done": -1}, "done must be from 0 to the 10 samples of the epoch, got -1;"),
        ({"remainder": "wrap"}, "remainder must be one of drop, pad, balanced, got 'wrap';"),
    ],
)
def test_impossible_numbers_are_refused(changes, message):
    good = {"samples": 10, "batch_size": 2, "world_size": 4, "remainder": "drop", "done": 0}
    with pytest.raises(ConfigError, match=message):
        plan_epoch(**good | changes)


@pytest.mark.parametrize(
    ("query", "message"),
    [
        (lambda plan: plan.size(2, 0), "step must be at least 0 and below 2, got 2;"),
        (lambda plan: plan.sizes(-1), "step must be at least 0 and below 2, got -1;"),
        (lambda plan: plan.span(3), "step must be at least 0 and below 2, got 3;"),
        (lambda plan: plan.rank_span(4, 0), "step must be at least 0 and below 2, got 4;"),
        (lambda plan: plan.rank_span(0, 5), "rank must be at least 0 and below 4, got 5;"),
        (lambda plan: plan.rank_span(0, -2), "rank must be at least 0 and below 4, got -2;"),
        (lambda plan: plan.trained(3), "steps must be at least 0 and below 3, got 3;"),
        (lambda plan: plan.num_repeats(0, 4), "rank must be at least 0 and below 4, got 4;"),
        (lambda plan: plan.share(-1), "rank must be at least 0 and below 4, got -1;"),
        (lambda plan: plan.share(0, 2, 2), "worker must be at least 0 and below 2, got 2;"),
    ],
)
def test_questions_outside_of_the_plan_are_refused(query, message):
    with pytest.raises(ConfigError, match=message):
        query(plan_epoch(10, 2, 4, "pad"))
