"""When all pieces of an epoch are known, and all of them are in the cache."""

from lightning_shards.readers.ahead.known_pieces import KnownPieces
from lightning_shards.readers.ahead.piece_plan import Announcement
from lightning_shards.shards.storage.protocol import ShardReads

PIECES = [ShardReads("u", [number], [number + 1]) for number in range(6)]


class Cache:
    """Has all pieces but those that it lacks, and counts how often it is asked."""

    def __init__(self):
        self.lacks, self.asked = [], 0

    def is_kept(self, read):
        self.asked += 1
        return read not in self.lacks


def add(known, turn, *numbers):
    reads = [PIECES[number] for number in numbers]
    return known.add(Announcement(turn, 0, 10, reads))


def test_a_later_epoch_begins_to_name_none_but_known_pieces():
    known = KnownPieces(Cache().is_kept)
    assert not add(known, 0, 0, 1)
    assert not add(known, 0, 1, 2)
    assert not add(known, 0, 2)  # nothing new, but who knows what follows in this epoch
    assert add(known, 1, 2, 0)
    assert known.reads == PIECES[:3]
    assert not add(known, 1, 3)
    assert add(known, 1, 3)
    assert known.reads == PIECES[:4]


def test_an_epoch_that_was_announced_in_part_is_not_taken_for_a_whole_one():
    known = KnownPieces(Cache().is_kept)
    add(known, 0, 0, 1)
    known.announced_from(4)  # a batch lacked something then
    assert not add(known, 4, 1)
    assert add(known, 5, 1)


def test_nothing_is_known_of_what_other_processes_use():
    """Of large samples each process announces its own, and others in each epoch."""
    known = KnownPieces(Cache().is_kept)
    for turn in range(3):
        batch = Announcement(turn, 0, 10, PIECES[:2], is_of_node=False)
        assert not known.add(batch)
    assert not known.reads


def test_an_epoch_that_uses_what_is_not_in_the_cache_is_not_known():
    known = KnownPieces(Cache().is_kept)
    add(known, 0, 0, 1)
    assert not known.add(Announcement(1, 0, 10, PIECES[:2], PIECES[2:3]))
    assert known.add(Announcement(1, 0, 10, PIECES[:2]))


def test_what_is_not_in_the_cache_is_the_first_that_is_looked_for():
    cache = Cache()
    known = KnownPieces(cache.is_kept)
    add(known, 0, *range(6))
    cache.lacks = [PIECES[4]]
    assert not known.are_kept()
    assert cache.asked == 5
    assert not known.are_kept()
    assert cache.asked == 6
    cache.lacks = []
    assert known.are_kept()
    assert cache.asked == 12  # all of them, as any may have been dropped meanwhile


def test_more_pieces_than_may_be_remembered_are_none():
    known = KnownPieces(Cache().is_kept, most=3)
    add(known, 0, 0, 1, 2, 3)
    add(known, 1, 0)
    assert not known.are_kept()
    assert not known.reads
