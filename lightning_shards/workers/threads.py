"""Worker threads: the batches of several workers in one process, in step order.

Decoders that release the GIL, as those of images do, run side by side; nothing is copied between
processes, and nothing has to start. A training loop that is busy with Python of its own wants
processes instead.
"""

import threading
import time
import weakref
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import NamedTuple

from lightning_shards.errors import ConfigError
from lightning_shards.plan.cursor import Cursor
from lightning_shards.plan.place import Place
from lightning_shards.readers.open_shards import FILES_PER_SOURCE, allow_open_files
from lightning_shards.readers.source import Source
from lightning_shards.samples.collate import LoadedBatch
from lightning_shards.workers.pool import BatchStream, PoolDescription, produce
from lightning_shards.workers.watchdog import WORKER_TIMEOUT_S, Watchdog, warn_with_stacks

_END_S = 10.0
"""A thread ends after the batch that it makes; after this time it is left to itself."""


@dataclass(frozen=True)
class ThreadPool:
    """Runs the source in `num_workers` threads of the trainer's own process.

    Attributes:
        num_workers: threads per rank.
        prefetch_factor: batches that each of them keeps ready.
        worker_timeout_s: seconds that the trainer waits for a batch before a warning shows where
            the threads are; 0: never.
    """

    num_workers: int
    prefetch_factor: int = 2
    worker_timeout_s: float = WORKER_TIMEOUT_S

    def __post_init__(self) -> None:
        """Refuse what cannot run.

        Raises:
            ConfigError: `num_workers` or `prefetch_factor` is below 1.
        """
        for name, value in (
            ("num_workers", self.num_workers),
            ("prefetch_factor", self.prefetch_factor),
        ):
            if value < 1:
                raise ConfigError(f"{name} must be at least 1 for worker threads, got {value}")

    def describe(self) -> PoolDescription:
        """Each thread is a worker."""
        return PoolDescription("threads", self.num_workers, self.prefetch_factor)

    def start(self, source: Source, place: Place, cursor: Cursor) -> BatchStream:
        """Start the threads at the cursor.

        Raises:
            ConfigError: see `require_own_randomness`.
        """
        place = place.with_worker(0, 1)
        return start_threads(
            source, place, cursor, self.num_workers, self.prefetch_factor, self.worker_timeout_s
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

    Its batch number i is made by thread i % num_threads: together the threads of all workers take
    the steps as that many workers would.

    Raises:
        ConfigError: see `require_own_randomness`.
    """
    require_own_randomness(source)
    allow_open_files(num_threads * FILES_PER_SOURCE)
    total = place.num_workers * num_threads
    places = [
        place.with_worker(place.worker + place.num_workers * thread, total)
        for thread in range(num_threads)
    ]
    batches = [produce(source, each, cursor) for each in places]
    return ThreadStream(batches, prefetch_factor, worker_timeout_s)


def require_own_randomness(source: Source) -> None:
    """Check that no transform or stage draws from the generators that all threads share.

    Raises:
        ConfigError: one may do so: it neither has a parameter `rng` nor says that it draws nothing.
    """
    names = source.describe().draws_from_globals
    if names:
        raise ConfigError(
            f"{', '.join(names)} may draw random numbers from the generators of the whole process, "
            "which threads share: give it a parameter `rng`, or, if it draws none, an attribute "
            "`deterministic = True`; or take pool='processes' and threads_per_worker=1"
        )


class _Failed(NamedTuple):
    """An error on its way from a thread."""

    error: BaseException


class _Slot:
    """One thread and the batches that it has ready."""

    def __init__(self, batches: Generator[LoadedBatch], prefetch_factor: int) -> None:
        self._ready: SimpleQueue[LoadedBatch | _Failed] = SimpleQueue()
        self._room = threading.Semaphore(prefetch_factor)
        self._is_stopped = False
        self._thread = threading.Thread(target=self._fill, args=(batches,), daemon=True)
        self._thread.start()

    def take(self) -> LoadedBatch:
        """Wait for the next batch."""
        loaded = self._ready.get()
        if isinstance(loaded, _Failed):
            raise loaded.error
        self._room.release()
        return loaded

    def stop(self) -> None:
        """Let the thread end after the batch that it makes."""
        self._is_stopped = True
        self._room.release()

    @property
    def ident(self) -> int:
        """Number of the thread."""
        return self._thread.ident or 0

    def join(self, seconds: float) -> None:
        self._thread.join(seconds)

    def _fill(self, batches: Generator[LoadedBatch]) -> None:
        try:
            while self._room.acquire() and not self._is_stopped:
                self._ready.put(next(batches))
        except BaseException as error:  # noqa: BLE001 raised where the batch is asked for
            self._ready.put(_Failed(error))
        finally:
            batches.close()  # here, as a generator cannot be closed while another thread runs it


class ThreadStream:
    """The batches of some lanes in turn, without end, until it is closed."""

    def __init__(
        self,
        sources: Sequence[Generator[LoadedBatch]],
        prefetch_factor: int,
        worker_timeout_s: float,
    ) -> None:
        self._slots = [_Slot(batches, prefetch_factor) for batches in sources]
        threads = [slot.ident for slot in self._slots]
        self._watchdog = Watchdog(
            worker_timeout_s, lambda waited_s, _: warn_with_stacks(waited_s, threads)
        )
        self._turn = 0
        # a stream that is dropped, or still there at the end of the program, ends its threads, too
        self._end = weakref.finalize(self, _end_slots, self._slots, self._watchdog)

    def __next__(self) -> LoadedBatch:
        if not self._slots:
            raise StopIteration
        slot = self._slots[self._turn % len(self._slots)]
        self._turn += 1
        try:
            with self._watchdog:
                return slot.take()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the threads; they are gone when this returns, unless they wait for a server."""
        self._end()
        self._slots = []


def _end_slots(slots: Sequence[_Slot], watchdog: Watchdog) -> None:
    watchdog.stop()
    for slot in slots:
        slot.stop()
    end = time.perf_counter() + _END_S
    for slot in slots:
        slot.join(max(0.0, end - time.perf_counter()))
