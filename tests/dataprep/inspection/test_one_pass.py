"""One pass over a tar finds what a scan of a local file finds, and reads no more than it must."""

import hashlib
import io
import tarfile

import pytest

from lightning_shards.dataprep.forward_tar import (
    ForwardTar,
    HeaderWindows,
    WholeStream,
)
from lightning_shards.dataprep.inspection.layout import lay_out
from lightning_shards.dataprep.inspection.one_pass import scan_once
from lightning_shards.errors import DamagedShardError
from lightning_shards.shards.members import scan_members, table_of_samples
from lightning_shards.shards.storage.local import LocalStorage
from lightning_shards.shards.storage.protocol import ShardStat

_LONG = "d" * 120


def write(path, members, tar_format=tarfile.PAX_FORMAT):
    """A tar of (name, bytes, type); the times make PAX headers."""
    with tarfile.open(path, "w", format=tar_format) as archive:
        for name, data, kind in members:
            info = tarfile.TarInfo(name)
            info.size, info.mtime, info.type = len(data), 1.5, kind
            info.linkname = "target" if kind in b"12" else ""
            archive.addfile(info, io.BytesIO(data))
    return path


def samples(number, size):
    members = []
    for sample in range(number):
        data = bytes([sample % 251]) * (size + sample)
        members += [(f"{sample:05d}.jpg", data, b"0"), (f"{sample:05d}.cls", b"1", b"0")]
    return members


ODD = [
    ("folder", b"", b"5"),
    ("README", b"text", b"0"),
    *samples(3, 700),
    (f"{_LONG}/é.txt", b"1", b"0"),
    (f"{_LONG}/é.jpg", b"22", b"0"),
    ("link.jpg", b"", b"1"),
    ("soft.jpg", b"", b"2"),
    ("pipe.jpg", b"", b"6"),
    ("bad.jpg", b"333", b"0"),
    ("bad.__bad__", b"yes", b"0"),
    ("__meta__.json", b"{}", b"0"),
    ("empty.cls", b"", b"0"),
    ("last/README", b"5" * 513, b"0"),
]


def streamed(path):
    data, digest = path.read_bytes(), hashlib.md5()
    tar = ForwardTar(str(path), len(data), WholeStream(io.BytesIO(data), digest))
    return scan_once(tar, str(path), with_crc32=True), digest.hexdigest()


class CountedStorage(LocalStorage):
    def __init__(self):
        super().__init__()
        self.asked = []

    def read_ranges(self, reads):
        self.asked += [
            stop - start
            for each in reads
            for start, stop in zip(each.starts, each.stops, strict=True)
        ]
        return super().read_ranges(reads)


def windowed(path):
    storage, url = CountedStorage(), str(path)
    try:
        windows = HeaderWindows(storage, url, storage.stat(url))
        tar = ForwardTar(url, path.stat().st_size, windows)
        return scan_once(tar, url, with_crc32=False), storage.asked
    finally:
        storage.close(url)


@pytest.mark.parametrize("tar_format", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize(
    "members",
    [[], ODD, samples(900, 10), samples(200, 9000), ODD + samples(30, 3), samples(2, 600_000)],
    ids=["none", "odd", "small", "images", "odd first", "large"],
)
def test_it_finds_what_a_scan_of_a_file_finds(tmp_path, members, tar_format):
    path = write(tmp_path / "a.tar", members, tar_format)
    expected, stamp = scan_members(path, with_crc32=True), ShardStat(*scan_members(path).stamp)
    found, digest = streamed(path)
    table = table_of_samples(found.samples, stamp, found.crc32s)
    assert table.has_same_members(expected)
    assert table.crc32.tolist() == expected.crc32.tolist()
    assert digest == hashlib.md5(path.read_bytes()).hexdigest()
    passed_over = [each for each in lay_out(expected, path).passed_over if each.kind != "folder"]
    for each in (found, windowed(path)[0]):
        assert table_of_samples(each.samples, stamp, None).has_same_members(expected)
        assert [entry for entry in each.passed_over if entry.kind != "folder"] == passed_over


def test_damage_is_told_as_of_a_file(tmp_path):
    whole = write(tmp_path / "a.tar", ODD).read_bytes()
    path = tmp_path / "b.tar"
    changes = [whole[:cut] for cut in range(0, len(whole) - 9000, 701)]
    changes += [whole[:byte] + b"\xff" + whole[byte + 1 :] for byte in range(0, 9000, 307)]
    changes += [b"\x1f\x8b" + whole[2:], whole + whole, whole[: len(whole) - 1024]]
    for changed in changes:
        path.write_bytes(changed)
        told = []
        for scan in (scan_members, streamed, windowed):
            try:
                scan(path)
                told.append("")
            except DamagedShardError as error:
                told.append(str(error))
        assert len(set(told)) == 1


def test_a_stream_that_ends_early_is_no_shorter_shard(tmp_path):
    data = write(tmp_path / "a.tar", samples(3, 700)).read_bytes()
    for cut in range(0, len(data), 512):
        tar = ForwardTar("a.tar", len(data), WholeStream(io.BytesIO(data[:cut]), hashlib.md5()))
        with pytest.raises(DamagedShardError, match="was cut short while it was read"):
            scan_once(tar, "a.tar", with_crc32=True)


def test_of_large_members_headers_alone_are_read(tmp_path):
    """Sparse files, so that neither takes time or room."""
    sizes = [5 << 20] * 8 + [100_000] * 40
    path = tmp_path / "a.tar"
    with path.open("wb") as file:
        for number, size in enumerate(sizes):
            info = tarfile.TarInfo(f"{number:05d}.mp4")
            info.size = size
            file.write(info.tobuf())
            file.seek(size + -size % 512, 1)
        file.write(bytes(1024))
    found, asked = windowed(path)
    assert found.samples.sizes.tolist() == sizes
    large, small = 8, sum(sizes[8:])
    assert sum(asked) < large * (1 << 14) + (1 << 16) + small + 40 * 1024
    assert len(asked) < large + 14
    assert streamed(path)[0].samples.sizes.tolist() == sizes
