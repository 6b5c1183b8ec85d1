"""What fetching ahead guarantees, in the names of its tests: in time, and no batch waits for it."""

from itertools import islice

import pytest
from waiting import wait_for

from lightning_shards.errors import ShardNotFoundError
from lightning_shards.plan.epoch import EpochSchedule
from lightning_shards.plan.place import Cursor, Place
from lightning_shards.remote.ahead import Announcement, FetchAhead
from lightning_shards.shards.storage.protocol import ShardReads

WITHIN_S = 10


def named(turn, position, stop, name="next"):
    return Announcement(turn, position, stop, [ShardReads(name, [0], [1])])


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

    def make(announcements):
        made.append(FetchAhead(announcements, FakeStorages(told)))
        return made[-1]

    yield make
    for ahead in made:
        ahead.close()


def reach(ahead, *position):
    """Come to a position when the next announcement is known."""
    assert wait_for(lambda: all(plan.done() for plan in ahead._plans), WITHIN_S)
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


def test_what_is_due_together_is_announced_together(make_ahead, told):
    """Small blocks have an announcement for each batch, and none may come a batch late."""
    ahead = make_ahead(iter([named(0, at, at + 10, str(at)) for at in (0, 10, 20, 90)]))
    for position in (5, 6, 25):
        reach(ahead, 0, position)
    assert told == ["0", "10", "20"]


def test_batches_are_read_together_up_to_what_was_announced(make_ahead):
    """Samples of later blocks would be fetched by themselves, and again as pieces."""
    schedule, place = EpochSchedule(64, 2, "drop"), Place(worker=1, num_workers=2)
    (epoch,) = islice(schedule.worker_epochs(place, Cursor()), 1)  # 16 batches of its own
    ahead = make_ahead(iter([named(0, 0, 24), named(0, 24, 64), named(1, 0, 24)]))
    together = []
    for _ in ahead.announcing(0, epoch, iter(range(16))):
        together.append(ahead.most_batches())
        assert wait_for(lambda: all(plan.done() for plan in ahead._plans), WITHIN_S)
    assert together == [*range(6, 0, -1), *range(10, 0, -1)]


def test_what_cannot_be_known_is_said_once(make_ahead, told, caplog):
    def failing():
        yield named(0, 0, 50, "first")
        raise ShardNotFoundError("no such table")

    ahead = make_ahead(failing())
    for position in range(5):
        reach(ahead, 0, position)
    assert told == ["first"]
    assert caplog.text.count("no such table") == 1
