"""What a worker process runs: it makes the messages of its share, one for each credit it gets.

An error of it travels to the trainer, which raises it in step order.
"""

import gc
import logging
import multiprocessing
import pickle
import signal
import traceback
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, NoReturn, cast

from lightning_shards import errors
from lightning_shards.errors import SampleError, ShardError, WorkerError
from lightning_shards.plan.place import Cursor, Place
from lightning_shards.readers.source import Source
from lightning_shards.samples.collate import LoadedBatch
from lightning_shards.samples.generators import begin_globals, worker_seed
from lightning_shards.samples.tensors import Arena, load_torch, on_load
from lightning_shards.system.guard import GuardedName, leave_signals_to_owner, wait_for_guard
from lightning_shards.system.process import Cancellable, publish_stages_in
from lightning_shards.workers.connection import MessageMaker, Received, SharedBuffer, WorkerEnd
from lightning_shards.workers.inline import produce
from lightning_shards.workers.messages import BatchBytes, message_sizes, require_picklable
from lightning_shards.workers.pool import BatchStream
from lightning_shards.workers.threads import start_threads

_log = logging.getLogger(__name__)


class WorkerTraceback(Exception):  # noqa: N818 like multiprocessing's RemoteTraceback
    """The cause of an error in a worker process, with its stack there, as text."""

    def __str__(self) -> str:
        """The text on lines of its own."""
        return f"\n{self.args[0].rstrip()}"


class Failure(NamedTuple):
    """An error in a worker process, with its cause and with its whole stack there as text."""

    error: Exception
    cause: str
    stack: str


def failure_of(error: Exception) -> Failure:
    """An error that was caught in this worker, in a form that can be pickled.

    An error of ours names what is wrong, and its cause shows the user's part of the stack. Of any
    other error the whole stack is shown.
    """
    stack = "".join(traceback.format_exception(error))
    cause = stack
    if isinstance(error, ShardError):
        cause = "".join(traceback.format_exception(error.__cause__)) if error.__cause__ else ""
    failure = Failure(error, cause, stack)
    try:
        pickle.loads(pickle.dumps(failure))  # noqa: S301 what this process made itself
    except Exception:  # noqa: BLE001 a class of the user's may raise anything here
        return Failure(_nearest(error), cause or stack, stack)
    return failure


def _nearest(error: Exception) -> ShardError:
    """The same message in the nearest class of this package."""
    for kind in type(error).__mro__:
        if issubclass(kind, ShardError) and kind.__module__ == errors.__name__:
            return kind(str(error))
    return WorkerError(f"{type(error).__name__} in a worker process: {error}")


def raise_failure(failure: Failure) -> NoReturn:
    """Raise in the trainer the error that a worker failed with."""
    _log.debug("an error in a worker process: %s", failure.stack)
    raise failure.error from (WorkerTraceback(failure.cause) if failure.cause else None)


class MessageStream(ABC):
    """The batches of workers in step order, from messages that hold several of them."""

    def __init__(self, num_workers: int) -> None:
        self._ready: list[deque[LoadedBatch]] = [deque() for _ in range(num_workers)]
        self._failures: list[Failure | None] = [None] * num_workers
        self._step = 0

    @abstractmethod
    def _receive(self, worker: int) -> Received:
        """Wait for the next message of a worker."""

    @abstractmethod
    def _end(self) -> object:
        """End the workers, unless that was done."""

    def __next__(self) -> LoadedBatch:
        if not self._ready:
            raise StopIteration
        worker = self._step % len(self._ready)
        ready = self._ready[worker]
        try:
            if not ready and not self._failures[worker]:
                loaded, self._failures[worker] = self._receive(worker)
                ready.extend(loaded)
            if not ready:
                raise_failure(cast("Failure", self._failures[worker]))
        except BaseException:
            self.close()
            raise
        self._step += 1
        return ready.popleft()

    def close(self) -> None:
        """End the workers; they are gone when this returns. Closing twice does nothing."""
        self._end()
        self._ready = []


