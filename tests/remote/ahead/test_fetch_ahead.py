"""When a storage is told what to fetch, and that no batch waits for it."""

import threading
from itertools import chain, islice

import pytest
from waiting import wait_for

from lightning_shards.errors import IndexMismatchError, ShardNotFoundError
from lightning_shards.plan.epoch import EpochSchedule
from lightning_shards.plan.place import Cursor, Place
from lightning_shards.remote import ahead as fetch_ahead
from lightning_shards.remote.ahead import Announcement, FetchAhead
from lightning_shards.shards.storage.protocol import ShardReads

WITHIN_S = 10


def reads_named(name):
    return [ShardReads(name, [0], [1])]


def named(turn, position, stop, name="next"):
    return Announcement(turn, position, stop, reads_named(name))


def forever():
    """No announcement for as long as a test runs."""
    threading.Event().wait(WITHIN_S)
    yield from ()


class FakeStorages:
    """Storages that say what they were told to fetch."""

    def __init__(self, told):
        self._told = told

    def prefetch(self, reads):
        self._told.extend(each.url for each in reads)


@pytest.fixture
def told():
    return []


@pytest.fixture
def make_ahead(told):
    made = []

    def make(announcements, *end):
        made.append(FetchAhead(announcements, FakeStorages(told), *end))
        return made[-1]

    yield make
    for ahead in made:
        ahead.close()


def reach(ahead, *position):
    """Come to a position when the next announcement is known."""
    assert wait_for(lambda: ahead._next is None or ahead._next.done(), WITHIN_S)
    ahead.reach(*position)


def test_it_is_told_when_the_batches_have_come_there(make_ahead, told):
    due = [(0, 0), (0, 50), (1, 0), (1, 50)]
    ahead = make_ahead(iter([named(*each, each[1] + 50, str(each)) for each in due]))
    reach(ahead, 0, 10)
    assert told == ["(0, 0)"]
    reach(ahead, 0, 49)
    reach(ahead, 0, 49)
    assert told == ["(0, 0)"]
    reach(ahead, 0, 60)
    reach(ahead, 0, 20)  # of another batch that is looked up later
    assert told == ["(0, 0)", "(0, 50)"]
    for _ in range(2):
        reach(ahead, 1, 70)
    assert told[2:] == ["(1, 0)", "(1, 50)"]


def batches_together(ahead, steps, *, batch_size=10):
    """How many batches may be read together at each of these steps, and those that follow."""
    epochs = EpochSchedule(100, batch_size, "drop").worker_epochs(Place(0, 1), Cursor(0))
    seen = {}
    for turn, epoch in islice(enumerate(epochs), 2):
        for step, _ in enumerate(ahead.announcing(turn, epoch, iter(epoch.own_steps()))):
            if (turn, step) in steps:
                seen[turn, step] = ahead.most_batches()
            if (turn, step) < steps[-1]:
                wait_for(lambda: ahead._next is None or ahead._next.done(), WITHIN_S)
    return list(seen.values())


def test_batches_of_the_next_block_are_read_when_it_was_announced(make_ahead):
    due = [(0, 0, 50), (0, 25, 50), (0, 50, 100), (1, 0, 50), (9, 0, 0)]
    ahead = make_ahead(chain((named(*each) for each in due), forever()))
    steps = [(0, 0), (0, 1), (0, 4), (0, 5), (0, 9), (1, 0), (1, 1)]
    assert batches_together(ahead, steps) == [5, 4, 1, 5, 1, 5, 4]


def test_a_batch_does_not_wait_long_for_the_arithmetic(make_ahead, told, monkeypatch):
    monkeypatch.setattr(fetch_ahead, "_FIRST_S", 0.05)
    gate = threading.Event()

    def slow():
        assert gate.wait(WITHIN_S)
        yield named(0, 0, 50, "late")

    ahead = make_ahead(slow())
    ahead.reach(0, 0)
    ahead.reach(0, 5)
    assert told == []
    gate.set()
    reach(ahead, 0, 6)
    assert told == ["late"]


def test_what_cannot_be_known_is_said_once(make_ahead, told, caplog):
    def failing():
        yield named(0, 0, 50, "first")
        raise ShardNotFoundError("no such table")

    ahead = make_ahead(failing())
    for position in range(5):
        reach(ahead, 0, position)
    assert told == ["first"]
    assert caplog.text.count("no such table") == 1


def test_a_shard_that_was_replaced_is_an_error_of_the_next_batch(make_ahead):
    def announcements():
        yield named(0, 0, 50, "first")
        raise IndexMismatchError("another object")

    def go_on():
        for position in range(3):
            reach(ahead, 0, position)

    ahead = make_ahead(announcements())
    with pytest.raises(IndexMismatchError, match="another object"):
        go_on()


def test_closing_ends_what_is_being_read_and_nothing_is_told_afterwards(
    make_ahead, told, caplog, monkeypatch
):
    monkeypatch.setattr(fetch_ahead, "_FIRST_S", 0.05)
    before, ended = set(threading.enumerate()), threading.Event()

    def stalled():
        assert ended.wait(WITHIN_S)
        yield named(0, 0, 50)

    ahead = make_ahead(stalled(), ended.set)
    ahead.reach(0, 0)
    assert not ended.is_set()
    ahead.close()
    assert ended.is_set()
    assert wait_for(lambda: set(threading.enumerate()) <= before, WITHIN_S)
    assert told == []
    assert caplog.text == ""
