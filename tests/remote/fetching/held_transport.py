"""A transport of objects in memory, whose answers a test can hold back or make fail."""

import threading
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lightning_shards.errors import IndexMismatchError, StorageError
from lightning_shards.remote.cache import CacheNeed, PieceCache
from lightning_shards.remote.transport import Body
from lightning_shards.shards.files import CacheFolder
from lightning_shards.shards.storage.protocol import NO_FETCHES, ShardReads, ShardStat

MIB = 1 << 20
STAT = ShardStat(9, 7)


class HeldTransport:
    """Counts what is read. A range waits where a test has put a gate, until that is opened."""

    counts = NO_FETCHES

    def __init__(self, objects: dict[str, bytes]) -> None:
        self.objects, self.number = objects, STAT.version
        self.asked: list[tuple[str, int, int]] = []
        self.failing: dict[int, Exception] = {}  # by the first byte
        self.gates: dict[int, threading.Event] = {}
        self.begun: defaultdict[int, threading.Event] = defaultdict(threading.Event)
        self.under_way = 0
        self.closed = threading.Event()
        self._lock = threading.Lock()

    def read(self, url: str, begin: int, end: int, stat: tuple[int, int] | None = None) -> Body:
        with self._lock:
            self.asked.append((url, begin, end))
            self.under_way += 1
        try:
            self.begun[begin].set()
            gate = self.gates.get(begin)
            while gate is not None and not gate.wait(0.01):
                if self.closed.is_set():
                    raise StorageError("the connections were closed")
            if begin in self.failing:
                raise self.failing[begin]
            data = self.objects[url]
            if stat is not None and stat[1] != self.number:
                raise IndexMismatchError(f"{stat} was expected, {self.number} is there")
            return Body([data[begin:end]], ShardStat(len(data), self.number))
        finally:
            with self._lock:
                self.under_way -= 1

    def chunks(self, *asked: Any) -> Iterator[bytes]:
        yield self.read(*asked).data

    def close(self) -> None:
        self.closed.set()


def cache_in(folder: Path, limit_bytes: int = 64 * MIB) -> PieceCache:
    """A cache as one process sees it."""
    need = CacheNeed("data", limit_bytes, working_set_bytes=0, limit_bytes=limit_bytes)
    return PieceCache(CacheFolder(folder), "run", need)


def reads_of(url: str, spans: list[tuple[int, int]]) -> ShardReads:
    """Ranges of an object, with memory of their own."""
    starts, stops = [start for start, _ in spans], [stop for _, stop in spans]
    memory = bytearray(sum(stops) - sum(starts))
    return ShardReads(url, starts, stops, STAT, memoryview(memory))
