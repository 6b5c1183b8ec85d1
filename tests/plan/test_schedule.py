"""How workers share the steps of a stream that runs over the ends of epochs."""

from itertools import islice

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from lightning_shards.errors import PlanError
from lightning_shards.plan.epoch import EpochSchedule
from lightning_shards.plan.place import Cursor, Place


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
    """The steps of one worker, without end."""
    for worker_epoch in epochs.worker_epochs(place, cursor):
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


def test_an_epoch_without_a_step_is_an_error_and_no_endless_loop():
    with pytest.raises(PlanError, match="an epoch of no steps would never end"):
        next(EpochSchedule(3, 2, "drop").worker_epochs(Place(0, 2), Cursor()))
