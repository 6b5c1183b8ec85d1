"""The pieces that a node needs next: equal to a walk over its positions, one by one."""

from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_mixtures import example_mixture
from small_orders import file_ids, orders
from small_strands import STRANDS

from lightning_shards.errors import PlanError
from lightning_shards.plan.epoch import EpochSchedule
from lightning_shards.plan.order import Order
from lightning_shards.plan.pieces import pieces_ahead
from lightning_shards.plan.place import Cursor, Place

WORLDS = st.integers(1, 5).flatmap(
    lambda world: st.tuples(st.sets(st.integers(0, world - 1), min_size=1), st.just(world))
)


class Shuffled(Order):
    """An order of somebody else: it has no blocks, and says only what it must."""

    def __init__(self, counts, seed):
        self.counts = counts
        ids = np.array(file_ids(counts), np.int64)
        self._ids = np.random.default_rng(seed).permutation(ids)

    @property
    def samples(self):
        return len(self._ids)

    def at(self, epoch, start, stop):
        return self._ids[np.arange(start, stop) % self.samples]

    def identity(self):
        return {"sampling": "shuffled by hand"}


ORDERS = (
    orders()
    | st.builds(Shuffled, st.lists(st.integers(1, 12), min_size=1, max_size=5), st.integers(0, 9))
    | st.builds(example_mixture, st.integers(0, 9), rounds=st.integers(1, 9))
    | STRANDS
)
SCHEDULES = st.tuples(
    st.integers(1, 4), st.sampled_from(["drop", "pad", "balanced"]), st.none() | st.integers(1, 9)
)


def drawn(data):
    """An order, its epochs, a cursor, the ranks of a node, the world size and a window."""
    order = data.draw(ORDERS)
    ranks, world = data.draw(WORLDS)
    batch_size, remainder, limit = data.draw(SCHEDULES)
    nominal = order.samples + (
        data.draw(st.integers(0, 90)) if order.identity()["sampling"] == "resampled" else 0
    )
    epochs = EpochSchedule(max(nominal, batch_size * world), batch_size, remainder, limit)
    cursor = Cursor(data.draw(st.integers(0, 3)), data.draw(st.integers(0, epochs.samples)))
    return order, epochs, cursor, sorted(ranks), world, data.draw(st.sampled_from([1, 5, 64, 1000]))


def walked(order, epochs, cursor, ranks, world):
    """(epoch, position, sample id) of all that the node uses, as its ranks would ask for it."""
    for epoch in epochs.worker_epochs(Place(ranks[0], world), cursor):
        for step in range(epoch.steps):
            for rank in ranks:
                start, stop = epoch.plan.rank_span(step, rank)
                ids = order.at(epoch.epoch, start, stop).tolist()
                for position, (shard, sample) in enumerate(ids, start):
                    yield epoch.epoch, position, (shard, sample)


def samples_of(block):
    """The sample ids of each piece."""
    rows = zip(block.shards.tolist(), block.starts.tolist(), block.stops.tolist(), strict=True)
    return [[(shard, sample) for sample in range(start, stop)] for shard, start, stop in rows]


@settings(max_examples=150)
@given(data=st.data())
def test_pieces_are_those_of_a_walk_over_the_positions(data):
    order, epochs, cursor, ranks, world, window = drawn(data)
    node = {"ranks": ranks, "world_size": world}
    ahead = pieces_ahead(order, epochs, cursor, **node, window=window)
    uses = walked(order, epochs, cursor, ranks, world)
    use = next(uses)
    for block in islice(ahead, 4):
        found = samples_of(block)
        piece_of = {sample: number for number, piece in enumerate(found) for sample in piece}
        assert len(piece_of) == sum(map(len, found))  # each sample is in one piece at most
        first_uses, counts = {}, dict.fromkeys(range(len(found)), 0)
        while use[0] == block.epoch and use[1] < block.stop:
            assert use[1] >= block.start
            number = piece_of[use[2]]  # a sample that is used is in a piece
            first_uses.setdefault(number, use[1])
            counts[number] += 1
            use = next(uses)
        assert list(first_uses) == list(range(len(found)))  # in the order of first use
        assert block.uses.tolist() == list(counts.values())


@settings(max_examples=60)
@given(st.data())
def test_pieces_do_not_depend_on_the_cursor(data):
    order, epochs, _, ranks, world, window = drawn(data)
    node = {"ranks": ranks, "world_size": world, "window": window}
    blocks = list(islice(pieces_ahead(order, epochs, Cursor(1), **node), 4))
    blocks = [block for block in blocks if block.epoch == 1]
    assert [block.start for block in blocks[1:]] == [block.stop for block in blocks[:-1]]
    starts = [block.start for block in blocks if block.start <= epochs.samples]
    if not starts:
        return
    first = blocks[data.draw(st.integers(0, len(starts) - 1))]
    done = data.draw(st.integers(first.start, min(first.stop - 1, epochs.samples)))
    later = next(pieces_ahead(order, epochs, Cursor(1, done), **node))
    if later.epoch == 1:
        known = samples_of(first)
        every = {sample for piece in known for sample in piece}
        # steps that begin elsewhere give the node other samples, but never another cut
        assert all(piece in known or not every & set(piece) for piece in samples_of(later))


def test_a_footing_that_lacks_its_own_samples_is_refused():
    class Wrong(Shuffled):
        def footing(self, epoch, start, stop):
            return self.at(epoch, start + 1, stop + 1)

    epochs = EpochSchedule(12, 1, "drop")
    ahead = pieces_ahead(Wrong([12], 0), epochs, Cursor(), ranks=[0], world_size=1, window=1)
    with pytest.raises(PlanError, match=r"footing of position 0 of epoch 0 lacks .* of Wrong"):
        next(ahead)
