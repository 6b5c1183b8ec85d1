"""Filters that cannot work: each is refused in one sentence."""

import numpy as np
import pytest

from lightning_shards.errors import ConfigError
from lightning_shards.shards.filters.settings import sample_filter
from tests.shards.filters.filtered_shards import applied


def raising(shard):
    raise KeyError("depth")


def as_numbers(shard):
    return np.ones(shard.num_samples)


def too_short(shard):
    return np.ones(3, bool)


def none_left(shard):
    return np.zeros(shard.num_samples, bool)


REFUSED = {
    "no key": (
        {"exclude": ["0001.txt", "y"]},
        r"none of the 2 keys .*: the first of them is '0001\.txt', the first key .* '0000'; write",
    ),
    "an empty list": (
        {"exclude": [""]},
        r"none of the 0 keys of .*: it is empty; write",
    ),
    "nothing left": ({"keep": none_left}, "keep leaves none of 30 samples of 6 shards"),
    "raises": ({"keep": raising}, r"raising raised KeyError for .*s0\.tar: 'depth'; correct it"),
    "numbers": ({"keep": as_numbers}, r"must return an array of bools.* got one of float64"),
    "too short": (
        {"keep": too_short},
        r"one for each sample of the shard, of shape \(5,\).* got one of bool of shape \(3,\)",
    ),
}


@pytest.mark.parametrize(("given", "message"), REFUSED.values(), ids=REFUSED)
def test_a_filter_that_cannot_work_is_refused_in_one_sentence(urls, cache, listed, given, message):
    if "exclude" in given:
        given = {"exclude": listed(*given["exclude"])}
    with pytest.raises(ConfigError, match=message) as error:
        applied(urls, cache, **given)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("https://me:secret@host/out.txt", "https://host/out.txt"),
        ("s3://bucket/out.txt?key=secret", "s3://bucket/out.txt"),
        ("file:///data/out.txt", "file:///data/out.txt"),
        ("pipe:cat out.txt", "pipe:cat ..."),
    ],
)
def test_a_list_of_another_machine_is_refused_at_once(path, shown):
    with pytest.raises(
        ConfigError, match=r"names the list .* is the path of a file of this"
    ) as error:
        sample_filter(None, ["a.txt", path])
    assert repr(shown) in str(error.value)
    assert "secret" not in str(error.value)
