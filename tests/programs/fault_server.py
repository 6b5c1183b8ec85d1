"""A server of objects in memory that does wrong what it is told to, on free ports of the loopback.

It has the faces of a plain server, of an object store, of a hub and of an AIStore cluster. All
requests are kept, so that tests see which headers went where.
"""

import re
import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import md5
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import unquote

PAGE = b"<!DOCTYPE html><html><body>Please log in to see this, sig=s3cr3t-query</body></html>"
MODIFIED = "Sun, 22 Nov 2026 20:00:00 GMT"

_OF_AN_OBJECT = ("Content-Range", "Content-Type", "ETag", "Last-Modified")
"""Headers of a real store's answers that are passed on."""

_INSTEAD = ("status", "redirect", "elsewhere", "page", "reset", "silent")
"""Kinds of faults without an object's bytes."""
_IN_BODY = ("reset", "cut", "cut_reset", "stall", "drip", "whole", "parts")
"""Kinds of faults of the bytes themselves; all others are faults of headers."""


class Fault(NamedTuple):
    """What goes wrong with one request.

    Attributes:
        kind: Instead of the answer `status`, `redirect`, `elsewhere` (the same path of the other
            host), `page`, `reset` or `silent`. Before it, for some seconds, `late`. Of its bytes,
            after some of them, `cut`, `cut_reset` or `stall`, or `drip`. Of its range `whole` and
            `parts` (all of the object, up to some byte, and in parts without a length), `short`,
            `shifted`; of what it says about that `mislabelled`, `longer` or `headers`. Or
            `replace`: from now on the object has its bytes in reverse.
        value: A status, a number of bytes or seconds, or a location, by the kind.
        headers: More headers of the answer.
    """

    kind: str
    value: Any = None
    headers: tuple[tuple[str, str], ...] = ()


class Asked(NamedTuple):
    """A request as it came."""

    method: str
    port: int
    path: str
    headers: dict[str, str]


