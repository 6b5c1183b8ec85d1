"""What a filter is: the settings `keep` and `exclude` of a split, checked before anything is read.

The hash of a key is the SHA-256 of its bytes as they are in the tar (UTF-8, as a rule). Its part is
the first 8 bytes, read as a big-endian number, modulo the number of parts, the same in every run
and in any program::

    int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") % of
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from lightning_shards.errors import ConfigError
from lightning_shards.shards.urls import redact, scheme_of

Predicate: TypeAlias = Callable[..., Any]
"""A function of a shard's columns, see `applying`."""

Parts: TypeAlias = tuple[int, tuple[int, ...]]
"""Into how many equal parts samples are divided by the hash of their keys, and some parts."""


def are_in_parts(keys: Iterable[bytes], parts: Parts) -> NDArray[np.bool_]:
    """Whether each of these keys is in one of the parts."""
    words = b"".join(hashlib.sha256(key).digest()[:8] for key in keys)
    numbers = np.frombuffer(words, ">u8").astype(np.uint64) % np.uint64(parts[0])
    return np.isin(numbers, np.array(parts[1], np.uint64))


@dataclass(frozen=True, slots=True)
class SampleFilter:
    """What is kept, and what of that is left out.

    Attributes:
        names: The settings that it has, for messages.
        predicate: What keeps samples by the columns of their shard; None: all.
        parts: Parts by hash that `keep` keeps, and that `exclude` leaves out.
        lists: Paths of lists of what is left out.
    """

    names: str
    predicate: Predicate | None
    parts: Mapping[str, Parts]
    lists: tuple[str, ...]


def sample_filter(keep: object, exclude: object) -> SampleFilter | None:
    """The filter of these two settings of a split; None if both are None.

    `keep` is a mapping of `hash_of`, `of` and `parts` or a callable; `exclude` is such a mapping,
    the path of a list, or several.

    Raises:
        ConfigError: One of them is something else.
    """
    both: dict[str, Any] = {"keep": keep, "exclude": exclude}
    given = {name: value for name, value in both.items() if value is not None}
    are_parts = [name for name, value in given.items() if isinstance(value, Mapping)]
    parts = {name: parse_parts(name, given[name]) for name in are_parts}
    if "keep" not in parts and not (keep is None or callable(keep)):
        raise ConfigError(
            "keep must be a mapping of hash_of, of and parts, or a function of a shard's columns "
            f"or its import path, got {keep!r}; a list of keys goes to exclude"
        )
    predicate = None if "keep" in parts else cast("Predicate | None", keep)
    lists = () if exclude is None or "exclude" in parts else _paths_of_lists(exclude)
    return SampleFilter(" and ".join(given), predicate, parts, lists) if given else None


def name_of(predicate: object) -> str:
    """The import path of a function, or of the class of an object."""
    named: Any = predicate if hasattr(predicate, "__qualname__") else type(predicate)
    return f"{named.__module__}.{named.__qualname__}"


def names_callable(keep: object) -> bool:
    """Whether `keep` is not given by values, but by what names a callable, and is no path."""
    if isinstance(keep, str):
        return "/" not in keep and not keep.endswith(".txt")
    return isinstance(keep, Mapping) and "class_path" in keep


def _paths_of_lists(exclude: Any) -> tuple[str, ...]:
    paths: Sequence[Any] = [exclude] if isinstance(exclude, str) else exclude
    if not (_is_list(paths) and all(isinstance(path, str) and path for path in paths)):
        raise ConfigError(
            "exclude must be the path of a text file with one key a line, a list of such paths, or "
            f"a mapping of hash_of, of and parts, got {exclude!r}"
        )
    for path in paths:
        if "://" in path or scheme_of(path) in ("file", "pipe"):
            raise ConfigError(
                f"exclude names the list {redact(path)!r}, and a list is the path of a file of "
                "this machine; copy it here, and name the copy"
            )
    return tuple(paths)


def _is_list(values: object) -> bool:
    return isinstance(values, list | tuple) and values not in ([], ())


def parse_parts(name: str, given: Mapping[str, Any]) -> Parts:
    """The parts that a mapping names; `name` is the setting that has it.

    Raises:
        ConfigError: A key is missing or unknown, or a value is out of its range.
    """
    of: Any = given.get("of")
    parts: Any = given.get("parts")
    is_right = (
        {*given} == {"hash_of", "of", "parts"}
        and given["hash_of"] == "key"
        and (type(of) is int and of >= 1)
        and (_is_list(parts) and all(type(part) is int and 0 <= part < of for part in parts))
    )
    if not is_right:
        raise ConfigError(
            f"{name} takes a hash of keys, the number of parts and some of their numbers from 0 "
            f"on, as in {{hash_of: key, of: 20, parts: [0]}}, got {dict(given)!r}; keep parts of "
            "another value by a function of the shard's columns"
        )
    return of, tuple(sorted({*parts}))
