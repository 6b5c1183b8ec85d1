"""The pool of worker threads: several workers in the trainer's process, batches in step order.

Decoders that release the GIL, as those of images do, run in parallel; nothing is copied between
processes, and no process has to start. For a training loop that spends much time in Python code,
worker processes are better. Where a batch takes less time than a change of threads,
`num_workers: 0` is faster.
"""

import threading
import time
import weakref
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from queue import SimpleQueue

from lightning_shards.errors import ConfigError
from lightning_shards.plan.place import Cursor, Place
from lightning_shards.readers.open_shards import FILES_PER_SOURCE
from lightning_shards.readers.source import Source
from lightning_shards.samples.collate import LoadedBatch
from lightning_shards.system.process import Cancellable, allow_open_files, take_from
from lightning_shards.workers.inline import produce
from lightning_shards.workers.pool import BatchStream, PoolDescription
from lightning_shards.workers.watchdog import WORKER_TIMEOUT_S, Watchdog, warn_with_stacks

_END_S = 3.0
"""Seconds to wait for a thread, which ends after the batch that it is making, or sooner if that
waits for a server."""


@dataclass(frozen=True)
class ThreadPool:
    """Runs the source in `num_workers` threads of the trainer's own process.

    Attributes:
        num_workers: Threads per rank.
        prefetch_factor: Batches that each thread keeps ready.
        worker_timeout_s: Seconds that the trainer waits for a batch before a warning shows where
            the threads are; 0: never.
    """

    num_workers: int
    prefetch_factor: int = 2
    worker_timeout_s: float = WORKER_TIMEOUT_S

    def __post_init__(self) -> None:
        """Refuse numbers below 1.

        Raises:
            ConfigError: A number is below 1.
        """
        for name in ("num_workers", "prefetch_factor"):
            value = getattr(self, name)
            if value < 1:
                raise ConfigError(f"{name} must be at least 1 for worker threads, got {value}")

    def describe(self) -> PoolDescription:
        """A description in which each thread is a worker."""
        return PoolDescription("threads", self.num_workers, self.prefetch_factor)

    def start(self, source: Source, place: Place, cursor: Cursor) -> BatchStream:
        """Start the threads at the cursor.

        Raises:
            ConfigError: A transform or stage may draw from global generators.
        """
        place = place.with_worker(0, 1)
        return start_threads(
            source,
            place,
            cursor,
            self.num_workers,
            self.prefetch_factor,
            self.worker_timeout_s,
        )


def start_threads(
    source: Source,
    place: Place,
    cursor: Cursor,
    num_threads: int,
    prefetch_factor: int,
    worker_timeout_s: float,
) -> "ThreadStream":
    """The batches of one worker, made by several threads, in step order.

    Thread i % num_threads makes batch i of this worker. So the threads of all workers together
    divide the steps as the same number of workers would.

    Raises:
        ConfigError: A transform or stage may draw from global generators.
    """
    require_own_randomness(source)
    allow_open_files(num_threads * FILES_PER_SOURCE)
    total = place.num_workers * num_threads
    places = [
        place.with_worker(place.worker + place.num_workers * thread, total)
        for thread in range(num_threads)
    ]
    batches = [produce(source, thread_place, cursor) for thread_place in places]
    return ThreadStream(batches, prefetch_factor, worker_timeout_s)


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


class _StoppedError(BaseException):
    """Ends the batch that a thread is making, for which the trainer no longer waits."""


class _Slot:
    """One thread, and the queue of its batches that are ready; an error is the last of them."""

    def __init__(self, batches: Generator[LoadedBatch], prefetch_factor: int) -> None:
        self._batches = batches
        self._ready: SimpleQueue[LoadedBatch | BaseException] = SimpleQueue()
        self._free = threading.Semaphore(prefetch_factor)
        self._is_stopped = False
        self.thread = threading.Thread(target=self._fill, daemon=True)
        self.thread.start()

    def take(self) -> LoadedBatch:
        """Wait for the next batch."""
        batch = take_from(self._ready)
        if isinstance(batch, BaseException):
            raise batch
        self._free.release()
        return batch

    def stop(self) -> None:
        """Let the thread end after the batch that it is making."""
        self._is_stopped = True
        self._free.release()

    def _fill(self) -> None:
        try:
            with Cancellable(self._raise_if_stopped):
                while self._free.acquire() and not self._is_stopped:
                    self._ready.put(next(self._batches))
        except BaseException as error:  # noqa: BLE001 raised by `take`
            self._ready.put(error)
        finally:
            self._batches.close()

    def _raise_if_stopped(self) -> None:
        if self._is_stopped:
            raise _StoppedError


class ThreadStream:
    """The batches of several threads in step order, without end, until it is closed."""

    def __init__(
        self,
        sources: Sequence[Generator[LoadedBatch]],
        prefetch_factor: int,
        worker_timeout_s: float,
    ) -> None:
        self._slots = [_Slot(batches, prefetch_factor) for batches in sources]
        threads = [slot.thread.ident or 0 for slot in self._slots]
        self._watchdog = Watchdog(
            worker_timeout_s, lambda waited_s, _: warn_with_stacks(waited_s, threads)
        )
        self._step = 0
        # the threads also end when the stream is dropped and when the program ends
        self._end = weakref.finalize(self, _end_slots, self._slots, self._watchdog)

    def __next__(self) -> LoadedBatch:
        if not self._slots:
            raise StopIteration
        slot = self._slots[self._step % len(self._slots)]
        self._step += 1
        try:
            with self._watchdog:
                return slot.take()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the threads; they are gone when this returns, unless one takes long for a batch."""
        self._end()
        self._slots = []


def _end_slots(slots: Sequence[_Slot], watchdog: Watchdog) -> None:
    watchdog.stop()
    for slot in slots:
        slot.stop()
    end = time.perf_counter() + _END_S
    for slot in slots:
        slot.thread.join(max(0.0, end - time.perf_counter()))
