"""Worker processes, by torch's DataLoader: round robin over workers gives batches in step order."""

import copy
import fcntl
import multiprocessing
import multiprocessing.connection
import multiprocessing.util
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast
from weakref import WeakSet

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from lightning_shards.errors import ConfigError, WorkerError
from lightning_shards.pipeline.source import Source
from lightning_shards.plan.cursor import Cursor
from lightning_shards.plan.footprint import SPARE_BLOCKS, blocks_per_worker
from lightning_shards.topology import Place
from lightning_shards.workers.blocks import Lease, forget_blocks
from lightning_shards.workers.failures import failure_of, last_message, raise_failure
from lightning_shards.workers.guard import GuardedName, end_with
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
from lightning_shards.workers.pool import BatchStream, Produced, produce
from lightning_shards.workers.threads import start_threads

StartMethod: TypeAlias = Literal["forkserver", "spawn", "fork"]

_PRELOAD = ("__main__", "lightning.pytorch", "lightning_shards.pipeline.stream")
"""What the main script has imported of these, the fork server imports once instead of each worker:
it takes seconds. (Python 3.11 means to preload the main script itself, but does not.)"""

_FORK_SERVER = "lightning_shards.workers.fork_server"

_PIPE_BYTES = 2**20
"""Room in the pipe of the workers: the most that Linux gives to everybody, and a whole message.
With the usual 64 KiB, trainer and worker wake each other sixteen times for it."""

_SIGN_OF_DEATH_S = 1.0
"""A connection to a worker that dies breaks a moment before its end is known."""


@dataclass(frozen=True)
class ProcessPool:
    """Runs the source in `num_workers` processes.

    Attributes:
        num_workers: processes per rank.
        prefetch: messages that each of them keeps ready; one of several batches if they are small.
        start_method: `forkserver` by default: a fork of a rank that has gloo and autograd threads
            can deadlock.
        pin_memory: whether a thread copies batches into page-locked memory.
        threads: threads in each of them.
        batch: what one batch takes on its way.
        ranks: ranks of this machine that have as many workers.
    """

    num_workers: int
    prefetch: int = 2
    start_method: StartMethod = "forkserver"
    pin_memory: bool = False
    threads: int = 1
    batch: BatchBytes = UNKNOWN_BYTES
    ranks: int = 1

    def __post_init__(self) -> None:
        """Refuse what could only fail later, inside a worker.

        Raises:
            ConfigError: a number is below 1, or shared memory cannot hold the batches.
            WorkerError: the script would be run again by each worker.
        """
        for name in ("num_workers", "prefetch", "threads"):
            if getattr(self, name) < 1:
                raise ConfigError(
                    f"{name} must be at least 1 for worker processes, got {getattr(self, name)}"
                )
        require_shared_memory(self)
        if self.start_method != "fork":
            require_main_guard()

    @property
    def lanes(self) -> int:
        """Batches that are made side by side."""
        return self.num_workers * self.threads

    def start(self, source: Source, place: Place, cursor: Cursor) -> BatchStream:
        """Start the workers at the cursor."""
        # made here, it is the one folder for sockets of the workers, too, and goes with the trainer
        folder = multiprocessing.util.get_temp_dir()
        if multiprocessing.parent_process() is not None:
            folder = None  # it may belong to others, which live on
        context = copy.copy(multiprocessing.get_context(self.start_method))
        if self.start_method == "forkserver":
            names = [name for name in _PRELOAD if name in sys.modules]
            context.set_forkserver_preload([_FORK_SERVER, *names])
        name = GuardedName(os.getpid(), folder)
        context.Process = partial(context.Process, name=name)
        loader = DataLoader(
            _WorkerShare(self, source, place, cursor),
            batch_size=None,
            num_workers=self.num_workers,
            collate_fn=_identity,  # the default would turn tuples into lists
            prefetch_factor=self.prefetch,
            worker_init_fn=partial(_begin_guard, os.getpid(), folder),
            multiprocessing_context=cast("Any", context),
            pin_memory=self.pin_memory,
            generator=torch.Generator(),  # or a seed is drawn from the model's own generator
        )
        return _ProcessStream(iter(loader))


class _WorkerShare(IterableDataset[Any]):
    """What one worker process makes. Everything it needs travels with it, the rank included."""

    def __init__(self, pool: ProcessPool, source: Source, place: Place, cursor: Cursor) -> None:
        super().__init__()
        self._pool, self._source, self._place, self._cursor = pool, source, place, cursor

    def __iter__(self) -> Iterator[PickledMessage]:
        info = get_worker_info()
        assert info is not None  # noqa: S101 only worker processes iterate over it
        place = self._place.with_worker(info.id, info.num_workers)
        ready: list[Produced] = []
        maker = MessageMaker(blocks_per_worker(self._pool.prefetch))
        failure: Any = None
        try:
            batches = self._batches(place)
            for size in message_sizes(self._pool.batch):
                with maker.making(size):
                    while len(ready) < size:
                        ready.append(next(batches))
                yield maker.message(ready).pickled()
                ready = []
        except Exception as error:  # noqa: BLE001 raised in the trainer, in its turn, as torch does
            failure = failure_of(error, info.id)
        while True:  # torch would give the turns of a worker that ends to others
            yield last_message(maker, ready, failure, info.id)
            ready = []

    def _batches(self, place: Place) -> BatchStream | Iterator[Produced]:
        if self._pool.threads == 1:
            return produce(self._source, place, self._cursor)
        return start_threads(
            self._source, place, self._cursor, self._pool.threads, self._pool.prefetch
        )


