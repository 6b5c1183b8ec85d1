"""No workers: batches are made in the trainer's own thread when they are asked for."""

from collections.abc import Iterator
from dataclasses import dataclass

from lightning_shards.pipeline.source import Source
from lightning_shards.plan.cursor import Cursor
from lightning_shards.topology import Place
from lightning_shards.workers.pool import BatchStream, Produced, produce


@dataclass(frozen=True, slots=True)
class InlinePool:
    """Runs the source in the caller's thread; for tests, debuggers and tiny data."""

    @property
    def lanes(self) -> int:
        """One: the caller itself."""
        return 1

    def start(self, source: Source, place: Place, cursor: Cursor) -> BatchStream:
        """Begin at the cursor; nothing is read before the first batch is asked for."""
        return _InlineStream(produce(source, place.with_worker(0, 1), cursor))


class _InlineStream:
    def __init__(self, batches: Iterator[Produced]) -> None:
        self._batches: Iterator[Produced] | None = batches

    def __next__(self) -> Produced:
        if self._batches is None:
            raise StopIteration
        return next(self._batches)

    def close(self) -> None:
        self._batches = None  # the generators close their files as they go
