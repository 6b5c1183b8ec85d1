"""Threads that fetch: first what batches wait for, then what is needed soon."""

import threading
from collections import deque
from collections.abc import Callable, Iterable
from time import perf_counter

from lightning_shards.errors import StorageError
from lightning_shards.system.cancellation import wait_until

Task = Callable[[], None]

_LEFT_FOR_BATCHES = 4
"""One thread in so many fetches nothing ahead, so that a batch finds a connection at once."""


class FetchThreads:
    """Some daemon threads of one process, which are started when there is work for them.

    Args:
        threads: How many, beside one that only fetches what batches wait for.
    """

    def __init__(self, threads: int) -> None:
        threads = max(1, threads)
        self._most, self._most_ahead = threads + 1, threads - threads // _LEFT_FOR_BATCHES
        self._limit_ahead = self._most_ahead
        self._lock = threading.RLock()  # of all conditions, so that each wakes whom it concerns
        self._is_work_there = threading.Condition(self._lock)
        self._batches: deque[_WaitedFor] = deque()
        self._soon: deque[Task] = deque()
        self._threads: list[threading.Thread] = []
        self._idle = self._ahead = 0
        self._is_closed = False

    def run(self, tasks: Iterable[Task], meanwhile: Task = lambda: None) -> None:
        """Run tasks that a batch waits for; `meanwhile` is called when all of them are queued.

        The thread that calls this runs none of them: it only waits, and so it can be called off
        while a server does not answer. After an error a task may still be running.

        Raises:
            StorageError: Not one thread can be started.
            BaseException: The first one that a task, or a check of the caller's thread, raised;
                tasks that were not begun are dropped.
        """
        batch = _WaitedFor(tasks, self._lock)
        with self._lock:
            if self._is_closed:
                raise _closed()
            if batch.tasks:
                self._batches.append(batch)
                self._wake(len(batch.tasks))
                if not self._threads:
                    self._batches.remove(batch)
                    raise too_few_threads()
        try:
            meanwhile()
            with self._lock:
                wait_until(batch.ended, lambda: batch.is_done)
        finally:
            with self._lock:
                self._end(batch, None)
        if batch.error is not None:
            raise batch.error

    def replace_soon(self, tasks: Iterable[Task]) -> None:
        """Tasks that run while no batch waits, in place of those that were not begun yet.

        They must not raise.
        """
        with self._lock:
            self._soon = deque(() if self._is_closed else tasks)
            self._wake(min(len(self._soon), self._limit_ahead))

    def limit_soon(self, limit: int) -> None:
        """How many of them run at once, at least one; never more than threads are there for."""
        with self._lock:
            more = max(1, min(limit, self._most_ahead)) - self._limit_ahead
            self._limit_ahead += more
            if more > 0:
                self._wake(min(len(self._soon), more))

    def add_soon(self, task: Task) -> None:
        """One more of them, behind all others."""
        with self._lock:
            if not self._is_closed:
                self._soon.append(task)
                self._wake(1)

    def stop(self) -> None:
        """Begin no further task; batches that wait get an error."""
        with self._lock:
            self._is_closed = True
            self._soon.clear()
            while self._batches:
                self._end(self._batches[0], _closed())
            self._is_work_there.notify_all()

    def join(self, timeout_s: float) -> bool:
        """Wait for the threads to end after `stop`; whether they have."""
        until = perf_counter() + timeout_s
        for thread in tuple(self._threads):
            thread.join(max(0.0, until - perf_counter()))
        return not any(thread.is_alive() for thread in self._threads)

    def _wake(self, tasks: int) -> None:
        """Let so many threads work, each for as long as there is work; called with the lock."""
        for _ in range(min(tasks - self._idle, self._most - len(self._threads))):
            thread = threading.Thread(target=self._work, name="fetch", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                break  # those that there are do the work
            self._threads.append(thread)
        self._is_work_there.notify(tasks)

    def _work(self) -> None:
        while True:
            with self._lock:
                while not (self._batches or self._may_fetch_ahead() or self._is_closed):
                    self._idle += 1
                    self._is_work_there.wait()
                    self._idle -= 1
                if self._is_closed:
                    return
                batch = self._batches[0] if self._batches else None
                task = self._begun(batch) if batch else self._soon.popleft()
                self._ahead += batch is None
            if batch is not None:
                self._run_for(batch, task)
                continue
            try:
                task()
            finally:
                with self._lock:
                    self._ahead -= 1

    def _may_fetch_ahead(self) -> bool:
        return bool(self._soon) and self._ahead < self._limit_ahead

    def _begun(self, batch: "_WaitedFor") -> Task:
        """The next task of a batch that has one; called with the lock."""
        task = batch.tasks.popleft()
        batch.running += 1
        if not batch.tasks and batch in self._batches:
            self._batches.remove(batch)
        return task

    def _run_for(self, batch: "_WaitedFor", task: Task) -> None:
        error: BaseException | None = None
        try:
            task()
        except BaseException as raised:  # noqa: BLE001 the thread that waits raises it
            error = raised
        finally:
            with self._lock:
                batch.running -= 1
                if error is not None or batch.is_done:
                    self._end(batch, error)

    def _end(self, batch: "_WaitedFor", error: BaseException | None) -> None:
        """Begin no further task of a batch; called with the lock."""
        batch.error = batch.error or error
        batch.tasks.clear()
        batch.ended.notify()
        if batch in self._batches:
            self._batches.remove(batch)


def too_few_threads() -> StorageError:
    """The error for requests where not one thread could be started."""
    return StorageError(
        "no thread can be started for requests, since this user may have no more of them or there "
        "is no memory for it; raise that limit (ulimit -u), or set fewer connections in the loader"
    )


def _closed() -> StorageError:
    return StorageError(
        "the storage was closed while a batch was read; close a stream only after its last batch"
    )


class _WaitedFor:
    """The tasks of one batch; whoever waits for them waits for `ended`."""

    def __init__(self, tasks: Iterable[Task], lock: threading.RLock) -> None:
        self.tasks = deque(tasks)
        self.ended = threading.Condition(lock)
        self.running = 0
        self.error: BaseException | None = None

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to wait for."""
        return self.error is not None or not (self.tasks or self.running)
