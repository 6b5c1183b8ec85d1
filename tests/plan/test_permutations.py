"""The keyed permutations of runs: bijections, with an inverse, that mix."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_orders import EPOCHS, JUST_ABOVE

from lightning_shards.plan.draws import (
    FEISTEL_ROUNDS,
    MAX_TABLE,
    Feistel,
    Table,
    order_runs,
)


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
