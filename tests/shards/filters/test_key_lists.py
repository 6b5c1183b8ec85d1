"""Lists of keys and ids: what a line means, and which keys are found."""

import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_shards.errors import ConfigError
from lightning_shards.shards.filters.keys import KeyList, digest_of_list, digests_of, read_key_list


@pytest.fixture
def read(tmp_path):
    def written(content):
        (tmp_path / "list.txt").write_bytes(content)
        return read_key_list(str(tmp_path / "list.txt"))

    return written


def has(listed, *keys):
    return (listed.find(digests_of(keys)) >= 0).tolist()


def test_a_line_is_a_key(read):
    listed = read(b"a/1\nb 2\r\n\n\xff\xfe\n last")
    assert (
        has(listed, b"a/1", b"b 2", b"\xff\xfe", b" last", b"last", b"") == [True] * 4 + [False] * 2
    )


def test_a_mark_of_the_byte_order_is_no_part_of_the_first_line(read):
    assert has(read(b"\xef\xbb\xbfa\nb\n"), b"a", b"b", b"\xef\xbb\xbfa") == [True, True, False]
    assert read(b"\xef\xbb\xbf#s.tar:1\n").numbers["s.tar"].tolist() == [1]
    assert has(read(b"a\n\xef\xbb\xbfb\n"), b"\xef\xbb\xbfb") == [True]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-16-le"])
def test_a_list_in_utf_16_is_refused(read, encoding):
    """As PowerShell writes what a command prints."""
    mark = "" if encoding == "utf-16" else "\ufeff"
    with pytest.raises(ConfigError, match=r"list\.txt is written in UTF-16; write it in UTF-8"):
        read(f"{mark}a\nb\n".encode(encoding))


def test_a_line_with_a_mark_is_an_id(read):
    listed = read(b"#s:1.tar:7\n#s:1.tar:0\n#x.tar:3\n#x.tar:3\nkey\n")
    numbers = {name: values.tolist() for name, values in listed.numbers.items()}
    assert numbers == {"s:1.tar": [0, 7], "x.tar": [3]}
    assert len(listed.first) == 1


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
    assert len(keys.first) == len(set(listed))


def test_digests_that_begin_alike_are_told_apart():
    first = np.array([3, 7, 7, 7, 9], np.uint64)
    listed = KeyList(first, np.array([1, 2, 3, 4, 5], np.uint64), 3, {})
    asked = np.array([[7, 2], [7, 3], [7, 4], [7, 5], [3, 2], [9, 5], [10, 1]], np.uint64)
    assert listed.find(asked).tolist() == [1, 2, 3, -1, -1, 4, -1]


def test_more_keys_than_are_hashed_at_once(read):
    keys = [f"{number}".encode() for number in range(70_000)]
    listed = read(b"\n".join(keys))
    assert len(listed.first) == 70_000
    assert all(has(listed, keys[0], keys[65_535], keys[65_536], keys[-1]))
    assert has(listed, b"70000") == [False]


def test_the_digest_is_that_of_the_content(tmp_path):
    for name, content in (("a", b"1\n"), ("b", b"1\n"), ("c", b"2\n")):
        (tmp_path / name).write_bytes(content)
    one, same, other = (digest_of_list(str(tmp_path / name)) for name in "abc")
    assert one == same != other


def test_a_list_that_cannot_be_read_is_named(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "none.txt", tmp_path, tmp_path / "fifo"):
        with pytest.raises(
            ConfigError, match=r"exclude: the list .* cannot be read.*one key a line"
        ):
            read_key_list(str(path))
