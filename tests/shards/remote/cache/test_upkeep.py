"""Listing, checking and clearing the pieces of a node."""

import struct

import pytest
from cached_bytes import FILE, bytes_of, load, make_cache, make_need, piece_number

from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.remote.cache.upkeep import (
    CheckedPieces,
    check_pieces,
    list_pieces,
    piece_folders,
)


@pytest.fixture
def filled(tmp_path):
    """A cache with pieces of two shards, and its folder."""
    cache = make_cache(tmp_path, make_need(100))
    for number in (0, 1, 2, 16):
        load(cache, piece_number(number))
    (folder,) = piece_folders(CacheFolder(tmp_path))
    return cache, folder


def used(folder):
    magic, number = struct.unpack("<8sQ", (folder.path / "lock").read_bytes()[:16])
    assert magic == b"lsUSED1\n"
    return number


def path_of(folder, number):
    piece = piece_number(number)
    return folder.path / piece.folder / piece.name


@pytest.mark.parametrize("position", [0, 999, 1000, 1012, 1020])
def test_a_piece_with_another_bit_is_removed_and_counted(filled, position):
    cache, folder = filled
    path = path_of(folder, 1)
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)
    assert check_pieces(folder) == CheckedPieces(4, 4 * FILE, [str(path)])
    assert not path.exists()
    assert used(folder) == 3 * FILE
    assert load(cache, piece_number(1)) == bytes_of(piece_number(1))
    assert check_pieces(folder).damaged == []


@pytest.mark.parametrize("damage", [b"", b"short", b"\0" * 2000])
def test_a_piece_of_another_length_is_damaged_and_so_is_what_is_no_piece(filled, damage):
    _, folder = filled
    path_of(folder, 2).write_bytes(damage)
    stranger = path_of(folder, 2).with_name("notes.txt")
    stranger.write_bytes(b"x")
    assert set(check_pieces(folder, threads=3).damaged) == {str(path_of(folder, 2)), str(stranger)}


def test_a_piece_that_a_run_drops_meanwhile_is_neither_checked_nor_damaged(filled):
    _, folder = filled
    seen = []

    def step(size):
        seen.append(size)
        for number in (0, 1, 2, 16):
            path_of(folder, number).unlink(missing_ok=True)

    found = check_pieces(folder, threads=1, step=step)
    assert found.damaged == []
    assert found.pieces <= 4
    assert seen == [FILE] * 4


def test_the_need_of_the_first_process_of_a_run_holds_for_all(tmp_path):
    first, second = (make_cache(tmp_path, make_need(pieces)) for pieces in (100, 3))
    load(first, piece_number(0))
    load(second, piece_number(1))
    (folder,) = piece_folders(CacheFolder(tmp_path))
    assert list_pieces(folder).runs == [make_need(100)]
    first.close()
    assert list_pieces(folder).runs == [make_need(100)]
    second.close()
    load(second, piece_number(2))
    assert list_pieces(folder).runs == [make_need(3)]
