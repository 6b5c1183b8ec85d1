"""The pool of worker processes: torch's DataLoader asks them one after the other, in step order."""

import copy
import fcntl
import multiprocessing
import multiprocessing.util
import os
import pickle
import shutil
import sys
import weakref
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast
from weakref import WeakSet

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from torch.utils.data._utils import signal_handling

from lightning_shards.errors import ConfigError, WorkerError, count_of
from lightning_shards.plan.cursor import Cursor
from lightning_shards.plan.footprint import SPARE_BUFFERS, buffers_per_worker
from lightning_shards.plan.place import Place
from lightning_shards.readers.source import Source
from lightning_shards.samples.arena import Arena
from lightning_shards.samples.collate import LoadedBatch
from lightning_shards.samples.stage_clock import publish_stages_in
from lightning_shards.system.guard import GuardedName
from lightning_shards.workers.failures import failure_of, last_message, raise_failure
from lightning_shards.workers.inline import produce
from lightning_shards.workers.main_script import require_main_guard
from lightning_shards.workers.messages import (
    UNKNOWN_BYTES,
    BatchBytes,
    Message,
    MessageMaker,
    PickledMessage,
    message_sizes,
    shared_bytes,
)
from lightning_shards.workers.pool import BatchStream, PoolDescription
from lightning_shards.workers.shared_buffers import Lease, forget_buffers
from lightning_shards.workers.threads import start_threads
from lightning_shards.workers.watchdog import WORKER_TIMEOUT_S, ProcessWatch, Watchdog

StartMethod: TypeAlias = Literal["forkserver", "spawn", "fork"]

_PRELOAD = ("__main__", "lightning.pytorch", "lightning_shards.readers.stream")
"""The fork server imports those of these that the main script has imported, because imports in each
worker would take seconds. (Python 3.11 should preload the main script itself, but does not.)"""

_FORK_SERVER = "lightning_shards.workers.fork_server"

_PIPE_BYTES = 2**20
"""Size of the pipe of the workers: the most that Linux gives to any user. It holds a whole message;
with the usual 64 KiB, the trainer and a worker wake each other sixteen times for one."""

_END_S = 5.0
"""Seconds to wait for a killed worker. It ends at once, unless it waits for a disk."""


@dataclass(frozen=True)
class ProcessPool:
    """Runs the source in `num_workers` processes.

    Attributes:
        num_workers: Processes per rank.
        prefetch_factor: Messages that each process keeps ready. One message holds several batches
            if they are small.
        start_method: `forkserver` by default, because a fork of a rank that has gloo and autograd
            threads can deadlock.
        pin_memory: Whether a thread copies batches into page-locked memory.
        threads: Threads in each process.
        batch: Size of one batch on its way to the trainer.
        ranks: Number of ranks of this machine; each has as many workers.
        worker_timeout_s: Seconds that the trainer waits for a message, also for the first one,
            before it ends the workers. 0: there is no limit.
    """

    num_workers: int
    prefetch_factor: int = 2
    start_method: StartMethod = "forkserver"
    pin_memory: bool = False
    threads: int = 1
    batch: BatchBytes = UNKNOWN_BYTES
    ranks: int = 1
    worker_timeout_s: float = WORKER_TIMEOUT_S

    def __post_init__(self) -> None:
        """Refuse settings that would otherwise fail later, inside a worker.

        Raises:
            ConfigError: A number is below 1, or shared memory cannot hold the batches.
            WorkerError: Each worker would run the main script again.
        """
        for name in ("num_workers", "prefetch_factor", "threads"):
            if getattr(self, name) < 1:
                raise ConfigError(
                    f"{name} must be at least 1 for worker processes, got {getattr(self, name)}"
                )
        require_shared_memory(self)
        if self.start_method != "fork":
            require_main_guard()

    def describe(self) -> PoolDescription:
        """A description in which each thread of each process is a worker."""
        return PoolDescription("processes", self.num_workers * self.threads, self.prefetch_factor)

    def start(self, source: Source, place: Place, cursor: Cursor) -> BatchStream:
        """Start the workers at the cursor.

        Raises:
            ConfigError: A transform or a stage cannot be sent to them.
            WorkerError: They cannot be started.
        """
        context = copy.copy(multiprocessing.get_context(self.start_method))
        if self.start_method == "forkserver":
            names = [name for name in _PRELOAD if name in sys.modules]
            context.set_forkserver_preload([_FORK_SERVER, *names])
        stages = context.RawArray("B", self.num_workers)
        loader = DataLoader(
            _WorkerShare(self, source, place, cursor, stages),
            batch_size=None,
            num_workers=self.num_workers,
            collate_fn=_identity,  # the default would turn tuples into lists
            prefetch_factor=self.prefetch_factor,
            worker_init_fn=_begin_guard,
            multiprocessing_context=cast("Any", context),
            pin_memory=self.pin_memory,
            generator=torch.Generator(),  # otherwise torch would draw a seed from the global one
        )
        try:
            iterator = _started(loader, context)
        except (AttributeError, TypeError, RuntimeError, pickle.PicklingError):
            if problem := _not_sent(source):
                raise problem from None
            raise
        return _ProcessStream(iterator, stages, self.worker_timeout_s)


