"""What plan guarantees, in the names of its tests."""

import json
import tracemalloc
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_mixtures import component, example_mixture, mixture
from small_orders import HUGE, JUST_ABOVE, SAMPLINGS, UNEQUAL, file_ids, make, orders, pairs
from small_strands import strands

from lightning_shards.plan import draws
from lightning_shards.plan.draws import (
    MAX_TABLE,
    ORDER_VERSION,
    order_runs,
    shard_draws,
    shard_order,
)
from lightning_shards.plan.epoch import plan_epoch
from lightning_shards.plan.mixture import component_seed
from lightning_shards.plan.mixture_schedule import MAX_ROUND, WeightChange
from lightning_shards.plan.order import MAX_BLOCK

# --- orders stay what they are. The files are written anew only with a new ORDER_VERSION:
# python tests/plan/test_a_plan.py


def draws_now():
    keys = [(7, 0, 0), (7, 1, 0), (8, 0, 0), (2**64 - 1, 3, 0), (7, 0, 4096)]
    return {
        "order_version": ORDER_VERSION,
        "shard_draws (num_shards, seed, epoch, resumed_at, draws)": [
            [number, *key, shard_draws(number, *key[:2], 0, 64, resumed_at=key[2]).tolist()]
            for key, number in product(keys, (10, 2**32 - 1))
        ],
        "shard_order (num_shards, seed, epoch, order)": [
            [number, *key[:2], shard_order(number, *key[:2], shuffled=True).tolist()]
            for key, number in product(keys, (1, 25))
        ],
    }


def orders_now():
    of_small = ("resampled", 1, 0), ("resampled", 4, 16), ("shuffled", 0, 0), ("shuffled", 4, 0)
    of_small += ("shuffled", 4, 16), ("sequential", 4, 16)
    of_huge = ("resampled", 64, 16_384), ("shuffled", 64, 16_384), ("shuffled", 1, 0)
    of_huge += (("shuffled", 7, 0),)
    return {
        "order_version": ORDER_VERSION,
        "small (sampling, run, block, seed, epoch, samples)": [
            [*kind, *key, make(UNEQUAL, key[0], *kind).at(key[1], 0, 51).tolist()]
            for kind, key in product(of_small, ((7, 0), (2**64 - 1, 3)))
        ],
        "huge (sampling, run, block, start, samples)": [
            [*kind, start, make(HUGE, 7, *kind).at(1, start, start + 16).tolist()]
            for kind, start in product(of_huge, (0, 6_543_210_987, 10**10 - 8))
        ],
        "permute_runs (num_runs, the first images)": [
            [size, order_runs(size, 7, 1)[0].forward(np.arange(16)).tolist()] for size in JUST_ABOVE
        ],
        "strands (counts, strands, epoch, start, samples)": [
            [name, number, epoch, start, order.at(epoch, start, start + 16).tolist()]
            for name, counts, kind in (("UNEQUAL", UNEQUAL, (4, 16)), ("HUGE", HUGE, (64, 16_384)))
            for number, width in ((2, 5), (4, 2048))
            for order in [strands(counts, number, width, 7, *kind)]
            for epoch, start in ((0, 0), (3, order.samples - 16))
        ],
    }


def mixtures_now():
    between = WeightChange({"web": 3, "labels": 4, "synth": 1}, samples=32)
    to_labels = WeightChange({"web": 1, "labels": 6, "synth": 1}, samples=72)
    changes = [between, to_labels, WeightChange({"synth": 1}, epoch=4)]
    changing = example_mixture(7, changes=changes, rounds=9)
    huge = [component(name, np.full(10**4, 10**5), 7, run=64) for name in ("a", "b", "c")]
    far = mixture(huge, {"a": 0.123456789, "b": 3, "c": 1}, round_units=64, rounds=10**6, seed=7)
    return {
        "order_version": ORDER_VERSION,
        "component_seed": [component_seed(seed, "web") for seed in (0, 7, 2**64 - 1)],
        "small (unit, seed, epoch, components, samples)": [
            [unit, seed, epoch, *(ask(epoch, 0, 24).tolist() for ask in asked)]
            for unit, seed in product((1, 3), (7, 2**64 - 1))
            for order in [example_mixture(seed, unit=unit)]
            for asked in [(order.slots.components, order.at)]
            for epoch in (0, 3)
        ],
        "stages (epoch, samples)": [
            [epoch, changing.at(epoch, 0, 72).tolist()] for epoch in range(5)
        ],
        "huge (epoch 1234, samples)": far.at(1234, 5_000_000, 5_000_064).tolist(),
    }


NOW = {"draws": draws_now, "order": orders_now, "mixture": mixtures_now}


def golden(name):
    return Path(__file__).with_name(f"golden_{name}.json")


@pytest.mark.parametrize("name", NOW)
def test_orders_equal_the_golden_files(name):
    assert NOW[name]() == json.loads(golden(name).read_text())


# --- each sample once, on any number of ranks


@given(orders(("shuffled", "sequential")), st.integers(0, 9), st.sampled_from([0, 3, MAX_TABLE]))
def test_each_sample_comes_once(order, epoch, max_table):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(draws, "MAX_TABLE", max_table)
        found = pairs(order, epoch, 0, order.samples)
    assert sorted(found) == file_ids(order.counts.tolist())


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


# --- to begin anywhere costs no time and no memory


def huge_mixture(round_units):
    weights = dict(zip("abcdefgh", (160, 32, 16, 16, 12, 8, 8, 4), strict=True))
    counts = np.full(10**4, 10**5)
    components = [component(name, counts, run=64, block=16_384) for name in weights]
    rounds = 10**9 // round_units
    return mixture(components, weights, round_units=round_units, rounds=rounds)


KINDS = [(64, 16_384, 64), (1, 0, 64), (64, MAX_BLOCK, 128)]
SEEKING = {
    f"{sampling} {run} {block}": (lambda kind=(sampling, run, block): make(HUGE, 1, *kind), limit)
    for sampling, (run, block, limit) in product(SAMPLINGS, KINDS)
}
SEEKING["strands"] = lambda: strands(HUGE, 64, width=256, run=64, block=16_384), 64
SEEKING |= {
    f"mixture {units}": (lambda units=units: huge_mixture(units), limit)
    for units, limit in ((64, 32), (4_096, 32), (MAX_ROUND, 160))
}


@pytest.mark.parametrize(("ordered", "limit"), SEEKING.values(), ids=SEEKING)
def test_seeking_among_ten_billion_samples_takes_little_memory(ordered, limit):
    tracemalloc.start()
    try:
        order = ordered()
        for epoch, start in product((0, 1, 10), (0, 6_543_210_987, 10**10 - 128)):
            order.at(epoch, start, start + 256)
        assert tracemalloc.get_traced_memory()[1] / 2**20 < limit
    finally:
        tracemalloc.stop()


if __name__ == "__main__":
    for name, now in NOW.items():
        golden(name).write_text(json.dumps(now()).replace("]], ", "]],\n") + "\n")
