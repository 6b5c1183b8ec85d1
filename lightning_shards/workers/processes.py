"""Worker processes, by torch's DataLoader: round robin over workers gives batches in step order."""

import ast
import fcntl
import multiprocessing
import multiprocessing.connection
import os
import select
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
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

_PIPE_BYTES = 2**20
"""Room in the pipe of the workers: the most that Linux gives to everybody, and a whole message.
With the usual 64 KiB, trainer and worker wake each other sixteen times for it."""

_WATCH_INTERVAL_S = 1.0

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
        context = multiprocessing.get_context(self.start_method)
        if self.start_method == "forkserver":
            context.set_forkserver_preload([name for name in _PRELOAD if name in sys.modules])
        loader = DataLoader(
            _WorkerShare(self, source, place, cursor, os.getpid()),
            batch_size=None,
            num_workers=self.num_workers,
            collate_fn=_identity,  # the default would turn tuples into lists
            prefetch_factor=self.prefetch,
            multiprocessing_context=cast("Any", context),
            pin_memory=self.pin_memory,
            generator=torch.Generator(),  # or a seed is drawn from the model's own generator
        )
        return _ProcessStream(iter(loader))


class _WorkerShare(IterableDataset[Any]):
    """What one worker process makes. Everything it needs travels with it, the rank included."""

    def __init__(
        self, pool: ProcessPool, source: Source, place: Place, cursor: Cursor, trainer_pid: int
    ) -> None:
        super().__init__()
        self._pool, self._source, self._place, self._cursor = pool, source, place, cursor
        self._trainer_pid = trainer_pid

    def __iter__(self) -> Iterator[PickledMessage]:
        info = get_worker_info()
        assert info is not None  # noqa: S101 only worker processes iterate over it
        end_with(self._trainer_pid)
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


def end_with(trainer_pid: int) -> None:
    """End this worker, and the programs that it runs, as soon as the trainer process is gone.

    Workers of a fork server outlive a trainer that was killed: their parent is the server. A worker
    leads a process group of its own, as all of a group end at once: one by one, a download that is
    ended could be started again before its worker is. (Ctrl-C then reaches the trainer alone, which
    ends its workers.)
    """
    os.setpgid(0, 0)
    threading.Thread(target=_watch, args=(trainer_pid,), daemon=True).start()


def _watch(trainer_pid: int) -> None:
    try:
        if hasattr(os, "pidfd_open"):
            ended = select.poll()
            ended.register(os.pidfd_open(trainer_pid))  # readable when the process has ended
            ended.poll()
        else:
            while True:
                os.kill(trainer_pid, 0)
                time.sleep(_WATCH_INTERVAL_S)
    except ProcessLookupError:
        pass  # it ended before this thread began
    os.killpg(0, signal.SIGKILL)  # with curl, which may wait for a server that sends nothing


def require_main_guard() -> None:
    """Check that workers can import the main script without running it again.

    A worker that is not forked imports the main script. Without the guard it would run the training
    once more, wait for ranks that never come, and the trainer would wait for it.

    Raises:
        WorkerError: the main script has no ``if __name__ == "__main__":``.
    """
    main = sys.modules["__main__"]
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if file is None or (spec is not None and spec.name.rpartition(".")[2] == "__main__"):
        return  # a notebook, or `python -m package`: these are not imported again
    try:
        tree = ast.parse(Path(file).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return  # not a script whose text we can read, a zip archive for instance
    tests = [node.test for node in tree.body if isinstance(node, ast.If)]
    names = {node.id for test in tests for node in ast.walk(test) if isinstance(node, ast.Name)}
    if "__name__" not in names:
        raise WorkerError(
            f'{file} has no `if __name__ == "__main__":`. Worker processes import this script, and '
            "would run the training in it once more. Put what it does into a function main() and "
            'end the script with\n\n    if __name__ == "__main__":\n        main()\n\n'
            'or set LoaderConfig(multiprocessing_context="fork") or num_workers=0'
        )
