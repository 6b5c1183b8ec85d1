"""A filter applied to shards: the index of what is left of them.

The first run with a filter reads the member tables of all shards, in one process of each node, and
hashes keys where the filter asks for it, which takes about a microsecond a sample. What is left is
kept in the cache as a .npy file with two bits for each sample, which each process maps. Its name
has all that its content depends on, the stamps of the shards too, so that it is never another one
while a run reads it.

A list is a text file with a key on each line, as it is in the tar. Empty lines are passed over.
"""

import logging
import os
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lightning_shards.errors import ConfigError, count_of
from lightning_shards.plan.kept_order import KeptSamples, kept_samples, pack_masks
from lightning_shards.shards.files import not_written
from lightning_shards.shards.filters.predicates import (
    ShardColumns,
    digest_of_predicate,
    keys_of_table,
    mask_of,
)
from lightning_shards.shards.filters.settings import SampleFilter, read_list
from lightning_shards.shards.index import ShardIndex, digest_with_shards
from lightning_shards.shards.private_files import CacheFolder, MappedNumbers
from lightning_shards.shards.progress_line import progress_line
from lightning_shards.shards.tables import TableStore
from lightning_shards.shards.urls import is_local, redact, split_url

_log = logging.getLogger(__name__)

_FETCHED_TOGETHER: Final = 64
_VERSION: Final = 5
"""Of what a filter does; what was kept by another one is not used."""

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
        FileAccessError: What is left cannot be written to the cache.
        ShardError: As of `TableStore.table_of`.
    """
    assert index.counts is not None  # the caller has seen to it
    remote = [url for url in index.urls if not is_local(url)]
    for first in range(0, len(remote), _FETCHED_TOGETHER):  # their stamps are those of the tables
        tables.fetch(remote[first : first + _FETCHED_TOGETHER])
    path = cache.root / "kept" / f"{digest_with_shards(_digest(chosen), index, cache)}.npy"
    kept = _read(path, index.counts, cache)
    if kept is None:
        file = BytesIO()
        np.save(file, _applied(index, index.counts, chosen, tables))
        try:
            cache.write(path, file.getvalue())
        except OSError as error:
            raise not_written(path, error) from error
        kept = kept_samples(index.counts, MappedNumbers(path))
    return replace(index, kept=kept)


def _digest(chosen: SampleFilter) -> str:
    """A hash of the lists, the parts and the predicate, which may change its own values later."""
    predicate = chosen.predicate
    asked = digest_of_predicate(predicate) if predicate is not None else None
    return f"{_VERSION} {chosen.parts!r} {chosen.digest_of_lists()} {asked}"


def _applied(
    index: ShardIndex, totals: NDArray[np.int64], chosen: SampleFilter, tables: TableStore
) -> NDArray[np.int64]:
    """What is left of shards with so many samples, as `pack_masks` gives it."""
    lists, predicate = {path: read_keys(path) for path in chosen.lists}, chosen.predicate
    folders = {redact(split_url(url)[0]) for url in index.urls}
    where = folders.pop() if len(folders) == 1 else f"{len(folders)} folders"
    first_key, matched = list[bytes](), set[bytes]()

    def masks(step: Callable[[], object]) -> Iterator[NDArray[np.bool_]]:
        for url, total in zip(index.urls, totals.tolist(), strict=True):
            table, mask = tables.table_of(url, expected_samples=total), np.ones(total, np.bool_)
            keys = keys_of_table(table) if chosen.parts or lists else []
            first_key.extend(() if first_key else keys[:1])
            for name, parts in chosen.parts.items():
                mask &= parts.has(keys) == (name == "keep")
            for listed in lists.values():
                mask &= np.fromiter((key not in listed for key in keys), np.bool_, total)
                matched.update(filter(listed.__contains__, keys))
            if predicate is not None and total:
                mask &= mask_of(predicate, ShardColumns(url, table))
            yield mask
            step()

    with progress_line("filtered", index.num_shards, where) as step:
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


def read_keys(path: str) -> dict[bytes, None]:
    """The keys in a list, each once and in their order; errors as of `read_list`."""
    return dict.fromkeys(filter(None, read_list(path).removeprefix(BOM_UTF8).splitlines()))


def _require_matches(
    path: str, listed: Mapping[bytes, None], matched: set[bytes], first_key: list[bytes]
) -> None:
    """Refuse a list of which no key was matched, and log how many were not."""
    missing = [key for key in listed if key not in matched]
    shown = [repr(os.fsdecode(key)[:_SHOWN]) for key in (*missing[:1], *first_key)]
    unlike = "the first of them is " + ", the first key of the samples ".join(shown)
    if len(missing) == len(listed):
        raise ConfigError(
            f"exclude: none of the {count_of(len(listed), 'key')} of {path} is the key of a sample "
            f"of this split: {unlike if listed else 'it is empty'}; write keys with folders and "
            "without suffixes, as `lightning-shards show` does, or leave the list out; in a mix, "
            "write it into those components alone whose samples it names"
        )
    if missing:
        _log.warning(
            "exclude: %s of %s keys of %s are of no sample of this split, so nothing is left out "
            "for them: %s; keys have folders and no suffixes",
            f"{len(missing):,}",
            f"{len(listed):,}",
            path,
            unlike,
        )
