"""The order: frozen by a golden file, cut anywhere, uniform, and split without loss."""

import json
from collections import Counter
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_orders import EPOCHS, JUST_ABOVE

from lightning_shards.errors import ConfigError
from lightning_shards.plan.draws import (
    FEISTEL_ROUNDS,
    MAX_TABLE,
    ORDER_VERSION,
    Feistel,
    Table,
    order_runs,
    shard_draws,
    shard_order,
    spans,
    stable_order,
    stream_start,
)
from lightning_shards.plan.epoch import plan_epoch
from lightning_shards.plan.place import Place

GOLDEN = Path(__file__).with_name("golden_draws.json")
MANY_SHARDS = 2**32 - 1
UNEQUAL = np.array([3, 0, 40, 7], dtype=np.int64)
ODD_KEYS = [(7, 0, 0), (7, 1, 0), (8, 0, 0), (2**64 - 1, 3, 0), (7, 0, 4096)]


def orders_now():
    """What the golden file holds; write it anew only with a new ORDER_VERSION."""
    draws = [
        [num_shards, *key, shard_draws(num_shards, *key[:2], 0, 64, resumed_at=key[2]).tolist()]
        for key in ODD_KEYS
        for num_shards in (10, MANY_SHARDS)
    ]
    orders = [
        [num_shards, seed, epoch, shard_order(num_shards, seed, epoch, shuffled=True).tolist()]
        for seed, epoch, _ in ODD_KEYS
        for num_shards in (1, 25)
    ]
    return {
        "order_version": ORDER_VERSION,
        "shard_draws (num_shards, seed, epoch, resumed_at, draws)": draws,
        "shard_order (num_shards, seed, epoch, order)": orders,
    }


@pytest.mark.parametrize("name", list(orders_now()))
def test_orders_equal_the_golden_file(name):
    assert orders_now()[name] == json.loads(GOLDEN.read_text())[name]


def word_draws(words, num_shards):
    return [int(word) * num_shards >> 64 for word in words]


@given(
    st.integers(1, MANY_SHARDS),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**40),
    st.integers(0, 99),
)
def test_draws_are_words_of_philox_scaled_with_exact_integers(num_shards, seed, epoch, resumed_at):
    philox = np.random.Philox(
        key=np.array([seed, epoch], np.uint64), counter=np.array([0, 0, resumed_at, 1], np.uint64)
    )
    expected = word_draws(philox.random_raw(9), num_shards)
    assert shard_draws(num_shards, seed, epoch, 0, 9, resumed_at=resumed_at).tolist() == expected


@pytest.mark.parametrize(
    ("arguments", "resumed_at", "message"),
    [
        ((9, -1, 0, 0, 1), 0, r"seed must be at least 0 and below 2\*\*64, got -1;"),
        ((9, 2**64, 0, 0, 1), 0, r"seed must be .*, got 18446744073709551616;"),
        ((9, 0, -1, 0, 1), 0, "epoch must be .*, got -1;"),
        ((9, 0, 0, -1, 1), 0, "start must be .*, got -1;"),
        ((9, 0, 0, 2, 1), 0, "stop must not be below start, got 2 to 1;"),
        ((9, 0, 0, 0, 1), -1, "resumed_at must be .*, got -1;"),
    ],
)
def test_draws_refuse_numbers_out_of_range(arguments, resumed_at, message):
    with pytest.raises(ConfigError, match=message):
        shard_draws(*arguments, resumed_at=resumed_at)


def test_streams_begin_at_samples_of_their_own():
    starts = [stream_start(UNEQUAL, 1, stream) for stream in range(4000)]
    assert set(starts) == set(range(40))
    assert max(Counter(starts).values()) < 150  # 100 +- 10
    assert starts[:50] != [stream_start(UNEQUAL, 2, stream) for stream in range(50)]


def test_unshuffled_order_is_file_order():
    assert shard_order(5, 1, 0, shuffled=False).tolist() == [0, 1, 2, 3, 4]


@given(st.integers(1, 300), st.integers(0, 2**64 - 1), st.integers(0, 1000))
def test_shuffled_order_has_every_shard_once(num_shards, seed, epoch):
    order = shard_order(num_shards, seed, epoch, shuffled=True)
    assert sorted(order.tolist()) == list(range(num_shards))


def positions(plan, place, weight):
    return [
        position
        for span in spans(plan, place)
        if span.weight == weight
        for position in range(span.start, span.stop)
    ]


def places(world_size, num_workers):
    """All places of a world, ranks first, then workers."""
    return [
        Place(rank, world_size, worker, num_workers)
        for rank in range(world_size)
        for worker in range(num_workers)
    ]


def small_world():
    """Every plan and number of workers of a world small enough to see it all."""
    for samples, batch_size, world_size in product(range(13), range(1, 4), range(1, 5)):
        for remainder, num_workers in product(("drop", "pad", "balanced"), range(1, 4)):
            for done in range(samples + 1):
                yield plan_epoch(samples, batch_size, world_size, remainder, done), num_workers


def test_small_world_reads_each_position_once_in_order_of_ranks_and_workers():
    """Repeats begin anew with the first sample, and each worker has those of its own steps."""
    for plan, num_workers in small_world():
        every = places(plan.world_size, num_workers)
        read = [[p for place in every for p in positions(plan, place, w)] for w in (1, 0)]
        assert read[0] == list(range(plan.done, plan.done + plan.served)), (plan, num_workers)
        assert read[1] == [k % plan.samples for k in range(plan.padded)], (plan, num_workers)
        for place in every:
            mine = range(place.worker, plan.steps, num_workers)
            held = sum(plan.num_repeats(step, place.rank) for step in mine)
            assert len(positions(plan, place, 0)) == held, (plan, place)
            assert all(span.start < span.stop for span in spans(plan, place)), (plan, place)


def test_spans_need_the_world_of_the_plan():
    with pytest.raises(ConfigError, match="place and plan must have one world size, got 2 and 4;"):
        spans(plan_epoch(10, 2, 4, "pad"), Place(0, 2))


@pytest.mark.parametrize("distinct", [1, 2, 100, 2**64])
def test_words_that_repeat_stay_in_their_order(distinct):
    words = np.random.default_rng(distinct).integers(0, distinct, 5000, dtype=np.uint64)
    for rows in (words, words.reshape(50, 100)):
        assert stable_order(rows).tolist() == np.argsort(rows, kind="stable").tolist()


# Permutations of runs: bijections, with an inverse, that mix.


def feistel(size, seed=0):
    return Feistel(size, tuple(np.random.Philox(seed).random_raw(FEISTEL_ROUNDS).tolist()))


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
    table = order_runs(size, seed, epoch).permutation
    assert [table.inverse(int(i)) for i in table.forward(np.arange(size))] == list(range(size))


def test_many_runs_need_no_table():
    kinds = [type(order_runs(size, 0, 0).permutation) for size in (MAX_TABLE, MAX_TABLE + 1)]
    assert kinds == [Table, Feistel]


@pytest.mark.parametrize("size", [MAX_TABLE + 1, 941_192])
@pytest.mark.parametrize("distance", [1, 2, 256, 257])
def test_feistel_parts_neighbours(size, distance):
    images = feistel(size).forward(np.arange(size))
    gaps = (images[distance:] - images[:-distance]) % size * 64 // size
    expected = len(gaps) / 64
    assert 25 < ((np.bincount(gaps, minlength=64) - expected) ** 2 / expected).sum() < 130


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(orders_now()).replace("]], ", "]],\n") + "\n")
