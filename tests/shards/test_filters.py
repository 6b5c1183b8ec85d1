"""What filters guarantee, in the names of their tests."""

import logging
import os
import pickle
import re

import numpy as np
import pytest
from tests.shards.filters.filtered_shards import COUNTS, applied, numbers_left, pack_texts

from lightning_shards.errors import ConfigError, FileAccessError, ShardNotFoundError
from lightning_shards.shards.filters import applying
from lightning_shards.shards.filters.settings import are_in_parts, parse_parts, sample_filter

THIRD = {"hash_of": "key", "of": 3, "parts": [0]}
REST = {"hash_of": "key", "of": 3, "parts": [1, 2]}


def many_texts(shard):
    return shard.sizes("txt") >= 6


def with_class(shard):
    return shard.has("CLS") & ~shard.has("jpg")


class LongKeys:
    """Keeps keys that are greater than one."""

    def __init__(self, least):
        self.least = least

    def __call__(self, shard):
        return np.array([key > self.least for key in shard.keys], bool)


def test_listed_samples_are_left_out(urls, cache, listed):
    index = applied(urls, cache, exclude=listed("0003", "0017", "0029", "elsewhere"))
    assert numbers_left(index) == [each for each in range(30) if each not in (3, 17, 29)]
    assert index.kept.counts.tolist() == [4, 0, 9, 3, 11, 0]
    assert (index.samples, index.kept_samples) == (30, 27)
    assert index.counts.tolist() == COUNTS


def test_a_line_of_a_list_is_a_key():
    content = b"\xef\xbb\xbfa/1\nb 2\r\n\n#\xff\xfe\n last\nb 2"
    assert list(applying.listed_keys(content)) == [b"a/1", b"b 2", b"#\xff\xfe", b" last"]


def test_kept_and_excluded_parts_are_the_two_halves_of_all(urls, cache):
    kept, rest = (
        numbers_left(applied(urls, cache, **f)) for f in ({"keep": THIRD}, {"exclude": THIRD})
    )
    assert sorted(kept + rest) == list(range(30))
    assert 0 < len(kept) < 30
    assert numbers_left(applied(urls, cache, keep=REST)) == rest


GOLDEN = {b"000000": 0, b"train/0001": 9, "grüße/ä".encode(): 18, b"\xff\xfe": 0, b"": 12}
"""The part of each key, of 20."""


def test_a_key_is_in_the_part_that_it_has_always_been_in():
    for number in range(20):
        part = parse_parts("keep", {"hash_of": "key", "of": 20, "parts": [number]})
        assert are_in_parts(GOLDEN, part).tolist() == [number == each for each in GOLDEN.values()]


@pytest.mark.parametrize(
    ("predicate", "expected"),
    [
        (many_texts, range(6, 30)),
        (with_class, range(0, 30, 3)),
        (LongKeys("0012"), range(13, 30)),
        (lambda shard: shard.table.offsets[shard.table.sample_starts[:-1]] >= 0, range(30)),
    ],
)
def test_a_predicate_sees_keys_sizes_and_suffixes(urls, cache, predicate, expected):
    assert numbers_left(applied(urls, cache, keep=predicate)) == list(expected)


def test_a_later_run_reads_no_table_wherever_its_lists_lie(urls, cache, listed, monkeypatch):
    lists = [listed("0003"), listed("0003", name="moved")]
    filters = [{"keep": THIRD}, {"exclude": THIRD}, {"exclude": lists[0]}, {"keep": many_texts}]
    before = [applied(urls, cache, **each) for each in filters]
    monkeypatch.setattr(applying, "_applied", lambda *_: pytest.fail("tables are read"))
    filters[2] = {"exclude": lists[1]}
    after = [applied(urls, cache, **each) for each in filters]
    assert list(map(numbers_left, after)) == list(map(numbers_left, before))
    assert [each.kept.identity for each in after] == [each.kept.identity for each in before]


def test_shards_that_were_written_again_are_asked_again(tmp_path, urls, cache):
    before = applied(urls, cache, exclude=THIRD)
    pack_texts(tmp_path / "data", key="new{:04d}")
    for number, url in enumerate(urls):
        os.utime(url, (1_000_000 + number,) * 2)
    keys = [f"new{number:04d}".encode() for number in range(30)]
    left = np.flatnonzero(~are_in_parts(keys, parse_parts("keep", THIRD))).tolist()
    after = applied(urls, cache, exclude=THIRD)
    assert numbers_left(after) == left != numbers_left(before)
    assert before.kept.identity != after.kept.identity


