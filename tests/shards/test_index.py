"""The index as a value, the scan behind it, and the cache that saves the next scan."""

import json
import logging
import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from lightning_shards.errors import (
    DamagedShardError,
    FileAccessError,
    IndexMismatchError,
    ShardNotFoundError,
)
from lightning_shards.shards import counts
from lightning_shards.shards.index import ShardIndex, load_index
from lightning_shards.shards.private_files import CacheFolder

# --- the value


def test_an_index_sums_its_counts():
    shards = ShardIndex(("a.tar", "b.tar"), np.array([3, 4]))
    assert (shards.num_shards, shards.samples) == (2, 7)
    assert shards.counts.dtype == np.int64


def test_counts_belong_to_the_index():
    mine = np.array([1, 2])
    shards = ShardIndex(("a", "b"), mine)
    mine[0] = 9
    assert shards.counts.tolist() == [1, 2]
    with pytest.raises(ValueError, match="read-only"):
        shards.counts[0] = 9


@pytest.mark.parametrize("counts", [[1], [1, -1], [[1, 1]]])
def test_counts_that_do_not_fit_the_urls_are_refused(counts):
    with pytest.raises(IndexMismatchError, match="one count, 0 or more, for each of its 2 shards"):
        ShardIndex(("a", "b"), np.array(counts))


def test_equal_indexes_are_equal():
    shards = ShardIndex(("a", "b"), np.array([1, 2]))
    assert shards == pickle.loads(pickle.dumps(shards))
    assert hash(shards) == hash(ShardIndex(("a", "b"), np.array([1, 2])))
    assert shards != ShardIndex(("a", "b"), np.array([1, 3]))
    assert shards != ShardIndex(("a", "c"), np.array([1, 2]))
    assert shards != ShardIndex(("a", "b"), None)
    assert ShardIndex(("a",), None) == ShardIndex(("a",), None)
    assert shards != "a"


@pytest.mark.parametrize("urls", [(), ("",), ("a\nb", "\udcff", "", "a\nb")])
def test_an_index_travels_as_it_is(urls):
    shards = ShardIndex(urls, np.arange(len(urls)), 7, has_tables=True)
    found = pickle.loads(pickle.dumps(shards))
    assert found.has_tables
    assert (found.urls, found.counts.tolist(), found.total) == (urls, list(range(len(urls))), 7)


def test_the_fingerprint_follows_names_counts_and_order_only():
    def fingerprint(urls, counts):
        return ShardIndex(tuple(urls), None if counts is None else np.array(counts)).fingerprint()

    here = fingerprint(["/data/a.tar", "/data/b.tar"], [1, 2])
    assert here == "af8c28ab48377d98"  # checkpoints hold it: it may not change
    assert here == fingerprint(["https://u:p@host/x/a.tar?sig=1", "b.tar"], [1, 2])
    others = [
        (["b.tar", "a.tar"], [2, 1]),
        (["a.tar", "b.tar"], [2, 1]),
        (["a.tar", "b.tar"], None),
    ]
    assert len({here, *(fingerprint(*other) for other in others)}) == 4


# --- scans and their cache


def test_a_scan_counts_shards_in_the_order_of_the_urls(write_shards, load):
    urls = write_shards([3, 0, 5])
    assert load([urls[2], urls[0], urls[1], urls[2]]).counts.tolist() == [5, 3, 0, 5]


def test_a_second_run_scans_nothing(write_shards, load, forbid_scans):
    urls = write_shards([3, 4])
    load(urls)
    forbid_scans()
    assert load(urls).counts.tolist() == [3, 4]


@pytest.mark.parametrize(("size", "time_ns"), [(0, 1), (20_000, 0)])
def test_a_shard_of_another_time_or_size_is_scanned_again(
    write_shards, write_tar, load, size, time_ns
):
    urls = write_shards([3, 4])
    os.utime(urls[0], ns=(0, 0))
    load(urls)
    before = Path(urls[0]).stat().st_size
    write_tar(urls[0], [("0.a", bytes(size)), ("1.a", b"")])
    # tarfile fills up to 10 KiB: either the time tells or the size
    assert (Path(urls[0]).stat().st_size == before) == bool(time_ns)
    os.utime(urls[0], ns=(time_ns, time_ns))
    assert load(urls).counts.tolist() == [2, 4]


