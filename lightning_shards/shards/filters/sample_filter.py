"""A filter: which samples of a split are kept, and which are excluded, as it is configured."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from lightning_shards.errors import ConfigError
from lightning_shards.shards.filters.keys import HashParts, digest_of_list, parse_parts
from lightning_shards.shards.filters.predicates import Predicate, digest_of_predicate
from lightning_shards.shards.urls import redact, scheme_of

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
