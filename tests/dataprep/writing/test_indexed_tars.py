"""Shards are not written from tars that differ from what an earlier index says of them."""

import os
import re

import pytest

from lightning_shards.shards.tar.tar_bytes import read_samples
from lightning_shards.tools import index, pack, reshard
from tests.dataprep.writing.conftest import SAMPLES, tars

LAST = bytes([19]) * 19


@pytest.fixture
def shard(write, tmp_path):
    """An indexed shard, whose member table is in the cache."""
    write(folder="in", max_samples=None)
    [path] = tars(tmp_path / "in")
    return path


@pytest.fixture
def run(tmp_path, capsys):
    """The exit status of a tool, and its stderr."""

    def call(tool, *options, cache="cache"):
        options = [*map(str, options), "--cache-dir", str(tmp_path / cache), "--processes", "1"]
        try:
            tool.main(options)
        except SystemExit as ended:
            return ended.code, capsys.readouterr().err
        return 0, capsys.readouterr().err

    return call


def flip_a_bit(shard):
    """Damage the last member; size and time of change stay."""
    data, status = bytearray(shard.read_bytes()), shard.stat()
    data[data.rindex(LAST)] ^= 1
    shard.write_bytes(data)
    os.utime(shard, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize("tool", [pack, reshard])
@pytest.mark.parametrize("known_by", ["its count", "its table"])
def test_a_tar_whose_last_samples_became_zeros_is_refused(shard, run, tmp_path, tool, known_by):
    data = shard.read_bytes()
    half = data.index(b"class.2/0011.")
    shard.write_bytes(data[:half] + bytes(len(data) - half))
    if known_by == "its table":
        (shard.parent / "wids.json").unlink()
        reason = "has other members than when it was indexed: 11 samples, 20 then"
    else:
        reason = r"holds 11 samples, 20 by .*wids\.json"
    status, message = run(tool, shard, "--out", tmp_path / "out")
    assert status == 2
    assert re.search(f"{reason}; fetch it again, or, if .* run `lightning-shards index", message)
    assert not tars(tmp_path / "out")


def test_a_tar_of_another_size_than_was_indexed_is_refused(shard, run, tmp_path):
    with shard.open("ab") as file:
        file.write(bytes(10240))
    status, message = run(reshard, shard, "--out", tmp_path / "out", cache="new")
    assert (status, "changed since it was indexed" in message) == (2, True)


@pytest.mark.parametrize("table", ["kept", "published"])
def test_a_changed_member_is_not_copied(shard, run, tmp_path, table):
    cache = "cache"
    if table == "published":
        cache = "new"
        assert run(index, shard, "--format", "wids,members") == (0, "")
    flip_a_bit(shard)
    status, message = run(reshard, shard, "--out", tmp_path / "out", cache=cache)
    assert status == 2
    assert "has other bytes than when it was indexed in a member 'jpg', at byte" in message
    assert not tars(tmp_path / "out")


def test_a_tar_that_was_written_anew_is_taken_once_it_is_indexed(shard, run, tmp_path):
    assert run(index, shard, "--format", "wids,members") == (0, "")
    flip_a_bit(shard)
    shard.touch()
    assert run(reshard, shard, "--out", tmp_path / "out")[0] == 2
    assert run(index, shard, "--checksums", "--format", "wids,members")[0] == 0
    assert run(reshard, shard, "--out", tmp_path / "out") == (0, "")
    [written] = tars(tmp_path / "out")
    samples = list(read_samples(written))
    assert [sample["__key__"] for sample in samples] == [sample["__key__"] for sample in SAMPLES]
    assert samples[-1]["jpg"] != LAST
