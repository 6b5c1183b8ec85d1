"""The order of samples: equal to a naive model, frozen by a golden file, cut anywhere, uniform."""

import json
import pickle
import tracemalloc
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_shards.errors import ConfigError, PlanError
from lightning_shards.plan import order as order_module
from lightning_shards.plan.draws import ORDER_VERSION, Purpose, scale_words
from lightning_shards.plan.epoch import plan_epoch
from lightning_shards.plan.order import (
    FEISTEL_ROUNDS,
    MAX_BLOCK,
    MAX_TABLE,
    Feistel,
    SampleOrder,
    Table,
    permute_runs,
)

GOLDEN = Path(__file__).with_name("golden_order.json")
SAMPLINGS = ("resampled", "shuffled", "sequential")
UNEQUAL = np.array([3, 0, 40, 7, 1], dtype=np.int64)
HUGE = np.full(10**6, 10_000, dtype=np.int64)
JUST_ABOVE = (MAX_TABLE + 1, MAX_TABLE + 2, 65_792, 65_793, 70_001)


def make(counts, seed=0, sampling="shuffled", run=3, block=8):
    return SampleOrder(np.array(counts, dtype=np.int64), seed, sampling, run, block)


def pairs(order, epoch, start, stop):
    return [(shard, sample) for shard, sample in order.at(epoch, start, stop).tolist()]


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
        [size, permute_runs(size, 7, 1).forward(np.arange(16)).tolist()] for size in JUST_ABOVE
    ]
    return {
        "order_version": ORDER_VERSION,
        "small (sampling, run, block, seed, epoch, samples)": small,
        "huge (sampling, run, block, start, samples)": huge,
        "permute_runs (num_runs, the first images)": feistel,
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


def orders(samplings=SAMPLINGS, max_count=12):
    """Small orders of every kind with at least one sample."""
    return st.builds(
        make,
        counts=st.lists(st.integers(0, max_count), min_size=1, max_size=7).filter(any),
        seed=st.integers(0, 2**64 - 1),
        sampling=st.sampled_from(samplings),
        run=st.integers(0 if "resampled" not in samplings else 1, 9),
        block=st.integers(0, 50),
    )


EITHER = orders() | orders(("shuffled", "sequential"))
EPOCHS = st.integers(0, 2**64 - 1)


@given(EITHER, EPOCHS)
def test_orders_equal_the_naive_model(order, epoch):
    length = 2 * order.samples + 5
    assert pairs(order, epoch, 0, length) == naive(order, epoch, length)


@given(orders(("shuffled", "sequential")), EPOCHS, st.sampled_from([0, 3, MAX_TABLE]))
def test_each_sample_comes_once(order, epoch, max_table):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(order_module, "MAX_TABLE", max_table)
        found = pairs(order, epoch, 0, order.samples)
    assert sorted(found) == [(s, i) for s, n in enumerate(order.counts.tolist()) for i in range(n)]


@given(EITHER, EPOCHS, st.data())
def test_any_two_cuts_agree(order, epoch, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, 150), min_size=3, max_size=3)))
    parts = [order.at(epoch, start, stop) for start, stop in pairwise(cuts)]
    assert np.array_equal(order.at(epoch, cuts[0], cuts[-1]), np.concatenate(parts))


@given(EITHER, st.lists(st.tuples(st.integers(0, 3), st.integers(0, 120)), max_size=12))
def test_what_was_asked_before_changes_nothing(order, queries):
    for epoch, start in queries:
        fresh = pickle.loads(pickle.dumps(order))
        assert np.array_equal(order.at(epoch, start, start + 7), fresh.at(epoch, start, start + 7))


def test_what_the_caller_does_to_samples_changes_nothing():
    order = make(UNEQUAL)
    before = order.at(0, 0, 51).tolist()
    order.at(0, 0, 51)[:] = 0
    assert order.at(0, 0, 51).tolist() == before


def test_workers_get_no_cached_arrays():
    order = make(UNEQUAL)
    size = len(pickle.dumps(order))
    order.at(0, 0, 51)
    assert len(pickle.dumps(order)) == size


def test_samples_are_pairs_of_int64():
    found = make(UNEQUAL).at(0, 5, 12)
    assert (found.shape, found.dtype) == ((7, 2), np.int64)


