"""Filters applied to shards: what is left, and what later runs find of it."""

import logging
import os
import pickle
import re

import numpy as np
import pytest

from lightning_shards.errors import FileAccessError
from lightning_shards.shards.filters import applying
from lightning_shards.shards.filters.settings import parse_parts
from tests.shards.filters.filtered_shards import COUNTS, applied, numbers_left, pack_texts

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


def test_kept_and_excluded_parts_are_the_two_halves_of_all(urls, cache):
    kept, rest = (
        numbers_left(applied(urls, cache, **f)) for f in ({"keep": THIRD}, {"exclude": THIRD})
    )
    assert sorted(kept + rest) == list(range(30))
    assert 0 < len(kept) < 30
    assert numbers_left(applied(urls, cache, keep=REST)) == rest
    keys = [f"{number:04d}".encode() for number in range(30)]
    assert kept == np.flatnonzero(parse_parts("keep", THIRD).has(keys)).tolist()


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


def test_keep_and_exclude_apply_together(urls, cache, listed):
    index = applied(urls, cache, keep=many_texts, exclude=listed("0007", "0001"))
    assert numbers_left(index) == [6, *range(8, 30)]


@pytest.fixture
def no_tables(monkeypatch):
    """From now on no table may be read."""

    def forbid():
        monkeypatch.setattr(applying, "_applied", lambda *_: pytest.fail("tables are read"))

    return forbid


def test_a_later_run_reads_no_table(urls, cache, listed, no_tables):
    filters = [
        {"keep": THIRD},
        {"exclude": THIRD},
        {"exclude": listed("0003")},
        {"keep": many_texts},
    ]
    before = [applied(urls, cache, **each) for each in filters]
    no_tables()
    after = [applied(urls, cache, **each) for each in filters]
    assert list(map(numbers_left, after)) == list(map(numbers_left, before))
    assert after == before
    assert [each.kept.identity for each in after] == [each.kept.identity for each in before]


def test_a_list_at_another_path_is_the_same_filter(urls, cache, listed, no_tables):
    applied(urls, cache, exclude=listed("0003"))
    no_tables()
    assert len(numbers_left(applied(urls, cache, exclude=listed("0003", name="moved")))) == 29


def test_shards_that_were_written_again_are_asked_again(tmp_path, urls, cache):
    before = applied(urls, cache, exclude=THIRD)
    pack_texts(tmp_path / "data", key="new{:04d}")
    for number, url in enumerate(urls):
        os.utime(url, (1_000_000 + number,) * 2)
    keys = [f"new{number:04d}".encode() for number in range(30)]
    left = np.flatnonzero(~parse_parts("keep", THIRD).has(keys)).tolist()
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


SPOILT = {
    "cut": lambda data: data[:-1],
    "one bit": lambda data: data[:-9] + bytes([data[-9] ^ 1]) + data[-8:],
}


@pytest.mark.parametrize("spoil", SPOILT)
def test_a_damaged_file_is_made_again(urls, cache, spoil, caplog):
    expected = numbers_left(applied(urls, cache, exclude=THIRD))
    (path,) = cache.glob("kept/*.npy")
    path.write_bytes(SPOILT[spoil](path.read_bytes()))
    assert numbers_left(applied(urls, cache, exclude=THIRD)) == expected
    assert "is found out again" in caplog.text


def test_a_cache_that_cannot_be_written_is_an_error(urls, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(FileAccessError, match=r"kept/\w+\.npy cannot be written.*name another"):
        applied(urls, tmp_path / "file" / "cache", exclude=THIRD)


def test_a_file_that_is_removed_during_the_run_is_named(urls, cache):
    index = applied(urls, cache, exclude=THIRD)
    sent = pickle.dumps(index)
    (path,) = cache.glob("kept/*.npy")
    path.unlink()
    with pytest.raises(FileAccessError, match="was removed during the run; start it anew"):
        pickle.loads(sent).kept.of_shard(0)


def test_keys_that_match_no_sample_are_counted(urls, cache, listed, caplog):
    caplog.set_level(logging.INFO)
    applied(urls, cache, exclude=listed("0003", "x", "y"))
    said = (
        r"2 of 3 keys of .*out\.txt are of no sample.*the first of them is 'x', the first key of "
    )
    assert re.search(said + "the samples '0000'; keys have folders", caplog.text)
    assert re.search("exclude: 29 of 30 samples are left", caplog.text)
