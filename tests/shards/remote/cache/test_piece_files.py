"""A file of a piece gives its bytes, or is no piece."""

import os

import pytest

from lightning_shards.shards.remote.cache import piece_files
from lightning_shards.shards.remote.cache.piece_files import (
    TRAILER_BYTES,
    open_piece,
)

DATA = bytes(range(256)) * 12
SIZE = len(DATA)


@pytest.fixture
def path(tmp_path):
    """The file of a piece that begins at offset 100."""
    path = tmp_path / "piece"
    with path.open("wb", buffering=0) as file:
        piece_files.write_piece(file.fileno(), memoryview(DATA))
    return path


def opened(path, size=SIZE):
    return open_piece(str(path), 100, 100 + size)


def test_the_bytes_are_those_that_were_written(path):
    piece = opened(path)
    assert piece.read(100, 100 + len(DATA)) == DATA
    assert piece.read(357, 360) == DATA[257:260]
    assert piece.read(100 + len(DATA), 100 + len(DATA)) == b""
    piece.close()
    assert path.stat().st_size == len(DATA) + TRAILER_BYTES


def test_a_piece_outlives_its_file(path):
    piece = opened(path)
    path.unlink()
    assert piece.read(100, 103) == DATA[:3]


def test_pieces_close_their_files(path, open_files):
    for _ in range(9):
        opened(path)
    assert open_files() == []


def torn(path, spoil):
    data = bytearray(path.read_bytes())
    spoil(data)
    path.write_bytes(data)


def cut(data):
    del data[-1:]


def add(data):
    data += b"x"


def zero(data):
    data[:] = bytes(len(data))


def zero_page(data):
    data[: len(data) // 2] = bytes(len(data) // 2)


def flip(number):
    def flipped(data):
        data[number] ^= 1

    return flipped


FLIPPED = (0, 1500, -65, -64, -56, -52, -44)
SPOILS = [
    cut,
    add,
    zero,
    zero_page,
    *map(flip, (0, 1500, -65, -64, -56, -52, -44)),
    bytearray.clear,
]
NAMES = ["cut", "add", "zero", "page", "clear", *(f"flip{number}" for number in FLIPPED)]


@pytest.mark.parametrize("spoil", SPOILS, ids=NAMES)
def test_a_torn_piece_is_none_and_is_removed(path, spoil):
    torn(path, spoil)
    assert opened(path) is None
    assert not path.exists()


def test_a_piece_of_another_length_is_none(path):
    assert opened(path, len(DATA) - 1) is None


def test_no_file_is_no_piece(tmp_path):
    assert opened(tmp_path / "absent") is None


def test_a_link_is_not_followed(path, tmp_path):
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(OSError, match="symbolic link"):
        opened(tmp_path / "link")


def test_a_folder_and_a_fifo_are_no_pieces(tmp_path):
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(IsADirectoryError):  # it cannot be unlinked
        opened(tmp_path / "folder")
    assert opened(tmp_path / "fifo") is None


def test_the_bytes_are_checked_once_in_each_process_and_again_after_a_write(path, monkeypatch):
    checked, crc32 = [], piece_files.crc32
    monkeypatch.setattr(
        piece_files, "crc32", lambda *given: (checked.append(True), crc32(*given))[1]
    )
    for _ in range(3):
        opened(path).close()
    assert len(checked) == 1
    path.write_bytes(path.read_bytes())
    opened(path).close()
    assert len(checked) == 2
