"""What a pool of workers offers: batches of one rank in step order, and an end.

`inline`, `threads` and `processes` implement it; a stream can always be closed and started
elsewhere, as a source holds no progress.
"""

import time
from collections.abc import Generator
from dataclasses import dataclass
from typing import Protocol

from lightning_shards.plan.cursor import Cursor
from lightning_shards.plan.place import Place
from lightning_shards.readers.source import Source
from lightning_shards.samples.arena import Arena
from lightning_shards.samples.collate import LoadedBatch


@dataclass(frozen=True, slots=True)
class PoolDescription:
    """What a pool is, for monitors and tools.

    Attributes:
        kind: its name.
        num_workers: batches that are made side by side beside the trainer's own thread; 0: none,
            that thread makes them itself.
        prefetch_factor: messages that each worker keeps ready.
    """

    kind: str
    num_workers: int = 0
    prefetch_factor: int = 0

    @property
    def slots(self) -> int:
        """The number of places that a rank's steps are dealt out to, at least 1."""
        return max(1, self.num_workers)


class BatchStream(Protocol):
    """The batches of one rank in step order, without end, until it is closed.

    Whoever takes a batch owns it. One thread at a time asks.
    """

    def __next__(self) -> LoadedBatch:
        """Wait for the next batch.

        Raises:
            StopIteration: the stream was closed.
            Exception: what the source raised for this batch, with its type and message; the batches
                before it were given, and the workers are gone.
        """
        ...

    def close(self) -> None:
        """End all workers; they are gone when this returns. Closing twice does nothing."""
        ...


class Pool(Protocol):
    """Runs a source in workers; frozen, and holds no stream that it started.

    Step number i after the cursor is made by worker i % slots. Each worker asks
    `source.batches(place.with_worker(worker, slots), cursor)`, which `produce` does with a clock,
    and makes no batch but these.
    """

    def start(self, source: Source, place: Place, cursor: Cursor) -> BatchStream:
        """Begin at the cursor. `place` is the rank's; the pool tells its workers apart.

        The stream belongs to the caller, who closes it. Any number of them may run.

        Raises:
            ConfigError: the pool cannot run this source.
        """
        ...

    def describe(self) -> PoolDescription:
        """What it is, for monitors and tools."""
        ...


def produce(
    source: Source, place: Place, cursor: Cursor, arena: Arena | None = None
) -> Generator[LoadedBatch]:
    """The batches of one worker, each with the seconds it took."""
    batches = source.batches(place, cursor, arena)
    while True:
        begin = time.perf_counter()
        batch = next(batches)
        yield batch._replace(seconds=time.perf_counter() - begin)
