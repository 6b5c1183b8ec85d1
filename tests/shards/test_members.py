"""The members of a shard, damaged ones too."""

import os

import pytest

from lightning_shards.errors import DamagedShardError, MissingFieldError
from lightning_shards.shards.members import ShardReader, scan_members


@pytest.fixture
def path(tmp_path, write_tar):
    """A shard of three samples; the second one lacks a `jpg`."""
    archive = [("0.cls", b"1"), ("0.jpg", b"x" * 700), ("1.cls", b""), ("2.jpg", b"z" * 512)]
    return write_tar(tmp_path / "0.tar", archive)


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
