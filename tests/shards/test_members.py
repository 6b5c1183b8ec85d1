"""The members of a shard, damaged ones too."""

import gc
import os
import tarfile

import pytest

from lightning_shards.errors import DamagedShardError, IndexMismatchError, MissingFieldError
from lightning_shards.shards.members import ShardReader, scan_members
from lightning_shards.shards.tar.walk import walk_members

FORMATS = [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]


@pytest.fixture
def path(tmp_path, write_tar):
    """A shard of three samples; the second one lacks a `jpg`."""
    archive = [("0.cls", b"1"), ("0.jpg", b"x" * 700), ("1.cls", b""), ("2.jpg", b"z" * 512)]
    return write_tar(tmp_path / "0.tar", archive)


_KINDS = (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE)


def _special(name, kind):
    info = tarfile.TarInfo(name)
    info.type = kind
    info.linkname = "0.txt"
    return info


MEMBERS = [
    ("0.left.png", b"1"),
    (_special("dir.x", tarfile.DIRTYPE), b""),
    ("0.cls", b"x" * 700),
    *((_special(f"1.{kind.decode()}", kind), b"") for kind in _KINDS),
    (_special("5.txt", tarfile.CONTTYPE), b"5"),
    ("d.e/0.x", b"3"),
    ("d" * 80 + "/" + "n" * 80 + ".txt", b""),
]


@pytest.mark.parametrize("tar_format", FORMATS)
def test_members_are_those_that_tarfile_finds(tmp_path, write_tar, tarfile_members, tar_format):
    path = write_tar(tmp_path / "0.tar", MEMBERS, tar_format=tar_format, mtime=0.5)
    assert list(walk_members(path.read_bytes(), path.name)) == tarfile_members(path)


# --- the table


def test_a_table_finds_members(path):
    table = scan_members(path)
    assert (table.num_samples, table.suffixes) == (3, ("cls", "jpg"))
    assert table.find(0, "jpg") == (1536, 700, None)
    assert table.find(1, "cls") == (3072, 0, None)
    assert table.find(1, "jpg") is None
    assert table.find(2, "cls") is None
    assert table.find(0, "png") is None
    assert [table.suffixes_of(sample) for sample in range(3)] == [["cls", "jpg"], ["cls"], ["jpg"]]
    assert [table.key(sample) for sample in range(3)] == ["0", "1", "2"]
    assert table.stamp == (path.stat().st_size, path.stat().st_mtime_ns)


# --- the reader


def test_a_missing_suffix_names_what_the_sample_has(path):
    with ShardReader(path, scan_members(path)) as shard:
        with pytest.raises(
            MissingFieldError, match=r"sample '0' of .*0.tar has no 'png'; it has c"
        ):
            shard.read(0, "png")
        for sample in (-1, 3):
            with pytest.raises(IndexError, match=f"sample {sample} of a shard that holds 3"):
                shard.read(sample, "cls")


def test_no_descriptor_stays_open(path, open_files):
    table = scan_members(path, with_crc32=True)
    with ShardReader(path, table) as shard:
        shard.read(0, "cls")
        assert open_files() == [str(path)]
    os.truncate(path, 100)
    with pytest.raises(IndexMismatchError):
        ShardReader(path, table)
    with pytest.raises(DamagedShardError):
        scan_members(path)
    gc.collect()
    assert open_files() == []


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
        "when indexed, at byte 1536; fetch this shard again, or, if it was written anew, run "
        "`lightning-shards index --checksums` on it"
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


def test_a_shard_that_is_deleted_or_replaced_while_it_is_open_is_read_on(path, write_tar):
    table = scan_members(path)
    with ShardReader(path, table) as shard:
        path.unlink()
        assert shard.read(2, "jpg") == b"z" * 512
        write_tar(path, [("0.cls", b"other")])
        assert shard.read(0, "cls") == b"1"
