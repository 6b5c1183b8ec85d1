"""The pool protocol: a pool runs a source in workers and gives the batches of a rank in step order.

`inline`, `threads`, `processes` and `ray` implement it. A stream can be closed and another one
started at any cursor, because a source holds no progress.
"""

import os
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple, NoReturn, Protocol, TypeAlias

from lightning_shards.errors import WorkerError, count_of
from lightning_shards.plan.place import Cursor, Place
from lightning_shards.readers.source import Source
from lightning_shards.samples.collate import LoadedBatch
from lightning_shards.system.process import CHECK_S, Cancellable

WORKER_TIMEOUT_S = 300.0
"""Seconds; longer than the slowest batch takes, and longer than workers take to start."""


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


class Failure(NamedTuple):
    """An error in a worker process, and its cause there as text."""

    error: Exception
    cause: str

    def throw(self) -> NoReturn:
        """Raise it in the trainer."""
        cause = self.cause.rstrip()
        raise self.error from (WorkerError(f"in its process\n{cause}") if cause else None)


Received: TypeAlias = Sequence[LoadedBatch | Failure]
"""What a worker gives at a time: batches, and at last the failure that it met after them."""


class WorkerStream(ABC):
    """The batches of workers in step order, without end, until it is closed.

    Time is counted in looks at the workers: there are none while the whole job is stopped (Ctrl-Z,
    a scheduler), so that time is not counted.

    Args:
        num_workers: Workers.
        timeout_s: Seconds after which a batch that does not come is an error; 0: never.
        end: Ends the workers, given `ended`: when the stream is closed or dropped, or the program
            ends. A fork of the trainer drops its copy of the stream without it.
    """

    def __init__(
        self, num_workers: int, timeout_s: float, end: Callable[..., object], *ended: object
    ) -> None:
        self._ready: list[deque[LoadedBatch | Failure]] = [deque() for _ in range(num_workers)]
        self._step, self._timeout_s = 0, timeout_s
        self._finalizer = weakref.finalize(self, _end_own, os.getpid(), end, *ended)

    @abstractmethod
    def _receive(self, worker: int) -> Received:
        """Wait for what a worker gives next; the wait calls the checks of this thread."""

    @abstractmethod
    def _whereabouts(self, worker: int) -> str:
        """Where a worker stands that gives no batch."""

    def __next__(self) -> LoadedBatch:
        if not self._ready:
            raise StopIteration
        worker = self._step % len(self._ready)
        ready = self._ready[worker]
        try:
            if not ready:
                with self._waiting_for(worker):
                    ready.extend(self._receive(worker))
            batch = ready.popleft()
            if isinstance(batch, Failure):
                batch.throw()
        except BaseException:
            self.close()
            raise
        self._step += 1
        return batch

    def _waiting_for(self, worker: int) -> Cancellable:
        looks = count(1)

        def look() -> None:
            waited_s = next(looks) * CHECK_S
            if self._timeout_s and waited_s >= self._timeout_s:
                raise WorkerError(
                    f"worker {worker} has given no batch for {waited_s:g} s, the worker_timeout_s "
                    f"of LoaderConfig; {self._whereabouts(worker)}. Likely causes: a file system "
                    "or server that does not answer, a transform that waits for ever, a process "
                    "that was stopped. If batches do take longer, set a larger worker_timeout_s, "
                    "or 0 for none"
                )

        return Cancellable(look)

    def close(self) -> None:
        """End the workers; they are gone when this returns. Closing twice does nothing."""
        self._finalizer()
        self._ready = []


def _end_own(owner_pid: int, end: Callable[..., object], *ended: object) -> None:
    if os.getpid() == owner_pid:
        end(*ended)
