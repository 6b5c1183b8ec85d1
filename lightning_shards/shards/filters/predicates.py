"""Predicates: functions of the user that say which samples of a shard are kept.

A predicate is called once for each shard, with its `ShardColumns`, and returns one bool a sample::

    def large_images(shard):
        return shard.sizes("jpg") > 20_000
"""

import hashlib
import inspect
import os
import pickle
import sys
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property, partial
from types import CodeType, FunctionType, MethodType
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from lightning_shards.errors import ConfigError
from lightning_shards.shards.filters.key_hashes import keys_of_table
from lightning_shards.shards.filters.value_digests import ValueDigests, code_in, only_here
from lightning_shards.shards.members import MemberTable
from lightning_shards.shards.urls import redact

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


def name_of(predicate: Predicate) -> str:
    """The import path of a function, or of the class of an object."""
    named = predicate if hasattr(predicate, "__qualname__") else type(predicate)
    return f"{named.__module__}.{named.__qualname__}"


def digest_of_predicate(predicate: Predicate) -> str:
    """A hash of its import path, the source of its modules, and the values that it holds and reads.

    The modules are that of a function (and of what decorates it), and those of the classes of an
    object or of a bound method. It reads the globals of these modules that its code names, and the
    code of theirs that it names. What it calls in other modules is not followed. Without a source,
    as of a function that was typed in, with one that was edited after it was imported, or with a
    global that has no hash, the hash is that of this process alone.

    Raises:
        ConfigError: The values cannot be pickled.
    """
    function = predicate if isinstance(predicate, FunctionType) else None
    modules = _modules_of(predicate)
    sources = list(map(_source_of, modules))
    try:
        pickle.dumps(predicate if function is None else _held_by(function), protocol=4)
    except Exception as error:  # whatever the values' own `__reduce__` raises
        raise ConfigError(
            f"keep: {name_of(predicate)} holds a value that cannot be pickled ({error}), so that a "
            "later run could not tell whether it is the same; take a function of a module"
        ) from error
    text = "\0".join([name_of(predicate), *sources, ""])
    digest, digests = hashlib.sha256(text.encode("utf-8", "surrogateescape")), ValueDigests(modules)
    digest.update(digests.digest_with_code(predicate))
    if not digests.met <= {code for source in sources for code in _code_of(source)}:
        digest.update(only_here("edited").encode())
    return digest.hexdigest()


def _modules_of(predicate: object) -> list[str]:
    """The names of the modules that a predicate is defined in."""
    if isinstance(predicate, partial):
        return _modules_of(cast("Any", predicate).func)
    if isinstance(predicate, MethodType):
        return _modules_of(predicate.__func__) + _modules_of(predicate.__self__)
    if isinstance(predicate, FunctionType):  # `functools.wraps` gives it the name of another one
        module = predicate.__module__
        return sorted({module, predicate.__globals__.get("__name__", module)})
    return sorted({each.__module__ for each in type(predicate).__mro__} - {"builtins"})


def _source_of(module: str) -> str:
    try:
        return inspect.getsource(sys.modules[module])
    except (KeyError, OSError, TypeError):
        return only_here(module)


def _code_of(source: str) -> Iterable[CodeType]:
    """The code of all functions of a source; none if it cannot be compiled."""
    with warnings.catch_warnings(action="ignore"):  # they were told when it was imported
        try:
            return code_in(compile(source, "source", "exec", dont_inherit=True))
        except (SyntaxError, ValueError):
            return ()


def _held_by(function: FunctionType) -> object:
    """The defaults of a function's parameters, and the values of its closure.

    In the place of a function that it wraps, which has lost its name to it: what that one holds.
    """
    wrapped = function.__dict__.get("__wrapped__")
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    held = [
        _held_by(value) if value is wrapped and isinstance(value, FunctionType) else value
        for value in cells
    ]
    return function.__defaults__, function.__kwdefaults__, held
