"""How workers share the steps of a stream that runs over the ends of epochs."""

from itertools import islice

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from lightning_shards.errors import PlanError
from lightning_shards.plan.epoch import EpochSchedule
from lightning_shards.plan.place import Cursor, Place

MANY = 100  # epochs: those of an endless loop end, too


@st.composite
def streams(draw):
    """Epochs, and a cursor at a step of one of them that is not their end."""
    epochs = EpochSchedule(
        samples=draw(st.integers(1, 30)),
        batch_size=draw(st.integers(1, 4)),
        remainder=draw(st.sampled_from(["drop", "pad", "balanced"])),
        limit=draw(st.none() | st.integers(1, 5)),
        pinned=draw(st.booleans()),
    )
    steps = epochs.steps(world_size=2)
    assume(steps)
    epoch, done = draw(st.integers(0, 3)), draw(st.integers(0, steps - 1))
    return epochs, Cursor(epoch, epochs.plan(world_size=2).trained(done))


def expected_steps(epochs, cursor, num_steps):
    """(epoch, samples trained before) of the steps from the cursor on."""
    found = []
    while len(found) < num_steps:
        plan, steps = epochs.plan(2, cursor.samples), epochs.steps(2, cursor.samples)
        found += [(cursor.epoch, plan.trained(step)) for step in range(steps)]
        cursor = epochs.next_epoch(cursor)
    return found[:num_steps]


def steps_of(epochs, place, cursor):
    """The steps of one worker, in more epochs than are asked for."""
    for worker_epoch in islice(epochs.worker_epochs(place, cursor), MANY):
        for step in worker_epoch.own_steps():
            yield worker_epoch.epoch, worker_epoch.plan.trained(step)


@given(stream=streams(), num_workers=st.integers(1, 5))
def test_workers_take_the_steps_in_turn_over_epoch_ends(stream, num_workers):
    epochs, cursor = stream
    for worker in range(num_workers):
        own = list(islice(steps_of(epochs, Place(1, 2, worker, num_workers), cursor), 6))
        assert own == expected_steps(epochs, cursor, 6 * num_workers)[worker::num_workers]


@given(stream=streams())
def test_a_limit_cuts_an_epoch_wherever_it_is_resumed(stream):
    epochs, cursor = stream
    whole = expected_steps(epochs, Cursor(cursor.epoch), epochs.steps(2))
    rest = expected_steps(epochs, cursor, epochs.steps(2, cursor.samples))
    assert rest == [step for step in whole if step[1] >= cursor.samples]


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
    """(epoch, span, weights) of each batch of one worker, in more epochs than are asked for."""
    for worker_epoch in islice(epochs.worker_epochs(place, cursor), MANY):
        for step in worker_epoch.own_steps():
            yield worker_epoch.epoch, worker_epoch.span(step), worker_epoch.weights(step)


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
