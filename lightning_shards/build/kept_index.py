"""The index of what `keep` and `exclude` leave of the shards of a split, as far as it is known."""

import logging
from contextlib import closing
from dataclasses import replace
from typing import NamedTuple

from lightning_shards.errors import ConfigError
from lightning_shards.shards.filters.applying import filtered_index
from lightning_shards.shards.filters.key_tests import read_key_tests
from lightning_shards.shards.filters.predicates import name_of
from lightning_shards.shards.filters.sample_filter import SampleFilter
from lightning_shards.shards.index import ShardIndex
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.remote.transport import TransportSettings
from lightning_shards.shards.storage.schemes import Storages, has_ranges, remote_storages
from lightning_shards.shards.tables import TableStore, index_command
from lightning_shards.shards.urls import is_local, redact

_log = logging.getLogger(__name__)


class FilterNeeds(NamedTuple):
    """What a split needs of a filter.

    Attributes:
        split: Its name, for messages.
        sampling: Name of its sampling.
        has_size: Whether the samples of an epoch are known without what is left.
        patterns: Its shards as the user names them, for messages.
    """

    split: str
    sampling: str
    has_size: bool
    patterns: str


def index_of_kept(
    index: ShardIndex,
    chosen: SampleFilter,
    needs: FilterNeeds,
    cache: CacheFolder,
    settings: TransportSettings,
    *,
    is_prepared: bool = False,
) -> ShardIndex:
    """The index, which knows what the filter leaves; or what a stream asks of each sample.

    The latter where a remote shard has no member table.

    Args:
        index: The shards.
        chosen: The filter.
        needs: What the split needs.
        cache: Where tables are kept, and what is left.
        settings: How remote shards are reached.
        is_prepared: Whether another rank of this node has done so before in this run.

    Raises:
        ConfigError: The filter names what is not there, leaves nothing, or needs the tables.
        ShardError: The tables cannot be had.
    """
    with closing(Storages(remote_storages(settings))) as storages:
        tables = TableStore(cache, storages=storages)
        if _have_tables(index, tables):
            return filtered_index(index, chosen, tables, cache, is_prepared=is_prepared)
    _require_streamable(index, chosen, needs)
    _log.info("%s: %s is asked of each sample as it is read", needs.split, chosen.names)
    return replace(index, key_tests=read_key_tests(chosen, index))


def require_applied(split: str, chosen: SampleFilter | None, index: ShardIndex) -> None:
    """Refuse an index that was made without asking the filter of the split.

    Raises:
        ConfigError: It is one.
    """
    if chosen is not None and index.kept is None and index.key_tests is None:
        raise ConfigError(
            f"{chosen.names} of {split!r} asks the member tables of the shards, and no shard was "
            "looked at; leave --index out, or the filter"
        )


def _have_tables(index: ShardIndex, tables: TableStore) -> bool:
    """Whether all shards have member tables or can be scanned, as far as the first ones show."""
    remote = [url for url in index.urls if not is_local(url)]
    if not remote:
        return True
    if index.counts is None or not all(map(has_ranges, remote)):
        return False
    return index.has_tables or tables.is_beside(remote[0])


def _require_streamable(index: ShardIndex, chosen: SampleFilter, needs: FilterNeeds) -> None:
    url = next(url for url in index.urls if not is_local(url))
    lacking = f"{redact(url)} has no member table or no count beside it"
    remedy = f"make them by {index_command(needs.patterns)}"
    if not has_ranges(url):
        lacking, remedy = f"{redact(url)} can only be streamed", "copy the shards to a store"
    if chosen.predicate is not None:
        raise ConfigError(
            f"keep of {needs.split!r} is {name_of(chosen.predicate)}, which asks the member tables "
            f"of the shards, and {lacking}; {remedy}, or keep parts by hash_of"
        )
    if needs.sampling != "resampled":
        raise ConfigError(
            f"sampling={needs.sampling!r} of {needs.split!r} needs to know how many samples "
            f"{chosen.names} leaves of each shard, and {lacking}; {remedy}, or take "
            "sampling='resampled'"
        )
    if not needs.has_size:
        raise ConfigError(
            f"how many samples {chosen.names} of {needs.split!r} leaves is unknown, as {lacking}; "
            f"set dataset_size, or {remedy}"
        )
