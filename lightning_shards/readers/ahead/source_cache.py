"""The cache of a source of remote shards, sized by the member table of one of them."""

import hashlib
import logging
from contextlib import closing, suppress
from typing import Final

from lightning_shards.errors import FileAccessError
from lightning_shards.plan.kept_order import KeptOrder
from lightning_shards.plan.mixtures.mixture import MixtureOrder
from lightning_shards.plan.order import Order
from lightning_shards.plan.pieces import WINDOW
from lightning_shards.plan.place import Place
from lightning_shards.plan.schedule import EpochSchedule
from lightning_shards.shards.index import ShardIndex
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.remote.cache.piece_cache import PieceCache
from lightning_shards.shards.remote.cache.piece_names import groups_of
from lightning_shards.shards.remote.cache.run_cache import RunSize, cache_of_run
from lightning_shards.shards.remote.transport import TransportSettings
from lightning_shards.shards.storage.schemes import Storages, remote_storages
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

    Runs of one job and split with equal settings count as one run: the ranks of a node.

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
    run = _hash(f"{job} {split} {size} {order.identity()['seed']} {cache_gib}")[:32]
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
) -> RunSize | None:
    """What is read, by the sizes in the index, or as if all samples were as large as those of one.

    Args:
        index: The shards and their counts; some are remote.
        order: The order of their samples.
        folder: Where tables are kept.
        settings: How remote shards are reached.
        prepared: Samples of a batch times the workers of a node.

    Returns:
        None where nothing is fetched ahead: in the order of the files, or without samples.

    Raises:
        ShardError: The table of the shard cannot be had, and the index has no sizes.
    """
    if order.identity()["sampling"] == "sequential" or index.counts is None or not index.samples:
        return None
    shards = (number for number, url in enumerate(index.urls) if not is_local(url))
    first = next((number for number in shards if index.counts[number]), None)
    if first is None:
        return None
    url, count = index.urls[first], int(index.counts[first])
    if index.size_bytes is not None and not folder.sidecar_of(url).exists():
        size, tables = index.size_bytes, _TABLE_BYTES * index.samples
    else:
        of_shard, of_table = _bytes_of(url, count, folder, settings)
        size, tables = of_shard * index.samples // count, of_table * index.num_shards
    block = sum(map(_read_of_block, _components(order)))
    groups = groups_of(url for url in index.urls if not is_local(url))
    return RunSize(_data_of(index), size, index.samples, tables, block, prepared, groups)


def window_of(order: Order, epochs: EpochSchedule, place: Place) -> int:
    """The window of `plan.pieces` with which no more is read at a time than a cache is told of.

    A block of each component, or what all workers prepare at once where that is more.
    """
    prepared = epochs.batch_size * place.world_size * place.num_workers
    return max(sum(_block_of(each) or WINDOW for each in _components(order)), prepared)


def _components(order: Order) -> list[Order]:
    return [each.order for each in order.mix] if isinstance(order, MixtureOrder) else [order]


def _block_of(order: Order) -> int:
    """Samples that are shuffled together; 0 where there are no blocks."""
    block = int(order.identity().get("shuffle_block", 1))
    return block if block > 1 else 0


def _data_of(index: ShardIndex) -> str:
    """A name of the data that is read: equal file names in another folder are other data."""
    return _hash("\n".join(map(without_credentials, index.urls)))[:16]


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()


def _read_of_block(order: Order) -> int:
    """Samples that are read for one block of an order without components, on average at most."""
    samples = _block_of(order) or WINDOW
    return order.with_gaps(samples) if isinstance(order, KeptOrder) else samples


def _bytes_of(
    url: str, count: int, folder: CacheFolder, settings: TransportSettings
) -> tuple[int, int]:
    """Of a shard, and of its table as it is kept."""
    with closing(Storages(remote_storages(settings))) as storages:
        table = TableStore(folder, storages=storages).table_of(url, expected_samples=count)
    with suppress(OSError):
        return table.file_size, folder.sidecar_of(url).stat().st_size
    return table.file_size, 0  # it is in memory
