"""A cache where the file system has no locks, fails to answer, or loses files of the cache."""

import os
import time

import pytest
from cached_bytes import FILE, bytes_of, disk_bytes, load, make_cache, make_need, piece_number

from lightning_shards.errors import ConfigError
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.remote.cache import open_runs
from lightning_shards.shards.remote.cache.piece_folder import PieceFolder, lock_of
from lightning_shards.shards.remote.cache.piece_names import number_of
from lightning_shards.shards.remote.cache.upkeep import clear_pieces, list_pieces


def pass_hours(path, hours=2.0):
    then = time.time() - 3600 * hours
    os.utime(path, (then, then))


def load_all(cache, numbers):
    for number in numbers:
        assert load(cache, piece_number(number)) == bytes_of(piece_number(number))


@pytest.mark.parametrize("fails", ["always", "in one eviction"])
def test_runs_keep_their_needs_where_locks_fail(folder, failing_lock_calls, fails):
    first, second = (make_cache(folder, make_need(10), run) for run in ("first", "second"))
    if fails == "always":
        failing_lock_calls(10**9)
    load_all(first, [0])
    load_all(second, [1])
    if fails != "always":
        failing_lock_calls(10)
    load_all(first, range(2, 40))
    assert (first.counts.bypassed, second.counts.bypassed) == (0, 0)
    assert 5 * FILE < disk_bytes(folder) <= 10 * FILE
    assert sorted(path.name for path in folder.glob("pieces/runs/*")) == ["first", "second"]


@pytest.mark.usefixtures("no_locks")
def test_a_process_that_enters_removes_nothing_of_others_but_what_is_old(folder):
    first = make_cache(folder, make_need(10), "first")
    load_all(first, [0])
    parts = folder / "pieces" / "parts"
    young, old = parts / "5-0123456789abcdef", parts / "6-0123456789abcdef"
    for part in (young, old):
        part.write_bytes(b"half")
    pass_hours(old)
    load_all(make_cache(folder, make_need(10), "second"), [1])
    assert young.exists()
    assert not old.exists()
    assert (folder / "pieces" / "runs" / "first").exists()


@pytest.mark.usefixtures("no_locks")
def test_a_run_that_was_killed_gives_its_room_back_after_a_while(folder):
    cache, killed = make_cache(folder, make_need(10)), make_cache(folder, make_need(2), "killed")
    load_all(killed, [0])
    load_all(cache, range(20))
    (listed,) = [PieceFolder(CacheFolder(folder), folder / "pieces")]
    assert len(list_pieces(listed).runs) == 2
    pass_hours(folder / "pieces" / "runs" / "killed")
    assert len(list_pieces(listed).runs) == 1


@pytest.mark.usefixtures("no_locks")
def test_a_run_at_work_is_not_taken_for_a_killed_one(cache, folder, monkeypatch):
    monkeypatch.setattr(open_runs, "_TOUCHED_EVERY_S", 0.0)
    load_all(cache, [0])
    run = folder / "pieces" / "runs" / "run"
    pass_hours(run)
    assert cache.open(piece_number(0))  # no piece is written
    assert time.time() - run.stat().st_mtime < 600


@pytest.mark.usefixtures("no_locks")
def test_without_locks_pieces_are_cleared_by_force_alone(cache, folder):
    load_all(cache, [0])
    cache.close()
    pieces = PieceFolder(CacheFolder(folder), folder / "pieces")
    with pytest.raises(ConfigError, match=r"has no locks to tell; .* --force"):
        clear_pieces(pieces)
    assert clear_pieces(pieces, force=True).pieces == 1


def test_a_lock_that_failed_once_is_not_the_end_of_a_piece(cache, folder, failing_lock_calls):
    load_all(cache, [0])
    failing_lock_calls(2)
    load_all(cache, [1])
    assert cache.counts.bypassed == 0
    assert disk_bytes(folder) == 2 * FILE


@pytest.mark.usefixtures("with_or_without_locks")
def test_a_lost_file_of_a_run_is_written_again_and_its_room_kept(cache, folder):
    load_all(cache, range(8))
    (run,) = folder.glob("pieces/runs/*")
    run.unlink()
    load_all(cache, range(8, 40))
    assert cache.counts.bypassed == 0
    assert 5 * FILE < disk_bytes(folder) <= 10 * FILE
    assert run.exists()


def test_folders_that_were_cleaned_up_are_made_again(cache, folder, monkeypatch):
    monkeypatch.setattr(open_runs, "_TOUCHED_EVERY_S", 0.0)
    load_all(cache, [0])
    for path in (folder / "pieces" / "runs" / "run", folder / "pieces" / "lock"):
        path.unlink()
    (folder / "pieces" / "runs").rmdir()
    (folder / "pieces" / "parts").rmdir()
    load_all(cache, [1])
    assert cache.counts.bypassed == 0


def test_a_piece_has_the_time_of_its_use_for_programs_that_clean_up(cache, folder):
    first = piece_number(0)
    cache.load(first, lambda: bytes_of(first)).close()  # it is not read
    (piece,) = folder.glob("pieces/*/0-1000")
    assert time.time() - piece.stat().st_atime < 600


def test_a_lack_of_room_is_told_once(folder, caplog):
    cache = make_cache(folder, make_need(0))
    load_all(cache, range(3))
    assert cache.counts.bypassed == 3
    (record,) = caplog.records
    assert "not kept in" in record.getMessage()
    assert "leaves 0 GiB for the pieces of 1 open runs" in record.getMessage()
    assert "raise cache_gib" in record.getMessage()


def test_a_part_that_becomes_a_piece_in_a_recount_is_in_it(cache, folder, monkeypatch):
    """Its writer renames it without the lock of the counter."""
    load_all(cache, range(9))
    here = cache._here()
    piece = piece_number(50)
    lock = here._folder.locks.take(lock_of(number_of(piece.folder, piece.name)))
    room = here._room.take(piece)
    listed = PieceFolder.pieces

    def pieces(folder):
        yield from listed(folder)
        if room.path.exists():
            here._publish(piece, room)

    def bytes_in_parts(folder):
        total = counted(folder)
        if room.path.exists():
            here._publish(piece, room)
        return total

    counted = PieceFolder.bytes_in_parts
    monkeypatch.setattr(PieceFolder, "pieces", pieces)
    monkeypatch.setattr(PieceFolder, "bytes_in_parts", bytes_in_parts)
    load_all(cache, [60])
    assert disk_bytes(folder) <= 10 * FILE
    os.close(room.file)
    lock.close()
