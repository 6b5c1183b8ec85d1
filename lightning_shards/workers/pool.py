"""What a pool of workers offers: batches of one rank in step order, and an end.

`inline`, `threads` and `processes` implement it; a stream can always be closed and started
elsewhere, as a source holds no progress.
"""

import time
from collections.abc import Generator
from typing import Protocol

from lightning_shards.plan.cursor import Cursor
from lightning_shards.plan.place import Place
from lightning_shards.readers.source import Source
from lightning_shards.samples.arena import Arena
from lightning_shards.samples.collate import LoadedBatch


class BatchStream(Protocol):
    """The batches of one rank in step order, without end, until it is closed."""

    def __next__(self) -> LoadedBatch:
        """Wait for the next batch."""
        ...

    def close(self) -> None:
        """End all workers; they are gone when this returns. Closing twice does nothing."""
        ...


class Pool(Protocol):
    """Runs a source in workers."""

    @property
    def slots(self) -> int:
        """Batches that are made side by side; 1 in the trainer's own thread."""
        ...

    def start(self, source: Source, place: Place, cursor: Cursor) -> BatchStream:
        """Begin at the cursor. `place` is the rank's; the pool tells its workers apart."""
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
