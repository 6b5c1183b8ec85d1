"""The order of samples: equal to a naive model, frozen by a golden file, cut anywhere."""

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_orders import EITHER, EPOCHS, HUGE, JUST_ABOVE, UNEQUAL, make, orders, pairs

from lightning_shards.plan import draws
from lightning_shards.plan.draws import MAX_TABLE, ORDER_VERSION, Purpose, order_runs, scale_words
from lightning_shards.plan.epoch import plan_epoch
from lightning_shards.plan.order import SampleOrder
from lightning_shards.plan.strands import StrandOrder

GOLDEN = Path(__file__).with_name("golden_order.json")


def golden_now():
    """What the golden file holds; write it anew only with a new ORDER_VERSION."""
    small = [
        [
            sampling,
            run,
            block,
            seed,
            epoch,
            make(UNEQUAL, seed, sampling, run, block).at(epoch, 0, 51).tolist(),
        ]
        for sampling, run, block in (
            ("resampled", 1, 0),
            ("resampled", 4, 16),
            ("shuffled", 0, 0),
            ("shuffled", 4, 0),
            ("shuffled", 4, 16),
            ("sequential", 4, 16),
        )
        for seed, epoch in ((7, 0), (2**64 - 1, 3))
    ]
    huge = [
        [
            sampling,
            run,
            block,
            start,
            SampleOrder(HUGE, 7, sampling, run, block).at(1, start, start + 16).tolist(),
        ]
        for sampling, run, block in (
            ("resampled", 64, 16_384),
            ("shuffled", 64, 16_384),
            ("shuffled", 1, 0),
            ("shuffled", 7, 0),
        )
        for start in (0, 6_543_210_987, 10**10 - 8)
    ]
    feistel = [
        [size, order_runs(size, 7, 1).permutation.forward(np.arange(16)).tolist()]
        for size in JUST_ABOVE
    ]
    dealt = [
        [name, strands, epoch, start, order.at(epoch, start, start + 16).tolist()]
        for name, counts, run, block in (("UNEQUAL", UNEQUAL, 4, 16), ("HUGE", HUGE, 64, 16_384))
        for strands, width in ((2, 5), (4, 2048))
        for order in [StrandOrder(make(counts, 7, "shuffled", run, block), strands, width)]
        for epoch, start in ((0, 0), (3, order.samples - 16))
    ]
    return {
        "order_version": ORDER_VERSION,
        "small (sampling, run, block, seed, epoch, samples)": small,
        "huge (sampling, run, block, start, samples)": huge,
        "permute_runs (num_runs, the first images)": feistel,
        "strands (counts, strands, epoch, start, samples)": dealt,
    }


def test_orders_equal_the_golden_file():
    assert golden_now() == json.loads(GOLDEN.read_text())


# A naive model: Python's integers, whole lists, one sample at a time.


def raw(order, epoch, purpose, stream, number):
    philox = np.random.Philox(
        key=np.array([order.seed, epoch], np.uint64),
        counter=np.array([0, stream, 0, int(purpose)], np.uint64),
    )
    return philox.random_raw(number).tolist()


def sorted_by(words, values):
    return [value for _, value in sorted(zip(words, values, strict=True), key=lambda pair: pair[0])]


