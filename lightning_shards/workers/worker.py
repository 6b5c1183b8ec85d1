"""What a worker process runs: it makes the messages of its share, one for each credit it gets.

An error of it travels to the trainer, which raises it in step order.
"""

import gc
import multiprocessing
import pickle
import signal
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any, NoReturn, cast

from lightning_shards.errors import SampleError, ShardError, WorkerError
from lightning_shards.plan.place import Cursor, Place
from lightning_shards.readers.source import Source
from lightning_shards.samples.collate import LoadedBatch
from lightning_shards.samples.generators import begin_globals, worker_seed
from lightning_shards.samples.tensors import Arena, load_torch, on_load
from lightning_shards.system.guard import end_with
from lightning_shards.system.process import Cancellable, publish_stages_in
from lightning_shards.workers.connection import SharedBuffer, WorkerEnd
from lightning_shards.workers.inline import produce
from lightning_shards.workers.messages import message_sizes, require_picklable
from lightning_shards.workers.pool import Failure
from lightning_shards.workers.threads import ThreadPool


def failure_of(error: Exception) -> Failure:
    """An error that was caught in this worker, in a form that can be pickled.

    An error of ours names what is wrong, and its cause shows the user's part of the stack. Of any
    other error the whole stack is shown.
    """
    stack = "".join(traceback.format_exception(error))
    cause = stack
    if isinstance(error, ShardError):
        cause = "".join(traceback.format_exception(error.__cause__)) if error.__cause__ else ""
    failure = Failure(error, cause)
    try:
        pickle.loads(pickle.dumps(failure))  # noqa: S301 what this process made itself
    except Exception:  # noqa: BLE001 a class of the user's may raise anything here
        told = WorkerError(f"{type(error).__name__} in a worker process: {error}")
        return Failure(told, cause or stack)
    return failure


def last_items(ready: Sequence[LoadedBatch], failure: Failure) -> list[LoadedBatch | Failure]:
    """The batches made before a failure, and the failure itself.

    If one of these batches cannot be pickled, that is the failure, as it comes first.
    """
    for number, loaded in enumerate(ready):
        try:
            require_picklable(loaded.batch)
        except SampleError as error:
            return [*ready[:number], failure_of(error)]
    return [*ready, failure]


@dataclass(frozen=True)
class WorkerShare:
    """The share of one worker process. All that it needs is pickled with it, also the rank.

    Attributes:
        source: Makes the batches.
        place: The place of the worker.
        cursor: The cursor of the first batch.
        prefetch_factor: Batches that each thread keeps ready.
        threads: Threads of the process.
        batch_bytes: Size of one batch.
        dtype: Name of torch's default type in the trainer; None if torch is not loaded there.
        buffers: Shared memory for its messages.
    """

    source: Source
    place: Place
    cursor: Cursor
    prefetch_factor: int
    threads: int
    batch_bytes: int
    dtype: str | None
    buffers: Sequence[SharedBuffer]

    def send_by(self, end: WorkerEnd) -> None:
        """Send the messages, up to the failure that ends them."""
        ready: list[LoadedBatch] = []
        batches = self._batches(end.arena)
        try:
            for size in message_sizes(self.batch_bytes):
                end.begin(size)
                while len(ready) < size:
                    ready.append(next(batches))
                end.send(ready)
                ready = []
        except Exception as error:  # noqa: BLE001 raised in the trainer, in step order
            end.send(last_items(ready, failure_of(error)))

    def _batches(self, arena: Arena) -> Iterator[LoadedBatch]:
        if self.threads == 1:
            yield from produce(self.source, self.place, self.cursor, arena)
        # threads make batches before their message is begun, so these have memory of their own
        pool = ThreadPool(self.threads, self.prefetch_factor, worker_timeout_s=0.0)
        stream = pool.start(self.source, self.place, self.cursor)
        while True:
            yield next(stream)


def run_worker(share: WorkerShare, connection: Connection) -> NoReturn:
    """Send the messages of a share until the trainer closes the stream, or is gone.

    Args:
        share: Sends the messages.
        connection: The worker's end of its connection.
    """
    gc.freeze()  # so that a collection does not copy the pages that workers share
    # a process that was not forked has its guard, and perhaps handlers that its main script has set
    end_with(cast("Any", multiprocessing.parent_process()).pid)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    end = WorkerEnd(connection, share.buffers)
    worker = share.place.worker
    publish_stages_in(share.buffers[0].flags.data[1:])
    begin_globals(worker)
    on_load(partial(settle_torch, share.source, share.place, share.dtype))
    with Cancellable(end.raise_if_closed):
        share.send_by(end)
    while True:
        end.listen()


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
