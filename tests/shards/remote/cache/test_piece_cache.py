"""The cache of pieces, as one process or two see it: what is kept, dropped, refused and counted."""

import errno
import os
import pickle
import threading
import time

import pytest
from cached_bytes import (
    FILE,
    bytes_of,
    disk_bytes,
    load,
    make_cache,
    make_need,
    piece_number,
    reading,
)

from lightning_shards.errors import DamagedShardError
from lightning_shards.shards.remote.cache import piece_cache, piece_folder
from lightning_shards.shards.remote.cache.piece_folder import locked_within

PIECE = piece_number(3)


def no_fetch():
    raise AssertionError("it was to be in the cache")


def test_what_was_loaded_is_there_for_all_processes(cache, folder):
    assert cache.open(PIECE) is None
    assert load(cache, PIECE) == bytes_of(PIECE)
    other = pickle.loads(pickle.dumps(cache))
    for reader in (cache, other, make_cache(folder, make_need(10), "another")):
        opened = reader.load(PIECE, no_fetch)
        assert opened.read(PIECE.begin + 5, PIECE.begin + 9) == bytes_of(PIECE)[5:9]
        assert opened.file is not None
        reader.close()
    assert cache.counts.fetched == 1


def test_what_comes_after_the_cache_was_left_is_not_kept_and_no_warning_says_so(cache, caplog):
    def fetch():
        cache.close()  # by another thread, as a run ends
        return bytes_of(PIECE)

    opened = cache.load(PIECE, fetch)
    assert (opened.read(*PIECE[2:]), opened.file) == (bytes_of(PIECE), None)
    assert not caplog.records
    assert cache.open(PIECE) is None


def test_folders_and_files_are_private(cache, folder):
    load(cache, PIECE)
    made = [folder, *folder.rglob("*")]
    assert {oct(path.stat().st_mode & 0o777) for path in made if path.is_dir()} == {"0o700"}
    assert {oct(path.stat().st_mode & 0o777) for path in made if path.is_file()} <= {
        "0o600",
        "0o644",  # what a run needs
    }


def test_the_limit_is_kept_and_open_pieces_stay_readable(cache, folder):
    opened = []
    for number in range(60):
        piece = piece_number(number)
        opened.append((piece, cache.load(piece, lambda piece=piece: bytes_of(piece))))
        assert disk_bytes(folder) <= 10 * FILE
    assert cache.counts.evicted >= 50
    assert cache.counts.bypassed == 0
    assert all(loaded.read(*piece[2:]) == bytes_of(piece) for piece, loaded in opened)


def there_of(cache, bucket, numbers):
    return [n for n in numbers if cache.open(piece_number(n, bucket=bucket))]


def test_pieces_of_a_former_data_set_go_before_those_just_fetched(folder):
    former = make_cache(folder, reading(make_need(20, reads_bytes=20 * FILE), "former"), "former")
    for number in range(20):
        load(former, piece_number(number, bucket="former"))
    former.close()
    need = reading(make_need(20, reads_bytes=40 * FILE), "new", time.time_ns())
    cache = make_cache(folder, need, "new")
    for number in range(12):
        load(cache, piece_number(number, bucket="new"))
    assert there_of(cache, "new", range(12)) == list(range(12))
    cache.close()


def test_without_room_pieces_are_served_from_memory(folder):
    cache = make_cache(folder, make_need(0))
    loaded = cache.load(PIECE, lambda: bytes_of(PIECE))
    assert (loaded.file, loaded.read(*PIECE[2:])) == (None, bytes_of(PIECE))
    assert loaded.read(PIECE.begin + 5, PIECE.begin + 9) == bytes_of(PIECE)[5:9]
    assert cache.counts.bypassed == 1
    assert disk_bytes(folder) == 0


def test_a_folder_that_is_taken_away_is_made_again(cache, folder, caplog):
    load(cache, PIECE)
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    for number in range(3):
        assert load(cache, piece_number(number)) == bytes_of(piece_number(number))
    assert cache.counts.bypassed == 0
    assert caplog.records == []


def test_a_file_in_place_of_the_folder_is_one_warning(folder, caplog):
    folder.write_text("not a folder")
    cache = make_cache(folder, make_need(3))
    assert load(cache, PIECE) == bytes_of(PIECE)
    assert cache.open(PIECE) is None
    assert len(caplog.records) == 1


def test_too_many_open_files_are_told_with_their_own_remedy(cache, monkeypatch, caplog):
    def no_more(*arguments):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    load(cache, PIECE)
    monkeypatch.setattr(piece_cache, "open_piece", no_more)
    assert cache.open(PIECE) is None
    (record,) = caplog.records
    assert "again: raise the limit of open files (ulimit -n), or use fewer" in record.getMessage()


def test_another_number_of_bytes_is_refused(cache, folder):
    with pytest.raises(
        DamagedShardError, match=r"999 bytes were fetched of s3://bucket/0.tar at b"
    ):
        cache.load(PIECE, lambda: bytes_of(PIECE)[1:])
    assert disk_bytes(folder) == 0
    assert load(cache, PIECE) == bytes_of(PIECE)


def test_an_error_of_fetching_is_passed_on_and_leaves_nothing(cache, folder):
    def fetch():
        raise ConnectionError("reset")

    with pytest.raises(ConnectionError, match="reset"):
        cache.load(PIECE, fetch)
    assert load(cache, PIECE) == bytes_of(PIECE)


def test_one_thread_fetches_and_the_others_are_told(cache):
    entered, go_on = threading.Event(), threading.Event()

    def slowly():
        entered.set()
        assert go_on.wait(30)
        return bytes_of(PIECE)

    thread = threading.Thread(target=cache.load, args=(PIECE, slowly))
    thread.start()
    assert entered.wait(30)
    assert cache.load(PIECE, no_fetch) is None
    assert cache.load(PIECE, no_fetch, wait_s=0.02) is None
    go_on.set()
    assert cache.load(PIECE, no_fetch, wait_s=30).read(*PIECE[2:]) == bytes_of(PIECE)
    thread.join()


def test_threads_that_start_together_enter_once(folder):
    cache, start = make_cache(folder, make_need(50)), threading.Barrier(8)

    def load_all():
        start.wait()
        for number in range(20):
            piece = piece_number(number)
            loaded = cache.load(piece, lambda piece=piece: bytes_of(piece), wait_s=30)
            assert loaded.read(*piece[2:]) == bytes_of(piece)

    threads = [threading.Thread(target=load_all) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert cache.counts.fetched == 20
    assert disk_bytes(folder) == 20 * FILE
    cache.close()
    assert [*folder.glob("pieces/runs/*")] == []


def test_a_lost_counter_is_counted_anew(cache, folder):
    for number in range(8):
        load(cache, piece_number(number))
    (folder / "pieces" / "lock").write_bytes(b"")
    for number in range(8, 20):
        load(cache, piece_number(number))
        assert disk_bytes(folder) <= 10 * FILE


def test_a_process_that_is_stopped_with_the_counter_holds_nobody_up(cache, folder, monkeypatch):
    monkeypatch.setattr(piece_folder, "_WAIT_S", 0.01)
    load(cache, PIECE)
    with locked_within(folder / "pieces" / "lock"):
        assert load(cache, piece_number(4)) == bytes_of(piece_number(4))
    assert cache.counts.bypassed == 1


def test_without_locks_nothing_is_kept_and_it_is_said(cache, no_locks, caplog):
    assert load(cache, PIECE) == bytes_of(PIECE)
    assert cache.counts.bypassed == 1
    assert "cannot be used: No locks available" in caplog.text
