"""A proxy that delays requests and slows answers down: `python proxy.py UPSTREAM_PORT`.

It gives a loopback server the latency and the speed of a remote one. A request goes on after the
latency, the first one of a connection after twice that, because making a connection takes a round
trip, too. Answers are paced per connection and over all connections together, in turns.

The bytes of answers are spliced in the kernel and never come to this process, so that it costs
little of the machine that is measured. It prints its port and that of its control, where one line
of JSON is answered by one: `{"rate": R}` sets the speed of the link, `{"mark": true}` forgets
when the first request came, and each answer has the counters. It ends with its standard input.
"""

import json
import os
import select
import socket
import sys
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from time import perf_counter, process_time

LATENCY_S = 0.03
CONNECTION_RATE = 80e6
UNLIMITED = 1e12

_QUANTUM = 1 << 17
"""Bytes of a connection before it is another one's turn."""

_BURST_S = 0.02
"""The link makes up for this much time in which the proxy was not run."""

_REST_S = 0.001
_MOVES = 256
"""Between two looks for new events."""

_FLAGS = os.SPLICE_F_NONBLOCK | os.SPLICE_F_MOVE
_METHODS = (b"GET ", b"HEAD ", b"PUT ", b"POST ")
_PIPE_SIZE = 1031  # F_SETPIPE_SZ of Linux, which `fcntl` has no name for in all versions


class Pacer:
    """Says from when on more bytes may go, at a rate in bytes/s."""

    def __init__(self, rate: float) -> None:
        self.rate, self.free_at = rate, 0.0

    def spend(self, size: int, now: float) -> None:
        """Count bytes that went."""
        self.free_at = max(self.free_at, now - _BURST_S) + size / self.rate


@dataclass
class Counters:
    """What came through the proxy; times are those of `perf_counter`, which is the system's."""

    bytes: int = 0
    requests: int = 0
    connections: int = 0
    first: float | None = None


