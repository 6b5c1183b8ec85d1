"""Tables are made once, and anew when their shard changes, whatever becomes of it."""

import itertools
import os
from hashlib import sha256

import pytest

from lightning_shards.errors import DamagedShardError, IndexMismatchError
from lightning_shards.shards.files import CacheFolder
from lightning_shards.shards.members import ShardReader, packed, scan_members, unpacked
from lightning_shards.shards.tables import TableStore

ARCHIVE = [("0.cls", b"1"), ("0.jpg", b"x" * 700), ("1.cls", b""), ("\udcff.jpg", b"z" * 512)]


@pytest.fixture
def path(tmp_path, write_tar):
    return write_tar(tmp_path / "0.tar", ARCHIVE)


@pytest.fixture
def cache(tmp_path):
    return CacheFolder(tmp_path / "cache")


@pytest.fixture
def store(cache):
    return TableStore(cache)


@pytest.mark.parametrize("same_time", [False, True], ids=["same size", "same time"])
def test_a_shard_written_again_is_listed_again_and_said(path, store, write_tar, caplog, same_time):
    before = store.table_of(path)
    write_tar(path, [("7.cls", bytes(20_000 if same_time else 1)), ("8.cls", b""), ("9.cls", b"")])
    os.utime(path, ns=(before.mtime_ns, before.mtime_ns) if same_time else (5, 5))
    assert store.table_of(path, expected_samples=3).key(0) == "7"
    (message,) = caplog.messages
    assert "0.tar changed since its members were listed: it held 3 samples" in message


def test_a_shard_with_another_number_of_samples_is_refused(path, store, write_tar):
    store.table_of(path, expected_samples=3)
    write_tar(path, ARCHIVE[:1])
    message = r"0\.tar changed since it was indexed: it holds 1 samples, 3 by the index; put"
    for _ in range(2):  # by the scan, and by the sidecar
        with pytest.raises(IndexMismatchError, match=message):
            store.table_of(path, expected_samples=3)
    assert store.table_of(path).num_samples == 1


def test_checksums_replace_a_table_without_and_stay_where_a_shard_is_touched(
    path, store, cache, caplog
):
    assert store.table_of(path).crc32 is None
    assert TableStore(cache, with_crc32=True).table_of(path).crc32 is not None
    for time in (None, (5, 5)):
        os.utime(path, ns=time) if time else None
        assert store.table_of(path).crc32 is not None
    assert caplog.records == []


def test_a_cache_that_cannot_be_written_is_one_warning(write_shards, tmp_path, caplog):
    (tmp_path / "file").touch()
    store = TableStore(CacheFolder(tmp_path / "file" / "x"))
    assert [store.table_of(shard).num_samples for shard in write_shards([3, 4])] == [3, 4]
    (message,) = caplog.messages
    assert "are made again each time they are needed" in message


# --- checksums


def test_a_rotten_byte_with_a_new_time_is_an_error_until_it_is_indexed_anew(path, store, cache):
    table = TableStore(cache, with_crc32=True).table_of(path)
    data = bytearray(path.read_bytes())
    data[table.find(0, "jpg")[0] + 9] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(5, 5))
    with (
        ShardReader(path, store.table_of(path)) as shard,
        pytest.raises(DamagedShardError, match=r"its crc32 is .* `lightning-shards index"),
    ):
        shard.read(0, "jpg")
    TableStore(cache, with_crc32=True).table_of(path)
    with ShardReader(path, store.table_of(path)) as shard:
        assert shard.read(0, "jpg") != b"x" * 700


# --- files of tables


@pytest.mark.parametrize("with_crc32", [False, True])
@pytest.mark.parametrize("archive", [ARCHIVE, []], ids=["three", "none"])
def test_a_table_comes_back_as_it_was(tmp_path, write_tar, archive, with_crc32):
    table = scan_members(write_tar(tmp_path / "0.tar", archive), with_crc32=with_crc32)
    opened = unpacked(bytes(packed(table)))
    assert opened.has_same_members(table)
    assert opened.stamp == table.stamp
    assert (opened.crc32 is None) == (not with_crc32)
    for sample, suffix in itertools.product(range(table.num_samples), ["cls", "jpg", "png"]):
        assert opened.find(sample, suffix) == table.find(sample, suffix)
        assert opened.key(sample) == table.key(sample)


def test_the_format_stays_what_it_is(path):
    os.utime(path, ns=(1, 1))
    digest = sha256(packed(scan_members(path, with_crc32=True))).hexdigest()
    assert digest[:16] == "db5bcb2fc94f38ba"  # a change needs another _VERSION


def test_every_flipped_bit_is_detected(path):
    data = packed(scan_members(path, with_crc32=True))
    for position, bit in itertools.product(range(len(data)), range(8)):
        data[position] ^= 1 << bit
        with pytest.raises(ValueError, match="it is"):
            unpacked(bytes(data))
        data[position] ^= 1 << bit


@pytest.mark.parametrize("size", [0, 200])
def test_a_damaged_sidecar_is_made_anew(path, store, cache, caplog, size, forbid_scans):
    store.table_of(path)
    sidecar = cache.sidecar_of(path)
    sidecar.write_bytes(sidecar.read_bytes()[:size])
    assert store.table_of(path).find(0, "jpg")[:2] == (1536, 700)
    assert "is made again" in caplog.text
    forbid_scans()
    assert store.table_of(path).num_samples == 3
