"""The cache of counts says what is true of the shards, or nothing."""

import json
import os
import stat
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lightning_shards.errors import FileAccessError
from lightning_shards.shards import counts, index
from lightning_shards.shards.private_files import CacheFolder


def cache_file(tmp_path):
    (path,) = (tmp_path / "cache").iterdir()
    return path


def forge(path, text):
    """Put JSON into the cache, under a right checksum."""
    rest = text[1:].encode("utf-8", "surrogateescape")
    path.write_bytes(b'{"crc32": %d, ' % crc32(rest) + rest)


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


@pytest.mark.parametrize(
    "content",
    [
        '{"version": 1, "folder": "FOLDER", "counts": {"000.tar": [SIZE, TIME, 7]}}',
        '{"version": 2, "folder": "/elsewhere", "counts": {"000.tar": [SIZE, TIME, 7]}}',
    ],
)
def test_cache_that_makes_no_sense_is_scanned_again(write_shards, load, tmp_path, content):
    (url,) = write_shards([3])
    load([url])
    cached = cache_file(tmp_path)
    size, time = Path(url).stat().st_size, Path(url).stat().st_mtime_ns
    for name, value in (("SIZE", size), ("TIME", time), ("FOLDER", tmp_path)):
        content = content.replace(name, str(value))
    forge(cached, content)
    assert load([url]).samples == 3
    assert json.loads(cached.read_text())["counts"] == {"000.tar": [size, time, 3]}


@pytest.mark.parametrize("content", ["", "\udcff", "[" * 100_000])
def test_cache_that_is_no_json_of_ours_is_told_and_scanned_again(
    write_shards, load, tmp_path, caplog, content
):
    (url,) = write_shards([3])
    load([url])
    cache_file(tmp_path).write_bytes(content.encode("utf-8", "surrogateescape"))
    assert load([url]).samples == 3
    assert "are made again" in caplog.text


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 10**6), st.integers(1, 255), st.booleans())
@pytest.mark.slow
def test_damaged_byte_never_gives_a_wrong_count(
    write_shards, load, tmp_path, caplog, place, change, is_cut
):
    folder = tmp_path / "shards"
    urls = write_shards([3, 4], folder) if not folder.exists() else sorted(folder.glob("*.tar"))
    urls = list(map(str, urls))
    assert load(urls).counts.tolist() == [3, 4]
    data = bytearray(cache_file(tmp_path).read_bytes())
    place %= len(data)
    data[place] ^= change
    cache_file(tmp_path).write_bytes(data[:place] if is_cut else data)
    caplog.clear()
    assert load(urls).counts.tolist() == [3, 4]
    assert "are made again" in caplog.text


# --- whose it is


def test_cache_folders_are_private_all_the_way(write_shards, tmp_path):
    cache = tmp_path / "home" / "x" / "cache"
    index.load_index(write_shards([3]), cache=CacheFolder(cache))
    folders = [cache, *cache.parents[:2]]
    assert [stat.S_IMODE(folder.stat().st_mode) for folder in folders] == [0o700] * 3
    (cached,) = cache.iterdir()
    assert stat.S_IMODE(cached.stat().st_mode) == 0o600


def test_folder_that_the_user_linked_elsewhere_is_taken(write_shards, load, tmp_path, forbid_scans):
    (tmp_path / "scratch").mkdir()
    (tmp_path / "cache").symlink_to("scratch")
    urls = write_shards([3])
    load(urls)
    forbid_scans()
    assert load(urls).samples == 3


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
