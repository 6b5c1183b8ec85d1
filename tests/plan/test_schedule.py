"""How workers share the steps of a stream that runs over the ends of epochs."""

from itertools import islice

import numpy as np
import pytest

from lightning_shards.errors import PlanError
from lightning_shards.plan.epoch import EpochSchedule
from lightning_shards.plan.place import Cursor, Place

MANY = 100  # epochs: those of an endless loop end, too


def random_streams(number):
    """So many epochs, each with a place on 1 to 4 ranks, and a cursor, perhaps at its end."""
    draws = np.random.default_rng(0)
    while number:
        epochs = EpochSchedule(
            int(draws.integers(1, 40)),
            int(draws.integers(1, 5)),
            str(draws.choice(["drop", "pad", "balanced"])),
            limit=int(draws.integers(1, 6)) if draws.random() < 0.3 else None,
            pinned=draws.random() < 0.3,
        )
        world_size = int(draws.integers(1, 5))
        if steps := epochs.steps(world_size):
            done = epochs.plan(world_size).trained(int(draws.integers(steps + 1)))
            epoch = 0 if epochs.pinned else int(draws.integers(4))
            yield epochs, Place(int(draws.integers(world_size)), world_size), Cursor(epoch, done)
            number -= 1


def batches_of(epochs, place, cursor):
    """(epoch, samples trained before, span, weights) of each batch of one worker, without end."""
    for worker_epoch in islice(epochs.worker_epochs(place, cursor), MANY):
        for step in worker_epoch.own_steps():
            before = worker_epoch.plan.trained(step)
            yield worker_epoch.epoch, before, worker_epoch.span(step), worker_epoch.weights(step)


def test_workers_take_the_steps_in_turn_over_epoch_ends():
    draws = np.random.default_rng(2)
    for epochs, place, cursor in random_streams(500):
        workers = int(draws.integers(1, 6))
        whole = list(islice(batches_of(epochs, place, cursor), 6 * workers))
        for worker in range(workers):
            own = islice(batches_of(epochs, place.with_worker(worker, workers), cursor), 6)
            assert list(own) == whole[worker::workers]


def test_a_limit_cuts_an_epoch_wherever_it_is_resumed():
    """And epochs follow each other, where each is not epoch 0 again."""
    for epochs, place, cursor in random_streams(500):
        begin = Cursor(cursor.epoch)
        whole = list(islice(batches_of(epochs, place, begin), epochs.steps(place.world_size) + 1))
        rest = list(islice(batches_of(epochs, place, cursor), len(whole)))
        left = [batch for batch in whole[:-1] if batch[1] >= cursor.samples]
        assert rest[: len(left)] == left
        following = cursor.epoch + (not epochs.pinned)
        assert whole[-1][:2] == rest[len(left)][:2] == (following, 0)


def test_a_stream_that_begins_at_a_later_batch_gives_the_same_batches():
    draws = np.random.default_rng(1)
    for epochs, place, cursor in random_streams(3000):
        number, lanes = int(draws.integers(40)), int(draws.integers(1, 5))
        worker = place.with_worker(number % lanes, lanes)
        expected = islice(batches_of(epochs, worker, cursor), number // lanes, number // lanes + 6)
        begun = epochs.cursor_after(cursor, place.world_size, number)
        found = islice(batches_of(epochs, place.with_worker(0, lanes), begun), 6)
        assert list(found) == list(expected), (epochs, place, cursor, number, lanes)


def test_an_epoch_without_a_step_is_an_error_and_no_endless_loop():
    with pytest.raises(PlanError, match="an epoch of no steps would never end"):
        next(EpochSchedule(3, 2, "drop").worker_epochs(Place(0, 2), Cursor()))
