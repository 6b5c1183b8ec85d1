"""A cache on a disk, or under a quota, that is full before its limit."""

import errno
import os
from types import SimpleNamespace

import pytest
from cached_bytes import FILE, bytes_of, disk_bytes, load, make_cache, make_need, piece_number

from lightning_shards.shards.remote.cache import piece_cache


def full_disk(monkeypatch, folder, room, error=errno.ENOSPC):
    """A disk with room for so many bytes of pieces; the list gets an entry when it is full."""
    refused = []

    def write_piece(file, data):
        if disk_bytes(folder) > room:
            refused.append(len(data))
            raise OSError(error, os.strerror(error))
        written(file, data)

    written = piece_cache.write_piece
    monkeypatch.setattr(piece_cache, "write_piece", write_piece)
    return refused


@pytest.mark.parametrize("error", [errno.EDQUOT, errno.ENOSPC])
def test_a_quota_that_no_file_system_tells_becomes_the_limit(error, folder, monkeypatch, caplog):
    """What fits stays, of which a fixed part is for the next epoch, and it is said once."""
    refused = full_disk(monkeypatch, folder, 20 * FILE, error)
    cache = make_cache(folder, make_need(1000, reads_bytes=40 * FILE))
    for _ in range(3):
        opened = cache.counts.opened
        for number in range(40):
            assert load(cache, piece_number(number)) == bytes_of(piece_number(number))
            assert number < 20 or disk_bytes(folder) >= 18 * FILE
    assert cache.counts.opened - opened >= 10
    assert cache.counts.bypassed == 0
    assert len(refused) == 1
    (record,) = caplog.records
    assert os.strerror(error) in record.getMessage()
    assert "set loader.cache_gib to less" in record.getMessage()
    cache.close()


def test_a_network_file_system_is_asked_whether_a_quota_is_full(folder, monkeypatch):
    """It takes what is written, and says only afterwards that it cannot keep it."""

    def sync(file):
        if disk_bytes(folder) > 20 * FILE:
            raise OSError(errno.EDQUOT, "Disk quota exceeded")

    monkeypatch.setattr(
        piece_cache, "is_shared_by_machines", lambda path: path == folder / "pieces"
    )
    monkeypatch.setattr(os, "fsync", sync)
    cache = make_cache(folder, make_need(1000))
    for number in range(30):
        assert load(cache, piece_number(number)) == bytes_of(piece_number(number))
    assert 18 * FILE <= disk_bytes(folder) <= 20 * FILE
    assert cache.counts.bypassed == 0
    cache.close()


def test_a_quota_of_files_evicts(folder, monkeypatch):
    """It refuses the file itself, not what is written to it."""

    def make(path, *others):
        if "/parts/" in str(path) and disk_bytes(folder) >= 20 * FILE:
            raise OSError(errno.EDQUOT, "Disk quota exceeded")
        return opened(path, *others)

    opened = os.open
    cache = make_cache(folder, make_need(1000))
    monkeypatch.setattr(os, "open", make)
    for number in range(60):
        assert load(cache, piece_number(number)) == bytes_of(piece_number(number))
    assert cache.counts.bypassed == 0
    assert disk_bytes(folder) >= 18 * FILE
    cache.close()


def test_what_must_be_left_free_is_made_free_of_what_is_used(folder, monkeypatch):
    """A 32nd of a limit that is far above would be all pieces."""
    cache = make_cache(folder, make_need(1000, left_free_bytes=100 * FILE))

    def statvfs(path):
        return SimpleNamespace(f_bavail=120 * FILE - disk_bytes(folder), f_frsize=1)

    monkeypatch.setattr(os, "statvfs", statvfs)
    for number in range(40):
        load(cache, piece_number(number))
        assert number < 20 or disk_bytes(folder) >= 17 * FILE
    assert cache.counts.bypassed == 0
    cache.close()


def test_a_disk_without_any_room_is_one_warning(cache, folder, monkeypatch, caplog):
    full_disk(monkeypatch, folder, -1)
    for number in range(5):
        assert load(cache, piece_number(number)) == bytes_of(piece_number(number))
    assert cache.counts.bypassed == 5
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "is full before its limit: No space left on device; no more than" in caplog.text
    assert [*folder.glob("pieces/parts/*")] == []