def last_message(maker: MessageMaker, ready: Sequence[LoadedBatch], failure: Failure) -> bytes:
    """The message with the batches made before a failure, and with the failure itself.

    If one of these batches cannot be pickled, that is the failure, as it comes first.
    """
    sent: list[LoadedBatch] = []
    for loaded in ready:
        try:
            require_picklable(loaded.batch)
        except SampleError as error:
            failure = failure_of(error)
            break
        sent.append(loaded)
    return maker.message(sent, failure)


@dataclass(frozen=True)
class WorkerShare:
    """The share of one worker process. All that it needs is pickled with it, also the rank.

    Attributes:
        source: Makes the batches.
        place: The place of the worker.
        cursor: The cursor of the first batch.
        prefetch_factor: Messages that may be on their way.
        threads: Threads of the process.
        batch: Size of one batch.
        dtype: Name of torch's default type in the trainer; None if torch is not loaded there.
        buffers: Shared memory for its messages.
    """

    source: Source
    place: Place
    cursor: Cursor
    prefetch_factor: int
    threads: int
    batch: BatchBytes
    dtype: str | None
    buffers: Sequence[SharedBuffer]

    def messages(self) -> Iterator[bytes]:
        """The messages; after an error they are empty, without end."""
        ready: list[LoadedBatch] = []
        maker = MessageMaker(self.buffers)
        failure: Any = None
        try:
            batches = self._batches(maker.arena)
            for size in message_sizes(self.batch):
                maker.prepare(size)
                while len(ready) < size:
                    ready.append(next(batches))
                yield maker.message(ready)
                ready = []
        except Exception as error:  # noqa: BLE001 raised in the trainer, in step order
            failure = failure_of(error)
        while True:
            yield last_message(maker, ready, failure)
            ready = []

    def _batches(self, arena: Arena) -> BatchStream | Iterator[LoadedBatch]:
        if self.threads == 1:
            return produce(self.source, self.place, self.cursor, arena)
        # threads make batches before their message is begun, so these have memory of their own
        return start_threads(
            self.source, self.place, self.cursor, self.threads, self.prefetch_factor, 0.0
        )


def run_worker(share: WorkerShare, connection: Connection) -> None:
    """Send the messages of a share until the trainer closes the stream, or is gone.

    Args:
        share: Makes the messages.
        connection: The worker's end of its connection.
    """
    gc.freeze()  # so that a collection does not copy the pages that workers share
    name = multiprocessing.current_process().name
    if isinstance(name, GuardedName):  # forked; in others the guard began by unpickling
        name.begin()
    leave_signals_to_owner()  # again, since the main script may have set handlers meanwhile
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    end = WorkerEnd(connection, share.prefetch_factor)
    worker = share.place.worker
    publish_stages_in(share.buffers[0].flags.data[1:])
    begin_globals(worker)
    on_load(partial(settle_torch, share.source, share.place, share.dtype))
    messages = share.messages()
    with Cancellable(end.raise_if_closed):
        while end.wait_for_credit() and end.send(next(messages)):
            pass
    if not end.is_closed():
        wait_for_guard()


def settle_torch(source: Source, place: Place, dtype: str | None) -> None:
    """Tell torch that this process is a worker, as its DataLoader would.

    Args:
        source: Makes the batches.
        place: The place of the worker.
        dtype: Name of torch's default type in the trainer; None if torch is not loaded there.
    """
    torch: Any = load_torch()
    torch.set_num_threads(1)  # the cores belong to all workers
    if dtype is not None:
        torch.set_default_dtype(getattr(torch, dtype))
    seed = worker_seed(place.worker)
    torch.default_generator.manual_seed(seed)
    state: Any = import_module("torch.utils.data._utils.worker")
    state._worker_info = state.WorkerInfo(  # noqa: SLF001 there is no other way
        id=place.worker, num_workers=place.num_workers, seed=seed, dataset=source
    )