def test_shards_of_one_name_in_two_folders_share_no_file(tmp_path, cache, monkeypatch):
    """A run reads what it was told, whatever another run of the same cache finds out meanwhile."""
    left = []
    for name, key in (("one", "{:04d}"), ("two", "other{:04d}")):
        pack_texts(tmp_path / name / "data", [30], key)
        monkeypatch.chdir(tmp_path / name)
        left.append(applied(["data/s0.tar"], cache, exclude=THIRD))
    sent = [pickle.loads(pickle.dumps(index)) for index in left]
    assert numbers_left(sent[0]) != numbers_left(sent[1])
    assert list(map(numbers_left, sent)) == list(map(numbers_left, left))


def test_a_damaged_file_is_made_again(urls, cache, caplog):
    expected = numbers_left(applied(urls, cache, exclude=THIRD))
    (path,) = cache.glob("kept/*.npy")
    data = path.read_bytes()
    path.write_bytes(data[:-9] + bytes([data[-9] ^ 1]) + data[-8:])
    assert numbers_left(applied(urls, cache, exclude=THIRD)) == expected
    assert "is made again" in caplog.text


def test_a_cache_that_cannot_be_written_is_an_error(urls, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(FileAccessError, match=r"kept/\w+\.npy cannot be written.*name another"):
        applied(urls, tmp_path / "file" / "cache", exclude=THIRD)


def test_a_file_that_is_removed_during_the_run_is_named(urls, cache):
    sent = pickle.dumps(applied(urls, cache, exclude=THIRD))
    (path,) = cache.glob("kept/*.npy")
    path.unlink()
    with pytest.raises(FileAccessError, match="was removed during the run; start it anew"):
        pickle.loads(sent).kept.of_shard(0)


def test_keys_that_match_no_sample_are_counted(urls, cache, listed, caplog):
    caplog.set_level(logging.INFO)
    applied(urls, cache, exclude=listed("0003", "x", "y"))
    said = r"2 of 3 keys of .*out\.txt are of no sample.*the first of them is 'x', the first key "
    assert re.search(said + "of the samples '0000'; write keys with folders", caplog.text)
    assert re.search("exclude: 29 of 30 samples are left", caplog.text)


def raising(shard):
    raise KeyError("depth")


REFUSED = {
    "no key": (
        {"exclude": ["0001.txt", "y"]},
        r"2 of 2 keys .*: the first of them is '0001\.txt', the first key .* '0000'; write",
    ),
    "an empty list": ({"exclude": [""]}, "0 of 0 keys of .*: it is empty; write"),
    "nothing left": (
        {"keep": lambda shard: shard.sizes("txt") < 0},
        "keep leaves none of 30 samples of 6 shards",
    ),
    "raises": ({"keep": raising}, r"raising raised KeyError for .*s0\.tar: 'depth'; correct it"),
    "numbers": (
        {"keep": lambda shard: shard.sizes("txt")},
        "must return an array of bools.* got one of int64",
    ),
    "too short": (
        {"keep": lambda _: np.ones(3, bool)},
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


def test_a_list_that_cannot_be_read_is_named(urls, cache, tmp_path):
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "none.txt", tmp_path, tmp_path / "fifo"):
        message = f"^exclude takes text files with one key a line: {path} .*; "
        with pytest.raises((FileAccessError, ShardNotFoundError), match=message):
            applied(urls, cache, exclude=str(path))


@pytest.mark.parametrize(
    "changes",
    [{"hash_of": "name"}, {"of": 0}, {"of": True}, {"parts": []}, {"parts": ["0"]}, {"more": 1}],
    ids=str,
)
def test_a_mapping_that_names_no_parts_is_refused(changes):
    with pytest.raises(ConfigError, match=r"exclude takes a hash .* parts: \[0\]\}, got \{'hash_o"):
        sample_filter(None, THIRD | changes)


def test_a_list_of_another_machine_is_refused_at_once():
    for path in ("https://me:secret@host/a.txt", "s3://bucket/a.txt?secret", "file:///a.txt"):
        with pytest.raises(ConfigError, match=r"names the list .*a\.txt', and a list is") as error:
            sample_filter(None, ["a.txt", path])
        assert "secret" not in str(error.value)
