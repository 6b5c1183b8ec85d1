"""Filters by keys: lists and hashes."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_shards.errors import ConfigError
from lightning_shards.shards.filters.applying import read_keys
from lightning_shards.shards.filters.settings import parse_parts


def test_a_line_is_a_key(tmp_path):
    path = tmp_path / "list.txt"
    path.write_bytes(b"\xef\xbb\xbfa/1\nb 2\r\n\n#\xff\xfe\n last\nb 2")
    assert list(read_keys(str(path))) == [b"a/1", b"b 2", b"#\xff\xfe", b" last"]


def test_a_list_that_cannot_be_read_is_named(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "none.txt", tmp_path, tmp_path / "fifo"):
        with pytest.raises(
            ConfigError, match=r"exclude: the list .* cannot be read.*one key a line"
        ):
            read_keys(str(path))


def parts(of, *numbers):
    return parse_parts("keep", {"hash_of": "key", "of": of, "parts": list(numbers)})


GOLDEN = {b"000000": 0, b"train/0001": 9, "grüße/ä".encode(): 18, b"\xff\xfe": 0, b"": 12}
"""The part of each key, of 20."""


@pytest.mark.parametrize(("key", "part"), GOLDEN.items())
def test_a_key_is_in_the_part_that_it_has_always_been_in(key, part):
    assert [n for n in range(20) if parts(20, n).has([key]).all()] == [part]


@given(st.lists(st.binary(max_size=20), max_size=30), st.integers(1, 40), st.data())
def test_parts_are_disjoint_and_together_complete(keys, of, data):
    cut = data.draw(st.lists(st.integers(0, of - 1), min_size=1, unique=True))
    rest = sorted(set(range(of)) - set(cut))
    inside = parts(of, *cut).has(keys).tolist()
    outside = parts(of, *rest).has(keys).tolist() if rest else [False] * len(keys)
    assert [not each for each in inside] == outside


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"hash_of": "key", "of": 20},
            r"keep takes the keys hash_of, of and parts.*got \['hash_of'",
        ),
        ({"hash_of": "name", "of": 2, "parts": [0]}, "hash_of of keep must be 'key', got 'name'"),
        ({"hash_of": "key", "of": 0, "parts": [0]}, "of of keep must be a number of parts from 1"),
        ({"hash_of": "key", "of": True, "parts": [0]}, "of of keep must be a number of parts"),
        ({"hash_of": "key", "of": 2, "parts": []}, "parts of keep must be a list of numbers"),
        ({"hash_of": "key", "of": 2, "parts": [2]}, r"numbers from 0 to 1, as of=2, got \[2\]"),
        ({"hash_of": "key", "of": 2, "parts": ["0"]}, r"from 0 to 1, as of=2, got \['0'\]"),
    ],
)
def test_a_mapping_that_names_no_parts_is_refused(given, message):
    with pytest.raises(ConfigError, match=message):
        parse_parts("keep", given)