def test_splits_in_one_folder_share_a_cache_file(write_shards, load, forbid_scans, tmp_path):
    urls = write_shards([3, 4])
    load(urls[:1])
    load(urls[1:])
    assert len(list((tmp_path / "cache").iterdir())) == 1
    forbid_scans()
    assert load(urls).counts.tolist() == [3, 4]


def test_folders_with_equal_names_do_not_mix(write_shards, load, tmp_path):
    urls = write_shards([3], tmp_path / "train") + write_shards([4], tmp_path / "val")
    for _ in range(2):
        assert load(urls).counts.tolist() == [3, 4]


def test_a_cache_that_cannot_be_written_is_one_warning(write_shards, tmp_path, caplog):
    (tmp_path / "file").touch()
    assert load_index(write_shards([3]), cache=CacheFolder(tmp_path / "file" / "x")).samples == 3
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "could not be kept" in record.getMessage()


def test_counts_found_before_a_damaged_shard_are_kept(write_shards, load, tmp_path):
    urls = write_shards([3, 4])
    Path(urls[1]).write_bytes(Path(urls[1]).read_bytes()[:700])
    with pytest.raises(DamagedShardError, match=r"001.tar is cut short"):
        load(urls)
    (cached,) = (tmp_path / "cache").iterdir()
    assert list(json.loads(cached.read_text())["counts"]) == ["000.tar"]


def test_a_missing_shard_comes_before_all_else(write_shards, load, forbid_scans):
    urls = write_shards([3])
    forbid_scans()
    with pytest.raises(ShardNotFoundError, match=r"1 of 2 shards missing: .*999.tar"):
        load([*urls, urls[0].replace("000.tar", "999.tar")])


# --- what the cache of counts says


def cache_file(tmp_path):
    (path,) = (tmp_path / "cache").iterdir()
    return path


# --- what is believed


def test_shard_that_changes_while_it_is_scanned_is_counted_anew(
    write_shards, write_tar, load, monkeypatch
):
    (url,) = write_shards([3])
    os.utime(url, ns=(1, 1))
    count = counts.count_samples

    def counted_too_early(path):
        samples = count(path)
        write_tar(path, [("0.a", b""), ("1.a", b"")])
        os.utime(path, ns=(2, 2))
        return samples

    with monkeypatch.context() as patched:
        patched.setattr(counts, "count_samples", counted_too_early)
        load([url])
    assert load([url]).samples == 2


@pytest.mark.parametrize("content", ["", "\udcff", "[" * 100_000])
def test_cache_that_is_no_json_of_ours_is_told_and_scanned_again(
    write_shards, load, tmp_path, caplog, content
):
    (url,) = write_shards([3])
    load([url])
    cache_file(tmp_path).write_bytes(content.encode("utf-8", "surrogateescape"))
    assert load([url]).samples == 3
    assert "are made again" in caplog.text


# --- whose it is


@pytest.mark.parametrize("mode", [0o720, 0o1777])
def test_folder_that_others_may_write_is_refused_by_name(write_shards, load, tmp_path, mode):
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(mode)
    with pytest.raises(FileAccessError, match=rf"{tmp_path}/cache may be written by other users"):
        load(write_shards([3]))
    assert not list((tmp_path / "cache").iterdir())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a folder to another user")
def test_the_folder_of_another_user_is_refused_by_name(write_shards, load, tmp_path):
    path = tmp_path / "cache"
    path.mkdir()
    os.chown(path, 12345, 12345)
    message = rf"{path} belongs to another user \(uid 12345\), .* \(chown\).* another cache_dir"
    with pytest.raises(FileAccessError, match=message):
        load(write_shards([3]))


def test_link_in_the_place_of_the_file_is_refused(write_shards, load, tmp_path):
    urls = write_shards([3])
    load(urls)
    cached = cache_file(tmp_path)
    cached.rename(tmp_path / "elsewhere.json")
    cached.symlink_to(tmp_path / "elsewhere.json")
    with pytest.raises(
        FileAccessError, match=r"counts-\w+\.json cannot be .* in the place of the link"
    ):
        load(urls)
