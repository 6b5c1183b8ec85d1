"""Elastic plans: an epoch whose world, batch size and workers change serves each sample once.

A chain is one epoch served by several jobs one after the other; each goes on where the one before
stopped, with nothing but its cursor. The positions that are checked are those of the ranks'
workers, each asked for itself, as in training: so ranks and workers that disagree show as samples
lost or repeated.
"""

from functools import cache
from itertools import product
from typing import NamedTuple

import pytest

from lightning_shards.errors import PlanError
from lightning_shards.plan.epoch import EpochSchedule, plan_epoch
from lightning_shards.plan.place import Cursor, Place

REMAINDERS = ("drop", "pad", "balanced")


class Part(NamedTuple):
    """One rank's part of one step: positions start to stop, of which the last ones are repeats."""

    start: int
    stop: int
    repeats: int


def worker_epochs_of_rank(epochs, world_size, num_workers, cursor, rank):
    """What the workers of one rank have left to do in the cursor's epoch."""
    for worker in range(num_workers):
        place = Place(rank, world_size, worker, num_workers)
        try:
            worker_epoch = next(epochs.worker_epochs(place, cursor))
        except PlanError:  # the whole epoch has fewer samples than one step of this job
            return
        if worker_epoch.epoch == cursor.epoch:
            yield worker_epoch


def parts_of_rank(epochs, world_size, num_workers, cursor, rank):
    """The steps left in the cursor's epoch for one rank, made by its workers in turn."""
    made = {}
    for worker_epoch in worker_epochs_of_rank(epochs, world_size, num_workers, cursor, rank):
        for step in worker_epoch.own_steps():
            assert step not in made, "two workers make the same batch"
            start, stop = worker_epoch.plan.rank_span(step, worker_epoch.place.rank)
            weights = worker_epoch.weights(step) or [1] * (stop - start)
            repeats = weights.count(0)
            assert weights == [1] * (stop - start - repeats) + [0] * repeats
            made[step] = Part(start, stop, repeats)
    assert sorted(made) == list(range(len(made))), "a step is made by no worker"
    return [made[step] for step in range(len(made))]


def parts_of_steps(epochs, world_size, num_workers, cursor):
    """Per step left in the cursor's epoch the parts of all ranks."""
    ranks = [
        parts_of_rank(epochs, world_size, num_workers, cursor, rank) for rank in range(world_size)
    ]
    return list(zip(*ranks, strict=True))  # ranks that disagree on the number of steps fail here


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