def naive_draws(order, epoch, length):
    ids = [(s, i) for s, count in enumerate(order.counts.tolist()) for i in range(count)]
    found = []
    for word in raw(order, epoch, Purpose.SAMPLE_DRAWS, 0, -(-length // order.run)):
        shard, first = ids[word * len(ids) >> 64]
        found += [(shard, (first + i) % int(order.counts[shard])) for i in range(order.run)]
    return found[:length]


def naive_mixed(order, epoch):
    """One whole epoch before blocks, for few runs."""
    ids = [(s, i) for s, count in enumerate(order.counts.tolist()) for i in range(count)]
    if order.sampling == "sequential":
        return ids
    if order.run:
        runs = [ids[i : i + order.run] for i in range(0, len(ids), order.run)]
        purpose = Purpose.RUN_ORDER
    else:
        runs = [[pair for pair in ids if pair[0] == s] for s in range(len(order.counts))]
        purpose = Purpose.SHARD_ORDER
    runs = sorted_by(raw(order, epoch, purpose, 0, len(runs)), runs)
    return [pair for run in runs for pair in run]


def naive(order, epoch, length):
    """The first `length` samples of the epoch; the others than resampled repeat themselves."""
    endless = order.sampling == "resampled"
    mixed = (
        naive_draws(order, epoch, length + order.block) if endless else naive_mixed(order, epoch)
    )
    if order.block > 1 and order.sampling != "sequential":
        blocks = [mixed[i : i + order.block] for i in range(0, len(mixed), order.block)]
        # The naive draws are cut off somewhere; no block that is cut off belongs to the answer.
        mixed = [
            pair
            for number, block in enumerate(blocks)
            if not endless or len(block) == order.block
            for pair in sorted_by(
                raw(order, epoch, Purpose.SAMPLE_BLOCKS, number, len(block)), block
            )
        ]
    return [mixed[position % len(mixed)] for position in range(length)]


@given(EITHER, EPOCHS)
def test_orders_equal_the_naive_model(order, epoch):
    length = 2 * order.samples + 5
    assert pairs(order, epoch, 0, length) == naive(order, epoch, length)


@given(orders(("shuffled", "sequential")), EPOCHS, st.sampled_from([0, 3, MAX_TABLE]))
def test_each_sample_comes_once(order, epoch, max_table):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(draws, "MAX_TABLE", max_table)
        found = pairs(order, epoch, 0, order.samples)
    assert sorted(found) == [(s, i) for s, n in enumerate(order.counts.tolist()) for i in range(n)]


def test_workers_get_no_cached_arrays():
    order = make(UNEQUAL)
    size = len(pickle.dumps(order))
    order.at(0, 0, 51)
    assert len(pickle.dumps(order)) == size


# How well it mixes.


@pytest.mark.parametrize("run", [1, 2, 5, 50])
def test_every_sample_is_equally_likely_at_every_position_of_a_draw(run):
    counts = np.array([1, 9, 0, 30, 3])
    draws = 43 * 200
    found = make(counts, 11, "resampled", run, 0).at(0, 0, draws * run)
    numbers = (np.cumsum(counts) - counts)[found[:, 0]] + found[:, 1]
    # One row a draw; draws are independent, so each column alone is a sample of a uniform one.
    for column in numbers.reshape(draws, run).T[:: max(1, run // 5)]:
        seen = np.bincount(column, minlength=43)
        assert 15 < ((seen - 200) ** 2 / 200).sum() < 85  # 42 +- 9


@given(st.integers(1, 2**63 - 1), st.lists(st.integers(0, 2**64 - 1), max_size=5))
def test_scaled_words_are_exact(total, words):
    words += [0, 2**32 - 1, 2**32, 2**64 - 1]
    scaled = scale_words(np.array(words, np.uint64), total)
    assert scaled.tolist() == [word * total >> 64 for word in words]


# Plan and order together.


@given(orders(), st.integers(1, 9), st.integers(1, 12), st.integers(0, 3))
def test_worlds_that_divide_the_global_batch_agree_on_every_step(order, batch_size, world, epoch):
    def steps(world_size):
        plan = plan_epoch(order.samples, batch_size * world // world_size, world_size, "pad")
        return [
            [
                pair
                for rank in range(world_size)
                for pair in pairs(order, epoch, *plan.rank_span(step, rank))
            ]
            for step in range(plan.steps)
        ]

    assert all(steps(size) == steps(world) for size in range(1, world) if world % size == 0)


def test_the_footing_is_that_of_the_blocks_of_the_positions():
    order = make([10, 0, 20], run=3, block=8)
    wraps_round = [(24, 30), (0, 8)]
    for span, blocks in (((9, 10), [(8, 16)]), ((7, 25), [(0, 30)]), ((24, 31), wraps_round)):
        of_blocks = [sample for block in blocks for sample in pairs(order, 2, *block)]
        assert sorted(map(tuple, order.footing(2, *span).tolist())) == sorted(of_blocks)


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(golden_now()).replace("]]], ", "]]],\n") + "\n")
