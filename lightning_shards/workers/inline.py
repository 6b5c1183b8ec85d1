"""The pool without workers: the trainer's own thread makes each batch when it is asked for."""

import time
import weakref
from collections.abc import Generator, Iterator
from dataclasses import dataclass

from lightning_shards.plan.cursor import Cursor
from lightning_shards.plan.place import Place
from lightning_shards.readers.source import Source
from lightning_shards.samples.arena import Arena
from lightning_shards.samples.collate import LoadedBatch
from lightning_shards.workers.pool import BatchStream, PoolDescription
from lightning_shards.workers.watchdog import WORKER_TIMEOUT_S, Watchdog, warn_with_stacks


@dataclass(frozen=True, slots=True)
class InlinePool:
    """Runs the source in the caller's thread; for tests, debuggers and tiny data.

    Attributes:
        worker_timeout_s: Seconds for a batch, after which a warning shows the stack; 0: never.
        can_grow: Whether there are no workers only because `num_workers` is 0.
    """

    worker_timeout_s: float = WORKER_TIMEOUT_S
    can_grow: bool = True

    def describe(self) -> PoolDescription:
        """A description without workers: the caller itself makes the batches."""
        return PoolDescription("inline", can_grow=self.can_grow)

    def start(self, source: Source, place: Place, cursor: Cursor) -> BatchStream:
        """Begin at the cursor; nothing is read before the first batch is asked for."""
        batches = produce(source, place.with_worker(0, 1), cursor)
        return _InlineStream(batches, self.worker_timeout_s)


class _InlineStream:
    def __init__(self, batches: Iterator[LoadedBatch], timeout_s: float) -> None:
        self._batches: Iterator[LoadedBatch] | None = batches
        self._watchdog = Watchdog(timeout_s, _warn_of_waiter)
        self._end_watchdog = weakref.finalize(self, self._watchdog.stop)

    def __next__(self) -> LoadedBatch:
        if self._batches is None:
            raise StopIteration
        with self._watchdog:
            return next(self._batches)

    def close(self) -> None:
        self._end_watchdog()
        self._batches = None  # a generator that is dropped closes its files


def _warn_of_waiter(waited_s: float, waiter: int) -> None:
    warn_with_stacks(waited_s, [waiter])


def produce(
    source: Source, place: Place, cursor: Cursor, arena: Arena | None = None
) -> Generator[LoadedBatch]:
    """The batches of one worker of any pool, made in its own thread, each with its seconds."""
    batches = source.batches(place, cursor, arena)
    while True:
        begin = time.perf_counter()
        batch = next(batches)
        yield batch._replace(seconds=time.perf_counter() - begin)
