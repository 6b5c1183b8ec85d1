"""Filters by keys: lists, hashes and prefixes."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_shards.errors import ConfigError
from lightning_shards.shards.filters.applying import read_key_list
from lightning_shards.shards.filters.settings import parse_parts


@pytest.fixture
def read(tmp_path):
    def written(content):
        (tmp_path / "list.txt").write_bytes(content)
        return read_key_list(str(tmp_path / "list.txt"))

    return written


def has(listed, *keys):
    return [key in listed.keys for key in keys]


def test_a_line_is_a_key(read):
    listed = read(b"a/1\nb 2\r\n\n\xff\xfe\n last")
    assert (
        has(listed, b"a/1", b"b 2", b"\xff\xfe", b" last", b"last", b"") == [True] * 4 + [False] * 2
    )


def test_a_mark_of_the_byte_order_is_no_part_of_the_first_line(read):
    assert has(read(b"\xef\xbb\xbfa\nb\n"), b"a", b"b", b"\xef\xbb\xbfa") == [True, True, False]
    assert read(b"\xef\xbb\xbf#s.tar:1\n").numbers["s.tar"].tolist() == [1]
    assert has(read(b"a\n\xef\xbb\xbfb\n"), b"\xef\xbb\xbfb") == [True]


def test_a_line_with_a_mark_is_an_id(read):
    listed = read(b"#s:1.tar:7\n#s:1.tar:0\n#x.tar:3\n#x.tar:3\nkey\n")
    numbers = {name: values.tolist() for name, values in listed.numbers.items()}
    assert numbers == {"s:1.tar": [0, 7], "x.tar": [3]}
    assert len(listed.keys) == 1


def test_a_backslash_takes_the_meaning_of_a_mark(read):
    listed = read(b"\\#a\n\\\\b\n\\c\n")
    assert has(listed, b"#a", b"\\b", b"\\c", b"\\#a", b"c") == [True, True, True, False, False]
    assert not listed.numbers


@pytest.mark.parametrize(
    "line", ["#", "# a comment", "#a.tar", "#a.tar:", "#:1", "#a.tar:-1", "#a.tar:1x"]
)
def test_a_mark_without_an_id_is_refused(read, line):
    with pytest.raises(
        ConfigError, match="put a backslash before a key that begins with #"
    ) as error:
        read(f"good\n{line}\n".encode())
    assert repr(line) in str(error.value)


@given(st.lists(st.binary(min_size=1, max_size=6)), st.lists(st.binary(max_size=6)))
def test_exactly_the_listed_keys_are_found(tmp_path_factory, listed, asked):
    listed = [key for key in listed if not set(key) & set(b"\r\n#\\")]
    path = tmp_path_factory.mktemp("lists") / "list"
    path.write_bytes(b"\n".join(listed))
    keys = read_key_list(str(path))
    assert has(keys, *asked, *listed) == [key in listed for key in (*asked, *listed)]
    assert len(keys.keys) == len(set(listed))


def test_a_list_that_cannot_be_read_is_named(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "none.txt", tmp_path, tmp_path / "fifo"):
        with pytest.raises(
            ConfigError, match=r"exclude: the list .* cannot be read.*one key a line"
        ):
            read_key_list(str(path))


def parts(of, *numbers, hash_of="key"):
    return parse_parts("keep", {"hash_of": hash_of, "of": of, "parts": list(numbers)})


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


def test_a_prefix_keeps_samples_together():
    keys = [f"clip{clip}.x/{frame:03d}".encode() for clip in range(30) for frame in range(4)]
    kept = parts(2, 0, hash_of="prefix").has(keys).reshape(30, 4)
    assert (kept.all(axis=1) | ~kept.any(axis=1)).all()
    assert 0 < kept.sum() < kept.size
    assert kept[:, 0].tolist() == parts(2, 0).has([f"clip{n}".encode() for n in range(30)]).tolist()


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
        ({"hash_of": "key", "of": 2, "parts": [2]}, r"numbers from 0 to 1, as of=2, got \[2\]"),
        ({"hash_of": "key", "of": 2, "parts": [-1]}, r"numbers from 0 to 1, as of=2, got \[-1\]"),
        ({"hash_of": "key", "of": 2, "parts": ["0"]}, r"from 0 to 1, as of=2, got \['0'\]"),
    ],
)
def test_a_mapping_that_names_no_parts_is_refused(given, message):
    with pytest.raises(ConfigError, match=message):
        parse_parts("keep", given)
