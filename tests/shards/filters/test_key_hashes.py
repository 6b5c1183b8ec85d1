"""A split by hash is the same today and in ten years, in this program and in any other."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_shards.errors import ConfigError
from lightning_shards.shards.filters.keys import digests_of, parse_parts


def parts(of, *numbers, hash_of="key"):
    return parse_parts("keep", {"hash_of": hash_of, "of": of, "parts": list(numbers)})


GOLDEN = {b"000000": 0, b"train/0001": 9, "grüße/ä".encode(): 18, b"\xff\xfe": 0, b"": 12}
"""The part of each key, of 20."""


@pytest.mark.parametrize(("key", "part"), GOLDEN.items())
def test_a_key_is_in_the_part_that_it_has_always_been_in(key, part):
    assert [n for n in range(20) if parts(20, n).has([key]).all()] == [part]


def test_the_part_is_that_of_the_documented_line():
    for key in ("000000", "a/b", "ü"):
        number = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") % 7
        assert parts(7, number).has([key.encode()]).tolist() == [True]


@given(st.lists(st.binary(max_size=20), max_size=30), st.integers(1, 40), st.data())
def test_parts_are_disjoint_and_together_complete(keys, of, data):
    cut = data.draw(st.lists(st.integers(0, of - 1), min_size=1, unique=True))
    rest = sorted(set(range(of)) - set(cut))
    inside = parts(of, *cut).has(keys).tolist()
    outside = parts(of, *rest).has(keys).tolist() if rest else [False] * len(keys)
    assert [not each for each in inside] == outside


def test_a_prefix_keeps_samples_together():
    keys = [f"clip{clip}.x/{frame:03d}".encode() for clip in range(30) for frame in range(4)]
    kept = parts(2, 0, hash_of="prefix").has(keys).reshape(30, 4)
    assert (kept.all(axis=1) | ~kept.any(axis=1)).all()
    assert 0 < kept.sum() < kept.size
    assert kept[:, 0].tolist() == parts(2, 0).has([f"clip{n}".encode() for n in range(30)]).tolist()


def test_a_digest_is_the_beginning_of_the_sha256():
    first, second = digests_of([b"a"])[0].tolist()
    assert f"{first:016x}{second:016x}" == hashlib.sha256(b"a").hexdigest()[:32]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"hash_of": "key", "of": 20},
            r"keep takes the keys hash_of, of and parts.*got \['hash_of'",
        ),
        ({"hash_of": "name", "of": 2, "parts": [0]}, "hash_of of keep must be 'key' or 'prefix'"),
        ({"hash_of": "key", "of": 0, "parts": [0]}, "of of keep must be a number of parts from 1"),
        ({"hash_of": "key", "of": True, "parts": [0]}, "of of keep must be a number of parts"),
        ({"hash_of": "key", "of": 2, "parts": []}, "parts of keep must be a list of numbers"),
        ({"hash_of": "key", "of": 2, "parts": 1}, "parts of keep must be a list of numbers"),
        ({"hash_of": "key", "of": 2, "parts": [2]}, "numbers from 0 to 1, as of=2, got 2"),
        ({"hash_of": "key", "of": 2, "parts": [-1]}, "numbers from 0 to 1, as of=2, got -1"),
        ({"hash_of": "key", "of": 2, "parts": ["0"]}, "numbers from 0 to 1, as of=2, got '0'"),
    ],
)
def test_a_mapping_that_names_no_parts_is_refused(given, message):
    with pytest.raises(ConfigError, match=message):
        parse_parts("keep", given)
