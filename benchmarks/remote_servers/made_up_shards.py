"""An object store of shards that nobody packed: any range of them is made up when it is asked for.

`python -m benchmarks.remote_servers.made_up_shards SHARDS DELAY_S` prints its port and serves until
its input ends. By default these are 13,916 shards of 600 MB and 4,096 samples: 8.3 TB and 57
million samples, of which the server stores 64 payloads. A sample is a `cls`, the number of its
payload, and that payload as an `npy`; sample s of shard h has number (h + s) % 64. So the crc32s in
the member tables are known, and a reader that checks them, and the class, cannot be given a wrong
byte unnoticed.

It has that much of the face of S3 that GETs of obstore and boto3 need: the bucket `data` with
`train-000000.tar` and so on, a member table beside each, and `wids.json`; ranges, ETag, If-Match.
Each answer is late by DELAY_S. `GET /counts` gives requests and bytes so far, by kind of object.
"""

import io
import json
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, cached_property
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingTCPServer
from tarfile import TarInfo
from typing import Any, NamedTuple
from urllib.request import urlopen
from zlib import crc32

import numpy as np

from lightning_shards.shards.members import MemberTable
from lightning_shards.shards.table_bytes import published

ROOT = Path(__file__).parents[2]
SHARDS, SAMPLES, PAYLOADS = 13_916, 4096, 64
BLOCK = 512
PAYLOAD_BYTES = 283 * BLOCK
HEAD_BYTES = 3 * BLOCK  # of a sample: header and data of the class, header of the payload
SAMPLE_BYTES = HEAD_BYTES + PAYLOAD_BYTES
MEMBER_BYTES = 2 + PAYLOAD_BYTES  # of a sample without its headers
SHARD_BYTES = SAMPLES * SAMPLE_BYTES + 2 * BLOCK
_SHARD = re.compile(r"/data/train-(\d{6})\.tar(\.members)?$")
_NPY_HEADER = 128
_MOST_BUFFERS = 512  # in one system call


class Answer(NamedTuple):
    """An object: what it is counted as, its size and ETag, and its number if it is a shard."""

    kind: str
    size: int
    etag: str
    shard: int = -1
    data: bytes = b""


class MadeUpShards:
    """What is served, and counts of it."""

    def __init__(self, shards: int = SHARDS, delay_s: float = 0.0) -> None:
        self.shards, self.delay_s = shards, delay_s
        self.counts: dict[str, list[int]] = {"index": [0, 0], "table": [0, 0], "shard": [0, 0]}
        self.lock = threading.Lock()

    def find(self, path: str) -> Answer | None:
        """The object at a path; None if there is none."""
        if path == "/data/wids.json":
            return Answer("index", len(self.index), '"index"', data=self.index)
        match = _SHARD.match(path)
        if match is None or int(match[1]) >= self.shards:
            return None
        shard = int(match[1])
        if match[2]:
            table = table_of(shard % PAYLOADS)
            return Answer("table", len(table), f'"table-{shard}"', data=table)
        return Answer("shard", SHARD_BYTES, f'"shard-{shard}"', shard)

    @cached_property
    def index(self) -> bytes:
        """The wids JSON."""
        listed = [
            {"url": f"train-{shard:06d}.tar", "nsamples": SAMPLES, "filesize": SHARD_BYTES}
            for shard in range(self.shards)
        ]
        return json.dumps({"wids_version": 1, "shardlist": listed}).encode()

    def count(self, kind: str, size: int) -> None:
        """Count an answer."""
        with self.lock:
            self.counts[kind][0] += 1
            self.counts[kind][1] += size


@cache
def payloads() -> list[bytes]:
    """The contents of all `npy` members."""
    draws = np.random.default_rng(0)
    return [_array(draws.bytes(PAYLOAD_BYTES - _NPY_HEADER)) for _ in range(PAYLOADS)]


def _array(content: bytes) -> bytes:
    file = io.BytesIO()
    np.save(file, np.frombuffer(content, np.uint8))
    return file.getvalue()


@cache
def labels() -> list[bytes]:
    """The contents of all `cls` members, filled up as in a tar."""
    return [f"{number:02d}".encode().ljust(BLOCK, b"\0") for number in range(PAYLOADS)]


@cache
def headers(suffix: str, size: int) -> list[bytes]:
    """The tar headers of the members with this suffix, by sample."""

    def header(sample: int) -> bytes:
        info = TarInfo(f"{sample:06d}.{suffix}")
        info.size = size
        return info.tobuf()

    return [header(sample) for sample in range(SAMPLES)]


