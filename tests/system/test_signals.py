"""Signals that come while a thread waits."""

import os
import signal
import threading

import pytest

from lightning_shards.system.process import DeferredSignal

SIGNAL = signal.SIGUSR1


class OwnError(Exception):
    """What is raised within a context."""


def send():
    os.kill(os.getpid(), SIGNAL)


def send_and_fail():
    send()
    raise OwnError


@pytest.fixture
def handled():
    """The signals that the handler of the process has got."""
    numbers = []
    before = signal.signal(SIGNAL, lambda number, _: numbers.append(number))
    yield numbers
    signal.signal(SIGNAL, before)


def test_a_signal_is_handled_when_the_wait_is_over(handled):
    with DeferredSignal(SIGNAL) as deferred:
        assert not deferred.is_noted
        send()
        assert deferred.is_noted
        assert handled == []
    assert handled == [SIGNAL]
    send()
    assert handled == [SIGNAL] * 2


def test_without_a_signal_nothing_is_handled(handled):
    with DeferredSignal(SIGNAL):
        pass
    assert handled == []


def test_an_error_takes_the_place_of_the_handler(handled):
    with pytest.raises(OwnError), DeferredSignal(SIGNAL):
        send_and_fail()
    assert handled == []
    send()
    assert handled == [SIGNAL]


def test_in_another_thread_the_handler_stays(handled):
    def wait():
        with DeferredSignal(SIGNAL) as deferred:
            assert signal.getsignal(SIGNAL) is handler
            assert not deferred.is_noted

    handler = signal.getsignal(SIGNAL)
    thread = threading.Thread(target=wait)
    thread.start()
    thread.join()


def test_what_has_no_handler_does_what_it_did():
    before = signal.signal(SIGNAL, signal.SIG_IGN)
    with DeferredSignal(SIGNAL) as deferred:
        send()
    assert not deferred.is_noted
    assert signal.signal(SIGNAL, before) == signal.SIG_IGN
