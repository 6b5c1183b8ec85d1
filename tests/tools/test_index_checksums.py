"""Checksums in an index that is made again, with and without reading every byte."""

import json
import os
import tarfile

import pytest

from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.tables import TableStore
from lightning_shards.tools import index
from tests.tools.conftest import write_samples

COUNTS = [4, 0, 3]


@pytest.fixture
def run(run_here):
    return run_here(index.main)


@pytest.fixture
def folder(tmp_path):
    return write_samples(tmp_path / "data", COUNTS)


def _md5s(folder):
    listed = json.loads((folder / "wids.json").read_text())["shardlist"]
    return [entry.get("md5sum") for entry in listed]


def _rot(path):
    with tarfile.open(path) as archive:
        place = archive.getmembers()[1].offset_data
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


def test_an_index_without_checksums_does_not_replace_them(run, folder, tmp_path):
    shard = folder / "train-000000.tar"
    run(folder / "*.tar", "--checksums")
    before = (folder / "wids.json").read_bytes()
    _rot(shard)
    status, document = run(folder / "*.tar")
    assert status == 1
    assert "run `lightning-shards index --checksums` on it" in document["findings"][0]["message"]
    assert (folder / "wids.json").read_bytes() == before
    assert run(folder / "*.tar", "--checksums")[0] == 0
    assert TableStore(CacheFolder(tmp_path / "cache")).table_of(shard).crc32 is not None


# --- other bytes where nothing says that the shard was written again


def _rot_unseen(path, place):
    """As a disk does: neither size nor time of change tell."""
    time = path.stat().st_mtime_ns
    data = bytearray(path.read_bytes())
    data[_places(path)[place]] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(time, time))


def _places(path):
    """A byte of the data of a member, and one behind it."""
    with tarfile.open(path) as archive:
        member = archive.getmembers()[1]
    return {"member": member.offset_data, "padding": member.offset_data + member.size}


def test_crc32s_alone_show_a_rotten_member(run, folder, tmp_path):
    """There is no MD5 that would: only tables were made."""
    shard = folder / "train-000000.tar"
    run(folder / "*.tar", "--checksums", "--format", "sizes")
    _rot_unseen(shard, "member")
    status, document = run(folder / "*.tar", "--format", "members")
    assert status == 1
    assert (
        "has other bytes than when it was indexed in 1 of 12 members"
        in (document["findings"][0]["message"])
    )
    assert not (folder / "train-000000.tar.members").exists()
