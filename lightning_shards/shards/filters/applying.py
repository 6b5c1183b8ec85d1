"""A filter applied to shards: the index of what is left of them.

The first run with a filter reads the member tables of all shards, in one process of each node, and
hashes keys where the filter asks for it, which takes about a microsecond a sample. What is left is
kept in the cache as a .npy file with two bits for each sample, which each process maps. Its name
has all that its content depends on, the stamps of the shards too, so that it is never another one
while a run reads it.

A list is a text file with a key on each line, as it is in the tar. Empty lines are passed over.

A predicate is a function of the user's that says which samples of a shard are kept. It is called
once for each shard, with its `ShardColumns`, and returns one bool a sample::

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
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import FunctionType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from lightning_shards.errors import (
    ConfigError,
    FileAccessError,
    ShardNotFoundError,
    count_of,
    errors_about,
)
from lightning_shards.plan.kept_order import kept_samples, pack_masks
from lightning_shards.shards.files import CacheFolder, read_regular
from lightning_shards.shards.filters.settings import (
    Predicate,
    SampleFilter,
    are_in_parts,
    name_of,
)
from lightning_shards.shards.index import ShardIndex
from lightning_shards.shards.made_files import MappedNumbers, digest_with_shards, made_once
from lightning_shards.shards.members import MemberTable
from lightning_shards.shards.progress_line import progress_bar
from lightning_shards.shards.tables import TableStore
from lightning_shards.shards.urls import redact, split_url

_log = logging.getLogger(__name__)

_VERSION: Final = 5
"""Of what a filter does; what was kept by another one is not used."""

_STARTED: Final = time.time_ns()

_OF_A_LIST: Final = "exclude takes text files with one key a line"

_SHOWN: Final = 80
"""Letters of a key that a message shows."""


def filtered_index(
    index: ShardIndex, chosen: SampleFilter, tables: TableStore, cache: CacheFolder
) -> ShardIndex:
    """The index of these shards, which knows what the filter leaves of them.

    Args:
        index: The shards and their counts, which are known.
        chosen: The filter.
        tables: Where the member tables of all shards are, or come from.
        cache: Where it is kept what is left.

    Raises:
        ConfigError: The filter names what is not there, leaves nothing, or cannot be applied.
        ShardNotFoundError: There is no such list.
        FileAccessError: A list cannot be read, or what is left cannot be written to the cache.
        ShardError: As of `TableStore.table_of`.
    """
    totals, predicate = index.counts, chosen.predicate
    assert totals is not None  # the caller has seen to it
    with errors_about(_OF_A_LIST, FileAccessError, ShardNotFoundError):
        lists = {path: read_regular(Path(path).expanduser(), -1) for path in chosen.lists}
    of_lists = sorted(hashlib.sha256(listed).hexdigest() for listed in lists.values())
    asked = digest_of_predicate(predicate) if predicate is not None else None
    digest = f"{_VERSION} {chosen.parts!r} {of_lists!r} {asked}"
    kept = made_once(
        cache.root / "kept" / f"{digest_with_shards(digest, index, cache, tables)}.npy",
        cache,
        lambda path: kept_samples(totals, MappedNumbers(path)),
        lambda file: np.save(file, _applied(index, totals, chosen, lists, tables)),
    )
    return replace(index, kept=kept)


def _applied(
    index: ShardIndex,
    totals: NDArray[np.int64],
    chosen: SampleFilter,
    contents: Mapping[str, bytes],
    tables: TableStore,
) -> NDArray[np.int64]:
    """What is left of shards with so many samples, as `pack_masks` gives it."""
    lists = {path: listed_keys(content) for path, content in contents.items()}
    first_key, matched = list[bytes](), set[bytes]()

    def masks(step: Callable[[], object]) -> Iterator[NDArray[np.bool_]]:
        for url, total in zip(index.urls, totals.tolist(), strict=True):
            table, mask = tables.table_of(url, expected_samples=total), np.ones(total, np.bool_)
            keys = table.all_keys() if chosen.parts or lists else []
            first_key.extend(() if first_key else keys[:1])
            for name, parts in chosen.parts.items():
                mask &= are_in_parts(keys, parts) == (name == "keep")
            for listed in lists.values():
                mask &= np.fromiter((key not in listed for key in keys), np.bool_, total)
                matched.update(filter(listed.__contains__, keys))
            if chosen.predicate is not None and total:
                mask &= mask_of(chosen.predicate, ShardColumns(url, table))
            yield mask
            step()

    where = redact(split_url(index.urls[0])[0]) or "."
    with progress_bar(f"filtered shards in {where}", index.num_shards, " shards") as step:
        words = pack_masks(masks(step))
    for path, listed in lists.items():
        _require_matches(path, listed, matched, first_key)
    samples = count_of(int(totals.sum()), "sample")
    if not words[0, -1]:
        shards = count_of(index.num_shards, "shard")
        raise ConfigError(
            f"{chosen.names} leaves none of {samples} of {shards}; correct it, or leave it out"
        )
    _log.info("%s: %s of %s are left", chosen.names, f"{words[0, -1]:,}", samples)
    return words


def listed_keys(content: bytes) -> dict[bytes, None]:
    """The keys in a list, each once and in their order."""
    return dict.fromkeys(filter(None, content.removeprefix(BOM_UTF8).splitlines()))


def _require_matches(
    path: str, listed: Mapping[bytes, None], matched: set[bytes], first_key: list[bytes]
) -> None:
    """Refuse a list of which no key was matched, and log how many were not."""
    missing = [key for key in listed if key not in matched]
    shown = [repr(os.fsdecode(key)[:_SHOWN]) for key in (*missing[:1], *first_key)]
    unlike = "the first of them is " + ", the first key of the samples ".join(shown)
    told = (
        f"exclude: {len(missing):,} of {count_of(len(listed), 'key')} of {path} are of no sample "
        f"of this split: {unlike if listed else 'it is empty'}; write keys with folders and "
        "without suffixes, as `lightning-shards show` does"
    )
    if len(missing) == len(listed):
        raise ConfigError(
            f"{told}, or leave the list out; in a mix, write it into those components alone whose "
            "samples it names"
        )
    if missing:
        _log.warning(told)


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
        return list(map(os.fsdecode, self.table.all_keys()))

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
    """A hash of its import path, the values that it holds, and its `version` and source.

    The values are those that are pickled: the arguments of a `partial`, the attributes of an
    object. Of all functions and classes among them, versions, defaults and the sources of their
    modules count. What cannot be pickled, such as a lambda or a closure, or has no source gets a
    hash of this process alone, so that each start asks the predicate again.
    """
    held = io.BytesIO()
    pickler = _Pickler(held)
    try:
        pickler.dump(predicate)
        pickler.dump(pickler.noted)
        sources = [_source_of(name) for name in sorted(pickler.modules - {"builtins"})]
    except Exception as error:  # noqa: BLE001 whatever the values' own `__reduce__` raises
        _log.info("the hash of %s holds for this process alone: %s", name_of(predicate), error)
        sources = [f"process {os.getpid()} since {_STARTED}"]
    digest = hashlib.sha256(held.getvalue())
    digest.update("\0".join(sources).encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


class _Pickler(pickle.Pickler):
    """Notes the modules of all functions and classes, and what their sources do not tell."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=4)
        self.modules, self.noted = set[str](), list[object]()

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, type | FunctionType):
            self.modules.add(obj.__module__)
            names = ("version", "__defaults__", "__kwdefaults__")
            self.noted += [getattr(obj, name, None) for name in names]
        return NotImplemented


def _source_of(module: str) -> str:
    """The source of a module as this process has imported it.

    Raises:
        OSError: It has none, or its file was written since then.
    """
    loaded = sys.modules[module]
    if Path(loaded.__file__ or "").stat().st_mtime_ns > _STARTED:
        raise OSError(f"the file of {module} was written after this process had started")
    return inspect.getsource(loaded)