def test_the_example_of_the_module():
    mixed, shuffled = (pairs(make([3, 4], 4, run=2, block=block), 0, 0, 7) for block in (0, 4))
    assert " ".join(f"{'ab'[s]}{i}" for s, i in mixed) == "b1 b2 a2 b0 b3 a0 a1"
    assert " ".join(f"{'ab'[s]}{i}" for s, i in shuffled) == "b2 a2 b1 b0 a1 a0 b3"


def test_sequential_is_file_order_and_then_repeats():
    order = make([2, 0, 1], sampling="sequential")
    assert pairs(order, 5, 1, 5) == [(0, 1), (2, 0), (0, 0), (0, 1)]


@given(orders(("shuffled",)), EPOCHS)
def test_positions_behind_the_end_repeat_the_epoch(order, epoch):
    samples = order.samples
    assert pairs(order, epoch, samples, 3 * samples) == 2 * pairs(order, epoch, 0, samples)


@pytest.mark.parametrize("sampling", ["resampled", "shuffled"])
@pytest.mark.parametrize(("seed", "epoch"), [(2, 0), (1, 1), (0, 1)])
@pytest.mark.parametrize(("run", "block"), [(1, 0), (5, 0), (5, 64)])
def test_another_seed_or_epoch_is_unrelated(sampling, seed, epoch, run, block):
    counts = np.full(40, 50)
    one = make(counts, 1, sampling, run, block).at(0, 0, 2000)
    other = make(counts, seed, sampling, run, block).at(epoch, 0, 2000)
    assert (one == other).all(axis=1).sum() <= 6 * run  # one by chance, in runs


def test_blocks_of_one_epoch_have_their_own_permutations():
    order = make([1000], sampling="shuffled", run=0, block=20)
    blocks = order.at(0, 0, 1000)[:, 1].reshape(50, 20)
    assert len({tuple(row) for row in (blocks % 20).tolist()}) == 50


def test_blocks_keep_their_samples():
    mixed, shuffled = (make(UNEQUAL, run=4, block=block).at(0, 0, 51) for block in (1, 10))
    for start in range(0, 51, 10):
        block = slice(start, start + 10)
        assert sorted(mixed[block].tolist()) == sorted(shuffled[block].tolist())


@pytest.mark.parametrize("max_table", [0, MAX_TABLE])
@given(seed=st.integers(0, 2**64 - 1), run=st.integers(2, 9), samples=st.integers(10, 200))
def test_runs_stay_together_before_blocks(max_table, seed, run, samples):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(order_module, "MAX_TABLE", max_table)
        numbers = make([samples], seed, run=run, block=1).at(0, 0, samples)[:, 1]
    for before, after in pairwise(numbers.tolist()):
        assert after == before + 1 or (after % run == 0 and before in ends_of_runs(samples, run))


def ends_of_runs(samples, run):
    return {*range(run - 1, samples, run), samples - 1}


def test_the_short_run_is_not_always_last():
    slots = {
        make([7], seed, run=3, block=0).at(0, 0, 7)[:, 1].tolist().index(6) for seed in range(9)
    }
    assert slots == {0, 3, 6}


def test_run_0_keeps_whole_shards_together():
    found = make(UNEQUAL, 3, run=0, block=0).at(0, 0, 51)
    stretches = np.split(found, np.flatnonzero(np.diff(found[:, 0])) + 1)
    assert sorted(len(stretch) for stretch in stretches) == [1, 3, 7, 40]
    assert all((stretch[:, 1] == np.arange(len(stretch))).all() for stretch in stretches)


