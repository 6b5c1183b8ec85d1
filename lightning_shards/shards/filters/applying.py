"""A filter applied to shards: the index of what is left of them.

The first run with a filter reads the member tables of all shards, in one process of each node, and
hashes keys where the filter asks for it, which takes about a microsecond a sample. What is left is
kept in the cache as a .npy file with two bits for each sample, which each process maps. Its name
has all that its content depends on, the stamps of the shards too, so that it is never another one
while a run reads it.
"""

import hashlib
import logging
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from lightning_shards.errors import ConfigError, FileAccessError, count_of
from lightning_shards.plan.kept_order import (
    HeldNumbers,
    KeptSamples,
    Numbers,
    kept_samples,
    pack_masks,
)
from lightning_shards.shards.files import stamp_of
from lightning_shards.shards.filters.keys import read_key_tests
from lightning_shards.shards.filters.predicates import ShardColumns, digest_of_predicate, mask_of
from lightning_shards.shards.filters.settings import SampleFilter
from lightning_shards.shards.index import ShardIndex
from lightning_shards.shards.private_files import CacheFolder, sidecar_name
from lightning_shards.shards.progress_line import progress_line
from lightning_shards.shards.tables import TableStore
from lightning_shards.shards.urls import is_local, redact, split_url

_log = logging.getLogger(__name__)

_FETCHED_TOGETHER: Final = 64
_VERSION: Final = 4
"""Of what a filter does; what was kept by another one is not used."""


@dataclass(frozen=True)
class MappedNumbers(Numbers):
    """Numbers in a file of the cache, which each process maps when it first needs them."""

    path: Path

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the place, not the map."""
        return MappedNumbers, (self.path,)

    def values(self) -> NDArray[Any]:
        """The numbers.

        Raises:
            FileAccessError: The file is no longer there.
        """
        return self._mapped

    @cached_property
    def _mapped(self) -> NDArray[Any]:
        try:
            return np.asarray(np.load(self.path, mmap_mode="r"))
        except FileNotFoundError:
            raise FileAccessError(
                f"{self.path}, which says which samples are drawn, was removed during the run; "
                "start it anew, and leave the cache_dir alone while it runs"
            ) from None


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
        ShardError: As of `TableStore.table_of`.
    """
    assert index.counts is not None  # the caller has seen to it
    remote = [url for url in index.urls if not is_local(url)]
    for first in range(0, len(remote), _FETCHED_TOGETHER):  # their stamps are those of the tables
        tables.fetch(remote[first : first + _FETCHED_TOGETHER])
    path = cache.root / "kept" / f"{digest_with_shards(_digest(chosen), index, cache)}.npy"
    kept = _read(path, index.counts, cache)
    if kept is None:
        words = _written(path, _applied(index, index.counts, chosen, tables), cache)
        kept = kept_samples(index.counts, words)
    return replace(index, kept=kept)


def digest_with_shards(digest: str, index: ShardIndex, cache: CacheFolder) -> str:
    """A hash of this one, the shards, and what shows that one, or its table, is another now."""
    hashed = hashlib.sha256(digest.encode())
    counts = [None] * index.num_shards if index.counts is None else index.counts.tolist()
    for url, count in zip(index.urls, counts, strict=True):
        try:
            stamp = stamp_of(url if is_local(url) else cache.sidecar_of(url))
        except OSError:
            stamp = None  # a local shard that is missing is an error elsewhere
        hashed.update(os.fsencode(f"\n{sidecar_name(url)} {count} {stamp}"))
    return hashed.hexdigest()[:32]


def _digest(chosen: SampleFilter) -> str:
    """A hash of the lists, the parts and the predicate, which may change its own values later."""
    predicate = chosen.predicate
    asked = digest_of_predicate(predicate) if predicate is not None else None
    return f"{_VERSION} {chosen.parts!r} {chosen.digest_of_lists()} {asked}"


def _applied(
    index: ShardIndex, totals: NDArray[np.int64], chosen: SampleFilter, tables: TableStore
) -> NDArray[np.int64]:
    start, tests, predicate = time.monotonic(), read_key_tests(chosen, index), chosen.predicate
    shards, samples = count_of(index.num_shards, "shard"), count_of(int(totals.sum()), "sample")
    _log.info("%s: the member tables of %s are read once", chosen.names, shards)
    folders = {redact(split_url(url)[0]) for url in index.urls}
    where = folders.pop() if len(folders) == 1 else f"{len(folders)} folders"

    def masks(step: Callable[[], object]) -> Iterator[NDArray[np.bool_]]:
        for shard, (url, total) in enumerate(zip(index.urls, totals.tolist(), strict=True)):
            table = tables.table_of(url, expected_samples=total)
            mask = tests.kept_of_table(shard, table)
            if predicate is not None and total:
                mask &= mask_of(predicate, ShardColumns(url, table))
            yield mask
            step()

    with progress_line("filtered", index.num_shards, where) as step:
        words = pack_masks(masks(step))
    tests.require_matches()
    tests.warn_of_one_prefix(int(totals.sum()))
    if not words[0, -1]:
        raise ConfigError(
            f"{chosen.names} leaves none of {samples} of {shards}; correct it, or leave it out"
        )
    what = "%s: %s of %s are left, found out in %.1f s"
    _log.info(what, chosen.names, f"{words[0, -1]:,}", samples, time.monotonic() - start)
    return words


def _written(path: Path, words: NDArray[np.int64], cache: CacheFolder) -> Numbers:
    """The words, which are taken from a file from now on; held if it cannot be written."""
    file = BytesIO()
    np.save(file, words)
    try:
        cache.write(path, file.getvalue())
    except OSError as error:
        _log.warning(
            "which samples are left stays in memory, and is found out again by each rank and the "
            "next run: %s; name another cache_dir",
            error,
        )
        return HeldNumbers(words)
    return MappedNumbers(path)


def _read(path: Path, totals: NDArray[np.int64], cache: CacheFolder) -> KeptSamples | None:
    """What the file says is left of these shards; None if there is none, or it is damaged."""
    opened = cache.open(path)
    if opened is None:
        return None
    os.close(opened)
    try:
        return kept_samples(totals, MappedNumbers(path))
    except (OSError, EOFError, ValueError) as error:
        _log.warning("which samples are left is found out again: %s: %s", path, error)
        return None
