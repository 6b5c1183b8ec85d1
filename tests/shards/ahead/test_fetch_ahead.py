"""When a storage is told what to fetch, and that no batch waits for it."""

import threading
from itertools import chain, islice

import pytest
from waiting import wait_for

from lightning_shards.errors import IndexMismatchError, ShardNotFoundError
from lightning_shards.plan.epoch import EpochSchedule
from lightning_shards.plan.place import Cursor, Place
from lightning_shards.shards.ahead import fetch_ahead
from lightning_shards.shards.ahead.fetch_ahead import FetchAhead
from lightning_shards.shards.ahead.piece_plan import Announcement
from lightning_shards.shards.storage.protocol import ShardReads

WITHIN_S = 10


def reads_named(name):
    return [ShardReads(name, [0], [1])]


def forever():
    """No announcement for as long as a test runs."""
    threading.Event().wait(WITHIN_S)
    yield from ()


class FakeStorages:
    """Storages that say what they were told to fetch."""

    def __init__(self, told):
        self._told = told

    def fetch_ahead(self, reads):
        self._told.extend(each.url for each in reads)


@pytest.fixture
def told():
    return []


@pytest.fixture
def make_ahead(told):
    made = []

    def make(announcements):
        made.append(FetchAhead(lambda: announcements, FakeStorages(told)))
        return made[-1]

    yield make
    for ahead in made:
        ahead.close()


def test_it_is_told_when_the_batches_have_come_there(make_ahead, told):
    due = [(0, 0), (0, 50), (1, 0), (1, 50)]
    ahead = make_ahead(
        iter([Announcement(*each, each[1] + 50, reads_named(str(each))) for each in due])
    )
    ahead.reach(0, 10)
    assert wait_for(lambda: told == ["(0, 0)"], WITHIN_S)
    ahead.reach(0, 49)
    ahead.reach(0, 60)
    ahead.reach(0, 20)  # of another batch that is looked up later
    assert wait_for(lambda: told == ["(0, 0)", "(0, 50)"], WITHIN_S)
    ahead.reach(1, 70)
    assert wait_for(lambda: told[2:] == ["(1, 0)", "(1, 50)"], WITHIN_S)


def batches_together(ahead, steps, following, *, batch_size=10):
    """How many batches may be read together at each of these steps, and those that follow."""
    epochs = EpochSchedule(100, batch_size, "drop").worker_epochs(Place(0, 1), Cursor(0))
    seen = {}
    for turn, epoch in islice(enumerate(epochs), 2):
        for step, _ in enumerate(ahead.announcing(turn, epoch, iter(epoch.own_steps()))):
            if (turn, step) in steps:
                wait_for(lambda: ahead.most_batches() == following[len(seen)], WITHIN_S)
                seen[turn, step] = ahead.most_batches()
    return list(seen.values())


def test_batches_of_the_next_block_are_read_when_it_was_announced(make_ahead):
    due = [(0, 0, 50), (0, 25, 50), (0, 50, 100), (1, 0, 50)]
    ahead = make_ahead(chain((Announcement(*each, []) for each in due), forever()))
    steps = [(0, 0), (0, 1), (0, 4), (0, 5), (0, 9), (1, 0), (1, 1)]
    following = [5, 4, 1, 5, 1, 5, 4]
    assert batches_together(ahead, steps, following) == following


def test_a_batch_does_not_wait_long_for_the_arithmetic(make_ahead, told, monkeypatch):
    monkeypatch.setattr(fetch_ahead, "_FIRST_S", 0.05)
    gate = threading.Event()

    def slow():
        assert gate.wait(WITHIN_S)
        yield Announcement(0, 0, 50, reads_named("late"))

    ahead = make_ahead(slow())
    ahead.reach(0, 0)
    ahead.reach(0, 5)
    assert told == []
    gate.set()
    assert wait_for(lambda: told == ["late"], WITHIN_S)


def test_what_cannot_be_known_is_said_once_and_ends_the_thread(make_ahead, told, caplog):
    def failing():
        yield Announcement(0, 0, 50, reads_named("first"))
        raise ShardNotFoundError("no such table")

    ahead = make_ahead(failing())
    ahead.reach(0, 0)
    ahead.reach(0, 5)
    assert wait_for(lambda: "no such table" in caplog.text, WITHIN_S)
    ahead.reach(0, 9)
    assert told == ["first"]


def test_a_shard_that_was_replaced_is_an_error_of_the_next_batch(make_ahead):
    asked = threading.Event()

    def announcements():
        yield Announcement(0, 0, 50, reads_named("first"))
        assert asked.wait(WITHIN_S)
        raise IndexMismatchError("another object")

    ahead = make_ahead(announcements())
    ahead.reach(0, 0)
    ahead.reach(0, 5)
    asked.set()
    assert wait_for(lambda: ahead._error is not None, WITHIN_S)
    with pytest.raises(IndexMismatchError, match="another object"):
        ahead.reach(0, 9)


def test_later_blocks_are_asked_for_when_the_first_batch_is_made(make_ahead):
    asked = threading.Event()

    def announcements():
        yield Announcement(0, 0, 50, reads_named("first"))
        asked.set()
        yield Announcement(0, 5, 50, reads_named("second"))

    ahead = make_ahead(announcements())
    ahead.reach(0, 9)
    assert not asked.wait(0.1)
    ahead.reach(0, 9)
    assert asked.wait(WITHIN_S)


def test_nothing_is_told_after_closing(make_ahead, told, caplog):
    reached = threading.Event()

    def announcements():
        yield Announcement(0, 0, 50, reads_named("first"))
        assert reached.wait(WITHIN_S)
        yield Announcement(0, 5, 50, reads_named("second"))

    ahead = make_ahead(announcements())
    ahead.reach(0, 9)
    ahead.reach(0, 9)
    ahead.close()
    reached.set()
    gone = lambda: not any(each.name == "fetch-ahead" for each in threading.enumerate())  # noqa: E731
    assert wait_for(gone, WITHIN_S)
    assert told == ["first"]
    assert caplog.text == ""


def test_closing_ends_a_table_that_is_being_read(told, monkeypatch):
    monkeypatch.setattr(fetch_ahead, "_FIRST_S", 0.05)
    ended = threading.Event()

    def stalled():
        assert ended.wait(WITHIN_S)
        yield from ()

    ahead = FetchAhead(stalled, FakeStorages(told), ended.set)
    ahead.reach(0, 0)
    assert not ended.is_set()
    ahead.close()
    assert ended.is_set()
