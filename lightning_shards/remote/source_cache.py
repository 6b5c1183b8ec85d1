"""What a source needs of the cache of remote shards, by the size of one of them."""

import hashlib
from contextlib import closing

from lightning_shards.plan.alike import AlikeOrder
from lightning_shards.plan.kept_order import KeptOrder
from lightning_shards.plan.order import Order
from lightning_shards.plan.pieces import block_of, components_of, samples_of_blocks
from lightning_shards.plan.strands import shares_of_nodes
from lightning_shards.remote.byte_ranges import is_sample_the_unit
from lightning_shards.remote.cache import CacheNeed
from lightning_shards.remote.storage import remote_storages
from lightning_shards.remote.transport import TransportSettings
from lightning_shards.shards.index import ShardIndex
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.storage.schemes import Storages
from lightning_shards.shards.tables import TableStore
from lightning_shards.shards.urls import is_local, without_credentials

_LARGE_BATCHES = 3
"""Batches of large samples that are worked on: that which is read and two that follow."""

_MESSAGE_BYTES, _MESSAGE_BATCHES = 1 << 22, 16
"""A worker hands over several small batches in one message, which has so much at most."""


def need_of_source(
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
    of_blocks, reads, works = samples_of_blocks(order), 0, 0
    blocks = -(-prepared * nodes // of_blocks)
    for part, each in zip(index.parts, components_of(order), strict=True):
        samples, size = part.samples or 0, _bytes_of(part, folder, settings)
        if not size or not samples:
            continue
        is_large = is_sample_the_unit(size, samples)
        in_message = min(_MESSAGE_BATCHES * batch_size, _MESSAGE_BYTES * samples // size)
        ready = messages * nodes * max(batch_size, in_message)
        small = 2 * blocks * _read_of_block(each) + ready * block_of(each) // of_blocks
        at_a_time = _LARGE_BATCHES * prepared if is_large else small
        reads, works = reads + size, works + min(size, size * at_a_time // samples)
    if not reads:
        return None
    urls = "\n".join(map(without_credentials, index.urls))
    data = hashlib.sha256(urls.encode(errors="surrogateescape")).hexdigest()[:16]
    return CacheNeed(data, reads // shares_of_nodes(order, nodes), works)


def _read_of_block(order: Order) -> int:
    """Samples that are read for one block of an order without components, on average at most."""
    samples = block_of(order)
    order = order.inner if isinstance(order, AlikeOrder) else order
    return order.with_gaps(samples) if isinstance(order, KeptOrder) else samples


def _bytes_of(index: ShardIndex, folder: CacheFolder, settings: TransportSettings) -> int:
    """Of all shards; 0 if none is read from afar."""
    counts, samples = index.counts, index.samples or 0
    assert counts is not None  # the caller sees to it
    shards = (number for number, url in enumerate(index.urls) if not is_local(url))
    first = next((number for number in shards if counts[number]), None)
    if first is None:
        return 0
    if index.size_bytes is not None:
        return index.size_bytes
    count = int(counts[first])
    with closing(Storages(remote_storages(settings))) as storages:
        store = TableStore(folder, storages=storages)
        table = store.table_of(index.urls[first], expected_samples=count)
    return table.file_size * samples // count
