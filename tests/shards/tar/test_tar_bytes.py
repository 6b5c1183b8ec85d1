"""Bytes of a tar on demand, and samples of one that is read forward."""

import io
import os
import tarfile
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_shards.errors import DamagedShardError
from lightning_shards.readers.stream_stages import read_shard
from lightning_shards.shards.members import scan_members
from lightning_shards.shards.tar.tar_bytes import open_tar
from lightning_shards.shards.tar.tar_streams import read_samples, stream_samples

SAMPLES = 400


@pytest.fixture
def path(tmp_path, write_tar):
    archive = [(f"{n:04d}.{s}", b"%04d" % n * 700) for n in range(SAMPLES) for s in ("a", "b")]
    return write_tar(tmp_path / "0.tar", archive)


def test_a_shard_that_is_cut_while_it_is_scanned_is_an_error_that_says_so(path, monkeypatch):
    """By another program, when it is about to be read for the first time."""
    plain = os.pread

    def pread(file, size, offset):
        os.truncate(path, 2048)
        return plain(file, size, offset)

    monkeypatch.setattr(os, "pread", pread)
    with pytest.raises(
        DamagedShardError, match=r"while it was read: it had \d{7} bytes and has 2048"
    ):
        scan_members(path, with_crc32=True)


PARTS = st.lists(st.tuples(st.integers(0, 70_000), st.integers(0, 20_000)), max_size=60)


@settings(max_examples=60)
@given(PARTS, st.integers(1, 90_000))
def test_any_parts_in_any_order_are_those_of_the_file(tmp_path_factory, parts, size):
    path = tmp_path_factory.getbasetemp() / "any.tar"
    data = np.random.default_rng(size).bytes(size)
    path.write_bytes(data)
    with open_tar(path) as tar:
        assert len(tar) == size
        for start, length in [(start % (size + 9), length) for start, length in parts]:
            assert tar[start : start + length] == data[start : start + length]
            end = max(start, min(start + length, size))
            assert tar.crc32(start, end - start) == zlib.crc32(data[start:end])


def test_small_members_are_read_many_at_once(path, monkeypatch):
    reads, plain = [], os.pread
    monkeypatch.setattr(os, "pread", lambda *call: reads.append(call) or plain(*call))
    assert len(list(read_shard(str(path), SAMPLES))) == SAMPLES
    assert len(reads) < 50
    assert sum(size for _, size, _ in reads) < 1.1 * path.stat().st_size


LONG = "folder/" * 20 + "long"
MEMBERS = [
    ("0.cls", b"0"),
    ("0.bin", bytes(range(256)) * 5),
    ("no key", b"in no sample"),
    ("1.bin", b""),
    (f"{LONG}.cls", b"7"),
    ("bad.cls", b"3"),
    ("bad.__bad__", b"1"),
    ("2.cls", b"x" * 512),
    ("2.txt", b"last"),
]


@pytest.fixture(params=[tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def whole(tmp_path, write_tar, request):
    """The bytes of a tar of these members, in the form that a test asks for."""
    return write_tar(tmp_path / "whole.tar", MEMBERS, tar_format=request.param).read_bytes()


IN_PAX = pytest.mark.parametrize("whole", [tarfile.PAX_FORMAT], indirect=True)


def outcome(samples):
    """The samples up to the error, and its message."""
    found = []
    try:
        found.extend(samples)  # as far as they come
    except DamagedShardError as error:
        return found, str(error)
    return found, None


def both(data, path, skip=0):
    path.write_bytes(data)
    wanted, error = outcome(read_samples(str(path), skip))
    return (wanted, error), outcome(stream_samples(io.BytesIO(data), str(path), skip))


@pytest.mark.parametrize("skip", [0, 2, 9])
def test_a_stream_gives_the_samples_of_the_file(tmp_path, whole, skip):
    wanted, found = both(whole, tmp_path / "0.tar", skip)
    assert found == wanted
    assert len(found[0]) == max(0, 4 - skip)


@IN_PAX
def test_a_stream_that_is_cut_anywhere_is_an_error_behind_the_same_samples(tmp_path, whole):
    end = len(whole.rstrip(b"\0")) + 512
    for size in range(0, end, 97):
        (wanted, _), (found, error) = both(whole[:size], tmp_path / "0.tar")
        assert found == wanted
        assert any(word in error for word in ("is empty", "is cut short", "a damaged PAX header"))


@IN_PAX
def test_damage_is_told_as_of_a_file(tmp_path, whole):
    """Bits of headers, of names, of sizes, and what is behind the end."""
    data, rng = whole, np.random.default_rng(0)
    damaged = [data + b"rest", data[:-1] + b"1", b"\x1f\x8b" + data[2:], b"\x1f\x8b"]
    for _ in range(150):
        changed = bytearray(data)
        changed[rng.integers(len(data))] ^= 1 << rng.integers(8)
        damaged.append(bytes(changed))
    for changed in damaged:
        (wanted, expected), (found, error) = both(changed, tmp_path / "0.tar")
        assert found == wanted
        if expected is None or "bytes should follow" not in expected:
            assert error == expected
        else:  # only a file's size is known beforehand
            assert error is not None


class Stingy(io.BytesIO):
    def read(self, size=-1):
        return super().read(min(size, 700))


@pytest.mark.parametrize("kind", [Stingy, lambda data: io.BufferedReader(io.BytesIO(data))])
@IN_PAX
def test_a_stream_may_give_fewer_bytes_than_asked_for_and_not_what_a_size_says(whole, kind):
    assert len(list(stream_samples(kind(whole), "http://host/0.tar"))) == 4
    info = tarfile.TarInfo("9.bin")
    info.size = 1 << 55
    cut = whole[: len(whole.rstrip(b"\0")) // 512 * 512 + 512] + info.tobuf(tarfile.GNU_FORMAT)
    with pytest.raises(DamagedShardError, match=f"{1 << 55} bytes should follow, 0 do"):
        list(stream_samples(kind(cut), "http://host/0.tar"))
