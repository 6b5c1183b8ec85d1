"""The pieces of whole epochs, for the time when all of them are in the cache.

Where a cache has room for all that its node reads, nothing is fetched after the first epoch. Each
process would still work out the pieces of each block, and find them there: where samples are small
that takes a fifth of its time, and slows down what reads beside it. So the pieces that were
announced are remembered. When a later epoch begins to name none but these, and all of them are in
the cache, they can be announced together, and no block any more until a batch lacks something.
"""

from collections.abc import Callable
from typing import Final

from lightning_shards.readers.ahead.piece_plan import Announcement
from lightning_shards.shards.storage.protocol import ShardReads

_MOST: Final = 1 << 14
"""So many pieces are 16 GiB or more, and take about 10 MB of memory in each process."""


class KnownPieces:
    """The pieces that were announced so far, up to some number of them.

    Args:
        is_kept: Whether a piece is in the cache.
        most: Where more pieces are announced, none are known.

    Attributes:
        reads: These pieces, one range each.
    """

    def __init__(self, is_kept: Callable[[ShardReads], bool], most: int = _MOST) -> None:
        self._is_kept, self._most = is_kept, most
        self._names = set[tuple[str, int, int]]()
        self.reads: list[ShardReads] = []
        self._looked_at = 0
        self._first_turn = 0

    def announced_from(self, turn: int) -> None:
        """All blocks from some position of this epoch on will be added.

        Args:
            turn: Its number, as of `Announcement`.
        """
        self._first_turn = turn

    def add(self, announcement: Announcement) -> bool:
        """Remember these pieces.

        Returns:
            Whether a whole epoch was announced, and this announcement has none but known pieces,
            and all that its node uses.
        """
        if not announcement.is_of_node:
            return False
        number = len(self._names)
        if number <= self._most:
            for read in announcement.reads:
                name = read.url, read.starts[0], read.stops[0]
                if name not in self._names:
                    self._names.add(name)
                    self.reads.append(read)
        if len(self._names) > self._most:
            self.reads.clear()
        is_all = number == len(self._names) and not announcement.rest
        return is_all and announcement.turn > self._first_turn

    def are_kept(self) -> bool:
        """Whether all are in the cache; one that was not there is the first that is looked for."""
        for _ in self.reads:
            if not self._is_kept(self.reads[self._looked_at % len(self.reads)]):
                return False
            self._looked_at += 1
        return bool(self.reads)
