"""A source with transforms of its own, so that trying it leaves no trace in those of the user.

A transform may keep things from its first call on: a file that it opened, a count, a reused array.
What the trainer tries must not keep them for the workers: an open file cannot be sent, and forks of
it would share one offset.
"""

import copyreg
import io
import pickle
from types import FunctionType, ModuleType
from typing import Any, NoReturn, cast

import numpy as np

from lightning_shards.plan.place import Place
from lightning_shards.readers.source import Source
from lightning_shards.samples.collate import LoadedBatch
from lightning_shards.samples.loaded_torch import bytes_of
from lightning_shards.shards.filters.kept_files import MappedNumbers
from lightning_shards.shards.index import ShardIndex

_LARGE_BYTES = 2**24
"""Larger arrays and tensors are shared: they are tables, and a copy might not fit into memory."""

_MOST_KEPT = 100
"""Each object that cannot be pickled costs one more attempt."""


def try_first_sample(source: Source, place: Place) -> LoadedBatch:
    """The first sample of a source, made by a copy of it that is dropped.

    Raises:
        ShardError: The sample cannot be made.
    """
    return private_source(source).first_sample(place)


def private_source(source: Source) -> Source:
    """A copy of a source, made as for a worker process: what it holds is pickled and unpickled.

    Functions, the index, large arrays, what processes share anyway and what cannot be pickled are
    not copied but shared. The source itself is returned if it cannot be copied at all.
    """
    shared: dict[int, object] = {}
    for _ in range(_MOST_KEPT):
        try:
            return cast("Source", _copied(source, shared))
        except _CannotBePickledError as error:
            shared[id(error.value)] = error.value
        except Exception:  # noqa: BLE001 what unpickles an object of the user's raises anything
            break
    return source


def _copied(value: object, shared: dict[int, object]) -> object:
    file = io.BytesIO()
    _Copier(file, shared).dump(value)
    file.seek(0)
    return _CopyReader(file, shared).load()


class _CannotBePickledError(Exception):
    def __init__(self, value: object) -> None:
        super().__init__(value)
        self.value = value


class _Copier(pickle.Pickler):
    def __init__(self, file: io.BytesIO, shared: dict[int, object]) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._shared = shared

    def reducer_override(self, obj: Any) -> Any:  # not called for numbers, texts, lists and dicts
        if obj is _shared_object:
            return NotImplemented
        if id(obj) in self._shared or _is_shared(obj):
            self._shared[id(obj)] = obj
            return _shared_object, (id(obj),)
        reduce = copyreg.dispatch_table.get(cast("Any", type(obj)))
        try:
            return reduce(obj) if reduce else obj.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        except Exception as error:
            raise _CannotBePickledError(obj) from error


class _CopyReader(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, shared: dict[int, object]) -> None:
        super().__init__(file)
        self._shared = shared

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        if (module_name, global_name) == (__name__, _shared_object.__name__):
            return self._shared.__getitem__
        return super().find_class(module_name, global_name)


def _shared_object(_: int) -> NoReturn:
    """Stands in the bytes for an object that is shared, whose id is given."""
    raise AssertionError


_NEVER_COPIED = (type, FunctionType, ModuleType, ShardIndex, MappedNumbers, np.memmap)


def _is_shared(value: object) -> bool:
    if isinstance(value, _NEVER_COPIED) or bytes_of(value) >= _LARGE_BYTES:
        return True
    return type(value).__module__.startswith("multiprocessing.")
