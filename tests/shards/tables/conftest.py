"""A shard, and a store of tables that can be told not to scan it again."""

import pytest

from lightning_shards.shards import tables
from lightning_shards.shards.private_files import CacheFolder
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


@pytest.fixture
def forbid_scans(monkeypatch):
    def forbid():
        monkeypatch.setattr(tables, "scan_members", lambda url, **_: pytest.fail(f"scanned {url}"))

    return forbid
