"""What filters guarantee, in the names of their tests."""

import importlib
import itertools
import logging
import os
import pickle
import re
import sys
from functools import partial

import numpy as np
import pytest
from webdataset.writer import TarWriter

from lightning_shards.errors import ConfigError, FileAccessError, ShardNotFoundError
from lightning_shards.shards.counts import load_index
from lightning_shards.shards.files import CacheFolder
from lightning_shards.shards.filters import applying
from lightning_shards.shards.filters.applying import digest_of_predicate, filtered_index
from lightning_shards.shards.filters.settings import are_in_parts, parse_parts, sample_filter
from lightning_shards.shards.tables import TableStore

COUNTS = [5, 0, 9, 3, 12, 1]
THIRD = {"hash_of": "key", "of": 3, "parts": [0]}
REST = {"hash_of": "key", "of": 3, "parts": [1, 2]}


def pack_texts(folder, counts=COUNTS, key="{:04d}"):
    """Sample i has a text of i bytes, and every third one a class."""
    folder.mkdir(parents=True, exist_ok=True)
    number, urls = 0, []
    for shard, count in enumerate(counts):
        urls.append(str(folder / f"s{shard}.tar"))
        with TarWriter(urls[-1]) as writer:
            for _ in range(count):
                sample = {"__key__": key.format(number), "txt": "x" * number}
                writer.write(sample | ({"cls": "1"} if number % 3 == 0 else {}))
                number += 1
    return urls


def applied(urls, cache, keep=None, exclude=None):
    """The index of what is left."""
    folder = CacheFolder(cache)
    index = load_index(urls, cache=folder)
    chosen = sample_filter(keep, exclude)
    return filtered_index(index, chosen, TableStore(folder), folder)


def numbers_left(index):
    """The numbers of the samples that are left, through all shards."""
    return index.kept_numbers.tolist()


@pytest.fixture
def urls(tmp_path):
    return pack_texts(tmp_path / "data")


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


@pytest.fixture
def listed(tmp_path):
    def write(*lines, name="out.txt"):
        (tmp_path / name).write_text("\n".join(lines))
        return str(tmp_path / name)

    return write


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


# --- what predicates keep is found out again when their source changes, or what they hold


MODULE = """
import functools

LEAST = 5

def long(shard, more=0):
    return shard.sizes("txt") >= LEAST + more

def made(least):
    return lambda shard: shard.sizes("txt") >= least

class Over:
    def __init__(self, least):
        self.least = least

    def __call__(self, shard):
        return shard.sizes("txt") >= self.least

by_object, by_held, by_closure = Over(LEAST), functools.partial(long), made(LEAST)
"""


@pytest.fixture
def imported(tmp_path, monkeypatch):
    """What imports the module of a user, which was written long before or just now."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    path, seconds = tmp_path / "module_of_a_user.py", itertools.count(1000)

    def load(text=MODULE, *, is_old=True):
        path.write_text(text)
        if is_old:
            os.utime(path, (next(seconds),) * 2)
        sys.modules.pop("module_of_a_user", None)
        importlib.invalidate_caches()
        return importlib.import_module("module_of_a_user")

    yield load
    sys.modules.pop("module_of_a_user", None)


@pytest.mark.parametrize("name", ["long", "by_object", "by_held"])
def test_another_source_is_another_filter_and_the_old_one_is_known_again(
    imported, urls, cache, name
):
    for least in (5, 6, 5):
        user = imported(MODULE.replace("LEAST = 5", f"LEAST = {least}"))
        kept = applied(urls, cache, keep=getattr(user, name))
        assert numbers_left(kept) == list(range(least, 30))
    assert len(list(cache.glob("kept/*.npy"))) == 2


def test_another_value_that_it_holds_or_another_version_is_another_filter(imported):
    user = imported()
    held = [partial(user.long), partial(user.long, more=1), partial(user.long, more=2)]
    held += [user.Over(3), user.Over(4), partial(user.Over(4))]
    digests = set(map(digest_of_predicate, held))
    for user.long.version, user.Over.version in ((1, 1), (2, 2)):
        digests |= set(map(digest_of_predicate, (user.long, user.by_held, user.by_object)))
    user.long.__defaults__ = (1,)
    digests.add(digest_of_predicate(user.long))
    assert len(digests) == len(held) + 7


@pytest.mark.parametrize("name", ["edited", "by_closure", "without a source"])
def test_what_cannot_be_recognised_is_asked_again_by_each_start(
    imported, urls, cache, name, monkeypatch, caplog
):
    caplog.set_level("INFO")
    user = imported(is_old=name != "edited")
    predicate = getattr(user, name, user.long)
    if name == "without a source":
        for attribute in ("__file__", "__loader__", "__spec__"):
            monkeypatch.setattr(user, attribute, None)
    assert numbers_left(applied(urls, cache, keep=predicate)) == list(range(5, 30))
    assert "holds for this process alone" in caplog.text
    before = digest_of_predicate(predicate)
    assert digest_of_predicate(predicate) == before
    monkeypatch.setattr(applying, "_STARTED", applying._STARTED + 1)  # as in another process
    if name != "edited":  # its file was written before that process
        assert digest_of_predicate(predicate) != before
