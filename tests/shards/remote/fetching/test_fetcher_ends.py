"""Fetchers that meet errors, full disks and old files, and how they end."""

import errno
import os
import threading

import pytest
from held_fetcher import DATA, PIECES, WITHIN_S, bytes_read, is_fetched
from held_transport import MIB, cache_in, reads_of
from waiting import wait_for

from lightning_shards.errors import FileAccessError, IndexMismatchError, StorageError
from lightning_shards.shards.remote import pieces
from lightning_shards.shards.remote.pieces import Piece
from lightning_shards.shards.storage import open_pieces
from lightning_shards.shards.storage.fetcher import Fetcher


def test_a_piece_of_a_process_that_ends_is_fetched_after_all(make_fetcher, transport, tmp_path):
    other = cache_in(tmp_path / "cache")
    assert other.open(PIECES[0]) is None
    part = other._begin(PIECES[0])  # as if it were fetched there
    fetcher = make_fetcher(wait_s=0.1)
    fetcher.fetch_ahead(PIECES)
    assert wait_for(lambda: fetcher.counts.ahead_requests == 7, WITHIN_S)
    assert bytes_read(fetcher, reads_of("u", [(10, 20)])) == [DATA[10:20]]
    del part  # the process was killed
    assert is_fetched(fetcher, 8)
    other.close()


def test_an_error_of_a_piece_is_quiet_and_that_of_a_batch_is_raised(make_fetcher, transport):
    transport.failing = {0: StorageError("first"), 100: StorageError("second")}
    fetcher = make_fetcher(threads=1)
    fetcher.fetch_ahead(PIECES[:2])
    assert is_fetched(fetcher, 1)  # the one behind it
    with pytest.raises(StorageError, match="second"):
        fetcher.read([reads_of("u", [(100, 200)])])
    assert bytes_read(fetcher, reads_of("u", [(200, 300)])) == [DATA[200:300]]


def test_after_an_error_nothing_is_written_to_the_memory_of_the_batch(make_fetcher, transport):
    far, is_late, answer = 16 * MIB, threading.Event(), transport.read

    def read(url, begin, end, version):
        if begin < far:
            assert transport.begun[far].wait(WITHIN_S)
            raise StorageError("no")
        transport.begun[far].set()
        assert is_late.wait(WITHIN_S)
        return answer(url, begin, end, version)

    transport.read = read
    reads = reads_of("large", [(0, 10), (far, far + 10)])
    fetcher = make_fetcher()
    with pytest.raises(StorageError, match="no"):
        fetcher.read([reads])
    is_late.set()
    assert wait_for(lambda: fetcher.counts.exact_requests == 1, WITHIN_S)
    assert bytes(reads.into) == bytes(20)


def test_a_version_that_changes_is_an_error_of_the_batch(make_fetcher, transport):
    fetcher = make_fetcher()
    fetcher.fetch_ahead(PIECES[:2])
    assert is_fetched(fetcher, 2)
    transport.version = '"w"'
    assert bytes_read(fetcher, reads_of("u", [(10, 20)])) == [DATA[10:20]]  # what was fetched holds
    with pytest.raises(IndexMismatchError, match='"v" was expected, "w" is there'):
        fetcher.read([reads_of("u", [(20_000, 20_010)])])


def test_where_nothing_can_be_kept_fetching_ahead_stops(make_fetcher, transport, tmp_path):
    fetcher = make_fetcher(cache_in(tmp_path / "small", limit_bytes=9000), threads=1)
    first = Piece("u", '"v"', 0, 9500)  # there is no room for it
    fetcher.fetch_ahead([first, *PIECES[2:]])
    assert bytes_read(fetcher, reads_of("u", [(10, 20)])) == [DATA[10:20]]
    assert transport.asked == [("u", 10, 20)]
    fetcher.fetch_ahead([*PIECES[2:3]])  # the next block is tried again
    assert is_fetched(fetcher, 1)


def test_where_the_disk_fails_it_is_named_and_the_bytes_are_fetched_exactly(
    make_fetcher, transport, tmp_path, caplog, monkeypatch
):
    def failing(*_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    fetcher = make_fetcher()
    fetcher.fetch_ahead(PIECES[:1])
    assert is_fetched(fetcher, 1)
    monkeypatch.setattr(pieces.os, "preadv", failing)
    assert bytes_read(fetcher, reads_of("u", [(10, 7000)])) == [DATA[10:7000]]
    assert str(tmp_path / "cache" / "pieces") in caplog.text
    assert "Input/output error" in caplog.text
    assert fetcher.counts.exact_requests == 1


def test_a_folder_that_others_may_write_is_an_error_of_the_batch(make_fetcher, tmp_path):
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o777)
    fetcher = make_fetcher()
    fetcher.fetch_ahead(PIECES[:1])
    with pytest.raises(FileAccessError, match="may be written by other users"):
        fetcher.read([reads_of("u", [(0, 10)])])


def test_the_workers_of_a_process_share_its_limit_of_open_files(
    make_fetcher, monkeypatch, open_files
):
    monkeypatch.setattr(open_pieces, "share_of_files", lambda num_parts: 6 // num_parts)
    fetchers = [make_fetcher() for _ in range(3)]
    for fetcher in fetchers:
        fetcher.fetch_ahead(PIECES)
        assert is_fetched(fetchers[0], 8)  # which the others find
    before = len(open_files())
    for fetcher in fetchers * 2:
        assert bytes_read(fetcher, reads_of("u", [(0, 64_000)])) == [DATA]
    assert len(open_files()) <= before + 6
    for fetcher in fetchers[1:]:
        fetcher.close()
    assert bytes_read(fetchers[0], reads_of("u", [(0, 64_000)])) == [DATA]
    assert len(open_files()) == before // 3 + 6


def test_dropped_pieces_stay_readable_and_are_then_fetched_exactly(
    make_fetcher, transport, tmp_path
):
    fetcher = make_fetcher()
    fetcher.fetch_ahead(PIECES[:2])
    assert is_fetched(fetcher, 2)
    bytes_read(fetcher, reads_of("u", [(0, 10)]))
    for file in (tmp_path / "cache" / "pieces").glob("*/*-*000"):
        file.unlink()
    spans = [(20, 30), (8020, 8030)]
    assert bytes_read(fetcher, reads_of("u", spans)) == [DATA[20:30], DATA[8020:8030]]
    assert transport.asked[2:] == [("u", 8020, 8030)]


def test_threads_end_with_a_fetcher_that_is_dropped(transport, tmp_path):
    before = set(threading.enumerate())
    fetcher = Fetcher(transport, cache_in(tmp_path / "cache"), threads=2)
    fetcher.read([])
    fetcher.fetch_ahead(PIECES)
    assert is_fetched(fetcher, 8)
    started = set(threading.enumerate()) - before
    del fetcher
    assert started
    assert wait_for(lambda: not any(each.is_alive() for each in started), WITHIN_S)
