"""Servers that send a byte of a body now and then, for ever: no timeout of a socket ends that."""

import random
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from itertools import count

import pytest

from lightning_shards.shards.remote.retries import RetryPolicy
from lightning_shards.shards.remote.transport import RemoteTransport, TransportSettings

pytestmark = [pytest.mark.network, pytest.mark.timeout(120)]

POLICY = RetryPolicy(
    tries=2, total_s=2, stall_s=0.3, first_pause_s=0.01, longest_pause_s=0.01, least_rate=1 << 20
)
DRIP_S = 0.01
WHOLE = b'HTTP/1.1 200 OK\r\nETag: "1"\r\n'


class Dripping:
    """A server that sends the beginning of an answer at once, and the rest byte by byte.

    Or so many bytes at a time; what is behind them is sent from its beginning again.
    """

    def __init__(self, start: bytes, drip: bytes, step: int = 1) -> None:
        self.start, self.drip, self.step = start, drip, step
        self.is_over = threading.Event()
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection = self._socket.accept()[0]
                self._threads.append(threading.Thread(target=self._answer, args=(connection,)))
                self._threads[-1].start()

    def _answer(self, connection: socket.socket) -> None:
        with suppress(OSError), connection:
            connection.recv(1 << 16)
            connection.sendall(self.start)
            for number in count():
                if self.is_over.wait(DRIP_S):
                    return
                begin = number * self.step % len(self.drip)
                connection.sendall(self.drip[begin:][: self.step])

    def close(self) -> None:
        self.is_over.set()
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        for thread in self._threads:
            thread.join(30)


@pytest.fixture
def make_server() -> Iterator[Callable[..., Dripping]]:
    made: list[Dripping] = []

    def make(start: bytes, drip: bytes, step: int = 1) -> Dripping:
        made.append(Dripping(start, drip, step))
        return made[-1]

    yield make
    for server in made:
        server.close()


def test_bytes_before_a_range_show_that_a_server_without_ranges_works(make_server):
    """They come for longer than a stall may take, and none of them is kept."""
    data = random.Random(1).randbytes(60_000)
    server = make_server(WHOLE + b"Content-Length: 60000\r\n\r\n", data, 1000)
    policy = replace(POLICY, tries=10, total_s=60, stall_s=0.1, least_rate=1024)
    with closing(RemoteTransport(TransportSettings(policy=policy))) as transport:
        assert transport.read(f"{server.url}/a.tar", 59_000, 60_000).data == data[59_000:]
