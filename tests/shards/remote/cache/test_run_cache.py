"""The cache of a run, as it is set up: its need, its limit, and where there is no room."""

import os
import tempfile
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from cached_bytes import load, make_cache, make_need, piece_number

from lightning_shards.errors import ConfigError, FileAccessError
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.remote.cache import run_cache
from lightning_shards.shards.remote.cache.limits import GIB
from lightning_shards.shards.remote.cache.run_cache import RunSize, cache_of_run

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
    monkeypatch.setattr(run_cache.os, "statvfs", disk_with(400))
    need = made(tmp_path / "new" / "cache").__reduce__()[1][3]
    assert (need.limit_bytes, need.left_free_bytes) == (300 * GIB, 50 * GIB)


def test_a_limit_that_is_too_low_is_refused_if_it_was_given(tmp_path, monkeypatch, caplog):
    with pytest.raises(ConfigError, match=r"cache_gib=2.9 is too little.* have 2 GiB"):
        made(tmp_path, cache_gib=2.9)
    monkeypatch.setattr(run_cache.os, "statvfs", disk_with(52))
    assert made(tmp_path) is None
    assert "has 2 GiB for it" in caplog.text
    assert "tables 1 GiB" in caplog.text


def test_a_limit_that_is_too_low_beside_open_runs_is_refused_if_it_was_given(
    tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr(run_cache, "_ENDING_S", 0.2)
    works = {"working_set_bytes": 3 * GIB, "limit_bytes": 5 * GIB}
    other = make_cache(tmp_path, make_need(1, **works), "other")
    other.open(piece_number(0))
    with pytest.raises(
        ConfigError, match=r"cache_gib=5 is too little .* work on 3 GiB and this .* 2"
    ):
        made(tmp_path, cache_gib=5)
    assert made(tmp_path, cache_gib=6) is not None
    monkeypatch.setattr(run_cache.os, "statvfs", disk_with(54))
    assert made(tmp_path) is None
    assert "nothing is kept of remote shards in" in caplog.text
    other.close()
    assert made(tmp_path, cache_gib=5) is not None
    assert made(tmp_path) is not None


def test_the_workers_of_a_killed_run_are_waited_for(tmp_path):
    works = {"working_set_bytes": 3 * GIB, "limit_bytes": 5 * GIB}
    killed = make_cache(tmp_path, make_need(1, **works), "killed")
    killed.open(piece_number(0))
    ending = threading.Timer(0.3, killed.close)
    ending.start()
    assert made(tmp_path, cache_gib=5) is not None
    ending.join()


def test_runs_that_go_on_are_waited_for_once(tmp_path, monkeypatch):
    """Each loader of a run asks again, in each epoch if loaders are made anew."""
    waits = []
    clock = SimpleNamespace(monotonic=lambda: sum(waits), sleep=waits.append, time_ns=time.time_ns)
    monkeypatch.setattr(run_cache, "time", clock)
    other = make_cache(tmp_path, make_need(1, working_set_bytes=9 * GIB), "other")
    other.open(piece_number(0))
    for _ in range(3):
        with pytest.raises(ConfigError, match="open runs work on"):
            made(tmp_path, cache_gib=5)
    assert sum(waits) == pytest.approx(run_cache._ENDING_S, abs=run_cache._LOOK_S)
    other.close()


def test_a_run_is_not_held_against_itself(tmp_path):
    first = made(tmp_path, cache_gib=3)
    first.open(piece_number(0))
    assert made(tmp_path, cache_gib=3) is not None
    first.close()


def test_a_folder_that_others_may_write_is_refused(tmp_path):
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o777)
    with pytest.raises(FileAccessError, match="may be written by other users"):
        made(tmp_path / "cache", cache_gib=5)


def test_what_a_killed_run_left_in_memory_is_removed_unless_it_is_used():
    with tempfile.TemporaryDirectory(dir="/dev/shm") as above:
        folder = Path(above) / "cache"
        other = make_cache(folder, make_need(10), "other")
        load(other, piece_number(1))
        made(folder, cache_gib=5)
        assert list(folder.glob("pieces/*/1000-2000"))
        os.close(other._here()._held[0])  # as if it were killed
        os.close(other._here()._held[1])
        other._here()._held = None
        made(folder, cache_gib=5)
        assert not list(folder.glob("pieces/*"))
