"""One stream of random numbers per sample, whatever was drawn before."""

import random

import numpy as np
import pytest
import torch

from lightning_shards.plan.draws import Purpose
from lightning_shards.samples.generators import SampleSeeds, preserved_globals


def drawn(seeds, position):
    return seeds.generator(position).integers(2**62, size=5).tolist()


def test_a_position_gives_the_same_numbers_again():
    seeds = SampleSeeds(1, 2, 3)
    assert drawn(seeds, 7) == drawn(seeds, 7) == drawn(SampleSeeds(1, 2, 3), 7)


def test_numbers_left_over_from_the_sample_before_are_not_used():
    """Half a word and part of a block would be kept by a generator that only moves on."""
    seeds = SampleSeeds(1, 2, 3)
    expected = seeds.generator(7).integers(2**31, dtype=np.int32, size=3).tolist()
    seeds.generator(6).integers(2**31, dtype=np.int32, size=3)
    assert seeds.generator(7).integers(2**31, dtype=np.int32, size=3).tolist() == expected


@pytest.mark.parametrize("other", [(0, 2, 3, 7), (1, 0, 3, 7), (1, 2, 0, 7), (1, 2, 3, 8)])
def test_seed_epoch_start_and_position_make_the_numbers(other):
    assert drawn(SampleSeeds(*other[:3]), other[3]) != drawn(SampleSeeds(1, 2, 3), 7)


def test_a_generator_is_numpys_philox_at_its_counter():
    key, counter = [1, 2], [0, 7, 3, Purpose.TRANSFORMS]
    philox = np.random.Philox(
        key=np.array(key, dtype=np.uint64), counter=np.array(counter, dtype=np.uint64)
    )
    expected = np.random.Generator(philox).integers(2**62, size=5).tolist()
    assert drawn(SampleSeeds(1, 2, 3), 7) == expected


def test_global_generators_follow_the_position():
    def draw(position):
        SampleSeeds(1, 2, 3).seed_globals(position)
        return random.random(), np.random.random(), float(torch.rand(()))  # noqa: NPY002

    with preserved_globals():
        assert draw(7) == draw(7)
        assert all(a != b for a, b in zip(draw(7), draw(8), strict=True))
