"""What a filter is: the settings `keep` and `exclude` of a split, checked before anything is read.

The hash of a key is the SHA-256 of its bytes as they are in the tar (UTF-8, as a rule). Its part is
the first 8 bytes, read as a big-endian number, modulo the number of parts, the same in every run
and in any program::

    int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") % of
"""

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from lightning_shards.errors import ConfigError, FileAccessError, ShardNotFoundError
from lightning_shards.shards.files import open_regular
from lightning_shards.shards.urls import redact, scheme_of

Predicate: TypeAlias = Callable[..., Any]
"""A function of a shard's columns, see `predicates`."""

_DIGEST_BYTES: Final = 16
MAX_PARTS: Final = 2**32
"""More parts would not be equally large by a hash of 64 bits."""


def digests_of(keys: Iterable[bytes]) -> NDArray[np.uint64]:
    """The first 16 bytes of the SHA-256 of each key, as two numbers: uint64, shape (2, n)."""
    joined = b"".join(hashlib.sha256(key).digest()[:_DIGEST_BYTES] for key in keys)
    return np.frombuffer(joined, ">u8").reshape(-1, 2).T.astype(np.uint64, order="C")


def prefix_of(key: bytes) -> bytes:
    """The part of a key before its first dot, without a leading ``./``."""
    return key.removeprefix(b"./").partition(b".")[0]


@dataclass(frozen=True, slots=True)
class HashParts:
    """Some of the equal parts that samples are divided into by the hash of their keys.

    Attributes:
        hash_of: ``key``, or ``prefix``: the part of the key before its first dot, without a leading
            ``./``, so that samples with one prefix stay together.
        of: Number of parts.
        parts: The numbers of those that are meant, from 0 to `of` - 1.
    """

    hash_of: str
    of: int
    parts: tuple[int, ...]

    def has(self, keys: Iterable[bytes]) -> NDArray[np.bool_]:
        """Whether each of these keys is in one of the parts."""
        digests = digests_of(map(prefix_of, keys) if self.hash_of == "prefix" else keys)
        return np.isin(digests[0] % np.uint64(self.of), np.array(self.parts, np.uint64))


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
    def parts(self) -> dict[str, HashParts]:
        """The parts by hash, by the names of their settings."""
        given = {"keep": self.keep, "exclude": self.exclude}
        return {name: value for name, value in given.items() if isinstance(value, HashParts)}

    @property
    def lists(self) -> tuple[str, ...]:
        """The paths of the lists."""
        return self.exclude if isinstance(self.exclude, tuple) else ()

    def digest_of_lists(self) -> str:
        """Hashes of what is in the lists, in any order of them.

        Raises:
            ConfigError: A list cannot be read.
        """
        return repr(sorted(map(digest_of_list, self.lists)))

    @property
    def names(self) -> str:
        """The settings that it has, for messages."""
        given = {"keep": self.keep, "exclude": self.exclude}
        return " and ".join(name for name, value in given.items() if value is not None)


def sample_filter(keep: object, exclude: object) -> SampleFilter | None:
    """The filter of these two settings of a split; None if both are None.

    `keep` is a mapping of `hash_of`, `of` and `parts` or a callable; `exclude` is such a mapping,
    the path of a list, or several.

    Raises:
        ConfigError: One of them is something else.
    """
    if keep is None and exclude is None:
        return None
    if isinstance(keep, Mapping):
        keep = parse_parts("keep", cast("Mapping[str, Any]", keep))
    elif keep is not None and not callable(keep):
        raise _refused_keep(keep)
    return SampleFilter(cast("HashParts | Predicate | None", keep), _excluded_by(exclude))


def names_callable(keep: object) -> bool:
    """Whether `keep` is not given by values, but by what names a callable.

    Raises:
        ConfigError: It is the path of a file.
    """
    if isinstance(keep, str) and ("/" in keep or keep.endswith(".txt")):
        raise _refused_keep(keep)
    return isinstance(keep, str) or (isinstance(keep, Mapping) and "class_path" in keep)


def _refused_keep(keep: object) -> ConfigError:
    return ConfigError(
        "keep must be a mapping of hash_of, of and parts, or a function of a shard's columns or "
        f"its import path, got {keep!r}; a list of keys goes to exclude"
    )


def _excluded_by(exclude: object) -> HashParts | tuple[str, ...] | None:
    if exclude is None:
        return None
    if isinstance(exclude, Mapping):
        return parse_parts("exclude", cast("Mapping[str, Any]", exclude))
    paths = cast("Sequence[object]", [exclude] if isinstance(exclude, str) else exclude)
    is_listed = isinstance(exclude, Sequence) and len(paths) > 0
    if not is_listed or not all(isinstance(path, str) and path for path in paths):
        raise ConfigError(
            "exclude must be the path of a text file with one key a line, a list of such paths, or "
            f"a mapping of hash_of, of and parts, got {exclude!r}"
        )
    for path in cast("Sequence[str]", paths):
        if scheme_of(path) and ("://" in path or scheme_of(path) in ("file", "pipe")):
            raise ConfigError(
                f"exclude names the list {redact(path)!r}, and a list is the path of a file of "
                "this machine; copy it here, and name the copy"
            )
    return tuple(cast("Sequence[str]", paths))


def parse_parts(name: str, given: Mapping[str, Any]) -> HashParts:
    """The parts that a mapping names; `name` is the setting that has it.

    Raises:
        ConfigError: A key is missing or unknown, or a value is out of its range.
    """
    if set(given) != {"hash_of", "of", "parts"}:
        raise ConfigError(
            f"{name} takes the keys hash_of, of and parts, as in {{hash_of: key, of: 20, parts: "
            f"[0]}}, got {sorted(map(str, given))}"
        )
    hash_of, of, parts = given["hash_of"], given["of"], given["parts"]
    if hash_of not in ("key", "prefix"):
        raise ConfigError(f"hash_of of {name} must be 'key' or 'prefix', got {hash_of!r}")
    if type(of) is not int or not 1 <= of <= MAX_PARTS:
        raise ConfigError(
            f"of of {name} must be a number of parts from 1 to {MAX_PARTS}, got {of!r}"
        )
    numbers = cast("Sequence[object]", parts if isinstance(parts, list | tuple) else ())
    if not numbers or not all(type(part) is int and 0 <= part < of for part in numbers):
        raise ConfigError(
            f"parts of {name} must be a list of numbers from 0 to {of - 1}, as of={of}, got "
            f"{parts!r}"
        )
    return HashParts(hash_of, of, tuple(sorted(set(cast("Sequence[int]", numbers)))))


def open_list(path: str) -> int:
    """A list, open for reading, which the caller closes.

    Raises:
        ConfigError: It cannot be opened.
    """
    try:
        return open_regular(Path(path).expanduser())
    except (FileAccessError, ShardNotFoundError) as error:
        raise ConfigError(
            f"exclude: the list {path!r} cannot be read: {error}; name a text file with one key a "
            "line"
        ) from error


def digest_of_list(path: str) -> str:
    """The SHA-256 of a file's content, in hex digits; errors as of `open_list`."""
    with os.fdopen(open_list(path), "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
