"""Inputs that are no regular files, or that cannot be read, are an error at once, by name."""

import os

import pytest

from lightning_shards.dataprep.input_files import InputExtent, InputFiles, input_file_at
from lightning_shards.dataprep.writing.listing import list_folder
from lightning_shards.dataprep.writing.rows import read_rows
from lightning_shards.errors import FileAccessError, ShardNotFoundError


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
@pytest.mark.parametrize("name", ["rows.csv", "rows.jsonl", "rows.parquet"])
def test_table_that_is_no_regular_file_is_refused(tmp_path, make, name):
    make(tmp_path / name)
    with pytest.raises(FileAccessError, match=rf"{name} is a (fifo|folder)"):
        list(read_rows(str(tmp_path / name), ["id"]))


def test_table_that_is_not_there_is_said_to_be_absent(tmp_path):
    with pytest.raises(ShardNotFoundError, match=r"rows\.csv does not exist"):
        list(read_rows(str(tmp_path / "rows.csv"), ["id"]))


def test_fifo_among_the_files_of_a_folder_is_refused(tmp_path):
    (tmp_path / "a").mkdir()
    os.mkfifo(tmp_path / "a" / "0.txt")
    with pytest.raises(FileAccessError, match=r"0\.txt is a fifo"):
        list_folder(str(tmp_path))


def test_file_that_became_a_fifo_is_not_waited_for(tmp_path):
    path = tmp_path / "0.txt"
    path.touch()
    source = input_file_at(str(path))
    path.unlink()
    os.mkfifo(path)
    with InputFiles() as files, pytest.raises(FileAccessError, match=r"0\.txt is a fifo"):
        files.read(InputExtent("txt", source, 0, 1, b""))


@pytest.mark.parametrize("path", ["f/1\0.jpg", "f/\ud800.jpg"])
def test_text_that_can_be_no_path_is_told_in_ascii(path):
    with pytest.raises(FileAccessError) as error:
        input_file_at(path)
    assert str(error.value).startswith(f"{path!r} cannot be the path of a file: ")


@pytest.mark.parametrize(
    ("offset", "size", "why"),
    [
        (512, 1 << 62, "do not fit in the memory; take fewer --processes"),
        (-1, 1, "Invalid argument; look at the disk"),
    ],
)
def test_member_that_cannot_be_read_is_named_with_its_size(tmp_path, offset, size, why):
    (tmp_path / "0.bin").touch()
    extent = InputExtent("bin", input_file_at(str(tmp_path / "0.bin")), offset, size, b"")
    with InputFiles() as files, pytest.raises(FileAccessError) as error:
        files.read(extent)
    assert f"0.bin: the {size:,} bytes of a member 'bin' at byte {offset} " in str(error.value)
    assert why in str(error.value)


def test_ring_of_links_among_the_files_is_told(tmp_path):
    (tmp_path / "0.txt").symlink_to("1.txt")
    (tmp_path / "1.txt").symlink_to("0.txt")
    with pytest.raises(FileAccessError, match=r"0\.txt cannot be looked at: Too many levels"):
        list_folder(str(tmp_path), has_classes=False)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may list every folder")
def test_folder_that_may_not_be_listed_is_told(tmp_path):
    (tmp_path / "a").mkdir(mode=0)
    with pytest.raises(FileAccessError, match="a cannot be listed: Permission denied"):
        list_folder(str(tmp_path))
