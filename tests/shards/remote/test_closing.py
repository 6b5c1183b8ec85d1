"""A transport that is closed ends what its threads wait for, and begins nothing new."""

import threading
import time
from contextlib import contextmanager, suppress
from random import Random

import pytest
from certificates import make_certificate
from fault_server import Fault, fault_server
from urllib3.util import connection

from lightning_shards.errors import StorageError
from lightning_shards.shards.remote.backend import (
    RangeAnswer,
    RequestBackend,
    RequestFailure,
)
from lightning_shards.shards.remote.retries import RetryPolicy
from lightning_shards.shards.remote.transport import Body
from tests.shards.remote.conftest import url_of

pytestmark = pytest.mark.network

WITHIN_S = 20.0
DATA = Random(0).randbytes(60_000)  # some records of TLS, which all are sent before one is read


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    return make_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def tls_server(certificate):
    with fault_server(certificate[1]) as server:
        yield server


@pytest.fixture(params=["server", "tls_server"])
def either_server(request, server, certificate, monkeypatch):
    """Our server without and with TLS, which has an object."""
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
    either = request.getfixturevalue(request.param)
    either.reset()
    either.objects["data/a.tar"] = DATA
    yield either
    either.reset()


@pytest.fixture
def either_url(either_server):
    return f"{either_server.url}/data/a.tar"


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
def test_closing_wakes_who_waits_for_a_server_or_pauses(
    fault, policy, make_transport, either_url, either_server
):
    transport = make_transport(policy)
    either_server.always = fault
    errors = []

    def read():
        try:
            transport.read(either_url, 0, 9)
        except StorageError as error:
            errors.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    while not either_server.asked:
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


@pytest.mark.parametrize("way", ["read_into", "chunks"])
def test_a_body_that_is_read_on_after_closing_gives_no_other_bytes(
    way, make_transport, either_url, either_server
):
    """What has arrived may still be read: decrypted, where it came by TLS."""
    transport, came = make_transport(RetryPolicy()), b""
    backend = transport._of_this_process().backend("http", transport._settings, time.perf_counter)
    with backend.get(either_url, 0, len(DATA), None) as answer:
        assert either_server.has_sent.wait(WITHIN_S)
        transport.close()
        with suppress(RequestFailure):
            for part in answer.chunks if way == "chunks" else parts_of(answer):
                came += part
    assert came == DATA[: len(came)]


def parts_of(answer):
    memory = memoryview(bytearray(len(DATA)))
    while size := answer.read_into(memory):
        yield bytes(memory[:size])


class ClosedMeanwhile(RequestBackend):
    """Answers with other bytes as soon as it is closed."""

    def __init__(self, close):
        self._close = close

    @contextmanager
    def get(self, url, begin, end, version):
        yield RangeAnswer(begin, end, len(DATA), '"a"', self._chunks(begin, end))

    def put(self, url, data):
        self._close()

    def _chunks(self, begin, end):
        yield DATA[begin : begin + 9]
        self._close()
        yield bytes(end - begin - 9)


@pytest.mark.parametrize("way", ["read", "read_forward", "write"])
def test_what_comes_while_the_connections_are_closed_is_no_answer(way, make_transport, url):
    transport, came = make_transport(RetryPolicy()), []
    opened = transport._of_this_process()
    opened._backends["http"] = ClosedMeanwhile(transport.close)
    act = {
        "read": lambda: transport.read(url, 0, len(DATA)),
        "read_forward": lambda: came.extend(
            transport.read_forward(url, Body(bytearray(), '"a"', len(DATA)))
        ),
        "write": lambda: transport.write(url, DATA),
    }[way]
    with pytest.raises(StorageError, match="the connections were closed"):
        act()
    assert b"".join(came) in (b"", DATA[:9])
