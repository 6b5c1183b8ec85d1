"""The cache of a source of remote shards, sized by the member table of one of them."""

import hashlib
import logging
from contextlib import closing, suppress
from typing import Final, NamedTuple

from lightning_shards.errors import FileAccessError
from lightning_shards.plan.alike import AlikeOrder
from lightning_shards.plan.kept_order import KeptOrder
from lightning_shards.plan.order import Order
from lightning_shards.plan.pieces import WINDOW
from lightning_shards.plan.strands import shares_of_nodes
from lightning_shards.shards.ahead.piece_plan import (
    block_of,
    blocks_of_window,
    components_of,
    samples_of_blocks,
)
from lightning_shards.shards.index import ShardIndex
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.remote.cache.piece_cache import (
    PieceCache,
    RunSize,
    cache_of_run,
    is_drawn_anew,
    working_set_of,
)
from lightning_shards.shards.remote.cache.piece_files import groups_of
from lightning_shards.shards.remote.transport import TransportSettings
from lightning_shards.shards.storage.remote import remote_storages
from lightning_shards.shards.storage.schemes import Storages
from lightning_shards.shards.tables import TableStore
from lightning_shards.shards.urls import is_local, without_credentials

_TABLE_BYTES: Final = 80
"""Bytes a sample of a kept table, where none has been looked at: samples of two members have 73."""

_log = logging.getLogger(__name__)


def cache_of_source(
    split: str,
    size: RunSize | None,
    order: Order,
    folder: CacheFolder,
    cache_gib: float | None = None,
    *,
    job: str = "",
) -> PieceCache | None:
    """The cache that all processes of a node read these remote shards through.

    Runs of one job over the same data, split and seed count as one run: the ranks of a node.

    Args:
        split: The split, which has a need of its own.
        size: What is read; None if nothing is fetched ahead.
        order: The order of the samples.
        folder: The cache folder of the user.
        cache_gib: The limit in GiB that the user set; None: the default.
        job: What only the ranks of one job have in common; see `job_name`.

    Returns:
        None without a size and, with a warning, where the default limit is too low or the user has
        no folder that can be written to.

    Raises:
        ConfigError: The limit that was given is too low.
        FileAccessError: The folder belongs to another user, or others may write to it.
    """
    if size is None:
        return None
    run = _hash(f"{job} {split} {size.data} {order.identity()['seed']} {cache_gib}")[:32]
    try:
        return cache_of_run(folder, run, size, cache_gib)
    except OSError as error:
        if isinstance(error, FileAccessError) and not str(folder.root).startswith("~"):
            raise
        what = "nothing is kept of remote shards: %s cannot be used: %s; name another cache_dir"
        _log.warning(what, folder.root, error)
        return None


def size_of_run(
    index: ShardIndex,
    order: Order,
    folder: CacheFolder,
    settings: TransportSettings,
    *,
    prepared: int,
    nodes: int = 1,
) -> RunSize | None:
    """What is read, by the sizes in the index; where it has none, as the table of one shard says.

    Args:
        index: The shards and their counts; some are remote. Each component of a mixture counts by
            itself, as their samples differ in size.
        order: The order of their samples.
        folder: Where tables are kept.
        settings: How remote shards are reached.
        prepared: Samples of a batch times the workers of a node.
        nodes: How many nodes read from the same window.

    Returns:
        None where nothing is fetched ahead: in the order of the files, or without samples.

    Raises:
        ShardError: The table of the shard cannot be had, and the index has no sizes.
    """
    if order.identity()["sampling"] == "sequential" or index.counts is None or not index.samples:
        return None
    blocks = blocks_of_window(prepared * nodes, samples_of_blocks(order))
    parts = [
        _Part.of(part.samples or 0, each, found, blocks, prepared)
        for part, each in zip(index.parts, components_of(order), strict=True)
        if (found := _bytes_of(part, folder, settings)) is not None
    ]
    if not parts:
        return None
    size, tables, works, are_drawn = zip(*parts, strict=True)
    read = sum(size) // shares_of_nodes(order, nodes), sum(tables), sum(works)
    groups = groups_of(url for url in index.urls if not is_local(url))
    return RunSize(_data_of(index), *read, groups, all(are_drawn))


class _Part(NamedTuple):
    """What is read of one component, or of all shards where there are none.

    Attributes:
        size_bytes: Of its shards.
        tables_bytes: Of their tables.
        works_bytes: Of what is worked on.
        is_drawn: Whether its runs are drawn, of which no piece comes again.
    """

    size_bytes: int
    tables_bytes: int
    works_bytes: int
    is_drawn: bool

    @classmethod
    def of(
        cls, samples: int, order: Order, found: tuple[int, int], blocks: int, prepared: int
    ) -> "_Part":
        """With so many blocks in a window."""
        size, tables = found
        works = working_set_of(size, samples, blocks * _read_of_block(order), prepared)
        is_drawn = is_drawn_anew(str(order.identity()["sampling"]), size, samples)
        return cls(size, tables, works, is_drawn)


def _data_of(index: ShardIndex) -> str:
    """A name of the data that is read: equal file names in another folder are other data."""
    return _hash("\n".join(map(without_credentials, index.urls)))[:16]


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()


def _read_of_block(order: Order) -> int:
    """Samples that are read for one block of an order without components, on average at most."""
    samples = block_of(order) or WINDOW
    order = order.inner if isinstance(order, AlikeOrder) else order
    return order.with_gaps(samples) if isinstance(order, KeptOrder) else samples


def _bytes_of(
    index: ShardIndex, folder: CacheFolder, settings: TransportSettings
) -> tuple[int, int] | None:
    """Of all shards and of their tables as they are kept; None if none is read from afar."""
    counts, samples = index.counts, index.samples
    assert counts is not None  # the caller sees to it
    shards = (number for number, url in enumerate(index.urls) if not is_local(url))
    first = next((number for number in shards if counts[number]), None)
    if first is None or not samples:
        return None
    url, count = index.urls[first], int(counts[first])
    if index.size_bytes is None:
        of_shard, of_table = _bytes_of_shard(url, count, folder, settings)
        return of_shard * samples // count, of_table * index.num_shards
    with suppress(OSError):  # the table is not there yet
        return index.size_bytes, folder.sidecar_of(url).stat().st_size * index.num_shards
    return index.size_bytes, _TABLE_BYTES * samples


def _bytes_of_shard(
    url: str, count: int, folder: CacheFolder, settings: TransportSettings
) -> tuple[int, int]:
    """Of a shard, and of its table as it is kept."""
    with closing(Storages(remote_storages(settings))) as storages:
        table = TableStore(folder, storages=storages).table_of(url, expected_samples=count)
    with suppress(OSError):
        return table.file_size, folder.sidecar_of(url).stat().st_size
    return table.file_size, 0  # it is in memory
