"""Elastic plans: an epoch whose world, batch size and workers change serves each sample once.

A chain is one epoch served by several jobs one after the other; each goes on where the one before
stopped, with nothing but its cursor. The ids that are checked are those of the ranks' workers, each
asked for itself, as in training: so ranks and workers that disagree show as samples lost or
repeated. 5,100 plans are drawn in CI, and 1,020,000, always the same ones, by
`HYPOTHESIS_PROFILE=thorough pytest tests/plan/test_elastic_plans.py -k drawn`.
"""

from functools import cache
from itertools import product

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from plan_chains import MAX_SHARES, Job, draw_jobs, parts_of_steps

from lightning_shards.plan.epoch import EpochSchedule, plan_epoch
from lightning_shards.plan.order import SampleOrder
from lightning_shards.plan.place import Cursor

REMAINDERS = ("drop", "pad", "balanced")
SAMPLINGS = ("shuffled", "sequential", "resampled")
PLANS_PER_CHAIN = 6
CHAINS_PER_PART = 170 * settings.default.max_examples // 200  # 85 in CI, 17,000 with thorough


def ids_of(order, epoch, start, stop):
    return list(map(tuple, order.at(epoch, start, stop).tolist()))


def check_chain(order, remainder, epoch, chain):
    """Let the jobs of a chain serve an epoch, and look at what they served."""
    served, done = [], 0
    for number, job in enumerate(chain):
        epochs = EpochSchedule(order.samples, job.batch_size, remainder)
        steps = parts_of_steps(epochs, job.world_size, job.num_workers, Cursor(epoch, done))
        plan = plan_epoch(order.samples, job.batch_size, job.world_size, remainder, done)
        assert len(steps) == plan.steps
        if number < len(chain) - 1:
            steps = steps[: job.stop_after % (len(steps) + 1)]
        for parts in steps:
            for start, stop, repeats in parts:
                # Repeats are behind the last sample, and only there.
                assert repeats == max(0, stop - max(start, order.samples))
                served += ids_of(order, epoch, start, stop - repeats)
        done = plan.trained(len(steps))
        assert len(served) == done
    assert plan.dropped < (plan.global_batch if remainder == "drop" else 1)
    assert served == ids_of(order, epoch, 0, order.samples - plan.dropped)
    if order.identity()["sampling"] != "resampled":
        assert len(set(served)) == len(served)


@st.composite
def jobs(draw):
    world_size = draw(st.integers(1, 6))
    num_workers = draw(st.integers(1, MAX_SHARES // world_size))
    return Job(draw(st.integers(1, 9)), world_size, num_workers, draw(st.integers(0, 12)))


def draw_chain(draws):
    """The same chains without hypothesis, which takes longer to draw a chain than to check it."""
    sampling, remainder = SAMPLINGS[draws.integers(3)], REMAINDERS[draws.integers(3)]
    counts = draws.integers(0, 16, draws.integers(1, 8))
    counts[-1] += not counts.any()
    run, block = draws.integers([sampling == "resampled", 0], [10, 51]).tolist()
    order = SampleOrder(counts, int(draws.integers(2**63)), sampling, run, block)
    chain = draw_jobs(draws, PLANS_PER_CHAIN)
    return order, remainder, int(draws.integers(4)), chain


@pytest.mark.slow
@pytest.mark.timeout(3600)  # a tenth of a million takes a minute or two
@pytest.mark.parametrize("part", range(10))
def test_drawn_chains_serve_every_sample_once(part):
    for number in range(CHAINS_PER_PART):
        chain = draw_chain(np.random.default_rng((part, number)))
        try:
            check_chain(*chain)
        except AssertionError as error:
            error.add_note(f"draw_chain(np.random.default_rng(({part}, {number}))) gave {chain}")
            raise


# The small world: every chain of up to four jobs, 3,046,671 of them.

MAX_SAMPLES = 10
MAX_CHANGES = 3
SHAPES = list(product(range(1, 4), range(1, 4)))  # batch size, world size


@cache
def positions_left(samples, remainder, shape, done):
    """Per step left the positions that all ranks serve, the same with one, two and three workers.

    Cached, as a job knows nothing of the chain but its cursor.
    """
    batch_size, world_size = shape
    epochs = EpochSchedule(samples, batch_size, remainder)
    one, two, three = (
        parts_of_steps(epochs, world_size, num_workers, Cursor(0, done))
        for num_workers in (1, 2, 3)
    )
    assert one == two == three
    return [
        tuple(
            position for start, stop, repeats in parts for position in range(start, stop - repeats)
        )
        for parts in one
    ]


def chains_of(samples, remainder, changes, done=0, served=()):
    """All that chains with this many changes serve, stopped at every step: (last shape, served)."""
    for shape in SHAPES:
        steps = positions_left(samples, remainder, shape, done)
        if not changes:
            yield shape, sum(steps, served)
            continue
        plan = plan_epoch(samples, *shape, remainder, done)
        for stop in range(len(steps) + 1):
            before = sum(steps[:stop], served)
            yield from chains_of(samples, remainder, changes - 1, plan.trained(stop), before)


@pytest.mark.parametrize("remainder", REMAINDERS)
@pytest.mark.parametrize("changes", range(MAX_CHANGES + 1))
def test_every_chain_of_the_small_world_serves_every_sample_once(remainder, changes):
    chains = 0
    for samples in range(1, MAX_SAMPLES + 1):
        for (batch_size, world_size), served in chains_of(samples, remainder, changes):
            assert served == tuple(range(len(served))), "a sample is lost, repeated or moved"
            lost = samples - len(served)
            assert lost < (batch_size * world_size if remainder == "drop" else 1)
            chains += 1
    assert chains >= MAX_SAMPLES * len(SHAPES) ** (changes + 1)
