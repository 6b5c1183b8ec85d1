"""A transport that is closed ends what its threads wait for, and begins nothing new."""

import threading
import time

import pytest
from fault_server import Fault
from urllib3.util import connection

from lightning_shards.errors import StorageError
from lightning_shards.shards.remote.backend import RequestFailure
from lightning_shards.shards.remote.retries import RetryPolicy
from tests.shards.remote.conftest import url_of

pytestmark = pytest.mark.network

WITHIN_S = 20.0


@pytest.fixture
def held_connecting(monkeypatch):
    """Makes connections wait, before they are made, until they are let go."""
    connect, has_begun, is_let = connection.create_connection, threading.Event(), threading.Event()

    def held(*args, **settings):
        has_begun.set()
        assert is_let.wait(WITHIN_S)
        return connect(*args, **settings)

    monkeypatch.setattr(connection, "create_connection", held)
    yield has_begun, is_let
    is_let.set()


@pytest.mark.parametrize(
    ("fault", "policy"),
    [
        (Fault("stall", 3), RetryPolicy()),
        (Fault("stall", 0), RetryPolicy()),
        (Fault("silent", 5), RetryPolicy()),
        (Fault("status", 500), RetryPolicy(first_pause_s=15)),
    ],
    ids=["stalls", "stalls at once", "is silent", "is broken"],
)
def test_closing_wakes_who_waits_for_a_server_or_pauses(fault, policy, make_transport, url, server):
    transport = make_transport(policy)
    server.always = fault
    errors = []

    def read():
        try:
            transport.read(url, 0, 9)
        except StorageError as error:
            errors.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    while not server.asked:
        time.sleep(0.001)
    time.sleep(0.02)
    transport.close()
    thread.join(5)  # it would wait for half a minute
    assert not thread.is_alive()
    assert "the connections were closed" in str(errors[0])


def test_a_connection_that_is_made_after_closing_is_shut_at_once(
    held_connecting, make_transport, url, server
):
    has_begun, is_let = held_connecting
    transport, errors = make_transport(RetryPolicy()), []
    server.always = Fault("silent", 60)

    def read():
        with pytest.raises(StorageError) as caught:
            transport.read(url, 0, 9)
        errors.append(caught.value)

    thread = threading.Thread(target=read)
    thread.start()
    assert has_begun.wait(WITHIN_S)
    transport.close()
    is_let.set()
    thread.join(10)  # it would wait for half a minute
    assert not thread.is_alive()
    assert "the connections were closed" in str(errors[0])


@pytest.mark.parametrize("face", ["http", "ais", "hf", "s3"])
def test_a_backend_that_a_thread_got_before_closing_asks_for_nothing(
    face, make_transport, url, server
):
    """Nor do those who waited for another thread's answer of the hub."""
    transport = make_transport(RetryPolicy())
    opened = transport._of_this_process()
    backends = [opened.backend(face, transport._settings, time.perf_counter)]
    transport.close()
    opened._backends.clear()
    backends.append(opened.backend(face, transport._settings, time.perf_counter))
    asked_for = url_of(server, face, "own.tar")  # a thread of an earlier test may ask for others
    for backend in backends:
        with pytest.raises(RequestFailure, match="were closed"), backend.get(asked_for, 0, 9, None):
            pass
    assert not [each for each in server.asked if "own.tar" in each.path]


def test_a_body_of_a_bucket_ends_with_the_next_bytes_after_closing(make_transport, url, server):
    transport = make_transport(RetryPolicy())
    backend = transport._of_this_process().backend("s3", transport._settings, time.perf_counter)
    with backend.get(url_of(server, "s3", "a.tar"), 0, 9, None) as answer:
        transport.close()
        with pytest.raises(RequestFailure, match="were closed"):
            list(answer.chunks)
