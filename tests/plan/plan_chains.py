"""The jobs of a chain, and what all ranks and workers of each serve."""

from typing import NamedTuple

from lightning_shards.errors import PlanError
from lightning_shards.plan.place import Place

MAX_SHARES = 9  # ranks x workers


class Job(NamedTuple):
    """One segment of a chain; it stops after `stop_after` steps, counted round the steps left."""

    batch_size: int
    world_size: int
    num_workers: int
    stop_after: int


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


def draw_jobs(draws, number):
    """Jobs drawn without hypothesis, which takes longer to draw a chain than to check it."""
    chain = []
    for _ in range(number):
        batch_size, world_size, stop_after = draws.integers([1, 1, 0], [10, 7, 13]).tolist()
        num_workers = 1 + int(draws.integers(MAX_SHARES // world_size))
        chain.append(Job(batch_size, world_size, num_workers, stop_after))
    return chain
