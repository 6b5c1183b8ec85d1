"""A tar that is read forward gives what a local file gives, and the same errors."""

import io
import tarfile
import tracemalloc

import numpy as np
import pytest

from lightning_shards.errors import DamagedShardError, StorageError
from lightning_shards.shards.tar import tar_bytes
from lightning_shards.shards.tar.tar_bytes import read_samples, stream_samples

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


def tar_of(members, format_=tarfile.PAX_FORMAT):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=format_) as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return file.getvalue()


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


@pytest.mark.parametrize("format_", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("skip", [0, 2, 9])
def test_a_stream_gives_the_samples_of_the_file(tmp_path, format_, skip):
    wanted, found = both(tar_of(MEMBERS, format_), tmp_path / "0.tar", skip)
    assert found == wanted
    assert len(found[0]) == max(0, 4 - skip)


def test_a_stream_that_is_cut_anywhere_is_an_error_behind_the_same_samples(tmp_path):
    data = tar_of(MEMBERS)
    end = len(data.rstrip(b"\0")) + 512
    for size in range(0, end, 97):
        (wanted, _), (found, error) = both(data[:size], tmp_path / "0.tar")
        assert found == wanted
        assert any(word in error for word in ("is empty", "is cut short", "a damaged PAX header"))


def test_damage_is_told_as_of_a_file(tmp_path):
    """Bits of headers, of names, of sizes, and what is behind the end."""
    data, rng = tar_of(MEMBERS), np.random.default_rng(0)
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


class Breaking(io.BytesIO):
    def read(self, size=-1):
        if self.tell() > 5_000:
            raise StorageError("the network is gone")
        return super().read(size)


def test_an_error_of_the_stream_is_passed_on():
    samples = stream_samples(Breaking(tar_of(MEMBERS)), "http://host/0.tar")
    assert next(samples)["cls"] == b"0"
    with pytest.raises(StorageError, match="the network is gone"):
        list(samples)


def test_a_damaged_size_takes_no_more_memory_than_there_are_bytes(monkeypatch):
    asked = []

    class Watched(io.BytesIO):
        def read(self, size=-1):
            asked.append(size)
            return super().read(size)

    monkeypatch.setattr(tar_bytes, "_AT_ONCE", 1_000)
    data = tar_of([("0.bin", bytes(5_000))])[:3_000]
    with pytest.raises(DamagedShardError, match="5000 bytes should follow, 2488 do"):
        list(stream_samples(Watched(data), "0.tar"))
    assert max(asked) == 1_000


class Endless(io.RawIOBase):
    """A tar of many members, made while it is read."""

    def __init__(self, names, size):
        self.parts = self._made(names, size)
        self.rest = b""

    @staticmethod
    def _made(names, size):
        for name in names:
            info = tarfile.TarInfo(name)
            info.size = size
            yield info.tobuf(tarfile.USTAR_FORMAT) + bytes(size)
        yield bytes(2 * 512)

    def read(self, size=-1):
        while len(self.rest) < size and (part := next(self.parts, None)):
            self.rest += part
        data, self.rest = self.rest[:size], self.rest[size:]
        return data


MEMBER = 1 << 18


@pytest.mark.parametrize(
    ("names", "samples"),
    [
        ([f"README{number}" for number in range(64)], 0),
        ([f"{number}.{end}" for number in range(32) for end in ("cls", "__bad__")], 0),
        (["0.cls", *(f"README{number}" for number in range(64)), "1.cls"], 2),
        ([f"{number}.cls" for number in range(64)], 64),
    ],
    ids=["no samples", "bad samples", "a gap", "samples"],
)
def test_only_what_a_sample_can_have_is_kept(names, samples):
    tracemalloc.start()
    try:
        assert sum(1 for _ in stream_samples(Endless(names, MEMBER), "a.tar", skip=0)) == samples
        assert tracemalloc.get_traced_memory()[1] < 12 * MEMBER
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("size", [0, 1, 100, 700])
def test_a_tar_that_ends_within_what_is_passed_over_is_damaged(tmp_path, size):
    data = tar_of([("0.cls", b"0"), ("no key", bytes(700))], tarfile.USTAR_FORMAT)
    data = data[: 3 * 512 + size]
    _, error = outcome(stream_samples(io.BytesIO(data), "a.tar"))
    assert error
    assert both(data, tmp_path / "0.tar")[0][1]
