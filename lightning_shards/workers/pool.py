"""The pool protocol: a pool runs a source in workers and gives the batches of a rank in step order.

`inline`, `threads`, `processes` and `ray` implement it. A stream can be closed and another one
started at any cursor, because a source holds no progress.
"""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from lightning_shards.errors import count_of
from lightning_shards.plan.place import Cursor, Place
from lightning_shards.readers.source import Source
from lightning_shards.samples.collate import LoadedBatch


@dataclass(frozen=True, slots=True)
class PoolDescription:
    """The kind and the size of a pool, for monitors and tools.

    Attributes:
        kind: Name of the kind of pool.
        num_workers: Workers that make batches at the same time; 0: the trainer's own thread makes
            them.
        prefetch_factor: Messages that each worker keeps ready.
        threads: Workers in each process, where several are.
    """

    kind: str
    num_workers: int = 0
    prefetch_factor: int = 0
    threads: int = 1

    @property
    def workers(self) -> str:
        """Who makes the batches, in words."""
        if not self.num_workers:
            return "the caller's own thread"
        nouns = {"processes": "process", "threads": "thread", "ray": "actor"}
        noun = nouns.get(self.kind, "worker")
        text = count_of(self.num_workers // self.threads, noun)
        return text if self.threads == 1 else f"{text} of {self.threads} threads each"

    @property
    def num_producers(self) -> int:
        """Producers among which the steps of a rank are divided, at least 1."""
        return max(1, self.num_workers)


class BatchStream(Protocol):
    """The batches of one rank in step order, without end, until it is closed.

    A batch belongs to the caller who takes it. Only one thread at a time may ask for a batch.
    """

    def __next__(self) -> LoadedBatch:
        """Wait for the next batch.

        Raises:
            StopIteration: The stream was closed.
            Exception: The source raised it for this batch; type and message are the same. All
                batches before it were given, and the workers are gone.
        """
        ...

    def close(self) -> None:
        """End all workers; they are gone when this returns. Closing twice does nothing."""
        ...


class OpenStream(NamedTuple):
    """An open stream, the cursor of its next batch, and the limit that it was started with."""

    stream: BatchStream
    cursor: Cursor
    limit: int | None


class Pool(Protocol):
    """Runs a source in workers. A pool is frozen and keeps no reference to the streams it started.

    As `describe` gives `num_producers`, the batch of step i after the cursor is made by worker
    i % num_producers. Each worker makes the batches of
    `source.batches(place.with_worker(worker, num_producers), cursor)` and no others;
    `inline.produce` makes them and measures the seconds of each.
    """

    def start(self, source: Source, place: Place, cursor: Cursor) -> BatchStream:
        """Begin at the cursor. `place` is the rank's; the pool numbers its own workers.

        The stream belongs to the caller, who closes it. Any number of streams may run.

        Raises:
            ConfigError: The pool cannot run this source.
        """
        ...

    def describe(self) -> PoolDescription:
        """The kind and the size of this pool, for monitors and tools."""
        ...
