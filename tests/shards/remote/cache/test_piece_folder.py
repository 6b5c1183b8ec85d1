"""The folder of pieces is entered and left: what is cleaned up, and when."""

import socket

import pytest
from cached_bytes import FILE, disk_bytes, load, make_cache, make_need, piece_number

from lightning_shards.errors import ConfigError
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.remote.cache import piece_folder
from lightning_shards.shards.remote.cache.piece_folder import PieceFolder, folder_of_pieces
from lightning_shards.shards.remote.cache.upkeep import clear_pieces

PIECE = piece_number(3)


def leave_as_if_killed(folder):
    """What a killed process leaves: the need of its run, and a piece half written."""
    part = folder / "pieces" / "parts" / f"{'a' * 64}-0-77"
    part.write_bytes(b"half")
    run = folder / "pieces" / "runs" / "killed"
    run.write_text('{"data": "a", "limit_bytes": 1, "reads_bytes": 1, "working_set_bytes": 1}')
    return part, run


def test_what_a_killed_process_left_is_removed_by_the_next_one(folder):
    cache = make_cache(folder, make_need(10))
    load(cache, PIECE)
    left = leave_as_if_killed(folder)
    cache.close()
    assert make_cache(folder, make_need(10)).open(PIECE) is not None
    assert not any(path.exists() for path in left)
    assert disk_bytes(folder) == FILE


def test_the_limit_of_the_first_run_holds_for_all_that_are_open_and_it_is_said(folder, caplog):
    first = make_cache(folder, make_need(10))
    load(first, PIECE)
    second = make_cache(folder, make_need(100), "second")
    for number in range(40):
        load(second, piece_number(number))
    assert disk_bytes(folder) <= 10 * FILE
    assert "does not hold in" in caplog.text
    first.close()
    second.close()
    third = make_cache(folder, make_need(100), "third")
    for number in range(40):
        load(third, piece_number(number))
    assert disk_bytes(folder) >= 40 * FILE
    third.close()


def test_runs_that_work_on_more_than_the_limit_are_told(folder, caplog):
    for run in ("first", "second"):
        make_cache(folder, make_need(10, working_set_bytes=7 * FILE), run).open(PIECE)
    assert "some are fetched more than once" in caplog.text


def test_a_run_that_was_killed_gives_its_room_back(folder):
    cache = make_cache(folder, make_need(10))
    load(cache, PIECE)
    leave_as_if_killed(folder)  # its limit is one byte
    for number in range(10):
        load(cache, piece_number(number))
    assert disk_bytes(folder) > FILE


def test_empty_folders_of_objects_are_removed(tmp_path):
    cache = make_cache(tmp_path, make_need(3, working_set_bytes=3 * FILE))
    for number in range(0, 160, 16):
        load(cache, piece_number(number))
    cache.close()
    make_cache(tmp_path, make_need(3)).open(PIECE)
    assert len([*tmp_path.glob("pieces/*" + "[0-9a-f]" * 60)]) == disk_bytes(tmp_path) // FILE


def test_on_a_network_file_system_each_machine_has_a_folder(tmp_path, monkeypatch, caplog):
    assert folder_of_pieces(CacheFolder(tmp_path)) == tmp_path / "pieces"
    assert not caplog.records
    monkeypatch.setattr(piece_folder, "is_shared_by_machines", lambda _: True)
    found = folder_of_pieces(CacheFolder(tmp_path))
    assert found == tmp_path / f"pieces-{socket.gethostname()}"
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "name a folder on a disk of this machine as cache_dir" in caplog.text


@pytest.mark.parametrize("run", ["", "../run", "a/b", ".hidden", "x" * 65])
def test_names_that_are_no_files_are_refused(run, tmp_path):
    with pytest.raises(ConfigError, match="cannot name a run"):
        make_cache(tmp_path, make_need(3), run).open(PIECE)


def test_what_is_not_of_the_cache_is_neither_counted_nor_removed(folder):
    """Somebody may name a folder as cache_dir that holds a folder `pieces` of another kind."""
    strangers = [folder / "pieces" / name for name in ("photos/1.jpg", "notes.txt", "a" * 64)]
    for stranger in strangers:
        stranger.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        stranger.write_bytes(b"x" * 10 * FILE)
    for name in ("lost+found", "runs/folder", "parts/folder-1", f"{PIECE.folder}/0-5"):
        (folder / "pieces" / name).mkdir(mode=0o700, parents=True)
    cache = make_cache(folder, make_need(4))
    for number in range(20):
        load(cache, piece_number(number))  # which drops pieces
    entered = PieceFolder(CacheFolder(folder), folder / "pieces")
    assert 0 < sum(piece.size for piece in entered.pieces()) <= 4 * FILE
    cache.close()
    make_cache(folder, make_need(4), "next").open(PIECE)
    clear_pieces(entered, force=True)
    assert cache.counts.bypassed == 0
    assert all(stranger.read_bytes() == b"x" * 10 * FILE for stranger in strangers)
