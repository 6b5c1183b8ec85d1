"""How large a cache may be, and which pieces stay in it: arithmetic.

Where a node reads more than the cache holds, a fixed fraction of the pieces is kept for the next
epoch, by a number that each piece has for ever, and the others are dropped, oldest first. Keeping
what was used last would be worse: in random orders a cache for half of the data then gives 16 % of
it, and a cache for a quarter 4 %; the fixed half gives 49 %, the fixed quarter 25 %.

Several runs may have a folder open. Together they may take the largest of their limits, and each of
them as much as its own: one with a small limit empties nothing that others hold. A run is let in if
what it works on fits in beside what the open ones work on. Pieces of data that no open run reads go
first.
"""

import math
from collections.abc import Collection, Iterable, Sequence
from typing import Final, NamedTuple

from lightning_shards.errors import ConfigError

GIB: Final = 2**30

LEFT_FREE_BYTES: Final = 50 * GIB
"""What the default limit always leaves free on the disk."""

_SLACK: Final = 16
"""This part of the limit is not promised to pieces that stay: they are chosen by chance, so their
bytes vary, and an eviction makes more room than is needed at once."""

_STAYS: Final = 2  # behind what nobody reads, 0, and what does not stay, 1

_DEVIATIONS: Final = 3
"""So many standard deviations more may stay than the fraction of what is read."""

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
        groups: The groups of the pieces that it reads; see `piece_names.groups_of`.
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
        group: Its group; see `piece_names.group_of`.
    """

    path: str
    size: int
    changed_ns: int
    share: float
    group: str = ""


class OwnShare(NamedTuple):
    """What a run may hold in a folder of which another run has a larger limit.

    Attributes:
        groups: The groups of pieces that only runs with no larger limit read.
        limit_bytes: What their pieces may take.
    """

    groups: frozenset[str]
    limit_bytes: int


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
    """What pieces may take: the largest limit of all open runs, less the tables."""
    limit = max((need.limit_bytes for need in needs), default=0)
    return max(0, limit - _tables_bytes(needs))


def own_share(needs: Iterable[CacheNeed], own: CacheNeed) -> OwnShare | None:
    """What a run may hold; None where its limit is that of the folder."""
    larger = [need for need in needs if need.limit_bytes > own.limit_bytes]
    if not larger:
        return None
    of_others = {group for need in larger for group in need.groups}
    limit = max(0, own.limit_bytes - own.tables_bytes)
    return OwnShare(frozenset(own.groups) - of_others, limit)


def kept_fraction(needs: Collection[CacheNeed]) -> float:
    """The fraction of all pieces that stay for the next epoch, from 0 to 1.

    >>> kept_fraction([CacheNeed("a", 160, reads_bytes=1050, working_set_bytes=50)])
    0.1
    >>> kept_fraction([CacheNeed("a", 160, reads_bytes=100, working_set_bytes=50)])
    1.0
    """
    reads, fractions = _reads(needs), _kept_fractions(needs)
    total = sum(reads.values())
    return sum(size * fractions[data] for data, size in reads.items()) / total if total else 1.0


def _kept_fractions(needs: Collection[CacheNeed]) -> dict[str, float]:
    """The fraction that stays of each data: the same, unless a smaller limit allows less."""
    reads, works = _reads(needs), dict.fromkeys(_reads(needs), 0)
    alone: dict[str, float] = {}
    for data in reads:
        of_data = [need for need in needs if need.data == data]
        works[data] = min(sum(need.working_set_bytes for need in of_data), reads[data])
        is_drawn = all(need.is_drawn for need in of_data)
        room = limit_of_pieces(of_data)
        alone[data] = 0.0 if is_drawn else _fraction(room, reads[data], works[data])
    limit, fractions = limit_of_pieces(needs), dict[str, float]()
    left = sorted(reads, key=lambda data: (alone[data], data))
    while left:
        common = _fraction(limit, *(sum(of[data] for data in left) for of in (reads, works)))
        data = left[0]
        if alone[data] >= common:
            return fractions | dict.fromkeys(left, common)
        fractions[data] = alone[data]
        limit -= works[data] + round(alone[data] * (reads[data] - works[data]))
        left.pop(0)
    return fractions


def _fraction(limit: int, reads: int, works: int) -> float:
    """Of what is read, as much as the limit holds beside what runs work on.

    Of what they work on, the same fraction stays. So its bytes are looked for in the rest alone.
    """
    if reads <= limit:
        return 1.0
    return max(limit - works - limit // _SLACK, 0) / max(reads - works, 1)


def _reads(needs: Iterable[CacheNeed]) -> dict[str, int]:
    """What is read of each data: two runs that read the same data share its pieces."""
    reads: dict[str, int] = {}
    for need in needs:
        reads[need.data] = max(need.reads_bytes, reads.get(need.data, 0))
    return reads


def _tables_bytes(needs: Iterable[CacheNeed]) -> int:
    """What member tables take: those of the same data are shared."""
    tables: dict[str, int] = {}
    for need in needs:
        tables[need.data] = max(need.tables_bytes, tables.get(need.data, 0))
    return sum(tables.values())


def limit_for(fraction: float, need: CacheNeed) -> int:
    """The limit at which this fraction of the pieces stays, the tables included.

    >>> need = CacheNeed("a", 0, reads_bytes=1000, working_set_bytes=50)
    >>> limit = limit_for(0.5, need)
    >>> limit, round(kept_fraction([need._replace(limit_bytes=limit)]), 2)
    (560, 0.5)
    """
    if fraction >= 1:
        return need.reads_bytes + need.tables_bytes
    works = min(need.working_set_bytes, need.reads_bytes)
    wanted = works + (need.reads_bytes - works) * fraction
    with_slack = math.ceil(wanted * _SLACK / (_SLACK - 1))
    return min(with_slack, need.reads_bytes) + need.tables_bytes


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
    fractions, of_others = _kept_fractions(needs), kept_fraction(needs)
    of_groups: dict[str, float] = {}
    for need in needs:
        for group in need.groups:
            of_groups[group] = max(fractions[need.data], of_groups.get(group, 0.0))

    def sort_key(piece: CachedPiece) -> tuple[int, int, str]:
        is_read = piece.group in of_groups or piece.changed_ns >= since_ns
        stays = is_read and piece.share < of_groups.get(piece.group, of_others)
        return (_STAYS if stays else int(is_read)), piece.changed_ns, piece.path

    ordered = sorted(pieces, key=sort_key)
    beyond = _beyond_the_fraction(
        needs, [each for each in ordered if each.group in of_groups and sort_key(each)[0] == _STAYS]
    )
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


def _beyond_the_fraction(
    needs: Collection[CacheNeed], staying: Sequence[CachedPiece]
) -> list[CachedPiece]:
    """The first ones, as far as they are more than chance chooses of what is read."""
    reads, fractions = _reads(needs), _kept_fractions(needs)
    expected = sum(fractions[data] * size for data, size in reads.items())
    variance = sum(fractions[data] * (1 - fractions[data]) * size for data, size in reads.items())
    total = sum(piece.size for piece in staying)
    mean_size = total / max(len(staying), 1)
    most = expected + _DEVIATIONS * math.sqrt(variance * mean_size)
    return _first_bytes(staying, math.ceil(total - most))


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


def lack_beside(need: CacheNeed, others: Collection[CacheNeed]) -> str:
    """Why there is no room for a run beside the open ones, with the numbers; empty: there is.

    >>> train = CacheNeed("train", 4 * GIB, reads_bytes=9 * GIB, working_set_bytes=3 * GIB)
    >>> lack_beside(train._replace(data="val"), [train])
    'the open runs work on 3 GiB and this one on 3 GiB, which the largest of their limits, 4 GiB, \
does not hold beside the member tables'
    """
    limit = max(each.limit_bytes for each in (need, *others))
    works = sum(each.working_set_bytes for each in others)
    lack = works + need.working_set_bytes + _tables_bytes([need, *others]) - limit
    if not others or lack <= 0:
        return ""
    return (
        f"the open runs work on {works / GIB:.3g} GiB and this one on "
        f"{need.working_set_bytes / GIB:.3g} GiB, which the largest of their limits, "
        f"{limit / GIB:.3g} GiB, does not hold beside the member tables"
    )


def _rounded_up(size: int) -> str:
    """GiB with two digits behind the point, never less than the size.

    >>> _rounded_up(GIB + 1), _rounded_up(2 * GIB)
    ('1.01', '2.00')
    """
    return f"{-(-size * 100 // GIB) / 100:.2f}"
