"""What `shards` guarantees, in the names of its tests.

Shards are counted once, their identity is names and counts, and what others may have written is not
believed. `tar/` holds that no damage goes unnoticed, and `test_urls` that no secret is shown.
"""

import os
import pickle

import numpy as np
import pytest

from lightning_shards.errors import FileAccessError
from lightning_shards.shards.index import ShardIndex

# --- the value


def test_counts_belong_to_the_index():
    mine = np.array([1, 2])
    shards = ShardIndex(("a", "b"), mine)
    mine[0] = 9
    assert shards.counts.tolist() == [1, 2]
    with pytest.raises(ValueError, match="read-only"):
        shards.counts[0] = 9


def test_equal_indexes_are_equal():
    shards = ShardIndex(("a", "b"), np.array([1, 2]))
    assert shards == pickle.loads(pickle.dumps(shards))
    assert hash(shards) == hash(ShardIndex(("a", "b"), np.array([1, 2])))
    assert shards != ShardIndex(("a", "b"), np.array([1, 3]))
    assert shards != ShardIndex(("a", "c"), np.array([1, 2]))
    assert shards != ShardIndex(("a", "b"), None)
    assert ShardIndex(("a",), None) == ShardIndex(("a",), None)
    assert shards != "a"


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


def test_folders_with_equal_names_do_not_mix(write_shards, load, tmp_path):
    urls = write_shards([3], tmp_path / "train") + write_shards([4], tmp_path / "val")
    for _ in range(2):
        assert load(urls).counts.tolist() == [3, 4]


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
    message = rf"{path} belongs to another user \(uid 12345\), .* \(chown.* another cache_dir"
    with pytest.raises(FileAccessError, match=message):
        load(write_shards([3]))


def test_link_in_the_place_of_the_file_is_refused(write_shards, load, tmp_path):
    urls = write_shards([3])
    load(urls)
    (cached,) = (tmp_path / "cache").glob("members/*/*")
    cached.rename(tmp_path / "elsewhere.json")
    cached.symlink_to(tmp_path / "elsewhere.json")
    with pytest.raises(
        FileAccessError, match=r"000\.tar\.members cannot be .* in the place of the link"
    ):
        load(urls)
