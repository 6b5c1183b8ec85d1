"""When a storage is told what to fetch, and that no batch waits for it."""

import sys
import threading
from itertools import chain, islice

import pytest
from waiting import wait_for

from lightning_shards.errors import IndexMismatchError, ShardNotFoundError
from lightning_shards.plan.cursor import Cursor
from lightning_shards.plan.place import Place
from lightning_shards.plan.schedule import EpochSchedule
from lightning_shards.readers.ahead import fetch_ahead
from lightning_shards.readers.ahead.fetch_ahead import FetchAhead
from lightning_shards.readers.ahead.piece_plan import Announcement
from lightning_shards.shards.storage.protocol import ShardReads

WITHIN_S = 10


def reads_named(name):
    return [ShardReads(name, [0], [1])]


def forever():
    """No announcement for as long as a test runs."""
    threading.Event().wait(WITHIN_S)
    yield from ()


class FakeStorages:
    """Storages of which nothing is in the cache, or all."""

    def __init__(self, told):
        self._told, self.is_there, self.lacked = told, False, False

    def fetch_ahead(self, reads):
        self._told.extend(each.url for each in reads)

    def has_lacked(self):
        return self.lacked

    def is_kept(self, read):
        return self.is_there


@pytest.fixture
def told():
    return []


@pytest.fixture
def make_ahead(told):
    made = []

    def make(announcements):
        made.append(FetchAhead(lambda _: announcements, FakeStorages(told)))
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


def test_the_thread_is_woken_only_for_what_is_due(make_ahead, told, monkeypatch):
    due = [(0, 0), (0, 50), (0, 80)]
    ahead, woken = (
        make_ahead(iter([Announcement(*each, each[1] + 50, reads_named("x")) for each in due])),
        [],
    )
    for position in (10, 60):
        ahead.reach(0, position)
    assert wait_for(lambda: len(told) == 2 and ahead._due == due[2], WITHIN_S)
    monkeypatch.setattr(ahead._changed, "notify_all", lambda: woken.append(ahead._reached))
    for position in (61, 70, 79):
        ahead.reach(0, position)
    assert not woken
    ahead.reach(0, 80)
    assert woken == [(0, 80)]


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


def test_a_batch_that_begins_in_the_block_before_has_both_announced(make_ahead):
    due = [(0, 0, 50), (0, 50, 100)]
    ahead = make_ahead(chain((Announcement(*each, []) for each in due), forever()))
    following = [2, 1, 3]
    together = batches_together(ahead, [(0, 0), (0, 1), (0, 2)], following, batch_size=20)
    assert together == following


def test_any_number_is_read_together_where_nothing_more_is_announced(make_ahead):
    ahead = make_ahead(iter([]))
    assert batches_together(ahead, [(0, 0)], [sys.maxsize]) == [sys.maxsize]


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


def test_a_first_batch_learns_at_once_that_its_shard_was_replaced(make_ahead):
    def announcements():
        raise IndexMismatchError("another object")
        yield

    with pytest.raises(IndexMismatchError, match="another object"):
        make_ahead(announcements()).reach(0, 0)


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

    def stalled(_):
        assert ended.wait(WITHIN_S)
        yield from ()

    ahead = FetchAhead(stalled, FakeStorages(told), ended.set)
    ahead.reach(0, 0)
    assert not ended.is_set()
    ahead.close()
    assert ended.is_set()


def test_pieces_that_are_not_worth_fetching_are_read_if_they_are_in_the_cache(told, monkeypatch):
    shards = FakeStorages(told)
    monkeypatch.setattr(shards, "is_kept", lambda read: read.url == "kept")
    rest = [*reads_named("kept"), *reads_named("other")]
    due = iter([Announcement(0, 0, 50, reads_named("fetched"), rest)])
    ahead = FetchAhead(lambda _: due, shards)
    ahead.reach(0, 0)
    assert wait_for(lambda: told == ["fetched", "kept"], WITHIN_S)
    ahead.close()


class Blocks:
    """Five blocks an epoch, each with a piece of its own, from any position on."""

    def __init__(self):
        self.asked, self.may_begin = [], threading.Event()
        self.may_begin.set()

    def __call__(self, begin):
        turn, position = begin
        assert self.may_begin.wait(WITHIN_S)
        while True:
            for start in range(position // 10 * 10, 50, 10):
                self.asked.append((turn, start))
                reads = reads_named(str(start))
                yield Announcement(turn, max(start, position), start + 10, reads)
            turn, position = turn + 1, 0


@pytest.fixture
def blocks(told):
    """Blocks, shards whose cache has all of them, and who announces them."""
    blocks, shards = Blocks(), FakeStorages(told)
    shards.is_there = True
    ahead = FetchAhead(blocks, shards)
    for position in range(5, 50, 10):
        ahead.reach(0, position)
        ahead.reach(0, position)
    assert wait_for(lambda: len(told) == 5, WITHIN_S)
    ahead.reach(1, 3)
    assert wait_for(lambda: ahead.most_batches() == sys.maxsize, WITHIN_S)
    yield blocks, shards, ahead
    ahead.close()


ALL = ["0", "10", "20", "30", "40"]


def test_no_block_is_worked_out_while_all_pieces_are_in_the_cache(blocks, told, monkeypatch):
    blocks, _, ahead = blocks
    assert told == [*ALL, "0", *ALL]  # the first block of the second epoch, and then all
    asked, woken = list(blocks.asked), []
    monkeypatch.setattr(ahead._changed, "notify_all", lambda: woken.append(True))
    for turn in range(1, 5):
        for position in range(4, 50):
            ahead.reach(turn, position)
    assert blocks.asked == asked == [*((0, start) for start in range(0, 50, 10)), (1, 0)]
    assert not woken


def test_blocks_are_announced_again_from_where_a_batch_lacked_something(blocks, told):
    blocks, shards, ahead = blocks
    epoch = next(EpochSchedule(50, 5, "drop").worker_epochs(Place(0, 1), Cursor(0)))
    next(ahead.announcing(3, epoch, iter([None])))
    blocks.may_begin.clear()
    shards.lacked = True
    ahead.reach(3, 25)
    assert wait_for(lambda: ahead.most_batches() == 5, WITHIN_S)  # up to position 25
    blocks.may_begin.set()
    assert wait_for(lambda: told[11:] == ["20"], WITHIN_S)
    shards.lacked = False
    assert blocks.asked[6:] == [(3, 20), (3, 30)]
    ahead.reach(3, 31)
    ahead.reach(3, 41)
    assert wait_for(lambda: told[12:] == ["30", "40"], WITHIN_S)
    ahead.reach(4, 0)  # the rest of an epoch is not all of it, but another one is
    assert wait_for(lambda: told[14:] == ["0", *ALL], WITHIN_S)


def test_blocks_are_announced_where_batches_lack_what_is_no_piece(told):
    blocks, shards = Blocks(), FakeStorages(told)
    shards.is_there = shards.lacked = True
    ahead = FetchAhead(blocks, shards)
    for turn in range(3):
        for position in range(5, 50, 10):
            ahead.reach(turn, position)
            ahead.reach(turn, position)
            assert wait_for(lambda: ahead._due > ahead._reached, WITHIN_S)
    ahead.close()
    assert told == 3 * ALL


def test_closing_ends_the_wait_for_a_batch_that_lacks_something(blocks):
    _, _, ahead = blocks
    ahead.close()
    gone = lambda: not any(each.name == "fetch-ahead" for each in threading.enumerate())  # noqa: E731
    assert wait_for(gone, WITHIN_S)
