"""A fifo, socket, device or folder is refused at once, wherever a file is opened."""

import os
import resource
import socket

import pytest

from lightning_shards.errors import FileAccessError, ShardNotFoundError
from lightning_shards.shards.files import open_regular, read_regular


def test_regular_file_is_opened_for_reading(tmp_path):
    path = tmp_path / "0.tar"
    path.write_bytes(b"abc")
    with os.fdopen(open_regular(path), "rb") as file:
        assert file.read() == b"abc"


def test_fifo_is_refused_without_waiting_for_a_writer(tmp_path):
    os.mkfifo(tmp_path / "0.tar")
    with pytest.raises(FileAccessError, match=r"0\.tar is a fifo; put a regular file there"):
        open_regular(tmp_path / "0.tar")


def test_folder_is_refused(tmp_path):
    with pytest.raises(FileAccessError, match="is a folder"):
        open_regular(tmp_path)
    with pytest.raises(FileAccessError, match="is a folder"):
        open_regular(tmp_path, os.O_RDWR)


def test_device_is_refused():
    with pytest.raises(FileAccessError, match="/dev/zero is a device"):
        open_regular("/dev/zero")


def test_socket_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the path of a socket may have about a hundred bytes
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("0.tar")
        with pytest.raises(FileAccessError, match=r"0\.tar is a socket"):
            open_regular("0.tar")


def test_absent_file_is_said_to_be_absent(tmp_path):
    with pytest.raises(ShardNotFoundError, match="does not exist"):
        open_regular(tmp_path / "0.tar")


def test_ring_of_links_is_told(tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(FileAccessError, match=r"cannot be opened: Too many levels.*mend the link"):
        open_regular(tmp_path / "a")


def test_too_many_open_files_names_the_remedy(tmp_path):
    (tmp_path / "0.tar").write_bytes(b"abc")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.dup(0)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))
    try:
        with pytest.raises(FileAccessError, match=r"raise the limit of open files \(ulimit -n\)"):
            open_regular(tmp_path / "0.tar")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_file_above_its_limit_is_refused_unread(tmp_path):
    with (tmp_path / "sizes.json").open("wb") as file:
        file.truncate(2**31)  # sparse: it takes no space
    with pytest.raises(FileAccessError, match=r"has 2,147,483,648 bytes, more than the 1,000"):
        read_regular(tmp_path / "sizes.json", 1000)


def test_file_of_just_its_limit_is_read(tmp_path):
    (tmp_path / "sizes.json").write_bytes(b"x" * 1000)
    assert read_regular(tmp_path / "sizes.json", 1000) == b"x" * 1000
