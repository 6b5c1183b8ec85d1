"""Waits that are called off by whoever wanted what they wait for."""

import threading
from concurrent.futures import Future
from queue import SimpleQueue

import pytest

from lightning_shards.system.process import (
    Cancellable,
    raise_if_cancelled,
    result_of,
    take_from,
    wait_for_event,
)


class EnoughError(Exception):
    """What the check raises."""


def enough():
    raise EnoughError


WAITS = {
    "an event": lambda: wait_for_event(threading.Event(), 60),
    "a queue": lambda: take_from(SimpleQueue()),
    "a future": lambda: result_of(Future()),
}


@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS)
def test_a_wait_is_called_off(wait):
    with pytest.raises(EnoughError), Cancellable(enough):
        wait()


def test_a_check_holds_for_its_thread_and_context_alone():
    raised = []

    def look():
        try:
            raise_if_cancelled()
        except EnoughError:
            raised.append(1)

    with Cancellable(enough), Cancellable(None):
        other = threading.Thread(target=look)
        other.start()
        other.join()
        assert raised == []
        look()
    assert raised == [1]
    raise_if_cancelled()


def test_what_is_there_needs_no_check():
    queue, future, event = SimpleQueue(), Future(), threading.Event()
    queue.put(1)
    future.set_result(2)
    event.set()
    with Cancellable(enough):
        assert (take_from(queue), result_of(future)) == (1, 2)
        assert wait_for_event(event, 0)


def test_an_event_is_waited_for_no_longer_than_told():
    assert not wait_for_event(threading.Event(), 0.01)


def test_an_error_of_a_future_is_raised_even_if_it_looks_like_a_time_limit():
    future = Future()
    future.set_exception(TimeoutError("of the server"))
    with pytest.raises(TimeoutError, match="of the server"):
        result_of(future)
