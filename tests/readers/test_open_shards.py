"""Few open files: fewer shards are kept open, and where not one can be, one clear error."""

import os
import resource
from contextlib import contextmanager, suppress

import pytest

from lightning_shards.errors import FileAccessError
from lightning_shards.readers.open_shards import OpenShards
from lightning_shards.shards.counts import load_index
from lightning_shards.shards.files import CacheFolder
from lightning_shards.shards.storage.protocol import ShardReads
from lightning_shards.shards.tables import TableStore, build_tables

SHARDS = 30


@contextmanager
def files_left(number):
    """So many file descriptors can be opened inside, and no more may be asked for."""
    plain, limits = os.open, resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = []
    lowest = plain(os.devnull, os.O_RDONLY)
    os.close(lowest)
    with suppress(OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + 200, limits[1]))
        while True:
            taken.append(plain(os.devnull, os.O_RDONLY))
    for file in taken[:number]:
        os.close(file)
    try:
        yield
    finally:
        for file in taken[number:]:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.fixture
def shards(pack_shards, tmp_path, monkeypatch):
    index = load_index(pack_shards([1] * SHARDS), cache=CacheFolder(tmp_path / "cache"))
    build_tables(index.urls, TableStore(CacheFolder(tmp_path / "cache")))
    monkeypatch.setattr("lightning_shards.readers.open_shards.allow_open_files", lambda _: None)
    return lambda: OpenShards(index, CacheFolder(tmp_path / "cache"))


@pytest.mark.parametrize("number", [4, 9, 40])
def test_ranges_of_more_shards_than_can_be_open_are_read(shards, number, caplog):
    with files_left(number), shards() as opened:
        reads = [
            (shard, ShardReads(opened.urls[shard], [0], [2], None, memoryview(bytearray(2))))
            for shard in range(SHARDS)
        ]
        assert opened.read_ranges(reads) == [2] * SHARDS
    assert all(bytes(each.into) != bytes(2) for _, each in reads)  # they begin with a name
    assert not caplog.records


def test_no_file_descriptor_at_all_is_one_clear_error(shards, caplog):
    with files_left(1), shards() as opened, pytest.raises(FileAccessError) as caught:
        opened.reader(0)
    assert "ulimit -n" in str(caught.value)
    assert not caplog.records
