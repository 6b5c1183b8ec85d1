"""Answers of a server that says anything: the right bytes or an error of ours, and no secret."""

import logging
import random
import socket
import threading
import traceback
from collections.abc import Iterator
from contextlib import suppress

import pytest

from lightning_shards.errors import ShardError
from lightning_shards.shards.remote.retries import RetryPolicy
from lightning_shards.shards.remote.transport import RemoteTransport, TransportSettings

pytestmark = pytest.mark.network

SECRET = "s3cr3t"
DATA = random.Random(0).randbytes(5000)
POLICY = RetryPolicy(tries=3).scaled(0.01)
STATUSES = ("206 x", "206 x", "206", "200 x", "204 x", "304 x", "100 x", "999 x", "416 x", "302 x",
            "503 x", "401 x", "x", f"206 {'x' * 70_000}")  # fmt: skip
ETAGS = ('"v"', '"v"', 'W/"v"', "v", '""', '"\x01"', '"\xe9"', '"a\r\n b"', f'"{"x" * 60_000}"')
LENGTHS = ("-1", "0", "9" * 30, "1e3", "12, 12", "0x10", "\xb2")
CHUNKS = (b"zz\r\n", b"-5\r\n", b"f" * 100 + b"\r\n", b"5;" + b"x" * 70_000 + b"\r\n")
LOCATIONS = ("//", "http://", "http://[::1", "file:///etc/passwd", "http://127.0.0.1:99999/",
             "http://exa mple/", f"http://{SECRET}@127.0.0.1:9/?{SECRET}", "\\\\x\\y")  # fmt: skip
OTHERS = ("Bad Header\x01: x", "Content-Length: 5", "Content-Encoding: gzip", "Retry-After: \xb2",
          "Retry-After: 99999999999", "Content-Type: text/html", 'ETag: "w"')  # fmt: skip


class RandomAnswers:
    """Answers each request at random, and closes the connection: nobody waits for more."""

    def __init__(self) -> None:
        self.draws = random.Random()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def _serve(self) -> None:
        with suppress(OSError):  # when it is closed
            while True:
                with self._listener.accept()[0] as connection, suppress(OSError):
                    request = connection.recv(1 << 16).lower()
                    asked = request.partition(b"range: bytes=")[2].partition(b"\r")[0] or b"0-4999"
                    begin, last = map(int, asked.split(b"-"))
                    connection.sendall(self._answer(begin, min(last + 1, len(DATA))))

    def _answer(self, begin: int, end: int) -> bytes:
        draw = self.draws
        status = draw.choice(STATUSES)
        first, last, size = begin, end - 1, len(DATA)
        if draw.random() < 0.3:
            first, last = first + draw.choice((0, 1)), last - draw.choice((0, 1))
        body = DATA if status.startswith("200") else DATA[first : last + 1]
        told = draw.choice(["bytes"] * 5 + ["items", "bytes -", "BYTES"])
        lines = [
            f"Content-Range: {told} {first}-{last}/{draw.choice([size] * 5 + ['*', '9' * 5000])}",
            f"ETag: {draw.choice(ETAGS)}",
            f"Content-Length: {draw.choice([len(body)] * 7 + [*LENGTHS])}",
            f"Location: {draw.choice(LOCATIONS)}",
        ]
        lines += [line for line in OTHERS if draw.random() < 0.05]
        if draw.random() < 0.15:
            lines.append("Transfer-Encoding: chunked")
            body = draw.choice([b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body), *CHUNKS])
        head = "\r\n".join([f"HTTP/1.1 {status}", *lines, "", ""]).encode("latin-1")
        answer = head + body + draw.choice((b"", b"", b"more"))
        return answer[: draw.choice((-1, None, None, None, None, draw.randrange(len(answer))))]


@pytest.fixture
def server() -> Iterator[RandomAnswers]:
    answers = RandomAnswers()
    yield answers
    answers.close()


# urllib3 leaves the socket of an answer with two lengths to the garbage collector
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("seed", range(4))
def test_any_answer_gives_the_right_bytes_or_an_error_of_ours(seed, server, caplog, tmp_path):
    caplog.set_level(logging.DEBUG)
    server.draws = random.Random(seed)
    url = f"http://me:{SECRET}-password@127.0.0.1:{server.port}/a b%20c\xe9.tar?sig={SECRET}-query"
    shown: list[str] = []
    for number in range(25):
        transport = RemoteTransport(TransportSettings({}, 4, POLICY, str(tmp_path)))
        begin = 190 * number
        try:
            body = transport.read(url, begin, begin + 500)
        except ShardError as error:
            shown += traceback.format_exception(error)
        else:
            assert body.data == DATA[begin : begin + 500] or body.size == 0
        transport.close()
    assert SECRET not in "".join([*shown, caplog.text])