class Connection:
    """A client's connection and the one to the server that belongs to it."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client, self.server = client, server
        self.pipe = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        with suppress(OSError):
            import fcntl

            fcntl.fcntl(self.pipe[1], _PIPE_SIZE, 2 * _QUANTUM)
        self.pacer = Pacer(CONNECTION_RATE)
        self.held = 0
        self.is_new, self.is_closed = True, False


class Proxy:
    """All connections, in one thread.

    Args:
        upstream: The port of the server.
        latency_s: Seconds that a request is held back.
    """

    def __init__(self, upstream: int, latency_s: float = LATENCY_S) -> None:
        self._upstream, self._latency_s = ("127.0.0.1", upstream), latency_s
        self._link, self._counters = Pacer(UNLIMITED), Counters()
        self._events = select.epoll()
        self._handlers: dict[int, Callable[[int], None]] = {}
        self._ready: deque[Connection] = deque()
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers, self._listeners = count(), ExitStack()
        self.port = self._listen(self._accept)
        self.control = self._listen(self._answer)

    def run(self, until: int) -> None:
        """Serve until this file ends."""
        is_ended: list[bool] = []
        self._watch(until, lambda _: is_ended.append(not os.read(until, 1024)))
        with self._events, self._listeners:
            self._serve(is_ended)

    def _serve(self, is_ended: list[bool]) -> None:
        while not any(is_ended):
            for file, event in self._events.poll(self._pause_s()):
                handler = self._handlers.get(file)
                if handler is not None:
                    handler(event)
            now = perf_counter()
            while self._timers and self._timers[0][0] <= now:
                heappop(self._timers)[2]()
            self._move()

    def _pause_s(self) -> float:
        now = perf_counter()
        due = self._timers[0][0] - now if self._timers else 1.0
        if self._ready:
            due = min(due, max(self._link.free_at - now, 0.0))
            return max(due, _REST_S) if self._link.free_at > now else 0.0
        return max(due, 0.0)

    def _move(self) -> None:
        """Let the connections that have bytes move them, in turns, while the link is free."""
        for _ in range(_MOVES):
            now = perf_counter()
            if not self._ready or self._link.free_at > now:
                return
            connection = self._ready.popleft()
            if connection.is_closed:
                continue
            if connection.pacer.free_at > now:
                self._later(connection.pacer.free_at, lambda c=connection: self._ready.append(c))
                continue
            moved = self._moved(connection)
            if moved:
                connection.pacer.spend(moved, now)
                self._link.spend(moved, now)
                self._counters.bytes += moved

    def _moved(self, connection: Connection) -> int:
        """Bytes that the client took; the connection is put where it waits for what comes next."""
        reading, writing = connection.pipe
        try:
            if not connection.held:
                server = connection.server.fileno()
                try:
                    connection.held = os.splice(server, writing, _QUANTUM, flags=_FLAGS)
                except BlockingIOError:
                    self._events.modify(server, select.EPOLLIN | select.EPOLLONESHOT)
                    return 0
                if not connection.held:
                    self._close(connection)
                    return 0
            client = connection.client.fileno()
            try:
                moved = os.splice(reading, client, connection.held, flags=_FLAGS)
            except BlockingIOError:
                self._events.modify(client, select.EPOLLIN | select.EPOLLOUT)
                return 0
        except OSError:
            self._close(connection)
            return 0
        connection.held -= moved
        self._ready.append(connection)
        return moved

    def _accept(self, listener: socket.socket) -> None:
        client = listener.accept()[0]
        try:
            server = socket.create_connection(self._upstream)
        except OSError:
            client.close()
            return
        connection = Connection(client, server)
        for end in (client, server):
            end.setblocking(False)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._counters.connections += 1
        self._watch(client.fileno(), lambda event: self._from_client(connection, event))
        self._watch(server.fileno(), lambda _: self._ready.append(connection), select.EPOLLONESHOT)

    def _from_client(self, connection: Connection, event: int) -> None:
        if event & select.EPOLLOUT:
            self._events.modify(connection.client.fileno(), select.EPOLLIN)
            self._ready.append(connection)
        if not event & ~select.EPOLLOUT:
            return
        try:
            data = connection.client.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._close(connection)
            return
        now = perf_counter()
        if data.startswith(_METHODS):
            self._counters.requests += 1
            if self._counters.first is None:
                self._counters.first = now
        trips = 2 if connection.is_new else 1
        connection.is_new = False
        self._later(now + trips * self._latency_s, lambda: self._send(connection, data))

    def _send(self, connection: Connection, data: bytes) -> None:
        if connection.is_closed:
            return
        try:
            connection.server.sendall(data)
        except OSError:
            self._close(connection)

    def _close(self, connection: Connection) -> None:
        if connection.is_closed:
            return
        connection.is_closed = True
        for end in (connection.client, connection.server):
            self._forget(end.fileno())
            end.close()
        for file in connection.pipe:
            os.close(file)

    def _answer(self, listener: socket.socket) -> None:
        """Do what a line says, and tell the counters; whoever asks sends it at once."""
        with listener.accept()[0] as asking, asking.makefile("rw") as file:
            asked = json.loads(file.readline())
            if "rate" in asked:
                self._link = Pacer(asked["rate"])
            if asked.get("mark"):
                self._counters.first = None
            told = vars(self._counters) | {"cpu_s": process_time()}
            file.write(json.dumps(told) + "\n")

    def _listen(self, accept: Callable[[socket.socket], None]) -> int:
        listener = self._listeners.enter_context(
            socket.create_server(("127.0.0.1", 0), backlog=1024)
        )
        self._watch(listener.fileno(), lambda _: accept(listener))
        return listener.getsockname()[1]

    def _watch(self, file: int, handler: Callable[[int], None], flags: int = 0) -> None:
        self._handlers[file] = handler
        self._events.register(file, select.EPOLLIN | flags)

    def _forget(self, file: int) -> None:
        del self._handlers[file]
        self._events.unregister(file)

    def _later(self, when: float, act: Callable[[], None]) -> None:
        heappush(self._timers, (when, next(self._numbers), act))


def main() -> None:
    """Tell the ports, and serve."""
    proxy = Proxy(int(sys.argv[1]), *map(float, sys.argv[2:]))
    print(proxy.port, proxy.control, flush=True)
    proxy.run(sys.stdin.fileno())


if __name__ == "__main__":
    main()
