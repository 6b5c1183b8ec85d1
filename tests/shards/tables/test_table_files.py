"""Files of member tables: their forms, where they lie, and who may write them."""

import itertools
import logging
import os
import re
import sys
import tracemalloc
import zlib
from hashlib import sha256
from pathlib import Path

import pytest

from lightning_shards.shards import table_bytes, tables
from lightning_shards.shards.members import ARRAY_FIELDS, scan_members
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.table_bytes import packed, published, unpublished
from lightning_shards.shards.tables import TableStore
from tests.shards.tables.conftest import ARCHIVE


def open_table(path):
    return tables.open_table(path, CacheFolder(path.parent))


def write_table(path, table):
    tables.write_table(path, table, CacheFolder(path.parent))


@pytest.mark.parametrize("with_crc32", [False, True])
@pytest.mark.parametrize("archive", [ARCHIVE, ARCHIVE[:1], []], ids=["three", "one", "none"])
def test_a_table_comes_back_as_it_was(tmp_path, write_tar, archive, with_crc32):
    table = scan_members(write_tar(tmp_path / "0.tar", archive), with_crc32=with_crc32)
    write_table(tmp_path / "x.members", table)
    opened = open_table(tmp_path / "x.members")
    assert opened.has_same_members(table)
    assert opened.stamp == table.stamp
    assert (opened.crc32 is None) == (not with_crc32)
    for sample, suffix in itertools.product(range(table.num_samples), ["cls", "jpg", "png"]):
        assert opened.find(sample, suffix) == table.find(sample, suffix)
        assert opened.key(sample) == table.key(sample)


def test_an_opened_table_is_mapped_aligned_and_read_only(tmp_path, path):
    write_table(tmp_path / "x.members", scan_members(path, with_crc32=True))
    opened = open_table(tmp_path / "x.members")
    for name in ARRAY_FIELDS:
        values = getattr(opened, name)
        assert not values.flags.owndata
        assert not values.flags.writeable
        assert values.flags.aligned


@pytest.mark.skipif(sys.platform != "linux", reason="the system does not tell")
def test_the_pages_of_an_opened_table_can_be_let_go(tmp_path, path):
    def resident_kib():
        mappings = Path("/proc/self/smaps").read_text().partition("x.members\n")[2]
        return int(re.search(r"Rss: +(\d+) kB", mappings)[1])

    write_table(tmp_path / "x.members", scan_members(path, with_crc32=True))
    opened = open_table(tmp_path / "x.members")
    assert resident_kib() == 0
    opened.key(0)
    assert resident_kib() > 0
    tables.release_pages(opened)
    assert resident_kib() == 0
    assert opened.key(0) == "0"


def test_the_format_stays_what_it_is(tmp_path, path):
    os.utime(path, ns=(1, 1))
    write_table(tmp_path / "x.members", scan_members(path, with_crc32=True))
    digest = sha256((tmp_path / "x.members").read_bytes()).hexdigest()
    assert digest[:16] == "db5bcb2fc94f38ba"  # a change needs another _VERSION


@pytest.fixture
def sidecar(path, cache):
    """The sidecar of the shard at `path`, with checksums."""
    TableStore(cache, with_crc32=True).table_of(path)
    return cache.sidecar_of(path)


def test_every_flipped_bit_is_detected(sidecar, caplog):
    caplog.set_level(logging.ERROR)
    data = sidecar.read_bytes()
    with sidecar.open("r+b", buffering=0) as file:
        for position, bit in itertools.product(range(len(data)), range(8)):
            os.pwrite(file.fileno(), bytes([data[position] ^ 1 << bit]), position)
            assert open_table(sidecar) is None
            os.pwrite(file.fileno(), data[position : position + 1], position)
    assert open_table(sidecar) is not None


@pytest.mark.parametrize("kept", [0, 23, 200, -1])
def test_a_damaged_sidecar_is_made_anew(sidecar, store, path, caplog, kept, forbid_scans):
    sidecar.write_bytes(sidecar.read_bytes()[:kept])
    assert store.table_of(path).find(0, "jpg")[:2] == (1536, 700)
    assert "is made again" in caplog.text
    forbid_scans()
    assert store.table_of(path).num_samples == 3


# --- the writers


def test_a_table_is_unpacked_up_to_a_limit_whatever_size_its_shard_is_said_to_have(
    path, monkeypatch
):
    """A server that sends a bomb says what size it likes."""
    table = scan_members(path)
    most = len(packed(table))
    monkeypatch.setattr(table_bytes, "MAX_UNPACKED_BYTES", most)
    assert unpublished(published(table)).has_same_members(table)
    bomb = zlib.compress(packed(table) + bytes(100 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=rf"longer than .* \({most:,} bytes unpacked"):
            unpublished(bomb)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
