"""How large a cache may be, and which pieces stay in it: arithmetic.

Where a node reads more than the cache holds, a fixed fraction of the pieces is kept for the next
epoch, by a number that each piece has for ever, and the others are dropped, oldest first. Keeping
what was used last would be worse: in random orders a cache for half of the data then gives 16 % of
it, and a cache for a quarter 4 %; the fixed half gives 49 %, the fixed quarter 25 %.

A folder has one limit, whatever the number of runs that have it open. Pieces of data that no open
run reads go first.
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

_STAYS: Final = 2  # behind what nobody reads, 0, and what does not stay, 1

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
        groups: The groups of the pieces that it reads; see `piece_files.groups_of`.
        begun_ns: When it was set up, as files have their times.
        is_drawn: Whether its runs are drawn anew in each epoch, so that none of its pieces is ever
            read again.
    """

    data: str
    limit_bytes: int
    reads_bytes: int
    working_set_bytes: int
    tables_bytes: int = 0
    left_free_bytes: int = 0
    groups: tuple[str, ...] = ()
    begun_ns: int = 0
    is_drawn: bool = False


class CachedPiece(NamedTuple):
    """One file of the cache.

    Attributes:
        path: Where it is.
        size: Its bytes.
        changed_ns: When it came.
        share: The number of its piece, from 0 to 1.
        group: Its group; see `piece_files.group_of`.
    """

    path: str
    size: int
    changed_ns: int
    share: float
    group: str = ""


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
    """What pieces may take: the limit, less the tables."""
    limit = max((need.limit_bytes for need in needs), default=0)
    return max(0, limit - _tables_bytes(needs))


def kept_fraction(needs: Collection[CacheNeed]) -> float:
    """The fraction of all pieces that stay for the next epoch, from 0 to 1.

    >>> kept_fraction([CacheNeed("a", 160, reads_bytes=1050, working_set_bytes=50)])
    0.1
    >>> kept_fraction([CacheNeed("a", 160, reads_bytes=100, working_set_bytes=50)])
    1.0
    """
    if needs and all(need.is_drawn for need in needs):
        return 0.0
    limit, reads, works = limit_of_pieces(needs), _staying_bytes(needs), working_bytes(needs)
    if reads + sum(need.working_set_bytes for need in needs if need.is_drawn) <= limit:
        return 1.0
    # Of what they work on, the same fraction stays. So its bytes are looked for in the rest alone.
    return max(limit - works - limit // _SLACK, 0) / max(reads - works, 1)


def working_bytes(needs: Iterable[CacheNeed]) -> int:
    """What the runs work on together."""
    return sum(need.working_set_bytes for need in needs)


def _staying_bytes(needs: Iterable[CacheNeed]) -> int:
    """What is read of the data of which pieces come again; runs that read the same share them."""
    reads: dict[str, int] = {}
    for need in needs:
        if not need.is_drawn:
            reads[need.data] = max(need.reads_bytes, reads.get(need.data, 0))
    return sum(reads.values())


def _tables_bytes(needs: Iterable[CacheNeed]) -> int:
    """What member tables take: those of the same data are shared."""
    tables: dict[str, int] = {}
    for need in needs:
        tables[need.data] = max(need.tables_bytes, tables.get(need.data, 0))
    return sum(tables.values())


def pieces_to_drop(
    pieces: Iterable[CachedPiece], needs: Collection[CacheNeed], lacking_bytes: int
) -> list[CachedPiece]:
    """Which pieces make so many bytes free, the first to go first.

    First those go that no open run reads, if they are older than all of these runs, and the oldest
    of those that would stay, as far as these are more than stay of what is read: they may belong to
    other settings or to a version that was replaced. Then those go that do not stay; of pieces that
    stay some are dropped only if the others are not enough. The oldest go first. Younger ones that
    no open run reads may be those of an evaluation between two epochs.
    """
    since_ns = min((need.begun_ns for need in needs), default=0)
    groups = {group for need in needs for group in need.groups}
    drawn = groups - {group for need in needs if not need.is_drawn for group in need.groups}
    fraction = kept_fraction(needs)

    def sort_key(piece: CachedPiece) -> tuple[int, int, str]:
        is_read = piece.group in groups or piece.changed_ns >= since_ns
        stays = is_read and piece.group not in drawn and piece.share < fraction
        return (_STAYS if stays else int(is_read)), piece.changed_ns, piece.path

    ordered = sorted(pieces, key=sort_key)
    staying = [each for each in ordered if each.group in groups and sort_key(each)[0] == _STAYS]
    most = fraction * _staying_bytes(needs) + limit_of_pieces(needs) // _SLACK
    beyond = _first_bytes(staying, math.ceil(sum(piece.size for piece in staying) - most))
    first = set(beyond)
    return _first_bytes([*beyond, *(each for each in ordered if each not in first)], lacking_bytes)


def _first_bytes(pieces: Iterable[CachedPiece], size: int) -> list[CachedPiece]:
    """The first ones that have so many bytes together."""
    taken: list[CachedPiece] = []
    for piece in pieces:
        if size <= 0:
            break
        taken.append(piece)
        size -= piece.size
    return taken


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
    limit = most_bytes + _tables_bytes(needs)
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