@pytest.mark.parametrize("run", [1, 2, 5, 50])
def test_every_sample_is_equally_likely_at_every_place_of_a_draw(run):
    counts = np.array([1, 9, 0, 30, 3])
    draws = 43 * 200
    found = make(counts, 11, "resampled", run, 0).at(0, 0, draws * run)
    numbers = (np.cumsum(counts) - counts)[found[:, 0]] + found[:, 1]
    # One row a draw; draws are independent, so each column alone is a sample of a uniform one.
    for column in numbers.reshape(draws, run).T[:: max(1, run // 5)]:
        seen = np.bincount(column, minlength=43)
        assert 15 < ((seen - 200) ** 2 / 200).sum() < 85  # 42 +- 9


def test_samples_of_shuffled_draws_are_uniform():
    found = make([4, 16], 3, "resampled", 8, 64).at(0, 0, 80_000)
    seen = np.bincount(found[:, 0] * 4 + found[:, 1], minlength=20)
    assert np.abs(seen / 4000 - 1).max() < 0.1


@given(orders(("resampled",)), EPOCHS)
def test_draws_go_on_in_their_shard_and_wrap_round(order, epoch):
    order = make(order.counts, order.seed, "resampled", order.run, 0)
    found = order.at(epoch, 0, 40 * order.run).reshape(40, order.run, 2)
    assert (found[:, :, 0] == found[:, :1, 0]).all()
    steps = np.diff(found[:, :, 1], axis=1) % order.counts[found[:, :1, 0]]
    assert (steps == 1 % order.counts[found[:, :1, 0]]).all()


def test_a_resampled_epoch_does_not_repeat():
    order = make([10], 1, "resampled", 1, 0)
    assert pairs(order, 0, 0, 50) != pairs(order, 0, 10, 60)


@given(st.integers(1, 2**63 - 1), st.lists(st.integers(0, 2**64 - 1), max_size=5))
def test_scaled_words_are_exact(total, words):
    words += [0, 2**32 - 1, 2**32, 2**64 - 1]
    scaled = scale_words(np.array(words, np.uint64), total)
    assert scaled.tolist() == [word * total >> 64 for word in words]


# The keyed permutations.


def naive_feistel(size, keys, number):
    left_range = next(a for a in range(1, size + 1) if a * a >= size)
    right_range = -(-size // left_range)
    while True:
        left, right = divmod(number, right_range)
        for index, key in enumerate(keys):
            if index % 2 == 0:
                left = (left + naive_mix(right ^ key)) % left_range
            else:
                right = (right + naive_mix(left ^ key)) % right_range
        number = left * right_range + right
        if number < size:
            return number


def naive_mix(word):
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    word = (word ^ word >> 27) * 0x94D049BB133111EB % 2**64
    return word ^ word >> 31


def feistel(size, seed=0):
    return Feistel(size, tuple(np.random.Philox(seed).random_raw(FEISTEL_ROUNDS).tolist()))


@given(st.integers(1, 400), st.integers(0, 1000))
def test_feistel_equals_the_naive_one(size, seed):
    network = feistel(size, seed)
    images = [naive_feistel(size, network.keys, number) for number in range(size)]
    assert network.forward(np.arange(size)).tolist() == images


@pytest.mark.parametrize("size", [*range(1, 40), 255, 257, 1000, *JUST_ABOVE, 2**18 - 5])
def test_feistel_is_a_bijection(size):
    images = feistel(size).forward(np.arange(size))
    assert np.array_equal(np.sort(images), np.arange(size))


@given(st.integers(1, 10**18), st.integers(0, 1000), st.data())
def test_feistel_inverse_undoes_it(size, seed, data):
    number = data.draw(st.integers(0, size - 1))
    network = feistel(size, seed)
    assert network.inverse(int(network.forward(np.array([number]))[0])) == number


@given(st.integers(1, 300), st.integers(0, 1000), EPOCHS)
def test_table_is_a_bijection_and_inverse_undoes_it(size, seed, epoch):
    table = permute_runs(size, seed, epoch)
    assert [table.inverse(int(i)) for i in table.forward(np.arange(size))] == list(range(size))


def test_many_runs_need_no_table():
    kinds = [type(permute_runs(size, 0, 0)) for size in (MAX_TABLE, MAX_TABLE + 1)]
    assert kinds == [Table, Feistel]


@pytest.mark.parametrize("size", [MAX_TABLE + 1, 941_192])
def test_feistel_sends_every_region_everywhere(size):
    images = feistel(size).forward(np.arange(size))
    cells = np.bincount((np.arange(size) * 97 // size) * 97 + images * 97 // size)
    expected = size / 97**2
    assert 8_550 < ((cells - expected) ** 2 / expected).sum() < 9_900  # 9,216 +- 136


@pytest.mark.parametrize("size", [MAX_TABLE + 1, 941_192])
@pytest.mark.parametrize("distance", [1, 2, 256, 257])
def test_feistel_parts_neighbours(size, distance):
    images = feistel(size).forward(np.arange(size))
    gaps = (images[distance:] - images[:-distance]) % size * 64 // size
    expected = len(gaps) / 64
    assert 25 < ((np.bincount(gaps, minlength=64) - expected) ** 2 / expected).sum() < 130


def test_feistel_images_of_one_run_are_uniform_over_epochs():
    size = MAX_TABLE + 1
    images = [permute_runs(size, 0, epoch).forward(np.array([9]))[0] for epoch in range(3200)]
    seen = np.bincount(np.array(images) * 64 // size, minlength=64)
    assert 25 < ((seen - 50) ** 2 / 50).sum() < 105  # 63 +- 11


# Huge data sets.


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize(
    ("run", "block", "limit"), [(64, 16_384, 64), (1, 0, 64), (64, MAX_BLOCK, 128)]
)
def test_seeking_in_a_huge_data_set_takes_little_memory(sampling, run, block, limit):
    assert peak_mib(sampling, run, block) < limit


def test_seeking_among_whole_shards_takes_little_memory():
    assert peak_mib("shuffled", 0, 16_384) < 64


def peak_mib(sampling, run, block):
    tracemalloc.start()
    try:
        order = SampleOrder(HUGE, 1, sampling, run, block)
        for epoch, start in product(range(2), (0, 6_543_210_987, 10**10 - 128)):
            order.at(epoch, start, start + 256)
        return tracemalloc.get_traced_memory()[1] / 2**20
    finally:
        tracemalloc.stop()


def test_remembered_blocks_are_few():
    order = make([100_000], run=1, block=1000)
    for start in range(0, 100_000, 1000):
        order.at(0, start, start + 10)
    assert order._blocks.cache_info().currsize == order_module.BLOCKS_KEPT


def test_a_block_of_batches_is_shuffled_once():
    order = make([100_000], run=1, block=1000)
    for start in range(0, 1000, 10):
        order.at(0, start, start + 10)
    assert order._blocks.cache_info().misses == 1


# What is refused.


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": -1}, "seed must be from 0 to 18446744073709551615, got -1;"),
        ({"seed": 2**64}, "seed must be from 0 to .*, got 18446744073709551616;"),
        ({"run": -1}, "run must be from 0 to 4294967296, got -1;"),
        ({"run": 2**33}, "run must be from 0 to 4294967296, got 8589934592;"),
        ({"block": -1}, "block must be from 0 to 1048576, got -1;"),
        ({"block": MAX_BLOCK + 1}, "block must be from 0 to 1048576, got 1048577; to mix more"),
        ({"sampling": "random"}, "sampling must be one of resampled, shuffled, sequential, got 'r"),
        ({"sampling": "resampled", "run": 0}, "a draw needs a fixed number of samples; set shuffl"),
        ({"counts": [1, -1]}, "counts must be one int64 per shard, at least 0, got int64 of shape"),
        ({"counts": [[1]]}, r"counts must be .*, got int64 of shape \(1, 1\); check"),
    ],
)
def test_impossible_orders_are_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        make(**{"counts": [1, 2]} | changes)


def test_counts_that_are_no_int64_are_refused():
    with pytest.raises(ConfigError, match="got float64 of shape"):
        SampleOrder(np.array([1.0]), 0, "shuffled")


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize(
    ("query", "message"),
    [
        ((-1, 0, 1), r"epoch must be at least 0 and below 2\*\*64, got -1;"),
        ((2**64, 0, 1), r"epoch must be .*, got 18446744073709551616;"),
        ((0, -1, 1), r"positions must be 0 <= start <= stop < 2\*\*63, got -1 to 1;"),
        ((0, 2, 1), "positions must be .*, got 2 to 1;"),
        ((0, 0, 2**63), "positions must be .*, got 0 to 9223372036854775808;"),
    ],
)
def test_impossible_queries_are_refused(sampling, query, message):
    with pytest.raises(ConfigError, match=message):
        make(UNEQUAL, sampling=sampling).at(*query)


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("counts", [[], [0, 0]])
def test_no_samples_are_refused_as_such(sampling, counts):
    with pytest.raises(PlanError, match="there is no sample to order; check"):
        make(counts, sampling=sampling).at(0, 0, 1)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_no_positions_are_no_samples(sampling):
    assert make([], sampling=sampling).at(0, 0, 0).shape == (0, 2)


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


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(golden_now()).replace("]]], ", "]]],\n") + "\n")
