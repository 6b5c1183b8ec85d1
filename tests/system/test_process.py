"""What a process shares: the name of its job, its signals, and waits called off."""

import multiprocessing
import os
import signal
import threading
from concurrent.futures import Future
from queue import SimpleQueue

import pytest

from lightning_shards.system.process import (
    Cancellable,
    DeferredSignal,
    job_name,
    result_of,
    take_from,
    wait_for_event,
)


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    """An environment without a launcher."""
    for name in ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)


def name_elsewhere(ranks):
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return pool.apply(job_name, (ranks,))


def test_a_process_alone_is_a_job(monkeypatch):
    assert job_name(1) == job_name(1) != name_elsewhere(1)
    monkeypatch.setenv("MASTER_PORT", "29500")  # as set for all jobs of a sweep
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert job_name(1) != name_elsewhere(1)


@pytest.mark.parametrize(("ranks", "world_size"), [(2, None), (1, "2")])
def test_ranks_that_meet_are_one_job(monkeypatch, ranks, world_size):
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    if world_size is not None:
        monkeypatch.setenv("WORLD_SIZE", world_size)
    names = []
    for port in ("1", "2"):
        monkeypatch.setenv("MASTER_PORT", port)
        assert job_name(ranks) == name_elsewhere(ranks)
        names.append(job_name(ranks))
    assert names[0] != names[1]


SIGNAL = signal.SIGUSR1


class EnoughError(Exception):
    """What the check raises."""


def enough():
    raise EnoughError


def send():
    os.kill(os.getpid(), SIGNAL)


def send_and_fail():
    send()
    raise EnoughError


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


def test_an_error_takes_the_place_of_the_handler(handled):
    with pytest.raises(EnoughError), DeferredSignal(SIGNAL):
        send_and_fail()
    assert handled == []
    send()
    assert handled == [SIGNAL]


WAITS = {
    "an event": lambda: wait_for_event(threading.Event(), 60),
    "a queue": lambda: take_from(SimpleQueue()),
    "a future": lambda: result_of(Future()),
}


@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS)
def test_a_wait_is_called_off(wait):
    with pytest.raises(EnoughError), Cancellable(enough):
        wait()
