"""A filter applied to shards: the index of what is left of them.

The first run with a filter reads the member tables of all shards, in one process of each node, and
hashes keys where the filter asks for it, which takes about a microsecond a sample. What is left is
kept in the cache, so that later starts read its counts alone.

While it is found out, one bit is held for each sample of the data set.
"""

import hashlib
import logging
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightning_shards.errors import ConfigError, count_of
from lightning_shards.plan.kept_order import HeldNumbers, KeptSamples
from lightning_shards.shards.filters.kept_files import (
    kept_path,
    read_kept,
    stamps_of,
    write_kept,
)
from lightning_shards.shards.filters.key_tests import KeyTests, read_key_tests
from lightning_shards.shards.filters.predicates import SampleFilter, ShardColumns, mask_of
from lightning_shards.shards.index import ShardIndex
from lightning_shards.shards.members import MemberTable
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.progress_line import progress_line
from lightning_shards.shards.tables import TableStore
from lightning_shards.shards.urls import is_local, redact, split_url

_log = logging.getLogger(__name__)

_Ints = NDArray[np.int64]

_FETCHED_TOGETHER = 64
_IDENTITY_LENGTH = 16


def filtered_index(
    index: ShardIndex,
    chosen: SampleFilter,
    tables: TableStore,
    cache: CacheFolder,
    *,
    is_prepared: bool = False,
    show_progress: bool | None = None,
) -> ShardIndex:
    """The index of these shards, which knows what the filter leaves of them.

    Args:
        index: The shards and their counts, which are known.
        chosen: The filter.
        tables: Where the member tables of all shards are, or come from.
        cache: Where it is kept what is left.
        is_prepared: Whether another process of this node has found it out in this run, so that
            the checksum of what is kept need not be compared again.
        show_progress: As of `build_tables`.

    Raises:
        ConfigError: The filter names what is not there, leaves nothing, or cannot be applied.
        ShardError: As of `TableStore.table_of`.
    """
    of_lists, stamps = chosen.digest_of_lists(), stamps_of(index, cache)
    digest = chosen.digest(of_lists)
    path = kept_path(index, digest, stamps, cache)
    kept = read_kept(path, index, cache, is_checked=is_prepared)
    if kept is None:
        kept = _applied(index, chosen, tables, show_progress)
        if chosen.digest_of_lists() != of_lists:
            raise ConfigError(
                f"{chosen.names} changed while it was read; start again when its lists are whole"
            )
        is_remote = np.array([[not is_local(url)] for url in index.urls])
        # The tables of remote shards may have been fetched only now.
        known = np.where(is_remote, stamps_of(index, cache), stamps)
        kept = write_kept(kept_path(index, digest, known, cache), kept, cache)
    return replace(index, kept=kept)


def _applied(
    index: ShardIndex, chosen: SampleFilter, tables: TableStore, show_progress: bool | None
) -> KeptSamples:
    assert index.counts is not None  # the caller has seen to it
    start, tests = time.monotonic(), read_key_tests(chosen, index)
    shards, totals = count_of(index.num_shards, "shard"), index.counts
    _log.info("%s: the member tables of %s are read once", chosen.names, shards)
    masks: list[NDArray[np.uint8]] = []
    counts, digest = np.zeros(index.num_shards, np.int64), hashlib.sha256()
    folders = {redact(split_url(url)[0]) for url in index.urls}
    where = folders.pop() if len(folders) == 1 else f"{len(folders)} folders"
    with progress_line("filtered", index.num_shards, where, show=show_progress) as step:
        for shard, table in enumerate(_tables_of(index, tables)):
            mask = _mask_of_shard(shard, table, chosen, tests, index)
            counts[shard] = np.count_nonzero(mask)
            masks.append(np.packbits(mask))
            digest.update(len(mask).to_bytes(8, "big") + masks[-1].tobytes())
            step()
    tests.require_matches()
    tests.warn_of_one_prefix(int(totals.sum()))
    left, samples = int(counts.sum()), count_of(int(totals.sum()), "sample")
    if not left:
        raise ConfigError(
            f"{chosen.names} leaves none of {samples} of {shards}; correct it, or leave it out"
        )
    what = "%s: %s of %s are left, found out in %.1f s"
    _log.info(what, chosen.names, f"{left:,}", samples, time.monotonic() - start)
    are_kept = bool(2 * left < totals.sum())
    numbers = HeldNumbers(_numbers(masks, totals, are_kept=are_kept))
    return KeptSamples(totals, counts, numbers, are_kept, digest.hexdigest()[:_IDENTITY_LENGTH])


def _tables_of(index: ShardIndex, tables: TableStore) -> Iterator[MemberTable]:
    """The table of each shard in order; those of remote ones are fetched many at a time."""
    assert index.counts is not None  # the caller has seen to it
    for first in range(0, index.num_shards, _FETCHED_TOGETHER):
        urls = index.urls[first : first + _FETCHED_TOGETHER]
        tables.fetch(urls)
        for url, count in zip(urls, index.counts[first:].tolist(), strict=False):
            yield tables.table_of(url, expected_samples=count)


def _mask_of_shard(
    shard: int, table: MemberTable, chosen: SampleFilter, tests: KeyTests, index: ShardIndex
) -> NDArray[np.bool_]:
    """Whether each sample of a shard is left."""
    mask = tests.kept_of_table(shard, table)
    if chosen.predicate is not None and len(mask):
        mask &= mask_of(chosen.predicate, ShardColumns(index.urls[shard], table))
    return mask


def _numbers(masks: list[NDArray[np.uint8]], totals: _Ints, *, are_kept: bool) -> NDArray[Any]:
    """The numbers that `KeptSamples` has, of packed masks of all shards: uint32 where they fit."""
    kind = np.uint32 if totals.sum() < 2**32 else np.int64
    parts: list[NDArray[Any]] = [np.empty(0, kind)]
    begin = left_out = 0
    for packed, total in zip(masks, totals.tolist(), strict=True):
        mask = np.unpackbits(packed, count=total).astype(np.bool_)
        numbers = np.flatnonzero(mask if are_kept else ~mask) + begin
        if not are_kept:  # each less those left out before it
            numbers -= np.arange(left_out, left_out + len(numbers))
            left_out += len(numbers)
        parts.append(numbers.astype(kind))
        begin += total
    return np.concatenate(parts)
