"""Files that are written whole, and files that are no regular ones."""

import errno
import fcntl
import os
from pathlib import Path

import pytest

from lightning_shards.errors import FileAccessError
from lightning_shards.shards import files
from lightning_shards.shards.files import make_folder, new_file, open_regular, replace_file

LEFT = ".b.json.0123456789abcdef.part"
"""The name of what a killed program left."""


def names(folder):
    return sorted(path.name for path in folder.iterdir())


# --- what killed programs left


@pytest.mark.parametrize("is_locked", [False, True])
def test_what_a_killed_program_left_is_removed_and_what_another_one_writes_is_not(
    tmp_path, is_locked
):
    with (tmp_path / LEFT).open("wb") as file:
        if is_locked:
            fcntl.flock(file, fcntl.LOCK_EX)
        replace_file(tmp_path / "a.json", "new")
        assert names(tmp_path) == [*[LEFT] * is_locked, "a.json"]


def test_part_that_another_rank_takes_for_a_leftover_is_begun_again(tmp_path, monkeypatch):
    lock, taken = fcntl.flock, []

    def late(file, operation):
        if not taken:
            taken.extend(tmp_path.iterdir())
            taken[0].unlink()
        lock(file, operation)

    monkeypatch.setattr(files.fcntl, "flock", late)
    replace_file(tmp_path / "a.json", "new")
    assert names(tmp_path) == ["a.json"]


def test_file_is_written_where_the_file_system_has_no_locks(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(files.fcntl, "flock", fail)
    replace_file(tmp_path / "a.json", "new")
    assert (tmp_path / "a.json").read_text() == "new"


# --- whole or not at all


def test_name_is_given_only_once_the_contents_are_on_the_disk(tmp_path, monkeypatch):
    calls, sync, replace = [], os.fsync, Path.replace

    def synced(file):
        calls.append(("fsync", os.fstat(file).st_size))
        sync(file)

    def replaced(part, target):
        calls.append(("replace", target.name))
        return replace(part, target)

    monkeypatch.setattr(files.os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", replaced)
    replace_file(tmp_path / "a.json", "contents")
    assert calls == [("fsync", 8), ("replace", "a.json")]


def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "a.json"
    path.write_text("old")
    with pytest.raises(ValueError, match="full"), new_file(path) as file:  # noqa: PT012 half of it
        file.write(b"half")
        raise ValueError("the disk is full")
    assert [each.read_text() for each in tmp_path.iterdir()] == ["old"]


# --- what others may have planted


@pytest.fixture
def precious(tmp_path):
    path = tmp_path / "precious"
    path.write_text("years of work")
    return path


@pytest.mark.parametrize("name", [".a.json.part", "a.json"])
@pytest.mark.parametrize("plant", [Path.symlink_to, Path.hardlink_to])
def test_links_in_a_shared_folder_lead_nowhere(tmp_path, precious, plant, name):
    (tmp_path / "data").mkdir()
    plant(tmp_path / "data" / name, precious)
    replace_file(tmp_path / "data" / "a.json", "new")
    assert precious.read_text() == "years of work"
    assert not (tmp_path / "data" / "a.json").is_symlink()


def test_a_folder_is_not_replaced(tmp_path):
    (tmp_path / "a.json").mkdir()
    with pytest.raises(FileAccessError, match="a folder stands where a file should be"):
        replace_file(tmp_path / "a.json", "new")
    assert names(tmp_path) == ["a.json"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EFBIG])
def test_full_disk_names_the_file(tmp_path, number):
    message = rf"a\.json cannot be written: {os.strerror(number)}; "
    with pytest.raises(FileAccessError, match=message), new_file(tmp_path / "a.json"):
        raise OSError(number, os.strerror(number))
    assert names(tmp_path) == []


# --- folders


def test_file_in_the_place_of_a_folder_is_told(tmp_path, precious):
    for folder in (precious, precious / "x"):
        with pytest.raises(FileAccessError, match="a file stands where a folder should be"):
            make_folder(folder)


def test_what_is_no_regular_file_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "0.tar")
    refused = {
        tmp_path / "0.tar": r"0\.tar is a fifo, .*; put a regular file there",
        tmp_path: "is a folder",
        "/dev/zero": "/dev/zero is a .* device",
    }
    for path, message in refused.items():
        with pytest.raises(FileAccessError, match=message):
            open_regular(path)