class _ProcessStream:
    def __init__(self, iterator: Any) -> None:
        self._iterator: Any = iterator
        self._workers: list[multiprocessing.Process] = list(iterator._workers)  # noqa: SLF001 torch has no other way to kill them
        self._ready: list[Iterator[Produced]] = [iter(()) for _ in self._workers]
        self._failures: list[Any] = [None] * len(self._workers)
        self._turn = 0
        self._leases: list[WeakSet[Lease]] = [WeakSet() for _ in self._workers]
        if hasattr(fcntl, "F_SETPIPE_SZ"):  # Linux
            pipe = iterator._worker_result_queue._writer.fileno()  # noqa: SLF001 of torch's queue
            with suppress(OSError):  # this user has too many large pipes: it works, slower
                fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)

    def __next__(self) -> Produced:
        if self._iterator is None:
            raise StopIteration
        worker = self._turn % len(self._ready)
        produced = next(self._ready[worker], None)
        if produced is None and not self._failures[worker]:  # the next message is of this worker
            message = self._receive()
            self._ready[worker] = self._unpacked(worker, message)
            self._failures[worker] = message.failure
            produced = next(self._ready[worker], None)
        if produced is None:
            self.close()
            raise_failure(self._failures[worker])
        self._turn += 1
        return produced

    def _unpacked(self, worker: int, message: Message) -> Iterator[Produced]:
        """The batches of a message; copied if the user keeps some that came before."""
        lease, leases = message.lease(), self._leases[worker]
        is_kept = len(leases) >= SPARE_BLOCKS
        if lease is not None:
            leases.add(lease)
        return message.unpack(lease, copy=is_kept)

    def _receive(self) -> Message:
        try:
            message = next(self._iterator)
            return message.unpickled() if isinstance(message, PickledMessage) else message
        except Exception as error:
            # a tensor of a worker that is gone cannot be fetched: that comes as any of them
            ended = _describe_ended(self._workers)
            self.close()
            if not ended:
                raise WorkerError(
                    "what a worker process sent cannot be unpickled in the trainer "
                    f"({type(error).__name__}: {error}); let fields be tensors, numbers or texts, "
                    "or take pool='threads' or 'inline'"
                ) from error
            raise WorkerError(
                f"a worker process ended without being asked to ({ended}). Likely causes: out of "
                "memory (SIGKILL: fewer workers, a smaller prefetch), a crash in a decoder "
                "(SIGSEGV), or a file that was cut while it was read through a map (SIGBUS); "
                "num_workers=0 shows the crash itself"
            ) from error

    def close(self) -> None:
        if self._iterator is None:
            return
        iterator, self._iterator = self._iterator, None
        # a worker can crash on its way out, where a thread of torch's still sends a batch; what
        # torch then raises here has ended them, and none had anything left to give
        with suppress(RuntimeError):
            iterator._shutdown_workers()  # noqa: SLF001 what Lightning itself calls
        for worker in self._workers:
            if worker.is_alive():  # a Python handler for SIGTERM may never get to run
                worker.kill()
            worker.join()
        self._ready = []
        forget_blocks(worker.pid for worker in self._workers)


def require_shared_memory(pool: ProcessPool, folder: str = "/dev/shm") -> None:  # noqa: S108 Linux has it there
    """Check that shared memory can hold what the workers keep ready.

    Raises:
        ConfigError: it cannot; a worker would end by SIGBUS in the middle of the fit.
    """
    if not Path(folder).is_dir():
        return  # no Linux: shared memory has no limit of its own there
    blocks = blocks_per_worker(pool.prefetch)
    messages = pool.ranks * pool.num_workers * blocks
    size = shared_bytes(pool.batch)
    needed, free = messages * size, shutil.disk_usage(folder).free
    if needed > free:
        mib = 2**20
        raise ConfigError(
            f"{folder} has {free / mib:,.0f} MiB free, and the workers need "
            f"{needed / mib:,.0f} MiB: {pool.ranks} ranks x {pool.num_workers} workers x "
            f"{blocks} messages of {size / mib:,.1f} MiB. Enlarge it "
            "(docker run --shm-size), or lower prefetch, num_workers or batch_size; "
            "pool='threads' needs none"
        )


def _describe_ended(workers: list[multiprocessing.Process]) -> str:
    """Which workers are gone, and by which signal or exit status; empty if none is."""
    with suppress(RuntimeError):  # torch's handler for SIGCHLD raises wherever it finds us
        multiprocessing.connection.wait([worker.sentinel for worker in workers], _SIGN_OF_DEATH_S)
    ended = [(worker.pid, worker.exitcode) for worker in workers if worker.exitcode is not None]
    return ", ".join(
        f"pid {pid}: {signal.Signals(-code).name if code < 0 else f'exit status {code}'}"
        for pid, code in ended
    )


def _identity(batch: Any) -> Any:
    return batch


def _begin_guard(trainer_pid: int, folder: str | None, _worker: int) -> None:
    """In a worker that is forked: nothing of it is unpickled."""
    end_with(trainer_pid, folder)
