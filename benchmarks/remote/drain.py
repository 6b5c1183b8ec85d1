"""Moves bytes through the proxy to nowhere: `python drain.py PORT PATH SIZE`.

It takes numbers from its standard input, one a line, and fetches as many bytes of a file of SIZE
bytes as they say. So what is measured without a network has the same load beside it that the
network's other end causes. The bytes are dropped in the kernel.
"""

import socket
import sys
from contextlib import suppress
from itertools import count
from queue import SimpleQueue
from threading import Thread

_PIECE = 1 << 20
_THREADS = 8


def main() -> None:
    """Fetch until the input ends."""
    port, path, size = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    wanted: SimpleQueue[int] = SimpleQueue()
    for _ in range(_THREADS):
        Thread(target=_fetch, args=(port, path, wanted), daemon=True).start()
    numbers, room = count(), 0
    for line in sys.stdin:
        room += int(line)
        while room >= _PIECE:
            wanted.put(next(numbers) * _PIECE % max(size - _PIECE, 1))
            room -= _PIECE


def _fetch(port: int, path: str, wanted: SimpleQueue[int]) -> None:
    room = bytearray(_PIECE)
    with suppress(OSError), socket.create_connection(("127.0.0.1", port)) as server:
        while True:
            begin = wanted.get()
            asked = f"Range: bytes={begin}-{begin + _PIECE - 1}"
            server.sendall(f"GET {path} HTTP/1.1\r\nHost: drain\r\n{asked}\r\n\r\n".encode())
            _drop_answer(server, room)


def _drop_answer(server: socket.socket, room: bytearray) -> None:
    begun = b""
    while b"\r\n\r\n" not in begun:
        more = server.recv(4096)
        if not more:
            raise ConnectionError
        begun += more
    head, _, body = begun.partition(b"\r\n\r\n")
    lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")]
    left = int(lengths[0].partition(b":")[2]) - len(body)
    while left:
        dropped = server.recv_into(room, min(left, len(room)), socket.MSG_TRUNC)
        if not dropped:
            raise ConnectionError
        left -= dropped


if __name__ == "__main__":
    main()
