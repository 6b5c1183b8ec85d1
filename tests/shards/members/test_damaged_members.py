"""Reading gives the bytes that were indexed, or raises."""

import errno
import itertools
import os
import tarfile

import pytest

from lightning_shards.errors import DamagedShardError, IndexMismatchError
from lightning_shards.shards.members import ShardReader, scan_members
from lightning_shards.shards.storage.local import LocalStorage

FORMATS = [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]


def _small_archives(folder, write_tar):
    """One archive per format with every kind of header that the format has, without the padding."""
    archive = [("0.cls", b"1"), ("n" * 120 + ".txt", b"x" * 600), ("1.cls", b"")]
    for tar_format in FORMATS:
        kept = archive[::2] if tar_format == tarfile.USTAR_FORMAT else archive
        path = write_tar(folder / f"{tar_format}.tar", kept, tar_format=tar_format, mtime=0.5)
        table = scan_members(path)
        os.truncate(path, int(table.offsets[-1]) + 1024)  # the last member is empty
        yield path


def test_every_flipped_bit_is_detected_or_harmless(tmp_path, write_tar):
    """By the checksums where a member has it, and harmless to the members everywhere else."""
    for path in _small_archives(tmp_path, write_tar):
        table = scan_members(path, with_crc32=True)
        places = [(i, s) for i in range(table.num_samples) for s in table.suffixes_of(i)]
        extents = [table.find(*place)[:2] for place in places]
        inside = {byte for offset, size in extents for byte in range(offset, offset + size)}
        data = path.read_bytes()
        with path.open("r+b", buffering=0) as file, ShardReader(path, table) as shard:
            expected = [shard.read(*place) for place in places]
            for position, bit in itertools.product(range(len(data)), range(8)):
                os.pwrite(file.fileno(), bytes([data[position] ^ 1 << bit]), position)
                try:
                    assert [shard.read(*place) for place in places] == expected
                    assert position not in inside
                except DamagedShardError:
                    assert position in inside
                os.pwrite(file.fileno(), data[position : position + 1], position)


def test_every_cut_is_detected(tmp_path, write_tar):
    for path in _small_archives(tmp_path, write_tar):
        table = scan_members(path)
        for length in reversed(range(path.stat().st_size)):
            os.truncate(path, length)
            with pytest.raises(
                IndexMismatchError, match=f"it has {length} bytes, {table.file_size}"
            ):
                ShardReader(path, table)


def test_a_shard_that_grew_is_refused(path):
    table = scan_members(path)
    os.truncate(path, table.file_size + 512)
    with pytest.raises(IndexMismatchError, match=f"bytes, {table.file_size} by its"):
        ShardReader(path, table)


def test_every_flipped_bit_of_a_header_is_found_by_the_scan(tmp_path, write_tar):
    """What a PAX header or a long name holds has no checksum: a flip there may change a key."""
    for path in _small_archives(tmp_path, write_tar):
        whole = scan_members(path)
        data = bytearray(path.read_bytes())
        blocks = [
            block
            for block in range(0, len(data) - 512, 512)
            if data[block + 257 : block + 262] == b"ustar"
        ]
        assert len(blocks) >= len(whole.offsets)
        for block, position, bit in itertools.product(blocks, range(0, 512, 37), range(8)):
            data[block + position] ^= 1 << bit
            path.write_bytes(data)
            try:
                assert scan_members(path).has_same_members(whole)
                assert 148 <= position < 156  # white space and zeros of the checksum itself
            except DamagedShardError:
                pass
            data[block + position] ^= 1 << bit


def test_damaged_bytes_are_named_with_offset_and_remedy(path):
    table = scan_members(path, with_crc32=True)
    with path.open("r+b") as file:
        file.seek(1536 + 699)
        file.write(b"X")
    with ShardReader(path, table) as shard:
        assert shard.read(0, "cls") == b"1"
        with pytest.raises(DamagedShardError) as caught:
            shard.read(0, "jpg")
    assert str(caught.value) == (
        f"{path} (member '0.jpg', sample 0) is damaged: its crc32 is ccd0c621, it was f7bee6e9 "
        "when indexed, at byte 1536; fetch or write this shard again"
    )


def test_a_shard_cut_while_it_is_open_is_damaged_where_it_was_cut(path):
    table = scan_members(path, with_crc32=True)
    with ShardReader(path, table) as shard:
        os.truncate(path, 1536 + 100)
        assert shard.read(0, "cls") == b"1"
        with pytest.raises(DamagedShardError, match=r"'0.jpg'.* 100 of 700 bytes .*at byte 1536"):
            shard.read(0, "jpg")
        with pytest.raises(DamagedShardError, match=r"'2.jpg'.* 0 of 512 bytes .*at byte 3584"):
            shard.read(2, "jpg")


@pytest.mark.parametrize("length", [1536 + 100, 0])
def test_a_shard_without_crc32s_is_read_no_more_once_it_was_written_to(path, length):
    with ShardReader(path, scan_members(path)) as shard:
        os.utime(path, ns=(0, 1))
        with pytest.raises(IndexMismatchError, match="written to after its members were listed"):
            shard.read(0, "cls")
        os.truncate(path, length)
        with pytest.raises((IndexMismatchError, DamagedShardError)):
            shard.read(0, "cls")


def test_a_shard_that_is_deleted_or_replaced_while_it_is_open_is_read_on(path, write_tar):
    table = scan_members(path)
    with ShardReader(path, table) as shard:
        path.unlink()
        assert shard.read(2, "jpg") == b"z" * 512
        write_tar(path, [("0.cls", b"other")])
        assert shard.read(0, "cls") == b"1"


def test_a_failing_disk_is_a_damaged_shard(path, monkeypatch):
    def fail(*_):
        raise OSError(errno.EIO, "Input/output error")

    with ShardReader(path, scan_members(path)) as shard:
        monkeypatch.setattr(os, "pread", fail)
        with pytest.raises(DamagedShardError, match=r"'0.jpg'.*read: Input/output error, at byte"):
            shard.read(0, "jpg")


def test_reads_that_come_in_pieces_are_put_together(path, monkeypatch):
    pread = os.pread
    table = scan_members(path, with_crc32=True)
    with ShardReader(path, table) as shard:
        monkeypatch.setattr(os, "pread", lambda file, size, at: pread(file, min(size, 99), at))
        assert shard.read(0, "jpg") == b"x" * 700


class AnotherWhenRead(LocalStorage):
    """A storage whose reads come short, while it tells of the shard what it was when indexed."""

    def __init__(self, data, *, is_remote):
        super().__init__()
        self.data, self.is_remote = data, is_remote

    def read(self, url, start, stop, stat=None):
        return self.data


@pytest.mark.parametrize("is_remote", [False, True])
def test_a_shard_that_was_another_one_for_a_moment_has_changed(path, is_remote):
    with ShardReader(path, scan_members(path), AnotherWhenRead(b"", is_remote=is_remote)) as shard:
        what = "it one ETag on all replicas" if is_remote else "after its members were listed"
        with pytest.raises(IndexMismatchError, match=f"changed since it was indexed: .*{what}"):
            shard.read(0, "jpg")


def test_a_shard_that_was_short_for_a_moment_is_damaged(path):
    table, storage = scan_members(path, with_crc32=True), AnotherWhenRead(b"xx", is_remote=False)
    short = pytest.raises(DamagedShardError, match="cut short: 2 of 700 bytes came")
    with ShardReader(path, table, storage) as shard, short:
        shard.read(0, "jpg")
