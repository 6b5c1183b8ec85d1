"""Tables are made once, and anew when their shard changes, whatever becomes of it."""

import os
import pickle
from pathlib import Path

import pytest

from lightning_shards.errors import DamagedShardError, FileAccessError, IndexMismatchError
from lightning_shards.shards import table_bytes, tables
from lightning_shards.shards.members import scan_members
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.tables import TableStore, build_tables
from tests.shards.tables.conftest import ARCHIVE


def test_a_second_use_scans_nothing(path, store, cache, forbid_scans):
    first = store.table_of(path, expected_samples=3)
    assert store.has_current(path)
    forbid_scans()
    assert TableStore(cache).table_of(path, expected_samples=3).has_same_members(first)


def test_sidecars_lie_in_a_folder_per_folder_of_shards(path, cache, tmp_path, monkeypatch):
    sidecar = cache.sidecar_of(path)
    assert sidecar.name == "0.tar.members"
    assert sidecar.parents[1] == tmp_path / "cache" / "members"
    assert len(sidecar.parent.name) == 24
    assert cache.sidecar_of(tmp_path / "val" / "0.tar").parent != sidecar.parent
    monkeypatch.chdir(tmp_path)
    assert cache.sidecar_of("0.tar") == cache.sidecar_of("./0.tar") == sidecar
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    default = CacheFolder().sidecar_of(path)
    assert default.parents[1] == tmp_path / "home/.cache/lightning_shards/members"


def test_a_shard_that_was_only_touched_is_listed_again_quietly(path, store, caplog, forbid_scans):
    store.table_of(path)
    os.utime(path, ns=(5, 5))
    assert not store.has_current(path)
    assert store.table_of(path, expected_samples=3).mtime_ns == 5
    assert caplog.records == []
    forbid_scans()
    assert store.table_of(path).mtime_ns == 5


def test_a_touched_shard_keeps_its_checksums(path, cache, store, caplog):
    TableStore(cache, with_crc32=True).table_of(path)
    os.utime(path, ns=(5, 5))
    assert store.table_of(path).crc32 is not None
    assert caplog.records == []


@pytest.mark.parametrize("same_time", [False, True], ids=["same size", "same time"])
def test_a_shard_written_again_is_listed_again_and_said(path, store, write_tar, caplog, same_time):
    before = store.table_of(path)
    write_tar(path, [("7.cls", bytes(20_000 if same_time else 1)), ("8.cls", b""), ("9.cls", b"")])
    os.utime(path, ns=(before.mtime_ns, before.mtime_ns) if same_time else (5, 5))
    assert store.table_of(path, expected_samples=3).key(0) == "7"
    (record,) = caplog.records
    assert "0.tar changed since its members were listed: it held 3 samples" in record.getMessage()


def test_a_shard_with_another_number_of_samples_is_refused(path, store, write_tar):
    store.table_of(path, expected_samples=3)
    write_tar(path, ARCHIVE[:1])
    message = r"0\.tar changed since it was indexed: it holds 1 samples, 3 by the index; put"
    for _ in range(2):  # by the scan, and by the sidecar
        with pytest.raises(IndexMismatchError, match=message):
            store.table_of(path, expected_samples=3)
    assert store.table_of(path).num_samples == 1


def test_a_store_with_checksums_replaces_a_table_without(path, store, cache, caplog):
    assert store.table_of(path).crc32 is None
    careful = TableStore(cache, with_crc32=True)
    assert not careful.has_current(path)
    assert careful.table_of(path).crc32 is not None
    assert store.table_of(path).crc32 is not None
    assert caplog.records == []


def test_a_cache_that_cannot_be_written_is_one_warning(
    write_shards, tmp_path, caplog, forbid_scans
):
    (tmp_path / "file").touch()
    store = TableStore(CacheFolder(tmp_path / "file" / "x"))
    first, second = write_shards([3, 4])
    assert store.table_of(first).num_samples == 3
    assert store.table_of(second).num_samples == 4
    records = [record for record in caplog.records if "stay in memory" in record.getMessage()]
    assert len(records) == 1
    forbid_scans()
    assert pickle.loads(pickle.dumps(store)).table_of(first).num_samples == 3


def test_tables_in_memory_are_bounded_and_those_used_last_stay(
    write_shards, tmp_path, monkeypatch, forbid_scans
):
    (tmp_path / "file").touch()
    store = TableStore(CacheFolder(tmp_path / "file" / "x"))
    first, second, third = write_shards([3, 3, 3])
    size = store.table_of(first).nbytes
    monkeypatch.setattr(table_bytes, "_MOST_UNWRITTEN", 2 * size)
    for shard in (second, first, third):
        store.table_of(shard)
    assert store.has_current(first)
    assert store.has_current(third)
    assert not store.has_current(second)
    store = pickle.loads(pickle.dumps(store))
    store.table_of(second)
    assert not store.has_current(first)
    forbid_scans()
    store.table_of(third)


def test_a_user_without_a_home_is_asked_for_a_cache(path, monkeypatch):
    def no_home(_):
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "expanduser", no_home)
    with pytest.raises(FileAccessError, match=r"no cache in ~/\S+: .* Name another cache_dir"):
        TableStore(CacheFolder()).table_of(path)


# --- many shards


def test_tables_are_built_once_for_each_shard(write_shards, store, monkeypatch, capsys):
    urls = write_shards([3, 4, 5])
    scanned = []

    def scan(url, **options):
        scanned.append(url)
        return scan_members(url, **options)

    monkeypatch.setattr(tables, "scan_members", scan)
    build_tables(urls[:1], store)
    assert capsys.readouterr().err == ""  # not a terminal
    build_tables([*urls, *urls], store, show_progress=True)
    assert scanned == urls
    error = capsys.readouterr().err
    *_, last = error.split("\r")
    assert last.startswith("listed shards in /")
    assert last.endswith("\n")
    build_tables(urls, store, show_progress=True)
    assert capsys.readouterr().err == ""


# --- checksums


@pytest.fixture
def checked(path, cache):
    """The shard once its checksums are known, and the place of its member `0.jpg`."""
    table = TableStore(cache, with_crc32=True).table_of(path)
    return table.find(0, "jpg")[0]


def _rot(path, byte):
    data = bytearray(path.read_bytes())
    data[byte] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(5, 5))


def test_a_rotten_byte_with_a_new_time_is_an_error_until_it_is_indexed_anew(
    path, store, checked, cache
):
    _rot(path, checked + 9)
    message = rf"in 1 of 4 members, first at byte {checked}; fetch it again, or.*index"
    for _ in range(2):  # the checksums stay what they were
        with pytest.raises(DamagedShardError, match=message):
            store.table_of(path)
    TableStore(cache, with_crc32=True).table_of(path)
    assert store.table_of(path).mtime_ns == 5


def test_a_shard_with_other_members_gets_checksums_of_its_own(path, store, checked, write_tar):
    assert checked
    write_tar(path, [("7.cls", b"1"), ("8.cls", b"2")])
    os.utime(path, ns=(5, 5))
    table = store.table_of(path)
    assert table.has_same_members(scan_members(path, with_crc32=True))
    assert table.crc32 is not None


def test_without_checksums_other_bytes_of_the_same_members_pass(path, store):
    place = store.table_of(path).find(0, "jpg")[0]
    _rot(path, place)
    assert store.table_of(path).mtime_ns == 5
