"""Elastic mixtures: world, batch size, workers and later weights change, and no sample is lost.

A chain is as in `test_elastic_plans.py`. 400 are drawn in CI, and 100,000 by
`pytest -m matrix tests/plan`.
"""

from dataclasses import replace

import numpy as np
import pytest
from plan_chains import draw_jobs, parts_of_steps
from small_mixtures import NAMES, component, drawn

from lightning_shards.plan.epoch import EpochSchedule, plan_epoch
from lightning_shards.plan.mixture import MixtureOrder
from lightning_shards.plan.mixture_schedule import MixtureSchedule, MixtureStage
from lightning_shards.plan.place import Cursor
from lightning_shards.plan.slots import MixtureSlots

PARTS = 10
IN_CI = 40  # of each part
MANY_PARTS, BY_COMMAND = 100, 1_000
JOBS = 4


def draw_stage(draws, schedule, first_round):
    """A stage whose weights are whole in a round."""
    cuts = np.sort(draws.integers(0, schedule.round_units + 1, len(schedule.names) - 1))
    weights = np.diff(cuts, prepend=0, append=schedule.round_units)
    return MixtureStage(first_round, tuple((weights // np.gcd.reduce(weights)).tolist()))


def draw_order(draws):
    """A small mixture with short epochs."""
    components = [
        component(
            name,
            [1, *draws.integers(0, 9, 2)],
            sampling=("shuffled", "sequential", "resampled")[draws.integers(3)],
            run=int(draws.integers(1, 5)),
            block=int(draws.integers(9)),
        )
        for name in NAMES[: draws.integers(1, 5)]
    ]
    names = tuple(each.name for each in components)
    units, unit = draws.integers([2, 1], [13, 4]).tolist()
    schedule = MixtureSchedule(tuple(sorted(names)), (), units, unit)
    schedule = replace(schedule, stages=(draw_stage(draws, schedule, 0),))
    epoch_samples = units * unit * int(draws.integers(1, 8))
    return MixtureOrder(
        tuple(components), MixtureSlots(names, schedule, int(draws.integers(2**63)), epoch_samples)
    )


def change_later(draws, order, trained):
    """The order with another stage in place of all that begin behind the trained samples."""
    schedule = order.slots.schedule
    size = schedule.round_samples
    kept = [stage for stage in schedule.stages if stage.first_round * size < max(trained, 1)]
    first = max(-(-trained // size), 1, kept[-1].first_round + 1)
    later = draw_stage(draws, schedule, first + int(draws.integers(3)))
    changed = MixtureOrder(
        order.mix, replace(order.slots, schedule=replace(schedule, stages=(*kept, later)))
    )
    changed.mixture_identity.require_resumable(order.identity(), trained)
    return changed


def check_quotas(order, epoch, start, stop):
    """Where a global batch is whole rounds, it has the quotas of these."""
    size = order.slots.schedule.round_samples
    if start % size or stop % size or stop > order.samples:  # behind it are repeats
        return 0
    first, last = ((epoch * order.samples + each) // size for each in (start, stop))
    counts = np.diff(order.slots.schedule.counts(first, last)[[0, -1]], axis=0)[0]
    by_name = dict(zip(order.slots.schedule.names, counts.tolist(), strict=True))
    held = np.bincount(order.slots.components(epoch, start, stop), minlength=len(order.mix))
    for component_number, name in enumerate(order.slots.names):
        assert held[component_number] == by_name[name] * order.slots.schedule.unit
    return 1


def check_chain(draws):
    """Serve an epoch by several jobs; the number of global batches that are whole rounds."""
    order, remainder = draw_order(draws), ("drop", "pad", "balanced")[draws.integers(3)]
    epoch, chain = int(draws.integers(4)), draw_jobs(draws, JOBS)
    samples, served, done, exact = order.samples, [], 0, 0
    for number, job in enumerate(chain):
        plan = plan_epoch(samples, job.batch_size, job.world_size, remainder, done)
        epochs = EpochSchedule(samples, job.batch_size, remainder)
        steps = parts_of_steps(epochs, job.world_size, job.num_workers, Cursor(epoch, done))
        if number < JOBS - 1:
            steps = steps[: job.stop_after % (len(steps) + 1)]
        for parts in steps:
            for start, stop, repeats in parts:
                served += order.at(epoch, start, stop - repeats).tolist()
            exact += check_quotas(order, epoch, parts[0].start, parts[-1].stop)
        done = plan.trained(len(steps))
        assert len(served) == done
        order = change_later(draws, order, epoch * samples + done)
    assert plan.dropped < (plan.global_batch if remainder == "drop" else 1)
    assert served == order.at(epoch, 0, samples - plan.dropped).tolist()
    return exact


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_chains_serve_a_prefix_of_the_mixture(part):
    assert sum(drawn(check_chain, part, IN_CI)) > IN_CI / 10


@pytest.mark.matrix
@pytest.mark.parametrize("part", range(PARTS, PARTS + MANY_PARTS))
def test_many_chains_serve_a_prefix_of_the_mixture(part):
    assert sum(drawn(check_chain, part, BY_COMMAND)) > BY_COMMAND / 10