class _WorkerShare(IterableDataset[Any]):
    """The messages of one worker process. All that it needs is pickled with it, also the rank."""

    def __init__(
        self, pool: ProcessPool, source: Source, place: Place, cursor: Cursor, stages: Any
    ) -> None:
        super().__init__()
        self._pool, self._source, self._place, self._cursor = pool, source, place, cursor
        self._stages = stages

    def __iter__(self) -> Iterator[PickledMessage]:
        info = get_worker_info()
        assert info is not None  # only worker processes iterate over it
        publish_stages_in(np.frombuffer(self._stages, np.uint8).data[info.id : info.id + 1])
        place = self._place.with_worker(info.id, info.num_workers)
        ready: list[LoadedBatch] = []
        maker = MessageMaker(buffers_per_worker(self._pool.prefetch_factor))
        failure: Any = None
        try:
            batches = self._batches(place, maker.arena)
            for size in message_sizes(self._pool.batch):
                maker.prepare(size)
                while len(ready) < size:
                    ready.append(next(batches))
                yield maker.message(ready).pickled()
                ready = []
        except Exception as error:  # noqa: BLE001 raised in the trainer, in step order, as torch does
            failure = failure_of(error, info.id)
        while True:  # if this ended, torch would ask the other workers instead
            yield last_message(maker, ready, failure, info.id)
            ready = []

    def _batches(self, place: Place, arena: Arena) -> BatchStream | Iterator[LoadedBatch]:
        if self._pool.threads == 1:
            return produce(self._source, place, self._cursor, arena)
        # threads make batches before their message is begun, so these have memory of their own
        return start_threads(
            self._source, place, self._cursor, self._pool.threads, self._pool.prefetch_factor, 0.0
        )


def _not_sent(source: Source) -> ConfigError | None:
    """The error about the transform or stage that cannot be pickled; None if all can be."""
    for name, function in source.describe().callables:
        try:
            pickle.dumps(function)
        except Exception as error:  # noqa: BLE001 whatever its own __reduce__ raises
            kind = getattr(function, "__qualname__", type(function).__qualname__)
            return ConfigError(
                f"{name} is {kind}, which cannot be sent to worker processes "
                f"({type(error).__name__}: {error}); define it at the top level of a module, where "
                "they can import it (no lambda, no function inside of a function), or take "
                "pool='threads'"
            )
    return None


def _started(loader: DataLoader[Any], context: Any) -> Any:
    """The iterator of a loader. Its workers have started, and they end when this process ends.

    Raises:
        WorkerError: The workers cannot be started.
    """
    plain, begun = context.Process, list[BaseProcess]()

    def process(**settings: Any) -> BaseProcess:
        name = GuardedName(os.getpid(), _socket_folder())
        begun.append(plain(name=name, **settings))
        return begun[-1]

    context.Process = process
    try:
        return iter(loader)
    except (OSError, EOFError) as error:
        for worker in begun:
            if worker.pid is not None:
                worker.kill()
        raise WorkerError(
            f"worker processes cannot be started ({type(error).__name__}: {error}). Likely causes: "
            "the fork server was killed, too many processes or open files (ulimit -u, -n), out of "
            "memory, a TMPDIR whose path is too long for sockets; mend that, lower num_workers, or "
            "take pool='threads'"
        ) from error


