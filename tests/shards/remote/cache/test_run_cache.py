"""The cache of a run, as it is set up: its need, its limit, and where there is no room."""

from types import SimpleNamespace

import pytest

from lightning_shards.errors import ConfigError, FileAccessError
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.remote.cache import piece_cache
from lightning_shards.shards.remote.cache.limits import GIB
from lightning_shards.shards.remote.cache.piece_cache import RunSize, cache_of_run

SIZE = RunSize("print", 100 * GIB, tables_bytes=GIB, working_set_bytes=2 * GIB)


def made(folder, **others):
    return cache_of_run(CacheFolder(folder), "run", SIZE, **others)


def disk_with(free_gib):
    return lambda _: SimpleNamespace(f_bavail=int(free_gib * GIB), f_frsize=1)


def test_a_cache_knows_what_the_run_needs(tmp_path):
    cache = made(tmp_path / "cache", cache_gib=5)
    _, path, run, need = cache.__reduce__()[1]
    assert (path, run) == (tmp_path / "cache" / "pieces", "run")
    assert (need.data, need.limit_bytes, need.reads_bytes) == ("print", 5 * GIB, 100 * GIB)
    assert (need.working_set_bytes, need.tables_bytes, need.left_free_bytes) == (2 * GIB, GIB, 0)


def test_by_default_the_disk_decides(tmp_path, monkeypatch):
    monkeypatch.setattr(piece_cache.os, "statvfs", disk_with(400))
    need = made(tmp_path / "new" / "cache").__reduce__()[1][3]
    assert (need.limit_bytes, need.left_free_bytes) == (300 * GIB, 50 * GIB)


def test_a_limit_that_is_too_low_is_refused_if_it_was_given(tmp_path, monkeypatch, caplog):
    with pytest.raises(ConfigError, match=r"cache_gib=2.9 is too little.* have 2 GiB"):
        made(tmp_path, cache_gib=2.9)
    monkeypatch.setattr(piece_cache.os, "statvfs", disk_with(52))
    assert made(tmp_path) is None
    assert "has 2 GiB for it" in caplog.text
    assert "tables 1 GiB" in caplog.text


def test_a_folder_that_others_may_write_is_refused(tmp_path):
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o777)
    with pytest.raises(FileAccessError, match="may be written by other users"):
        made(tmp_path / "cache", cache_gib=5)
