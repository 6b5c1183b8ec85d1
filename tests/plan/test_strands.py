"""Strands: equal to a naive model, each sample once, and the same runs for a node for ever."""

from itertools import chain, product, takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_orders import file_ids, pairs, philox, sorted_by
from small_strands import STRANDS, strands

from lightning_shards.errors import ConfigError
from lightning_shards.plan.draws import Purpose
from lightning_shards.plan.epoch import EpochSchedule
from lightning_shards.plan.pieces import pieces_ahead
from lightning_shards.plan.place import Cursor

# A naive model: Python's lists, one run after the other.


def joined(runs):
    return list(chain.from_iterable(runs))


def in_turns(parts, width):
    most = max(map(len, parts))
    turns = product(range(0, most, width), parts)
    return [sample for first, part in turns for sample in part[first : first + width]]


def naive_strands(order, epoch):
    """One whole epoch of few runs."""
    run, number, seed = order.inner.run, order.strands, order.inner.seed
    numbers = list(range(order.samples))
    runs = [numbers[first : first + run] for first in range(0, len(numbers), run)]
    short = runs.pop() if len(runs[-1]) < run else []
    dealt = sorted_by(runs, philox(seed, 0, Purpose.STRANDS, len(runs)))
    length = len(dealt) // number
    drawn = iter(philox(seed, epoch, Purpose.STRAND_RUNS, number * length))
    of_strands = [sorted_by(dealt[s * length : (s + 1) * length], drawn) for s in range(number)]
    most = order.inner.block // number // run
    fits = [
        n for n in range(1, most + 1) if not (n * run % order.width and order.width % (n * run))
    ]
    of_block = max([n for n in fits if 2 * n > most], default=most)
    parts = [
        [joined(of_strand[first : first + of_block]) for of_strand in of_strands]
        for first in range(0, length, of_block)
    ]
    parts.append([joined([*dealt[number * length :], short])])
    sequence = []
    for block, of_block in enumerate(parts):
        drawn = iter(philox(seed, epoch, Purpose.STRAND_BLOCKS, len(numbers), block))
        sequence += in_turns([sorted_by(part, drawn) for part in of_block], order.width)
    ids = file_ids(order.inner.counts.tolist())
    return [ids[number] for number in sequence]


@given(STRANDS, st.integers(0, 9))
def test_strands_equal_the_naive_ones(order, epoch):
    assert pairs(order, epoch, 0, order.samples) == naive_strands(order, epoch)


# What they promise.


def test_the_footing_of_strands_is_that_of_their_blocks():
    order = strands([30, 7], 2, width=4, run=2, block=8)
    for span, blocks in (((9, 10), (8, 16)), ((7, 25), (0, 32)), ((36, 37), (36, 37))):
        footing = sorted(map(tuple, order.footing(3, *span).tolist()))
        assert footing == sorted(pairs(order, 3, *blocks))


def runs_of_node(order, node, nodes, epochs):
    """The runs that a node of 8 ranks x 32 fetches in each of so many epochs."""
    schedule = EpochSchedule(order.samples, 32, "drop")
    ranks = range(8 * node, 8 * node + 8)
    ahead = pieces_ahead(order, schedule, Cursor(), ranks=ranks, world_size=8 * nodes)
    fetched = [set() for _ in range(epochs)]
    for block in takewhile(lambda each: each.turn < epochs, ahead):
        for shard, start in zip(block.shards.tolist(), block.starts.tolist(), strict=True):
            fetched[block.turn].add((shard, start))
    return fetched


@pytest.mark.parametrize(("nodes", "number"), [(8, 8), (8, 64), (4, 8), (3, 6), (1, 8)])
def test_a_node_reads_its_own_runs_and_the_same_ones_in_every_epoch(nodes, number):
    """None of the 7,680 runs is in two shards, and each strand has whole blocks of them."""
    order = strands([64] * 960, number, width=256, run=8, block=2048)
    of_nodes = [runs_of_node(order, node, nodes, epochs=3) for node in range(nodes)]
    runs = order.samples // 8
    assert sum(len(of_node[0]) for of_node in of_nodes) <= 1.02 * runs
    kept = [set.union(*of_node) for of_node in of_nodes]
    assert max(map(len, kept)) <= 1.02 * runs / nodes


# What is refused.


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"strands": 7},
            "shuffle_strands=7 must be at most the number of runs, and 13 samples mak",
        ),
        (
            {"strands": 6, "block": 11},
            "shuffle_strands=6 with shuffle_run=2 do not fit in shuffle_block=11; set it to 12 or",
        ),
    ],
)
def test_strands_that_no_epoch_has_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        strands([13], **settings)