class _ProcessStream:
    def __init__(self, iterator: Any, stages: Any, timeout_s: float) -> None:
        self._iterator: Any = iterator
        self._workers: list[multiprocessing.Process] = list(iterator._workers)  # noqa: SLF001 torch has no other way to kill them
        self._ready: list[Iterator[LoadedBatch]] = [iter(()) for _ in self._workers]
        self._failures: list[Any] = [None] * len(self._workers)
        self._step = 0
        self._leases: list[WeakSet[Lease]] = [WeakSet() for _ in self._workers]
        pipe = iterator._worker_result_queue._writer  # noqa: SLF001 of torch's queue
        if hasattr(fcntl, "F_SETPIPE_SZ"):  # Linux
            with suppress(OSError):  # this user has too many large pipes; smaller ones are slower
                fcntl.fcntl(pipe.fileno(), fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        if not iterator._pin_memory:  # noqa: SLF001 torch's thread for pinned memory uses the pipe to end
            pipe.close()  # otherwise processes that are forked later would hold it open
        # torch would raise an error wherever the trainer is when a worker ends
        cast("Any", signal_handling)._remove_worker_pids(id(iterator))  # noqa: SLF001 no other way
        iterator._worker_pids_set = False  # noqa: SLF001 as torch does after that
        self._watch = ProcessWatch(self._workers, stages, pipe)
        self._watchdog = Watchdog(timeout_s, self._watch.late, self._watch.look)
        self._end_watchdog = weakref.finalize(self, self._watchdog.stop)

    def __next__(self) -> LoadedBatch:
        if self._iterator is None:
            raise StopIteration
        worker = self._step % len(self._ready)
        loaded = next(self._ready[worker], None)
        if loaded is None and not self._failures[worker]:  # the next message is of this worker
            self._watch.worker = worker
            message = self._receive()
            self._ready[worker] = self._unpacked(worker, message)
            self._failures[worker] = message.failure
            loaded = next(self._ready[worker], None)
        if loaded is None:
            self.close()
            raise_failure(self._failures[worker])
        self._step += 1
        return loaded

    def _unpacked(self, worker: int, message: Message) -> Iterator[LoadedBatch]:
        """The batches of a message; they are copied if the user keeps too many earlier ones."""
        lease, leases = message.lease(), self._leases[worker]
        is_kept = len(leases) >= SPARE_BUFFERS
        if lease is not None:
            leases.add(lease)
        return message.unpack(lease, copy=is_kept)

    def _receive(self) -> Message:
        try:
            with self._watchdog:
                message = next(self._iterator)
                return message.unpickled() if isinstance(message, PickledMessage) else message
        except Exception as error:
            # a tensor of a worker that is gone cannot be fetched, which raises one of many errors
            ended = self._watch.error()
            self.close()
            raise ended or WorkerError(
                "what a worker process sent cannot be unpickled in the trainer "
                f"({type(error).__name__}: {error}); let fields be tensors, numbers or texts, "
                "or take pool='threads' or 'inline'"
            ) from error

    def close(self) -> None:
        if self._iterator is None:
            return
        self._end_watchdog()
        iterator, self._iterator = self._iterator, None
        iterator._shutdown_workers()  # noqa: SLF001 what Lightning itself calls
        for worker in self._workers:
            if worker.is_alive():  # a Python handler for SIGTERM may never get to run
                worker.kill()
            worker.join(_END_S)  # one that waits for a disk stays until the disk answers
        self._ready = []
        forget_buffers(worker.pid for worker in self._workers)


def require_shared_memory(pool: ProcessPool, folder: str = "/dev/shm") -> None:  # noqa: S108 Linux has it there
    """Check that shared memory can hold the messages that the workers keep ready.

    Raises:
        ConfigError: It is too small. A worker would end by SIGBUS in the middle of the fit.
    """
    if not Path(folder).is_dir():
        return  # not Linux: there shared memory has no limit of its own
    buffers = buffers_per_worker(pool.prefetch_factor)
    messages = pool.ranks * pool.num_workers * buffers
    size = shared_bytes(pool.batch)
    needed, free = messages * size, shutil.disk_usage(folder).free
    if needed > free:
        mib = 2**20
        raise ConfigError(
            f"{folder} has {free / mib:,.0f} MiB free, and the workers need "
            f"{needed / mib:,.0f} MiB: {count_of(pool.ranks, 'rank')} x "
            f"{count_of(pool.num_workers, 'worker')} x {count_of(buffers, 'message')} of "
            f"{size / mib:,.1f} MiB. Enlarge it (docker run --shm-size), or lower prefetch_factor, "
            "num_workers or batch_size; pool='threads' needs none"
        )


def _identity(batch: Any) -> Any:
    return batch


def _begin_guard(_worker: int) -> None:
    name = multiprocessing.current_process().name
    if isinstance(name, GuardedName):  # forked; in others the guard began by unpickling
        name.begin()


def _socket_folder() -> str | None:
    """The folder for sockets of the trainer; None if it may belong to other processes, too.

    It is made before the workers start, so they use it, too, and it is removed with all that they
    leave in it when the trainer ends.
    """
    folder = multiprocessing.util.get_temp_dir()
    return folder if multiprocessing.parent_process() is None else None
