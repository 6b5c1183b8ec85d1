"""What a process fetches ahead: the bytes of its node's pieces, in which order and from when on."""

from itertools import islice

import numpy as np
import pytest

from lightning_shards.plan.epoch import EpochSchedule
from lightning_shards.plan.order import SampleOrder
from lightning_shards.plan.place import Cursor, Place
from lightning_shards.remote.ahead import PiecePlan
from lightning_shards.shards.members import MemberTable

COUNTS = np.array([40, 0, 100, 7, 53])
URLS = [f"s3://b/{number}.tar" for number in range(len(COUNTS))]
HEADER = 512
PLACE = Place()


def make_table(samples, size, junk=0):
    """A table of samples with one member each; bytes that are in no sample follow each one."""
    offsets = HEADER + np.arange(samples) * (size + HEADER + junk)
    return MemberTable(
        keys=np.empty(0, np.uint8),
        key_starts=np.zeros(samples + 1, np.int64),
        sample_starts=np.arange(samples + 1),
        offsets=offsets,
        sizes=np.full(samples, size),
        crc32=None,
        suffix_ids=np.zeros(samples, np.uint32),
        suffixes=("jpg",),
        file_size=int(offsets[-1]) + size if samples else 1024,
        mtime_ns=1,
    )


class Tables:
    """Member tables, and the shards that were asked for whether they are what these say."""

    def __init__(self, size, junk):
        self._tables = [make_table(int(count), size, junk) for count in COUNTS]
        self.asked = set()

    def each(self, shards):
        return (self._tables[shard] for shard in shards)

    def require_same(self, shards):
        self.asked |= set(shards)


def make_plan(done=0, place=PLACE, size=1000, junk=0, **others):
    order = SampleOrder(COUNTS, 1, others.pop("sampling", "shuffled"), run=10, block=50)
    epochs = EpochSchedule(200, 5, "drop", **others)
    return PiecePlan(order, epochs, Cursor(0, done), place, URLS, Tables(size, junk))


def announced(plan, number):
    return list(islice(plan.announcements(), number))


def ranges(reads):
    return [(read.url, *read.starts, *read.stops) for read in reads]


def held(plan, reads):
    """The samples whose members lie in these ranges."""
    samples = set()
    for url, start, stop in ranges(reads):
        shard = URLS.index(url)
        (table,) = plan.tables.each([shard])
        begins, ends = table.offsets, table.offsets + table.sizes
        inside = np.flatnonzero((begins >= start) & (ends <= stop))
        samples |= {(shard, int(sample)) for sample in inside}
    return samples


@pytest.mark.parametrize("sampling", ["shuffled", "resampled"])
def test_what_is_announced_holds_every_sample_of_the_block(sampling):
    plan = make_plan(sampling=sampling)
    for announcement in announced(plan, 7)[1::2]:
        start = announcement.start
        ids = plan.order.at(0, start, min(start + 100, 200)).tolist()
        assert {tuple(each) for each in ids} <= held(plan, announcement.reads)


def test_each_process_begins_with_its_share_and_knows_those_of_the_others():
    places = [Place(rank, 4, worker, 2, num_nodes=2) for rank in (2, 3) for worker in (0, 1)]
    plans = [make_plan(place=place) for place in places]
    lists = [ranges(announced(plan, 1)[0].reads) for plan in plans]
    assert {frozenset(each) for each in lists} == {frozenset(lists[0])}
    quarter = len(lists[0]) // 4
    begun = [piece for each in lists for piece in each[:quarter]]
    assert len(set(begun)) == 4 * quarter


def test_large_samples_are_fetched_for_the_next_two_batches_of_the_process():
    place = Place(1, 2, worker=1, num_workers=2)
    plan = make_plan(place=place, size=2 * 2**20)
    found = announced(plan, 3)
    epoch = plan.epochs.plan(2)
    for number, announcement in enumerate(found):
        steps = [2 * number + 1, 2 * number + 3, 2 * number + 5]
        assert announcement.start == epoch.rank_span(steps[0], 1)[0]
        wanted = [plan.order.at(0, *epoch.rank_span(step, 1)).tolist() for step in steps[1:]]
        assert held(plan, announcement.reads) == {tuple(each) for ids in wanted for each in ids}
        assert len(announcement.reads) == 10


def test_each_shard_is_asked_for_once_by_one_process_of_the_node():
    asked = []
    for worker in (0, 1):
        plan = make_plan(place=Place(worker=worker, num_workers=2))
        announced(plan, 12)
        asked += sorted(plan.tables.asked)
    assert sorted(asked) == np.flatnonzero(COUNTS).tolist()
