"""The pool without workers: the trainer's own thread makes each batch when it is asked for.

What the trainer only tries is made by a copy of the source, so that it leaves no trace in the
transforms of the user. These may keep things from their first call on: a file that they opened, a
count, a reused array. An open file cannot be sent to workers, and forks would share its offset.
"""

import io
import pickle
import time
import weakref
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any, cast

import numpy as np

from lightning_shards.plan.place import Cursor, Place
from lightning_shards.readers.source import Source
from lightning_shards.samples.collate import LoadedBatch
from lightning_shards.samples.tensors import Arena, bytes_of
from lightning_shards.shards.index import ShardIndex
from lightning_shards.shards.private_files import MappedNumbers
from lightning_shards.workers.pool import BatchStream, PoolDescription
from lightning_shards.workers.watchdog import WORKER_TIMEOUT_S, Watchdog, warn_with_stacks

_NEVER_COPIED = (type, FunctionType, ModuleType, ShardIndex, MappedNumbers, np.memmap)

_LARGE_BYTES = 2**24
"""Larger arrays and tensors are shared: they are tables, and a copy might not fit into memory."""


def try_first_sample(source: Source, place: Place) -> LoadedBatch:
    """The first sample of a source, made by a copy of it that is dropped.

    Raises:
        ShardError: The sample cannot be made.
    """
    return private_source(source).first_sample(place)


def private_source(source: Source) -> Source:
    """A copy of a source, made as for a worker process: what it holds is pickled and unpickled.

    Functions, the index and large arrays are not copied but shared. The source itself is returned
    if something in it cannot be pickled.
    """
    file, shared = io.BytesIO(), dict[int, object]()
    try:
        _Copier(file, shared).dump(source)
        file.seek(0)
        return cast("Source", _CopyReader(file, shared).load())
    except Exception:  # noqa: BLE001 what pickles an object of the user's raises anything
        return source


class _Copier(pickle.Pickler):
    def __init__(self, file: io.BytesIO, shared: dict[int, object]) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._shared = shared

    def persistent_id(self, obj: Any) -> int | None:
        """The number of an object that is shared; None: it is copied."""
        number = id(obj)
        if not (isinstance(obj, _NEVER_COPIED) or bytes_of(obj) >= _LARGE_BYTES):
            return None
        self._shared[number] = obj
        return number


class _CopyReader(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, shared: dict[int, object]) -> None:
        super().__init__(file)
        self._shared = shared

    def persistent_load(self, pid: int) -> object:
        """The object that is shared under this number."""
        return self._shared[pid]


@dataclass(frozen=True, slots=True)
class InlinePool:
    """Runs the source in the caller's thread; for tests, debuggers and tiny data.

    Attributes:
        worker_timeout_s: Seconds for a batch, after which a warning shows the stack; 0: never.
    """

    worker_timeout_s: float = WORKER_TIMEOUT_S

    def describe(self) -> PoolDescription:
        """A description without workers: the caller itself makes the batches."""
        return PoolDescription("inline")

    def start(self, source: Source, place: Place, cursor: Cursor) -> BatchStream:
        """Begin at the cursor; nothing is read before the first batch is asked for."""
        batches = produce(source, place.with_worker(0, 1), cursor)
        return _InlineStream(batches, self.worker_timeout_s)


class _InlineStream:
    def __init__(self, batches: Iterator[LoadedBatch], timeout_s: float) -> None:
        self._batches: Iterator[LoadedBatch] | None = batches
        self._watchdog = Watchdog(timeout_s, _warn_of_waiter)
        self._end_watchdog = weakref.finalize(self, self._watchdog.stop)

    def __next__(self) -> LoadedBatch:
        if self._batches is None:
            raise StopIteration
        with self._watchdog:
            return next(self._batches)

    def close(self) -> None:
        self._end_watchdog()
        self._batches = None  # a generator that is dropped closes its files


def _warn_of_waiter(waited_s: float, waiter: int) -> None:
    warn_with_stacks(waited_s, [waiter])


def produce(
    source: Source, place: Place, cursor: Cursor, arena: Arena | None = None
) -> Generator[LoadedBatch]:
    """The batches of one worker of any pool, made in its own thread, each with its seconds."""
    batches = source.batches(place, cursor, arena)
    while True:
        begin = time.perf_counter()
        batch = next(batches)
        yield batch._replace(seconds=time.perf_counter() - begin)
