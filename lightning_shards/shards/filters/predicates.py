"""Predicates: functions of the user that say which samples of a shard are kept.

A predicate is called once for each shard, with its `ShardColumns`, and returns one bool a sample::

    def large_images(shard):
        return shard.sizes("jpg") > 20_000

What it keeps is taken from the cache by later runs if its name, the source of its modules and the
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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import FunctionType
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from lightning_shards.errors import ConfigError
from lightning_shards.shards.filters.keys import (
    HashParts,
    digest_of_list,
    keys_of_table,
    parse_parts,
)
from lightning_shards.shards.members import MemberTable
from lightning_shards.shards.urls import redact, scheme_of

_STARTED: Final = time.time_ns()

_log = logging.getLogger(__name__)

Predicate = Callable[["ShardColumns"], Any]


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
        """Whether each sample has a member with this suffix, shape (num_samples,).

        Raises:
            ValueError: It begins with a dot, and no suffix of the shard does.
        """
        return self._members(suffix) >= 0

    def sizes(self, suffix: str) -> NDArray[np.int64]:
        """Bytes of each sample's member with this suffix, -1 where it has none; errors as `has`."""
        members = self._members(suffix)
        sizes = np.full(len(members), -1, np.int64)
        sizes[members >= 0] = self.table.sizes[members[members >= 0]]
        return sizes

    def _members(self, suffix: str) -> NDArray[np.int64]:
        if suffix.startswith(".") and suffix.lower() not in self.suffixes:
            raise ValueError(
                f"suffixes have no dot before them: {suffix.lstrip('.')!r}, not {suffix!r}"
            )
        return self.table.members_with([suffix.lower()])


def mask_of(predicate: Predicate, shard: ShardColumns) -> NDArray[np.bool_]:
    """Whether the predicate keeps each of the samples, shape (num_samples,).

    Raises:
        ConfigError: It raised an error, or returned something else than one bool a sample.
    """
    name, url = name_of(predicate), redact(shard.url)
    try:
        kept: object = predicate(shard)
    except Exception as error:
        raise ConfigError(
            f"keep: {name} raised {type(error).__name__} for {url}: {error}; correct it, or leave "
            "keep out"
        ) from error
    columns = cast("NDArray[Any]", kept) if isinstance(kept, np.ndarray) else None
    if columns is None or columns.dtype != np.bool_:
        what = f"an array of {columns.dtype}" if columns is not None else ""
        what = what or type(cast("object", kept)).__name__
        raise ConfigError(
            f"keep: {name} must return an array of bools, one for each sample of the shard, got "
            f"{what} for {url}; it is called with a ShardColumns, as in "
            'shard.sizes("jpg") > 20_000'
        )
    if columns.shape != (shard.num_samples,):
        raise ConfigError(
            f"keep: {name} must return one bool for each sample, shape ({shard.num_samples},) for "
            f"{url}, got shape {columns.shape}; do not drop any of them"
        )
    return columns


def name_of(predicate: object) -> str:
    """The import path of a function, or of the class of an object."""
    named: Any = predicate if hasattr(predicate, "__qualname__") else type(predicate)
    return f"{named.__module__}.{named.__qualname__}"


def digest_of_predicate(predicate: object, ignored: tuple[type, ...] = ()) -> str:
    """A hash of its import path, its `version`, the values it holds, and the source of its modules.

    The values are those of a closure, of defaults, of the arguments of a `partial` and of the
    attributes of an object; the modules are those of all functions and classes among them. Where
    there is no source, or a value cannot be pickled, the hash is that of this process alone, so
    that each start asks the predicate again. Values of the `ignored` classes are left out.
    """
    held = io.BytesIO()
    pickler = _Pickler(held, ignored)
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

    def __init__(self, file: io.BytesIO, ignored: tuple[type, ...]) -> None:
        super().__init__(file, protocol=4)
        self.modules: set[str] = set()
        self._ignored = ignored

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, self._ignored):
            return str, ()
        if isinstance(obj, type):
            self.modules.update(base.__module__ for base in obj.__mro__)
            return NotImplemented
        if not isinstance(obj, FunctionType):
            return NotImplemented
        if obj.__name__ == "<lambda>":
            raise pickle.PicklingError("a lambda has no name of its own")
        # `functools.wraps` gives a function the module of the one that it wraps
        self.modules.update((obj.__module__, obj.__globals__["__name__"]))
        name = f"{obj.__module__}.{obj.__qualname__}:{obj.__code__.co_firstlineno}"
        cells = [cell.cell_contents for cell in obj.__closure__ or ()]
        return str, (name,), (obj.__defaults__, obj.__kwdefaults__, cells, vars(obj))


