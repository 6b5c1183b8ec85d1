"""What a fetcher knows of the pieces that it was told of: whether all of them are there."""

import threading

from held_fetcher import PIECES, WITHIN_S, bytes_read, is_fetched
from held_transport import reads_of
from waiting import wait_for


def test_it_is_known_whether_all_that_was_announced_last_is_there(make_fetcher, transport):
    fetcher = make_fetcher()
    assert not fetcher.has_all()
    transport.gates[16_000] = threading.Event()
    fetcher.fetch_ahead(PIECES[:3])
    assert wait_for(lambda: fetcher.counts.ahead_requests == 2, WITHIN_S)
    assert not fetcher.has_all()
    transport.gates[16_000].set()
    assert wait_for(fetcher.has_all, WITHIN_S)
    fetcher.fetch_ahead(PIECES[2:4])
    assert wait_for(fetcher.has_all, WITHIN_S)
    fetcher.fetch_ahead([])
    assert not fetcher.has_all()  # what batches want is then fetched exactly


def test_it_is_known_whether_a_batch_has_lacked_something_since(make_fetcher, tmp_path):
    fetcher = make_fetcher()
    assert not fetcher.has_lacked()
    fetcher.fetch_ahead(PIECES[:3])
    assert is_fetched(fetcher, 3)
    bytes_read(fetcher, reads_of("u", [(0, 24_000)]))
    assert not fetcher.has_lacked()
    bytes_read(fetcher, reads_of("u", [(24_000, 24_001)]))  # of no piece that was announced
    assert fetcher.has_lacked()
    fetcher.fetch_ahead(PIECES[:3])
    assert not fetcher.has_lacked()
    fetcher._here()._open.close()
    (tmp_path / "cache" / "pieces" / PIECES[1].folder / PIECES[1].name).unlink()
    bytes_read(fetcher, reads_of("u", [(0, 10), (8000, 8001)]))
    assert fetcher.has_lacked()


def test_pieces_are_there_if_all_of_them_are(make_fetcher, tmp_path):
    fetcher = make_fetcher()
    fetcher.fetch_ahead(PIECES[:3])
    assert is_fetched(fetcher, 3)
    assert fetcher.has(PIECES[:3])
    assert not fetcher.has(PIECES[:4])
    (tmp_path / "cache" / "pieces" / PIECES[1].folder / PIECES[1].name).unlink()
    assert not fetcher.has(PIECES[:3])
    assert fetcher.has([PIECES[2]])


def test_what_an_earlier_run_left_is_known_with_the_announcement(make_fetcher, tmp_path):
    earlier = make_fetcher()
    earlier.fetch_ahead(PIECES)
    assert is_fetched(earlier, 8)
    fetcher = make_fetcher()
    fetcher.fetch_ahead(PIECES)
    assert fetcher.has_all()
    assert not fetcher._here()._threads._threads  # none of them has been asked
