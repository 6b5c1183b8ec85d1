"""Filters that cannot work: each is refused in one sentence."""

import numpy as np
import pytest

from lightning_shards.errors import ConfigError
from lightning_shards.shards.filters.settings import sample_filter
from tests.shards.filters.filtered_shards import applied, numbers_left, pack_texts


def raising(shard):
    raise KeyError("depth")


def as_list(shard):
    return [True] * shard.num_samples


def as_numbers(shard):
    return np.ones(shard.num_samples)


def too_short(shard):
    return np.ones(3, bool)


def none_left(shard):
    return np.zeros(shard.num_samples, bool)


def dotted(shard):
    return shard.sizes(".TXT") > 3


def dotted_has(shard):
    return ~shard.has(".cls")


REFUSED = {
    "no key": (
        {"exclude": ["0001.txt", "y"]},
        r"none of the 2 keys .*: the first of them is '0001\.txt', the first key .* '0000'; write",
    ),
    "an escaped key": (
        {"exclude": ["\\#1"]},
        "none of the 1 key .*the first of them is '#1', the",
    ),
    "an empty list": ({"exclude": [""]}, "has no line with a key or an id; leave the list out"),
    "no id": (
        {"exclude": ["# no id"]},
        r"has the line '# no id'.*NUMBER, as in #s0\.tar:0; put a b",
    ),
    "unknown shard": (
        {"exclude": ["#t.tar:0"]},
        r"names samples of 't.tar', and no shard of this split has .* the first one is 's0\.tar';",
    ),
    "a dot before a suffix": (
        {"keep": dotted},
        "no dot before them: 'TXT', not '.TXT'; correct it",
    ),
    "a dot in has": ({"keep": dotted_has}, "no dot before them: 'cls', not '.cls'; correct it"),
    "too far": ({"exclude": ["#s0.tar:5"]}, "sample 5 of 's0.tar', which holds 5 samples, counted"),
    "nothing left": ({"keep": none_left}, "keep leaves none of 30 samples of 6 shards"),
    "raises": ({"keep": raising}, r"raising raised KeyError for .*s0\.tar: 'depth'; correct it"),
    "a list": (
        {"keep": as_list},
        "as_list must return an array of bools, one for each .*, got list;",
    ),
    "numbers": ({"keep": as_numbers}, r"must return an array of bools.* got an array of float64"),
    "too short": (
        {"keep": too_short},
        r"one for each sample of the shard, of shape \(5,\).* got an array of bool of shape \(3,\)",
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


def test_a_path_with_a_colon_is_a_path(urls, cache, listed):
    assert 3 not in numbers_left(applied(urls, cache, exclude=listed("0003", name="a:b.txt")))


def test_two_shards_of_one_file_name_cannot_be_told_apart(tmp_path, cache, listed):
    urls = [*pack_texts(tmp_path / "a", [2]), *pack_texts(tmp_path / "b", [2])]
    with pytest.raises(ConfigError, match="two shards in different folders have that file name"):
        applied(urls, cache, exclude=listed("#s0.tar:0"))
