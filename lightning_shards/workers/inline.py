"""The pool without workers: the trainer's own thread makes each batch when it is asked for.

What the trainer only tries is made by a copy of the source, so that it leaves no trace in the
transforms of the user. These may keep things from their first call on: a file that they opened, a
count, a reused array. An open file cannot be sent to workers, and forks would share its offset.
"""

import io
import pickle
import time
from collections.abc import Generator
from contextlib import nullcontext
from dataclasses import dataclass
from types import FunctionType, ModuleType

import numpy as np

from lightning_shards.plan.place import Cursor, Place
from lightning_shards.readers.source import Source
from lightning_shards.samples.collate import LoadedBatch
from lightning_shards.samples.generators import preserved_globals
from lightning_shards.samples.tensors import Arena, bytes_of
from lightning_shards.shards.index import ShardIndex
from lightning_shards.shards.made_files import MappedNumbers
from lightning_shards.workers.pool import BatchStream, PoolDescription

_NEVER_COPIED = (type, FunctionType, ModuleType, ShardIndex, MappedNumbers, np.memmap)

_LARGE_BYTES = 2**24
"""Larger arrays and tensors are shared: they are tables, and a copy might not fit into memory."""


def try_first_sample(source: Source, place: Place) -> LoadedBatch:
    """The first sample of a source, made by a copy of it that is dropped.

    Raises:
        ShardError: The sample cannot be made.
    """
    return _copied(source).first_sample(place)


def _copied(source: Source) -> Source:
    """A copy of a source, made as for a worker process: what it holds is pickled and unpickled.

    Functions, the index and large arrays are not copied but shared. The source itself is returned
    if something in it cannot be pickled.
    """
    shared: dict[int, object] = {}

    class Pickler(pickle.Pickler):
        def persistent_id(self, obj: object) -> int | None:
            number = id(obj)
            if not (isinstance(obj, _NEVER_COPIED) or bytes_of(obj) >= _LARGE_BYTES):
                return None
            shared[number] = obj
            return number

    class Unpickler(pickle.Unpickler):
        def persistent_load(self, pid: int) -> object:
            return shared[pid]

    try:
        Pickler(file := io.BytesIO(), pickle.HIGHEST_PROTOCOL).dump(source)
        file.seek(0)
        return Unpickler(file).load()
    except Exception:  # noqa: BLE001 what pickles an object of the user's raises anything
        return source


@dataclass(frozen=True, slots=True)
class InlinePool:
    """Runs the source in the caller's thread; for tests, debuggers and tiny data."""

    def describe(self) -> PoolDescription:
        """A description without workers: the caller itself makes the batches."""
        return PoolDescription("inline")

    def start(self, source: Source, place: Place, cursor: Cursor) -> BatchStream:
        """Begin at the cursor; nothing is read before the first batch is asked for."""
        return produce(source, place.with_worker(0, 1), cursor)


def produce(
    source: Source, place: Place, cursor: Cursor, arena: Arena | None = None
) -> Generator[LoadedBatch]:
    """The batches of one worker of any pool, made in its own thread, each with its seconds.

    The global generators are left as they were, so that loading never disturbs the model.
    """
    kept = preserved_globals if source.describe().draws_from_globals else nullcontext
    batches = source.batches(place, cursor, arena)
    while True:
        begin = time.perf_counter()
        with kept():
            batch = next(batches)
        yield batch._replace(seconds=time.perf_counter() - begin)
