"""The cache of counts says what is true of the shards, or nothing."""

import os

import pytest

from lightning_shards.errors import FileAccessError
from lightning_shards.shards import counts


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
    with pytest.raises(FileAccessError, match=r"counts-\w+\.json is a link"):
        load(urls)