@cache
def table_of(first: int) -> bytes:
    """The member table of shards whose first sample has this payload, as it lies beside them."""
    # offsets, sizes, crcs: one row a sample, the class and the payload
    begins = np.arange(SAMPLES)[:, None] * SAMPLE_BYTES
    numbers = (first + np.arange(SAMPLES)) % PAYLOADS
    of_labels = np.array([crc32(label[:2]) for label in labels()], np.uint32)
    of_payloads = np.array([crc32(payload) for payload in payloads()], np.uint32)
    keys = "".join(f"{sample:06d}" for sample in range(SAMPLES))
    return published(
        MemberTable(
            keys=np.frombuffer(keys.encode(), np.uint8),
            key_starts=np.arange(SAMPLES + 1) * 6,
            sample_starts=np.arange(SAMPLES + 1) * 2,
            offsets=(begins + np.array([BLOCK, HEAD_BYTES])).ravel(),
            sizes=np.tile([2, PAYLOAD_BYTES], SAMPLES),
            crc32=np.stack([of_labels[numbers], of_payloads[numbers]], axis=1).ravel(),
            suffix_ids=np.tile(np.array([0, 1], np.uint32), SAMPLES),
            suffixes=("cls", "npy"),
            file_size=SHARD_BYTES,
            mtime_ns=0,
        )
    )


def made_up(shard: int, begin: int, end: int) -> Iterator[memoryview]:
    """The bytes of a shard between two offsets, part after part."""
    of_label, of_payload = headers("cls", 2), headers("npy", PAYLOAD_BYTES)
    while begin < end:
        sample, offset = divmod(begin, SAMPLE_BYTES)
        if sample == SAMPLES:  # the end of the archive
            yield memoryview(bytes(end - begin))
            return
        number = (shard + sample) % PAYLOADS
        parts = (of_label[sample], labels()[number], of_payload[sample], payloads()[number])
        for part in parts:
            if offset < len(part):
                view = memoryview(part)[offset : offset + end - begin]
                begin += len(view)
                yield view
            offset = max(0, offset - len(part))


class _Server(ThreadingTCPServer):
    daemon_threads = True
    request_queue_size = 256
    allow_reuse_address = True
    shards: MadeUpShards

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up ends its thread."""


class _Handler(StreamRequestHandler):
    """GETs of one connection; `http.server` would take a third of a millisecond for each."""

    disable_nagle_algorithm = True
    server: _Server

    def handle(self) -> None:
        while line := self.rfile.readline():
            path = line.split(b" ")[1].decode().partition("?")[0]
            asked: dict[str, str] = {}
            while (header := self.rfile.readline().strip()) != b"":
                name, _, value = header.decode("latin1").partition(":")
                asked[name.strip().lower()] = value.strip()
            self._answer(path, asked)

    def _answer(self, path: str, asked: dict[str, str]) -> None:
        shards = self.server.shards
        if path == "/counts":
            self._reply("200 OK", [memoryview(json.dumps(shards.counts).encode())])
            return
        time.sleep(shards.delay_s)
        found = shards.find(path)
        if found is None:
            self._reply("404 Not Found", [memoryview(b"<Error><Code>NoSuchKey</Code></Error>")])
            return
        told = {"ETag": found.etag, "Last-Modified": "Sun, 22 Nov 2026 20:00:00 GMT"}
        if asked.get("if-match", found.etag) != found.etag:
            self._reply("412 Precondition Failed", [])
            return
        first, last = asked.get("range", "bytes=0-").removeprefix("bytes=").split("-")
        begin, end = int(first), min(int(last or found.size) + 1, found.size)
        if begin >= end:
            self._reply("416 Range Not Satisfiable", [], {"Content-Range": f"bytes */{found.size}"})
            return
        told["Content-Range"] = f"bytes {begin}-{end - 1}/{found.size}"
        shards.count(found.kind, end - begin)
        if found.shard < 0:
            self._reply("206 Partial Content", [memoryview(found.data)[begin:end]], told)
        else:
            parts = list(made_up(found.shard, begin, end))
            self._reply("206 Partial Content", parts, told)

    def _reply(
        self, status: str, parts: list[memoryview], told: dict[str, str] | None = None
    ) -> None:
        told = {"Content-Length": str(sum(map(len, parts))), **(told or {})}
        lines = [f"HTTP/1.1 {status}", *(f"{name}: {value}" for name, value in told.items())]
        left = [memoryview("\r\n".join([*lines, "", ""]).encode()), *parts]
        connection: socket.socket = self.connection
        while left:
            sent = connection.sendmsg(left[:_MOST_BUFFERS])
            while left and sent >= len(left[0]):
                sent -= len(left.pop(0))
            if sent:
                left[0] = left[0][sent:]


class Running(NamedTuple):
    """A server that runs in a process of its own."""

    url: str
    pid: int

    def counts(self) -> dict[str, list[int]]:
        """By kind, requests and bytes so far."""
        with urlopen(f"{self.url}/counts") as answer:  # noqa: S310 it is our own
            return json.loads(answer.read())


@contextmanager
def made_up_shards(shards: int = SHARDS, delay_s: float = 0.0) -> Iterator[Running]:
    """The server in a process of its own."""
    command = [sys.executable, "-m", __spec__.name, str(shards), str(delay_s)]
    with subprocess.Popen(  # noqa: S603
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield Running(f"http://127.0.0.1:{int(process.stdout.readline())}", process.pid)
        finally:
            process.stdin.close()


def main(shards: int, delay_s: float) -> None:
    """Serve until the input ends."""
    with _Server(("127.0.0.1", 0), _Handler) as server:
        server.shards = MadeUpShards(shards, delay_s)
        for first in range(PAYLOADS):
            table_of(first)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        print(server.server_address[1], flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
