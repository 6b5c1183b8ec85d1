"""A source with transforms of its own, so that trying it leaves no trace in those of the user.

A transform may keep things from its first call on: a file that it opened, a count, a reused array.
What the trainer tries must not keep them for the workers: an open file cannot be sent, and forks of
it would share one offset.
"""

import io
import pickle
from types import FunctionType, ModuleType
from typing import Any, cast

import numpy as np

from lightning_shards.plan.place import Place
from lightning_shards.readers.source import Source
from lightning_shards.samples.collate import LoadedBatch
from lightning_shards.samples.loaded_torch import bytes_of
from lightning_shards.shards.filters.kept_files import MappedNumbers
from lightning_shards.shards.index import ShardIndex

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
