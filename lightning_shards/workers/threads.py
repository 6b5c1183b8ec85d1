"""The pool of worker threads: several workers in the trainer's process, batches in step order.

Decoders that release the GIL, as those of images do, run in parallel; nothing is copied between
processes, and no process has to start. For a training loop that spends much time in Python code,
worker processes are better. Where a batch takes less time than a change of threads,
`num_workers: 0` is faster.
"""

import sys
import threading
import time
import traceback
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Generic, TypeVar, cast

from lightning_shards.errors import ConfigError
from lightning_shards.plan.place import Cursor, Place
from lightning_shards.readers.open_shards import FILES_PER_SOURCE
from lightning_shards.readers.source import Source
from lightning_shards.samples.collate import LoadedBatch
from lightning_shards.system.process import Cancellable, allow_open_files, take_from
from lightning_shards.workers.inline import produce
from lightning_shards.workers.pool import (
    WORKER_TIMEOUT_S,
    BatchStream,
    PoolDescription,
    Received,
    WorkerStream,
)

_T = TypeVar("_T")

_END_S = 3.0
"""Seconds to wait for a thread, which ends after the batch that it is making, or sooner if that
waits for a server."""


@dataclass(frozen=True)
class ThreadPool:
    """Runs the source in `num_workers` threads of the trainer's own process.

    Attributes:
        num_workers: Threads per rank.
        prefetch_factor: Batches that each thread keeps ready.
        worker_timeout_s: Seconds that the trainer waits for a batch before an error shows where
            its thread stands. 0: there is no limit.
    """

    num_workers: int
    prefetch_factor: int = 2
    worker_timeout_s: float = WORKER_TIMEOUT_S

    def describe(self) -> PoolDescription:
        """A description in which each thread is a worker."""
        return PoolDescription("threads", self.num_workers, self.prefetch_factor)

    def start(self, source: Source, place: Place, cursor: Cursor) -> BatchStream:
        """Start the threads at the cursor.

        Thread i % num_workers makes batch i of the worker that `place` is. So the threads of
        several worker processes together divide the steps as the same number of workers would.

        Raises:
            ConfigError: A transform or stage may draw from global generators.
        """
        require_own_randomness(source)
        allow_open_files(self.num_workers * FILES_PER_SOURCE)
        total = place.num_workers * self.num_workers
        places = [
            place.with_worker(place.worker + place.num_workers * thread, total)
            for thread in range(self.num_workers)
        ]
        batches = [produce(source, thread_place, cursor) for thread_place in places]
        return _ThreadStream(batches, self.prefetch_factor, self.worker_timeout_s)


def require_own_randomness(source: Source) -> None:
    """Check that no transform or stage draws from the global generators, which all threads share.

    Raises:
        ConfigError: One may do so: it has no parameter `rng` and no `deterministic = True`.
    """
    names = source.describe().draws_from_globals
    if names:
        raise ConfigError(
            f"{', '.join(names)} may draw random numbers from the generators of the whole process, "
            "which threads share: give it a parameter `rng`, or, if it draws none, an attribute "
            "`deterministic = True`; or set num_workers=0, or take "
            "pool='processes' and threads_per_worker=1 for what can be imported"
        )


class AheadThread(Generic[_T]):
    """A thread that makes items, some of them before they are asked for.

    Args:
        items: Makes the items in the thread; an error is the last of them.
        ahead: Items that may be ready.
    """

    def __init__(self, items: Generator[_T], ahead: int) -> None:
        self._items = items
        self._ready: SimpleQueue[tuple[_T, None] | tuple[None, BaseException]] = SimpleQueue()
        self._free = threading.Semaphore(ahead)
        self._is_stopped = False
        self.thread = threading.Thread(target=self._fill, daemon=True)
        self.thread.start()

    def take(self) -> _T:
        """Wait for the next item."""
        item, error = take_from(self._ready)
        if error is not None:
            raise error
        self._free.release()
        return cast("_T", item)

    def stop(self) -> None:
        """Let the thread end after the item that it is making."""
        self._is_stopped = True
        self._free.release()

    def _fill(self) -> None:
        try:
            with Cancellable(self._raise_if_stopped):
                while self._free.acquire() and not self._is_stopped:
                    self._ready.put((next(self._items), None))
        except BaseException as error:  # noqa: BLE001 raised by `take`
            self._ready.put((None, error))
        finally:
            self._items.close()

    def _raise_if_stopped(self) -> None:
        if self._is_stopped:
            raise SystemExit  # in the middle of a batch for which the trainer no longer waits


def end_threads(threads: Sequence[AheadThread[Any]]) -> None:
    """End these threads; they are gone when this returns, unless one takes long for an item."""
    for ahead in threads:
        ahead.stop()
    end = time.perf_counter() + _END_S
    for ahead in threads:
        ahead.thread.join(max(0.0, end - time.perf_counter()))


class _ThreadStream(WorkerStream):
    def __init__(
        self, sources: Sequence[Generator[LoadedBatch]], prefetch_factor: int, timeout_s: float
    ) -> None:
        self._threads = [AheadThread(batches, prefetch_factor) for batches in sources]
        super().__init__(len(sources), timeout_s, end_threads, self._threads)

    def _receive(self, worker: int) -> Received:
        return [self._threads[worker].take()]

    def _whereabouts(self, worker: int) -> str:
        frames: Any = cast("Any", sys)._current_frames()  # noqa: SLF001 there is no other way
        stack = traceback.format_stack(frames.get(self._threads[worker].thread.ident))
        return f"it is a thread, which cannot be ended, and stands here:\n{''.join(stack)}"
