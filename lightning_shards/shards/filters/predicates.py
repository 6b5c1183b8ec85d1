"""Predicates: functions of the user that say which samples of a shard are kept.

A predicate is called once for each shard, with its `ShardColumns`, and returns one bool a sample::

    def large_images(shard):
        return shard.sizes("jpg") > 20_000

What it keeps is taken from the cache by later runs if its name, the source of its module and the
values that it holds are the same. What it calls in other modules, and the files that it reads, are
not looked at: a predicate that depends on them has an attribute `version`, which is another value
whenever they change.
"""

import hashlib
import inspect
import io
import logging
import os
import pickle
import sys
import time
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from types import FunctionType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from lightning_shards.errors import ConfigError
from lightning_shards.shards.filters.settings import Predicate, name_of
from lightning_shards.shards.members import MemberTable
from lightning_shards.shards.urls import redact

_STARTED: Final = time.time_ns()

_log = logging.getLogger(__name__)


def keys_of_table(table: MemberTable) -> list[bytes]:
    """The keys of all samples of a shard."""
    keys = table.keys.tobytes()
    return [keys[start:stop] for start, stop in pairwise(table.key_starts.tolist())]


@dataclass(frozen=True)
class ShardColumns:
    """What is known of the samples of one shard without reading them, as columns in file order.

    Attributes:
        url: The shard.
        table: Its member table.
    """

    url: str
    table: MemberTable

    @property
    def num_samples(self) -> int:
        """Samples of the shard."""
        return self.table.num_samples

    @property
    def suffixes(self) -> tuple[str, ...]:
        """The suffixes of the shard's members, in lower case and without a dot before them."""
        return self.table.suffixes

    @cached_property
    def keys(self) -> list[str]:
        """The key of each sample; bytes that are not UTF-8 are surrogates."""
        return list(map(os.fsdecode, keys_of_table(self.table)))

    def has(self, suffix: str) -> NDArray[np.bool_]:
        """Whether each sample has a member with this suffix, shape (num_samples,)."""
        return self._members(suffix) >= 0

    def sizes(self, suffix: str) -> NDArray[np.int64]:
        """Bytes of each sample's member with this suffix, -1 where it has none."""
        members = self._members(suffix)
        return np.where(members >= 0, self.table.sizes[members], -1)

    def _members(self, suffix: str) -> NDArray[np.int64]:
        return self.table.members_with([suffix.lower().removeprefix(".")])


def mask_of(predicate: Predicate, shard: ShardColumns) -> NDArray[np.bool_]:
    """Whether the predicate keeps each of the samples, shape (num_samples,).

    Raises:
        ConfigError: It raised an error, or returned something else than one bool a sample.
    """
    name, url, shape = name_of(predicate), redact(shard.url), (shard.num_samples,)
    try:
        kept = np.asarray(predicate(shard))
    except Exception as error:
        raise ConfigError(
            f"keep: {name} raised {type(error).__name__} for {url}: {error}; correct it, or leave "
            "keep out"
        ) from error
    if kept.dtype == np.bool_ and kept.shape == shape:
        return kept
    raise ConfigError(
        f"keep: {name} must return an array of bools, one for each sample of the shard, of shape "
        f"{shape} for {url}, got one of {kept.dtype} of shape {kept.shape}; it is called with a "
        'ShardColumns, as in shard.sizes("jpg") > 20_000'
    )


def digest_of_predicate(predicate: object) -> str:
    """A hash of its import path, its `version`, the values it holds, and the source of its modules.

    The values are those of a closure, of defaults, of the arguments of a `partial` and of the
    attributes of an object; the modules are those of all functions and classes among them. Where
    there is no source, or a value cannot be pickled, the hash is that of this process alone, so
    that each start asks the predicate again.
    """
    held = io.BytesIO()
    pickler = _Pickler(held)
    try:
        pickler.dump((name_of(predicate), getattr(predicate, "version", None), predicate))
        sources = [_source_of(name) for name in sorted(pickler.modules - {"builtins"})]
    except Exception as error:  # noqa: BLE001 whatever the values' own `__reduce__` raises
        _log.info("the hash of %s holds for this process alone: %s", name_of(predicate), error)
        sources = [f"process {os.getpid()} since {_STARTED}"]
    digest = hashlib.sha256(held.getvalue())
    digest.update("\0".join(sources).encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


class _Pickler(pickle.Pickler):
    """Writes a function as its name and what it holds, and notes the modules of all code."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=4)
        self.modules: set[str] = set()

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, type | FunctionType):
            self.modules.add(obj.__module__)
        if not isinstance(obj, FunctionType):
            return NotImplemented
        if obj.__name__ == "<lambda>":
            raise pickle.PicklingError("a lambda has no name of its own")
        cells = [cell.cell_contents for cell in obj.__closure__ or ()]
        return str, (name_of(obj),), (obj.__defaults__, obj.__kwdefaults__, cells, vars(obj))


def _source_of(module: str) -> str:
    """The source of a module as this process has imported it.

    Raises:
        OSError: It has none, or its file was written since then.
    """
    loaded = sys.modules[module]
    if Path(loaded.__file__ or "").stat().st_mtime_ns > _STARTED:
        raise OSError(f"the file of {module} was written after this process had started")
    return inspect.getsource(loaded)
