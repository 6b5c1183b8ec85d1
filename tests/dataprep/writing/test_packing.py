"""Which sample goes where: each once, the same for the same arguments, within the limits."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_shards.dataprep.packing import (
    InputSample,
    Packing,
    assign,
    inline,
    require_sound,
)
from lightning_shards.errors import ConfigError, SampleError


def samples_of(keys, split=""):
    sizes = [number % 7 for number in range(len(keys))]
    return [
        InputSample(key, (inline("bin", bytes(size)),), split)
        for key, size in zip(keys, sizes, strict=True)
    ]


def keys_of(samples, plan):
    return {
        name: [[samples[number].key for number in shard] for shard in shards]
        for name, shards in plan.items()
    }


KEYS = [f"{number:04d}" for number in range(1000)]
SAMPLES = samples_of(KEYS)


@given(
    st.integers(1, 60),
    st.sampled_from(["source", "shuffled"]),
    st.integers(1, 9) | st.none(),
    st.integers(1, 9000),
    st.integers(0, 3),
)
def test_every_sample_is_in_one_shard_within_the_limits(count, order, most, most_bytes, seed):
    samples = SAMPLES if count == 60 else samples_of(KEYS[:count])
    packing = Packing(order=order, seed=seed, max_samples=most, max_bytes=most_bytes)
    shards = assign(samples, packing)[""]
    assert sorted(np.concatenate(shards).tolist()) == list(range(len(samples)))
    for shard in shards:
        size = sum(512 + -(-number % 7 // 512) * -512 for number in shard.tolist())
        assert most is None or len(shard) <= most
        assert most or size <= most_bytes or len(shard) == 1


def test_a_shuffle_hangs_on_keys_and_seed_alone():
    other = samples_of(KEYS[::-1])
    first = keys_of(SAMPLES, assign(SAMPLES, Packing(order="shuffled", seed=3)))
    assert keys_of(other, assign(other, Packing(order="shuffled", seed=3))) == first
    assert keys_of(SAMPLES, assign(SAMPLES, Packing(order="shuffled", seed=4))) != first


def test_a_split_stays_as_it_was_when_samples_are_added():
    def val_keys(keys):
        samples = samples_of(keys)
        plan = keys_of(samples, assign(samples, Packing(val_fraction=0.1, seed=5)))
        assert len(plan["train"][0]) + len(plan["val"][0]) == len(keys)
        return set(plan["val"][0])

    few, many = val_keys(KEYS[:500]), val_keys(KEYS)
    assert few == many & set(KEYS[:500])
    assert 70 < len(many) < 130


@pytest.mark.parametrize(
    ("samples", "options", "message"),
    [
        (samples_of(["a"], "test"), {"val_fraction": 0.1}, "choose one"),
        (samples_of(["a"]), {"val_fraction": 1e-9}, "split 'val' has no sample"),
        ([], {}, "the data set has no sample"),
        ([], {"val_fraction": 1.0}, "val_fraction must be from 0 to below 1, got 1"),
        ([], {"max_samples": 0}, "max_samples must be at least 1, got 0"),
    ],
)
def test_what_gives_no_shards_is_refused(samples, options, message):
    with pytest.raises(ConfigError, match=message):
        assign(samples, Packing(**options))


# --- keys that repeat


def test_repeated_keys_are_refused_with_an_example_and_the_remedy():
    message = r"samples share .* '0002'; rename the files, .* by --key"
    with pytest.raises(SampleError, match=message):
        require_sound(samples_of([*KEYS[:5], "0002"]))