@dataclass
class FaultServer:
    """What all listeners of one server share.

    Attributes:
        objects: Bytes by path, as in `data/000.tar`.
        faults: Of the next requests for objects, each used once; None is no fault.
        always: A fault of all requests for objects.
        upstream: Host and port of a store whose answers to GETs are passed on, faults apart; empty:
            this server answers for its own objects.
        commit: What the branches of the hub stand for, as it says.
        asked: All requests.
        sent: Bytes of objects that were sent, but for those of other faults than `cut`.
    """

    scheme: str = "http"
    port: int = 0
    other_port: int = 0
    objects: dict[str, bytes] = field(default_factory=dict)
    faults: list[Fault | None] = field(default_factory=list)
    always: Fault | None = None
    has_etags: bool = True
    has_dates: bool = True
    signed_until: int = 4_000_000_000
    upstream: str = ""
    commit: str = "a"
    asked: list[Asked] = field(default_factory=list)
    sent: int = 0
    ended: threading.Event = field(default_factory=threading.Event)
    lock: Any = field(default_factory=threading.Lock)

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}"

    @property
    def other_url(self) -> str:
        """The same server as another host."""
        return f"{self.scheme}://127.0.0.1:{self.other_port}"

    def etag(self, path: str) -> str:
        return f'"{md5(self.objects[path]).hexdigest()}"'

    def ranges(self, end: str = ".tar") -> list[tuple[str, int, int]]:
        """What was asked for of objects whose names end so: name, first and last byte."""
        paths = [(each.path.partition("?")[0], each.headers.get("range")) for each in self.asked]
        return [
            (path.rpartition("/")[2], *map(int, span.removeprefix("bytes=").split("-")))
            for path, span in paths
            if path.endswith(end) and span is not None
        ]

    def next_fault(self) -> Fault | None:
        with self.lock:
            return self.faults.pop(0) if self.faults else self.always

    def reset(self) -> None:
        """Forget all, and end answers that are held back."""
        self.ended.set()
        self.ended = threading.Event()
        self.objects.clear()
        self.faults.clear()
        self.asked.clear()
        self.sent = 0
        self.always, self.has_etags, self.has_dates = None, True, True
        self.signed_until, self.upstream, self.commit = 4_000_000_000, "", "a"


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    state: FaultServer

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is what many tests do."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    @property
    def state(self) -> FaultServer:
        return self.server.state

    def log_message(self, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        path = self._note()
        if path.startswith("loop"):
            self._reply(302, b"", Location=f"/loop{len(self.state.asked)}")
            return
        if re.match(r"datasets/[^/]+/[^/]+/resolve/", path):
            self._hub(path)
            return
        if path.startswith("v1/objects/") and self.server.server_port == self.state.port:
            self._reply(307, b"moved", Location=f"{self.state.other_url}{self.path}")
            return
        name = unquote(path.removeprefix("v1/objects/").removeprefix("account/"))
        if path.startswith("signed/"):
            name = unquote(path.removeprefix("signed/"))
            if f"Expires={self.state.signed_until}" not in self.path:
                self._reply(403, b"<Error>expired s3cr3t</Error>")
                return
        self._object(name)

    do_HEAD = do_GET  # noqa: N815 the name is http.server's

    def do_PUT(self) -> None:
        path = self._note()
        data = self.rfile.read(int(self.headers["Content-Length"]))
        if path.startswith("v1/objects/") and self.server.server_port == self.state.port:
            self._reply(307, b"", Location=f"{self.state.other_url}{self.path}")
            return
        fault = self.state.next_fault()
        if fault is not None:
            self._reply(fault.value, b"no")
            return
        name = unquote(path.removeprefix("v1/objects/").removeprefix("account/"))
        self.state.objects[name] = data
        self._reply(201, b"", ETag=self.state.etag(name))

    def _note(self) -> str:
        """The path of this request, which is kept with its headers."""
        headers = {name.lower(): value for name, value in self.headers.items()}
        asked = Asked(self.command, self.server.server_port, self.path, headers)
        with self.state.lock:
            self.state.asked.append(asked)
        return self.path.partition("?")[0].lstrip("/")

    def _hub(self, path: str) -> None:
        path = f"data/{path.split('/', 5)[5]}"
        if unquote(path) not in self.state.objects:
            self._reply(404, b"")
            return
        query = f"Expires={self.state.signed_until}&Signature=s3cr3t-query"
        location = f"{self.state.other_url}/signed/{path}?{query}"
        self._reply(302, b"", Location=location, **{"X-Repo-Commit": self.state.commit})

    def _object(self, name: str) -> None:
        fault = self.state.next_fault()
        if fault is not None and fault.kind == "late":
            self.state.ended.wait(fault.value)
            fault = None
        if fault is not None and fault.kind in _INSTEAD:
            getattr(self, f"_do_{fault.kind}")(fault)
            return
        if self.state.upstream:
            self._send(*_answer_of(self.state.upstream, self.path, self.headers), fault)
            return
        if fault is not None and fault.kind == "replace":
            self.state.objects[name] = self.state.objects[name][::-1]
        self._own_object(name, fault)

    def _own_object(self, name: str, fault: Fault | None) -> None:
        data = self.state.objects.get(name)
        if data is None:
            self._reply(404, b"<Error><Code>NoSuchKey</Code></Error>")
            return
        headers = {"Last-Modified": MODIFIED} if self.state.has_dates else {}
        if self.state.has_etags:
            headers["ETag"] = self.state.etag(name)
        asked = self.headers.get("Range")
        if fault and fault.kind == "parts":
            headers |= {"Content-Length": "", "Transfer-Encoding": "chunked"}
        if asked is None or (fault and fault.kind in ("whole", "parts")):
            self._send(200, data, headers, fault)
            return
        begin, end = _range_of(asked, len(data), fault)
        if begin >= len(data):
            self._reply(416, b"", **{"Content-Range": f"bytes */{len(data)}"})
            return
        told = _told(begin, end, fault)
        headers["Content-Range"] = f"bytes {told[0]}-{told[1] - 1}/{len(data)}"
        self._send(206, data[begin:end], headers, fault)

    def _send(self, status: int, body: bytes, headers: dict[str, str], fault: Fault | None) -> None:
        given = dict(fault.headers if fault else ())
        headers = {"Content-Length": str(len(body)), **headers, **given}
        self.send_response(status)
        for name, value in headers.items():
            if value:
                self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        if fault is None or fault.kind not in _IN_BODY:
            self._write(body)
            return
        getattr(self, f"_do_{fault.kind}")(fault, body)

    def _write(self, data: bytes) -> None:
        with self.state.lock:
            self.state.sent += len(data)
        self.wfile.write(data)

    def _reply(self, status: int, body: bytes, **headers: str) -> None:
        self._send(status, body, headers, None)

    def _do_status(self, fault: Fault) -> None:
        body = b"<Error><Message>s3cr3t-query s3cr3t-token</Message></Error>"
        self._reply(fault.value, body, **dict(fault.headers))

    def _do_redirect(self, fault: Fault) -> None:
        self._reply(302, b"x", Location=fault.value)

    def _do_elsewhere(self, fault: Fault) -> None:
        """A redirect to the same path of the other host."""
        is_first = self.server.server_port == self.state.port
        host = self.state.other_url if is_first else self.state.url
        self._reply(307, b"x", Location=f"{host}{self.path}")

    def _do_page(self, fault: Fault) -> None:
        self._reply(200, fault.value or PAGE, **{"Content-Type": "text/html"})

    def _do_reset(self, fault: Fault, body: bytes = b"") -> None:
        """A reset, before the answer or after some bytes of its body."""
        self.wfile.write(body[: fault.value or 0])
        self.wfile.flush()
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        self.connection.close()

    def _do_silent(self, fault: Fault) -> None:
        self.state.ended.wait(fault.value)
        self.close_connection = True

    def _do_cut(self, fault: Fault, body: bytes) -> None:
        """The answer ends too early; after all of its bytes but one, if so told."""
        self._write(body[: fault.value])
        self.close_connection = True

    def _do_whole(self, fault: Fault, body: bytes) -> None:
        self._write(body[: fault.value])
        self.close_connection |= fault.value is not None

    def _do_parts(self, fault: Fault, body: bytes) -> None:
        for part in (body[:1000], body[1000 : fault.value]):
            self.wfile.write(b"%x\r\n%b\r\n" % (len(part), part))
        self.wfile.write(b"0\r\n\r\n" * (fault.value is None))
        self.close_connection = True

    def _do_cut_reset(self, fault: Fault, body: bytes) -> None:
        self._do_reset(fault, body)

    def _do_stall(self, fault: Fault, body: bytes) -> None:
        self.wfile.write(body[: fault.value])
        self.wfile.flush()
        self.state.ended.wait(60)
        self.close_connection = True

    def _do_drip(self, fault: Fault, body: bytes) -> None:
        """A byte at a time, for longer than a client that knows its limits waits."""
        with suppress(OSError):
            for offset in range(min(len(body), 200)):
                self.wfile.write(body[offset : offset + 1])
                self.wfile.flush()
                if self.state.ended.wait(fault.value):
                    break
        self.close_connection = True


def _answer_of(upstream: str, path: str, headers: Any) -> tuple[int, bytes, dict[str, str]]:
    """What a real store answers to this GET."""
    with closing(HTTPConnection(upstream)) as connection:
        asked = {name: value for name, value in headers.items() if name.lower() != "host"}
        connection.request("GET", path, headers=asked)
        response = connection.getresponse()
        given = {name: response.headers[name] for name in _OF_AN_OBJECT}
        return response.status, response.read(), {name: of for name, of in given.items() if of}


def _range_of(asked: str, size: int, fault: Fault | None) -> tuple[int, int]:
    """The range of an answer: that which was asked for, unless the fault is about it."""
    first, last = asked.removeprefix("bytes=").split("-")
    begin, end = int(first), min(int(last) + 1, size)
    if fault and fault.kind == "short":
        end = min(end, begin + fault.value)
    if fault and fault.kind == "shifted":
        begin, end = begin + fault.value, min(end + fault.value, size)
    return begin, end


def _told(begin: int, end: int, fault: Fault | None) -> tuple[int, int]:
    """The range that an answer claims to be: that which comes, unless the fault is about it."""
    if fault and fault.kind == "mislabelled":
        return begin + fault.value, end + fault.value
    return begin, end - 1 if fault and fault.kind == "longer" else end


@contextmanager
def fault_server(tls: ssl.SSLContext | None = None) -> Iterator[FaultServer]:
    """A server that listens on two ports, which are two hosts for a client.

    Args:
        tls: By what it serves https; None: it serves http.
    """
    state = FaultServer("http" if tls is None else "https")
    servers = [_Server(("127.0.0.1", 0), _Handler) for _ in range(2)]
    state.port, state.other_port = (server.server_port for server in servers)
    if tls is not None:
        for server in servers:  # each handler shakes hands in a thread of its own
            server.socket = tls.wrap_socket(
                server.socket, server_side=True, do_handshake_on_connect=False
            )
    threads = []
    for server in servers:
        server.state = state
        threads.append(threading.Thread(target=server.serve_forever, args=[0.01], daemon=True))
        threads[-1].start()
    try:
        yield state
    finally:
        state.ended.set()
        for server, thread in zip(servers, threads, strict=True):
            server.shutdown()
            server.server_close()
            thread.join()
