"""Inputs that are no regular files, cannot be read or change meanwhile are an error, by name."""

import os

import pytest

from lightning_shards.dataprep.listing import Listing, list_folder, read_rows
from lightning_shards.dataprep.packing import InputFiles, InputSample, Packing, whole_file
from lightning_shards.dataprep.rewriting import Edit, Output, rewrite
from lightning_shards.errors import DamagedShardError, FileAccessError, ShardNotFoundError
from lightning_shards.shards.private_files import CacheFolder


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
@pytest.mark.parametrize("name", ["rows.csv", "rows.jsonl", "rows.parquet"])
def test_a_table_that_is_no_regular_file_is_refused(tmp_path, make, name):
    make(tmp_path / name)
    with pytest.raises(FileAccessError, match=rf"{name} is a (fifo|folder)"):
        list(read_rows(str(tmp_path / name), ["id"]))


def test_a_table_that_is_not_there_is_said_to_be_absent(tmp_path):
    with pytest.raises(ShardNotFoundError, match=r"rows\.csv does not exist"):
        list(read_rows(str(tmp_path / "rows.csv"), ["id"]))


def test_what_is_no_file_in_a_folder_is_refused(tmp_path):
    (tmp_path / "a").mkdir()
    os.mkfifo(tmp_path / "a" / "0.txt")
    with pytest.raises(FileAccessError, match=r"0\.txt is a fifo"):
        list_folder(str(tmp_path))
    (tmp_path / "a" / "0.txt").unlink()
    (tmp_path / "a" / "0.txt").symlink_to("0.txt")
    with pytest.raises(FileAccessError, match=r"0\.txt' cannot be looked at: .*Too many levels"):
        list_folder(str(tmp_path))


@pytest.mark.parametrize("path", ["f/1\0.jpg", "f/\ud800.jpg"])
def test_text_that_can_be_no_path_is_told_in_ascii(path):
    with pytest.raises(FileAccessError) as error:
        whole_file("jpg", path)
    assert str(error.value).startswith(f"{path!r} cannot be looked at: ")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may list every folder")
def test_a_folder_that_may_not_be_listed_is_told(tmp_path):
    (tmp_path / "a").mkdir(mode=0)
    with pytest.raises(FileAccessError, match="a cannot be listed: Permission denied"):
        list_folder(str(tmp_path))


# --- files that change after they were listed


@pytest.fixture
def samples(tmp_path):
    """Two files, each of which is a sample."""
    for name in ("first", "second"):
        (tmp_path / name).write_bytes(b"xx")
    names = ("first", "second")
    return [InputSample(name, (whole_file("a", str(tmp_path / name)),)) for name in names]


def rewritten(path):
    """Other bytes in the same file, at a later time."""
    time = path.stat().st_mtime_ns + 1
    path.write_bytes(b"y" * path.stat().st_size)
    os.utime(path, ns=(time, time))


def test_bytes_of_another_file_than_was_listed_are_refused(samples, tmp_path):
    [first], [second] = (sample.members for sample in samples)
    with InputFiles() as files:
        assert files.read(first) == b"xx"
        rewritten(tmp_path / "first")  # while it is open
        (tmp_path / "second").unlink()
        with pytest.raises(DamagedShardError, match="first was changed since it was listed"):
            files.read(first)
        with pytest.raises(ShardNotFoundError, match="second does not exist"):
            files.read(second)
        os.mkfifo(tmp_path / "second")
        with pytest.raises(FileAccessError, match="second is a fifo"):
            files.read(second)


def test_bytes_that_cannot_be_read_are_named(samples):
    extent = samples[0].members[0]._replace(offset=-1)
    with (
        InputFiles() as files,
        pytest.raises(FileAccessError, match="first: 2 bytes at byte -1"),
    ):
        files.read(extent)


@pytest.mark.parametrize("kind", ["transform", "keeps"])
def test_a_file_that_changes_meanwhile_gives_no_shard(samples, tmp_path, kind):
    def change_second(sample):
        rewritten(tmp_path / "second")
        return sample

    output = Output(folder=tmp_path / "out", cache=CacheFolder(tmp_path / "cache"))
    edit = Edit(**{kind: change_second})
    with pytest.raises(DamagedShardError, match="second was changed since it was listed"):
        rewrite(Listing(samples), Packing(max_samples=9), output, edit)
    assert not list((tmp_path / "out").glob("*.tar"))
