"""A proxy that delays requests and slows answers down: `python proxy.py UPSTREAM_PORT`.

It gives a loopback server the latency and the speed of a remote one. A request goes on after the
latency, the first one of a connection after twice that, because making a connection takes a round
trip, too. Answers are paced per connection and over all connections together, in turns.

It prints its port and that of its control, where one line of JSON is answered by one: `{"rate": R}`
sets the speed of the link, `{"mark": true}` forgets when the first request came, and each answer
has the counters. It ends with its standard input.
"""

import json
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from threading import Lock, Thread
from time import perf_counter, sleep

LATENCY_S = 0.03
CONNECTION_RATE = 80e6
UNLIMITED = 1e12

_QUANTUM = 1 << 17
"""Bytes of a connection before it is another one's turn."""
_BURST_S = 0.02
"""The link makes up for this much time in which the proxy was not run."""
_METHODS = (b"GET ", b"HEAD ", b"PUT ", b"POST ")


class Pacer:
    """Lets bytes go at a rate in bytes/s."""

    def __init__(self, rate: float) -> None:
        self._rate, self._free_at, self._lock = rate, 0.0, Lock()

    def pay(self, size: int) -> None:
        """Wait until so many bytes went."""
        with self._lock:
            now = perf_counter()
            self._free_at = max(self._free_at, now - _BURST_S) + size / self._rate
            wait_s = self._free_at - now
        if wait_s > 0:
            sleep(wait_s)


class Proxy:
    """All connections, each with a thread for each direction.

    Args:
        upstream: The port of the server.
        latency_s: Seconds that a request is held back.

    Attributes:
        port: Where it listens.
        control: The port that it is controlled by.
    """

    def __init__(self, upstream: int, latency_s: float = LATENCY_S) -> None:
        self._upstream, self._latency_s = ("127.0.0.1", upstream), latency_s
        self._link, self._lock = Pacer(UNLIMITED), Lock()
        self._told: dict[str, float | None] = {
            "bytes": 0, "requests": 0, "connections": 0, "first": None
        }  # fmt: skip
        self.port, self.control = self._listen(self._forward), self._listen(self._answer)

    def _listen(self, handle: Callable[[socket.socket], None]) -> int:
        listener = socket.create_server(("127.0.0.1", 0), backlog=1024)

        def accept() -> None:
            while True:
                Thread(target=handle, args=listener.accept()[:1], daemon=True).start()

        Thread(target=accept, daemon=True).start()
        return listener.getsockname()[1]

    def _count(self, **more: int) -> None:
        with self._lock:
            for name, number in more.items():
                self._told[name] = (self._told[name] or 0) + number
            if "requests" in more and self._told["first"] is None:
                self._told["first"] = perf_counter()

    def _forward(self, client: socket.socket) -> None:
        """Send on what a client asks, late."""
        with suppress(OSError), client, socket.create_connection(self._upstream) as server:
            self._count(connections=1)
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            Thread(target=self._send_back, args=(server, client), daemon=True).start()
            delay_s = 2 * self._latency_s
            while data := client.recv(1 << 16):
                if data.startswith(_METHODS):
                    self._count(requests=1)
                sleep(delay_s)
                delay_s = self._latency_s
                server.sendall(data)
            server.shutdown(socket.SHUT_RDWR)  # wakes the other thread

    def _send_back(self, server: socket.socket, client: socket.socket) -> None:
        room, pacer = memoryview(bytearray(_QUANTUM)), Pacer(CONNECTION_RATE)
        with suppress(OSError):
            while size := server.recv_into(room):
                client.sendall(room[:size])
                self._count(bytes=size)
                pacer.pay(size)
                self._link.pay(size)
        with suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)

    def _answer(self, client: socket.socket) -> None:
        """Do what a line says, and tell the counters."""
        with client, client.makefile("rw") as file:
            asked = json.loads(file.readline())
            if "rate" in asked:
                self._link = Pacer(asked["rate"])
            if asked.get("mark"):
                self._told["first"] = None
            file.write(json.dumps(self._told) + "\n")


def main() -> None:
    """Tell the ports, and serve."""
    proxy = Proxy(int(sys.argv[1]))
    print(proxy.port, proxy.control, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
