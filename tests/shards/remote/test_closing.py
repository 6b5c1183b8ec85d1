"""A transport that is closed ends what its threads wait for, and begins nothing new."""

from contextlib import contextmanager
from random import Random

import pytest

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

DATA = Random(0).randbytes(60_000)


@pytest.mark.parametrize("face", ["http", "ais", "hf", "s3"])
def test_a_backend_that_a_thread_got_before_closing_asks_for_nothing(
    face, make_transport, url, server
):
    """Nor do those who waited for another thread's answer of the hub."""
    transport = make_transport(RetryPolicy())
    opened = transport._of_this_process()
    backends = [opened.backend(face, transport._settings)]
    transport.close()
    opened._backends.clear()
    backends.append(opened.backend(face, transport._settings))
    asked_for = url_of(server, face, "own.tar")  # a thread of an earlier test may ask for others
    for backend in backends:
        with pytest.raises(RequestFailure, match="were closed"), backend.get(asked_for, 0, 9, None):
            pass
    assert not [each for each in server.asked if "own.tar" in each.path]


def test_a_body_of_a_bucket_ends_with_the_next_bytes_after_closing(make_transport, url, server):
    transport = make_transport(RetryPolicy())
    backend = transport._of_this_process().backend("s3", transport._settings)
    with backend.get(url_of(server, "s3", "a.tar"), 0, 9, None) as answer:
        transport.close()
        with pytest.raises(RequestFailure, match="were closed"):
            list(answer.chunks)


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
