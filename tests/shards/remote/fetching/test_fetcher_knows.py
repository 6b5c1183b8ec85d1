"""What a fetcher knows of the pieces that it was told of: whether all of them are there."""

import threading

from held_fetcher import PIECES, WITHIN_S, is_fetched
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


def test_what_an_earlier_run_left_is_known_with_the_announcement(make_fetcher, tmp_path):
    earlier = make_fetcher()
    earlier.fetch_ahead(PIECES)
    assert is_fetched(earlier, 8)
    fetcher = make_fetcher()
    fetcher.fetch_ahead(PIECES)
    assert fetcher.has_all()
    assert fetcher.counts.ahead_requests == 0