def _source_of(module: str) -> str:
    """The source of a module as this process has imported it.

    Raises:
        OSError: It has none, or its file was written since then.
    """
    loaded = sys.modules[module]
    source = inspect.getsource(loaded)
    if Path(loaded.__file__ or "").stat().st_mtime_ns > _STARTED:
        raise OSError(f"the file of {module} was written after this process had started")
    return source


_VERSION = 2
"""Of what a filter does; what was kept by another one is not used."""


@dataclass(frozen=True, slots=True)
class SampleFilter:
    """What is kept, and what of that is left out.

    Attributes:
        keep: Parts by hash, or a predicate; None: all samples.
        exclude: Parts by hash, or paths of lists; None: no sample.
    """

    keep: HashParts | Predicate | None
    exclude: HashParts | tuple[str, ...] | None

    @property
    def predicate(self) -> Predicate | None:
        """The predicate, if there is one."""
        return None if isinstance(self.keep, HashParts) else self.keep

    @property
    def lists(self) -> tuple[str, ...]:
        """The paths of the lists."""
        return self.exclude if isinstance(self.exclude, tuple) else ()

    @property
    def names(self) -> str:
        """The settings that it has, for messages."""
        given = {"keep": self.keep, "exclude": self.exclude}
        return " and ".join(name for name, value in given.items() if value is not None)

    def digest_of_lists(self) -> str:
        """Hashes of the lists that are left out, or the parts, as a text.

        Raises:
            ConfigError: A list cannot be read.
        """
        if not isinstance(self.exclude, tuple):
            return repr(self.exclude)
        return repr(sorted(map(digest_of_list, self.exclude)))

    def digest(self, of_lists: str) -> str:
        """A hash of its content: of the lists, the parts and the predicate, in hex digits.

        A predicate may change its own values when it is called, so this holds before that.

        Args:
            of_lists: What `digest_of_lists` gives.
        """
        predicate = self.predicate
        kept = digest_of_predicate(predicate) if predicate is not None else repr(self.keep)
        return hashlib.sha256(f"{_VERSION}\n{kept}\n{of_lists}".encode()).hexdigest()


def sample_filter(keep: object, exclude: object) -> SampleFilter | None:
    """The filter of these two settings of a split; None if both are None.

    `keep` is a mapping of `hash_of`, `of` and `parts` or a callable; `exclude` is such a mapping,
    the path of a list, or several.

    Raises:
        ConfigError: One of them is something else.
    """
    if keep is None and exclude is None:
        return None
    return SampleFilter(_kept_by(keep), _excluded_by(exclude))


def names_callable(keep: object) -> bool:
    """Whether `keep` is not given by values, but by what names a callable.

    Raises:
        ConfigError: It is the path of a file.
    """
    if isinstance(keep, str) and ("/" in keep or keep.endswith(".txt")):
        raise _refused_keep(keep)
    return isinstance(keep, str) or (isinstance(keep, Mapping) and "class_path" in keep)


def _kept_by(keep: object) -> HashParts | Predicate | None:
    if isinstance(keep, Mapping):
        return parse_parts("keep", cast("Mapping[str, Any]", keep))
    if keep is not None and not callable(keep):
        raise _refused_keep(keep)
    return cast("Callable[..., Any] | None", keep)


def _refused_keep(keep: object) -> ConfigError:
    return ConfigError(
        "keep must be a mapping of hash_of, of and parts, or a function of a shard's columns or "
        f"its import path, got {keep!r}; a list of keys goes to exclude"
    )


def _require_path(path: str) -> str:
    if scheme_of(path) and ("://" in path or scheme_of(path) in ("file", "pipe")):
        raise ConfigError(
            f"exclude names the list {redact(path)!r}, and a list is the path of a file of this "
            "machine; copy it here, and name the copy"
        )
    return path


def _excluded_by(exclude: object) -> HashParts | tuple[str, ...] | None:
    if exclude is None:
        return None
    if isinstance(exclude, Mapping):
        return parse_parts("exclude", cast("Mapping[str, Any]", exclude))
    paths = [exclude] if isinstance(exclude, str) else exclude
    if isinstance(paths, Sequence) and paths:
        listed = cast("Sequence[object]", paths)
        if all(isinstance(path, str) and path for path in listed):
            return tuple(map(_require_path, cast("Sequence[str]", listed)))
    raise ConfigError(
        "exclude must be the path of a text file with one key a line, a list of such paths, or a "
        f"mapping of hash_of, of and parts, got {exclude!r}"
    )
