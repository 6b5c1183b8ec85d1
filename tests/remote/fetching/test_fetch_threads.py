"""Requests of processes that may start no or few threads."""

import threading

import pytest

from lightning_shards.errors import StorageError
from lightning_shards.remote.request_threads import RequestThreads

LONGEST_S = 10


@pytest.fixture
def deny_threads(monkeypatch):
    """Lets no thread be started after so many, as a limit of the user does, until it is called."""
    start = threading.Thread.start

    def deny(after):
        left = [after]

        def limited(thread):
            if not left[0]:
                raise RuntimeError("can't start new thread")
            left[0] -= 1
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", limited)
        return lambda: monkeypatch.setattr(threading.Thread, "start", start)

    return deny


def test_a_request_is_an_error_where_no_thread_can_be_started(deny_threads):
    threads = RequestThreads(1)
    allow = deny_threads(0)
    with pytest.raises(StorageError, match=r"ulimit -u.*fewer connections"):
        threads.begin(int).result(LONGEST_S)
    allow()
    assert threads.begin(lambda: 2).result(LONGEST_S) == 2
    threads.close()
