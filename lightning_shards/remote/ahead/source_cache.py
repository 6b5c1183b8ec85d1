"""The cache of a source of remote shards, sized by the member table of one of them."""

import hashlib
import logging
from contextlib import closing, suppress
from typing import Final

from lightning_shards.errors import FileAccessError
from lightning_shards.plan.alike import AlikeOrder
from lightning_shards.plan.kept_order import KeptOrder
from lightning_shards.plan.order import Order
from lightning_shards.plan.pieces import WINDOW
from lightning_shards.plan.strands import shares_of_nodes
from lightning_shards.remote.ahead.piece_plan import (
    block_of,
    blocks_of_window,
    components_of,
    samples_of_blocks,
)
from lightning_shards.remote.byte_ranges import is_sample_the_unit
from lightning_shards.remote.cache import CacheNeed, PieceCache, cache_of_run
from lightning_shards.remote.storage import remote_storages
from lightning_shards.remote.transport import TransportSettings
from lightning_shards.shards.index import ShardIndex
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.storage.schemes import Storages
from lightning_shards.shards.tables import TableStore
from lightning_shards.shards.urls import is_local, without_credentials

_TABLE_BYTES: Final = 80
"""Bytes a sample of a kept table, where none has been looked at: samples of two members have 73."""

_LARGE_BATCHES: Final = 3
"""Batches of large samples that are worked on: that which is read and two that follow."""

_MESSAGE_BYTES, _MESSAGE_BATCHES = 1 << 22, 16
"""A worker hands over several small batches in one message, which has so much at most."""

_log = logging.getLogger(__name__)


def cache_of_source(
    need: CacheNeed | None,
    run: tuple[str, ...],
    folder: CacheFolder,
    cache_gib: float | None = None,
) -> PieceCache | None:
    """The cache that all processes of a node read these remote shards through.

    Args:
        need: What is read; None if nothing is fetched ahead.
        run: What only the ranks of one job have in common that read this split.
        folder: The cache folder of the user.
        cache_gib: The limit in GiB that the user set; None: the default.

    Returns:
        None without a need and, with a warning, where the default limit is too low or the user has
        no folder that can be written to.

    Raises:
        ConfigError: The limit that was given is too low.
        FileAccessError: The folder belongs to another user, or others may write to it.
    """
    if need is None:
        return None
    try:
        return cache_of_run(folder, _hash(" ".join((*run, need.data)))[:32], need, cache_gib)
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
    messages: int = 0,
    batch_size: int = 1,
    nodes: int = 1,
) -> CacheNeed | None:
    """What is read, by the sizes in the index; where it has none, as the table of one shard says.

    Each component of a mixture counts by itself. `messages` are those of batches that the workers
    of a node keep ready, `prepared` the samples of a batch times these workers; `nodes` read from
    the same window. None: nothing is fetched ahead, as in the order of the files.

    Raises:
        ShardError: The table of the shard cannot be had, and the index has no sizes.
    """
    if order.identity()["sampling"] == "sequential" or index.counts is None or not index.samples:
        return None
    of_blocks = samples_of_blocks(order)
    blocks = blocks_of_window(prepared * nodes, of_blocks)
    size, tables, works, are_drawn = 0, 0, 0, list[bool]()
    for part, each in zip(index.parts, components_of(order), strict=True):
        samples, found = part.samples or 0, _bytes_of(part, folder, settings)
        if found is None:
            continue
        is_large = is_sample_the_unit(found[0], samples)
        ready = messages * nodes * _samples_of_message(batch_size, found[0] // samples)
        small = 2 * blocks * _read_of_block(each) + ready * (block_of(each) or WINDOW) // of_blocks
        read = _LARGE_BATCHES * prepared if is_large else small
        size, tables = size + found[0], tables + found[1]
        works += min(found[0], found[0] * read // samples)
        are_drawn.append(each.identity()["sampling"] == "resampled" and not is_large)
    if not are_drawn:
        return None
    size //= shares_of_nodes(order, nodes)
    return CacheNeed(_data_of(index), size, works, tables, is_drawn=all(are_drawn))


def _samples_of_message(batch_size: int, sample_bytes: int) -> int:
    in_message = _MESSAGE_BYTES // max(sample_bytes, 1)
    return max(batch_size, min(_MESSAGE_BATCHES * batch_size, in_message))


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
