"""How large a cache may be, and which pieces stay in it: arithmetic.

Where a node reads more than the cache holds, a fixed fraction of the pieces is kept for the next
epoch, by a number that each piece has for ever, and the others are dropped, oldest first. Keeping
what was used last would be worse: in random orders a cache for half of the data then gives 16 % of
it, and a cache for a quarter 4 %; the fixed half gives 49 %, the fixed quarter 25 %.
"""

import math
from collections.abc import Collection, Iterable
from typing import Final, NamedTuple

from lightning_shards.errors import ConfigError

GIB: Final = 2**30

LEFT_FREE_BYTES: Final = 50 * GIB
"""What the default limit always leaves free on the disk."""

_SLACK: Final = 16
"""This part of the limit is not promised to pieces that stay: they are chosen by chance, so their
bytes vary, and an eviction makes more room than is needed at once."""

_EVICTED_AHEAD: Final = 32
"""An eviction makes this part free at once, because it begins by looking at every file."""


class CacheNeed(NamedTuple):
    """What one run needs of the cache folder, and what it allows.

    Attributes:
        data: By what data is recognised that several runs read; a hash of the shards' URLs.
        limit_bytes: What pieces may take in the folder.
        reads_bytes: What the node reads in an epoch.
        working_set_bytes: The block that is read and the one that follows.
        tables_bytes: The member tables, which are kept beside the pieces.
        left_free_bytes: What is always left free on the disk.
    """

    data: str
    limit_bytes: int
    reads_bytes: int
    working_set_bytes: int
    tables_bytes: int = 0
    left_free_bytes: int = 0


class CachedPiece(NamedTuple):
    """One file of the cache.

    Attributes:
        path: Where it is.
        size: Its bytes.
        changed_ns: When it came.
        share: The number of its piece, from 0 to 1.
    """

    path: str
    size: int
    changed_ns: int
    share: float


def default_limit(free_bytes: int, used_bytes: int) -> int:
    """The limit where the user sets none: three quarters of the disk that is free, 50 GiB left.

    >>> default_limit(400 * GIB, 0) // GIB, default_limit(100 * GIB, 20 * GIB) // GIB
    (300, 70)

    Args:
        free_bytes: Free on the disk.
        used_bytes: What the cache takes already, which counts as free.
    """
    room = free_bytes + used_bytes
    return max(0, min(room * 3 // 4, room - LEFT_FREE_BYTES))


def limit_of_pieces(needs: Collection[CacheNeed]) -> int:
    """What pieces may take: the least limit of all open runs, less the tables."""
    limit = min((need.limit_bytes for need in needs), default=0)
    return max(0, limit - sum(need.tables_bytes for need in needs))


def kept_fraction(needs: Collection[CacheNeed]) -> float:
    """The fraction of all pieces that stay for the next epoch, from 0 to 1.

    >>> kept_fraction([CacheNeed("a", 160, reads_bytes=1000, working_set_bytes=50)])
    0.1
    >>> kept_fraction([CacheNeed("a", 160, reads_bytes=100, working_set_bytes=50)])
    1.0
    """
    limit = limit_of_pieces(needs)
    reads: dict[str, int] = {}
    for need in needs:  # two runs that read the same data share its pieces
        reads[need.data] = max(need.reads_bytes, reads.get(need.data, 0))
    total = sum(reads.values())
    if total <= limit:
        return 1.0
    room = limit - sum(need.working_set_bytes for need in needs) - limit // _SLACK
    return min(max(room / total, 0.0), 1.0)


def limit_for(fraction: float, need: CacheNeed) -> int:
    """The limit at which this fraction of the pieces stays, the tables included.

    >>> need = CacheNeed("a", 0, reads_bytes=1000, working_set_bytes=50)
    >>> limit = limit_for(0.5, need)
    >>> limit, round(kept_fraction([need._replace(limit_bytes=limit)]), 2)
    (587, 0.5)
    """
    if fraction >= 1:
        return need.reads_bytes + need.tables_bytes
    wanted = need.reads_bytes * fraction + need.working_set_bytes
    with_slack = math.ceil(wanted * _SLACK / (_SLACK - 1))
    return min(with_slack, need.reads_bytes) + need.tables_bytes


def pieces_to_drop(
    pieces: Iterable[CachedPiece], fraction: float, lacking_bytes: int
) -> list[CachedPiece]:
    """Which pieces make so many bytes free: those that do not stay come first, the oldest first.

    Of pieces that stay the oldest are dropped only if the others are not enough: these may be
    pieces of data that nobody reads any more.
    """
    ordered = sorted(
        pieces, key=lambda piece: (piece.share < fraction, piece.changed_ns, piece.path)
    )
    dropped: list[CachedPiece] = []
    for piece in ordered:
        if lacking_bytes <= 0:
            break
        dropped.append(piece)
        lacking_bytes -= piece.size
    return dropped


def evicted_ahead(limit_bytes: int, used_bytes: int) -> int:
    """Bytes that an eviction makes free beyond those that are wanted at once.

    A disk or a quota may be full long before the limit: then of what is used.
    """
    return min(limit_bytes, used_bytes) // _EVICTED_AHEAD


def lowered(needs: Collection[CacheNeed], most_bytes: int) -> list[CacheNeed]:
    """The same needs, of which pieces may take so many bytes at most.

    >>> need = CacheNeed("a", 900, reads_bytes=1000, working_set_bytes=50, tables_bytes=30)
    >>> limit_of_pieces([need]), limit_of_pieces(lowered([need], 400))
    (870, 400)
    """
    limit = most_bytes + sum(need.tables_bytes for need in needs)
    return [need._replace(limit_bytes=min(need.limit_bytes, limit)) for need in needs]


def has_room(need: CacheNeed, *, is_set: bool) -> bool:
    """Whether the cache holds what the node works with; without it batches are read exactly.

    Args:
        need: What the run needs.
        is_set: Whether the user set the limit.

    Raises:
        ConfigError: The user set it too low.
    """
    wanted = need.working_set_bytes + need.tables_bytes
    if need.limit_bytes >= wanted:
        return True
    if not is_set:
        return False
    raise ConfigError(
        f"cache_gib={need.limit_bytes / GIB:.3g} is too little: the block that is read and the "
        f"one that follows have {need.working_set_bytes / GIB:.3g} GiB, and the member tables "
        f"{need.tables_bytes / GIB:.3g} GiB; set cache_gib to {_rounded_up(wanted)} or more, or a "
        "smaller shuffle_block, or leave cache_gib out: batches are then read without a cache "
        "where the disk has no room for one"
    )


def _rounded_up(size: int) -> str:
    """GiB with two digits behind the point, never less than the size.

    >>> _rounded_up(GIB + 1), _rounded_up(2 * GIB)
    ('1.01', '2.00')
    """
    return f"{-(-size * 100 // GIB) / 100:.2f}"
