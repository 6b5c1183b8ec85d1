"""The cache of a run: what the run needs of it, and whether there is room for that."""

import logging
import os
import time
from contextlib import suppress
from functools import cache
from typing import Final, NamedTuple

from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.remote.byte_ranges import is_sample_the_unit
from lightning_shards.shards.remote.cache.limits import (
    GIB,
    LEFT_FREE_BYTES,
    CacheNeed,
    default_limit,
    has_room,
)
from lightning_shards.shards.remote.cache.piece_cache import PieceCache
from lightning_shards.shards.remote.cache.piece_folder import PieceFolder, folder_of_pieces

_WINDOWS: Final = 2  # that which is read and the next one
_BATCHES: Final = 3  # of large samples: that which is read and two that follow

_log = logging.getLogger(__name__)


class RunSize(NamedTuple):
    """How much data the processes of a run on one node read, and how much of it at a time.

    Attributes:
        data: By what the data is recognised that several runs read: a hash of the URLs.
        size_bytes: Bytes of all shards.
        tables_bytes: Bytes of their member tables.
        working_set_bytes: What is worked on at a time; see `working_set_of`.
        groups: The groups of the pieces of its shards; see `piece_files.groups_of`.
        is_drawn: Whether runs are drawn, of which no piece comes again.
    """

    data: str
    size_bytes: int
    tables_bytes: int
    working_set_bytes: int
    groups: tuple[str, ...] = ()
    is_drawn: bool = False


def is_drawn_anew(sampling: str, size_bytes: int, samples: int) -> bool:
    """Whether runs begin at other samples in each epoch; of large samples each is a piece."""
    return sampling == "resampled" and not is_sample_the_unit(size_bytes, samples)


def working_set_of(size_bytes: int, samples: int, window: int, prepared: int) -> int:
    """Bytes that a node works on: two windows, or of large samples three times what it prepares.

    >>> working_set_of(1000 * 2**10, 1000, window=100, prepared=32)
    204800
    >>> working_set_of(1000 * 2**20, 1000, window=100, prepared=32)
    100663296

    Args:
        size_bytes: Bytes of all shards.
        samples: Samples in them.
        window: Samples whose pieces are announced together.
        prepared: Samples of a batch times the processes of the node that prepare batches.
    """
    is_large = is_sample_the_unit(size_bytes, samples)
    at_a_time = _BATCHES * prepared if is_large else _WINDOWS * window
    return min(size_bytes, size_bytes * at_a_time // max(samples, 1))


def cache_of_run(
    folder: CacheFolder, run: str, size: RunSize, cache_gib: float | None = None
) -> PieceCache | None:
    """The cache that all processes of a run on this node read through; it is given to them.

    It is made where a run is set up.

    Args:
        folder: The cache folder of the user.
        run: A name that all processes of this run have, and no other run.
        size: What the run reads.
        cache_gib: The limit in GiB. Default: three quarters of the disk, 50 GiB always left.

    Returns:
        None if the default limit is too low, with a warning: batches are then read exactly.

    Raises:
        ConfigError: The limit that was given is too low.
        FileAccessError: The folder belongs to another user, or others may write to it.
        OSError: It cannot be made or read.
    """
    path = folder_of_pieces(folder)
    pieces = PieceFolder(folder, path)
    folder.make_folder(path)
    limit, left_free = _limit(pieces, cache_gib)
    working_set, tables = size.working_set_bytes, size.tables_bytes
    sizes = (limit, size.size_bytes, working_set, tables, left_free)
    need = CacheNeed(size.data, *sizes, size.groups, time.time_ns(), size.is_drawn)
    if has_room(need, is_set=cache_gib is not None):
        return PieceCache(folder, path, run, need)
    _warn_once(
        f"nothing is kept of remote shards: {folder.root} has {limit / GIB:.3g} GiB for it, and "
        f"the block that is read and the one that follows have {working_set / GIB:.3g} GiB, the "
        f"member tables {tables / GIB:.3g} GiB; name a folder with more room as cache_dir, or set "
        "cache_gib or a smaller shuffle_block"
    )
    return None


@cache
def _warn_once(message: str) -> None:
    """Each loader of a run would say it again."""
    _log.warning("%s", message)


def _limit(pieces: PieceFolder, cache_gib: float | None) -> tuple[int, int]:
    """What pieces may take, and what is left free on the disk."""
    if cache_gib is not None:
        return round(cache_gib * GIB), 0
    used = 0
    with suppress(FileNotFoundError):  # there is none yet, or another process removes it
        used = sum(piece.size for piece in pieces.pieces())
    path = pieces.path.absolute()
    disk = os.statvfs(next(above for above in (path, *path.parents) if above.exists()))
    return default_limit(disk.f_bavail * disk.f_frsize, used), LEFT_FREE_BYTES
