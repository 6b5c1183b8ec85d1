"""What a process fetches ahead: the pieces of the block that is read and of the next, as bytes.

`plan.pieces` names the pieces of each block by their samples, and the member tables say which bytes
these are. All processes of a node know the same list, and each begins with its share of it: every
n-th piece. When that is there, it goes on with what the others have not fetched yet, so that no
piece waits for a process that lags or has ended.

From the middle of a block on, only the next one is fetched. A piece of this block would come when
half of its samples have been read already, and where the network is hardly faster than the model
the next block would never be complete when it begins.

Where samples are large, a piece is a sample, and what is fetched ahead are the process's own next
batches.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, takewhile
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lightning_shards.errors import ConfigError
from lightning_shards.plan.epoch import EpochSchedule
from lightning_shards.plan.mixture import MixtureOrder
from lightning_shards.plan.order import Order
from lightning_shards.plan.pieces import WINDOW, BlockPieces, pieces_ahead
from lightning_shards.plan.place import Cursor, Place
from lightning_shards.remote.byte_ranges import (
    bytes_of_samples,
    is_sample_the_unit,
    is_whole_faster,
)
from lightning_shards.shards.members import MemberTable
from lightning_shards.shards.storage.protocol import ShardReads

_Ints = NDArray[np.int64]

TablesOf = Callable[[Sequence[int]], Sequence[MemberTable]]
"""The member tables of shards, by their numbers."""

RequireSame = Callable[[Sequence[int]], None]
"""Raises IndexMismatchError if one of these shards was replaced since its members were listed."""

_TABLES: Final = 128
"""Member tables that are held at a time; each has a file descriptor."""

_NEAR: Final = 1 << 14
"""Bytes between neighbours in a shard up to which a read may go from one to the other."""


class PlannedBlock(NamedTuple):
    """A block, or a batch of large samples, and the pieces of it as this process fetches them.

    Attributes:
        turn: How many epochs lie between the cursor and that of the block.
        start: Its first position in the epoch.
        stop: The position behind its last one.
        reads: One range each: first what this process fetches, then the share of the others. Pieces
            of which so little is used that their samples are read one by one are not there.
    """

    turn: int
    start: int
    stop: int
    reads: list[ShardReads]


class Announcement(NamedTuple):
    """What is to be fetched from a position of the sequence on, and nothing else.

    Attributes:
        turn: As of `PlannedBlock`.
        position: In the epoch.
        stop: The position behind the block, where another announcement follows.
        reads: One range each, in the order in which they are fetched.
    """

    turn: int
    position: int
    stop: int
    reads: list[ShardReads]


@dataclass(frozen=True)
class PiecePlan:
    """What the pieces of a process follow from.

    Attributes:
        order: The order of samples.
        epochs: How the sequence is cut into epochs and steps.
        cursor: Where the process begins; the same for all processes of the node.
        place: Of this process.
        ranks: The data-parallel ranks of the node.
        urls: Of all shards, by their numbers.
        tables_of: Gives their member tables.
        require_same: Asks the stores whether shards are what their tables say. Where all of a
            shard is in the cache, no read would show that its object was replaced, so one process
            of the node asks once for each shard. None: nobody asks.
        window: Positions that are looked at together where blocks are smaller.
        checked: The shards that this process has asked about.
    """

    order: Order
    epochs: EpochSchedule
    cursor: Cursor
    place: Place
    ranks: Sequence[int]
    urls: Sequence[str]
    tables_of: TablesOf
    require_same: RequireSame | None = None
    window: int = WINDOW
    checked: set[int] = field(default_factory=set[int], init=False, repr=False, compare=False)

    def announcements(self) -> Iterator[Announcement]:
        """What to fetch from the cursor on, block after block, without end.

        Asking for the next one costs time for one block, and reads the tables of its shards.

        Raises:
            IndexMismatchError: A shard is another one than when its members were listed.
            ShardError: A member table cannot be read.
        """
        block, is_large = next(blocks := self._blocks())
        if is_large:
            yield from self._of_batches()
            return
        yield Announcement(*block)
        for following, _ in blocks:
            turn, start, stop, reads = block
            yield Announcement(turn, start, stop, reads + following.reads)
            yield Announcement(turn, (start + stop) // 2, stop, following.reads)
            block = following

    def first_epoch(self) -> Iterator[PlannedBlock]:
        """What the node needs of the cursor's epoch, block after block or batch after batch.

        Raises:
            ShardError: As of `announcements`.
        """
        block, is_large = next(blocks := self._blocks())
        following = (each for each, _ in blocks)
        ahead = self._batches_of_ranks() if is_large else chain([block], following)
        yield from takewhile(lambda planned: not planned.turn, ahead)

    def _batches_of_ranks(self) -> Iterator[PlannedBlock]:
        """The batches of all ranks of the node, step after step."""
        places = [Place(rank, self.place.world_size) for rank in self.ranks]
        of_ranks = (self._batches(place) for place in places)
        return chain.from_iterable(zip(*of_ranks, strict=True))

    def _blocks(self) -> Iterator[tuple[PlannedBlock, bool]]:
        """The blocks of the node, and whether their samples are large.

        One process of the node asks for each shard whether it is the same.
        """
        ahead = pieces_ahead(
            self.order,
            self.epochs,
            self.cursor,
            ranks=self.ranks,
            world_size=self.place.world_size,
            window=self.window,
        )
        process, processes = share_of_process(self.place, self.ranks)
        for block in ahead:
            pieces = self._pieces(block.shards, block.starts, block.stops)
            self._check([s for s in pieces.stamps if s % processes == process])
            numbers = np.arange(len(block.shards))
            is_of_others = numbers % processes != process
            in_order = np.argsort(is_of_others, kind="stable")
            is_wanted = _is_worth_it(block, pieces)
            reads = self._reads(pieces, in_order[is_wanted[in_order]])
            samples = int((block.stops - block.starts).sum())
            is_large = is_sample_the_unit(int((pieces.ends - pieces.begins).sum()), samples)
            yield PlannedBlock(block.turn, block.start, block.stop, reads), is_large

    def _check(self, shards: Sequence[int]) -> None:
        """Ask whether those of these shards are the same that were not asked about before."""
        new = set(shards) - self.checked
        if self.require_same is not None and new:
            self.require_same(sorted(new))
        self.checked.update(new)

    def _of_batches(self) -> Iterator[Announcement]:
        """While a batch is read, which is done at once, the two that follow are fetched."""
        batches = self._batches(self.place)
        ahead = deque([next(batches), next(batches)])
        for batch in batches:
            ahead.append(batch)
            reading = ahead.popleft()
            reads = [read for following in ahead for read in following.reads]
            place = reading.turn, reading.start, reading.stop
            yield Announcement(*place, reads)

    def _batches(self, place: Place) -> Iterator[PlannedBlock]:
        """The batches of one process, each sample as a piece."""
        for turn, epoch in enumerate(self.epochs.worker_epochs(place, self.cursor)):
            for step in epoch.own_steps():
                start, stop = epoch.span(step)
                shards, samples = self.order.at(epoch.epoch, start, stop).T
                pieces = self._pieces(shards, samples, samples + 1)
                self._check(list(pieces.stamps))
                rows = np.flatnonzero(pieces.begins < pieces.ends)
                yield PlannedBlock(turn, start, stop, self._reads(pieces, rows))

    def _pieces(self, shards: _Ints, starts: _Ints, stops: _Ints) -> "_PieceBytes":
        """The bytes of consecutive samples of shards, int64 of one shape (pieces,)."""
        begins, ends = np.zeros_like(starts), np.zeros_like(starts)
        by_shard = np.argsort(shards, kind="stable")
        numbers, firsts = np.unique(shards[by_shard], return_index=True)
        groups = np.split(by_shard, firsts[1:])
        stamps: dict[int, tuple[int, int]] = {}
        for first in range(0, len(numbers), _TABLES):
            some: list[int] = numbers[first : first + _TABLES].tolist()
            tables = self.tables_of(some)
            for table, rows in zip(tables, groups[first : first + _TABLES], strict=True):
                begins[rows], ends[rows] = _bytes_of(table, starts[rows], stops[rows])
            stamps |= dict(zip(some, (table.stamp for table in tables), strict=True))
        return _PieceBytes(shards, begins, ends, stamps)

    def _reads(self, pieces: "_PieceBytes", rows: NDArray[np.intp]) -> list[ShardReads]:
        shards: list[int] = pieces.shards[rows].tolist()
        begins: list[int] = pieces.begins[rows].tolist()
        return [
            ShardReads(self.urls[shard], [begin], [end], pieces.stamps[shard])
            for shard, begin, end in zip(shards, begins, pieces.ends[rows].tolist(), strict=True)
        ]


class _PieceBytes(NamedTuple):
    """Where pieces lie in their shards.

    Attributes:
        shards: int64 of shape (pieces,).
        begins: The first byte of each.
        ends: The byte behind its last one; it begins there, too, if it has no member.
        stamps: What each shard must be, by its number.
    """

    shards: _Ints
    begins: _Ints
    ends: _Ints
    stamps: dict[int, tuple[int, int]]


def share_of_process(place: Place, ranks: Sequence[int]) -> tuple[int, int]:
    """The number of a process among those that fetch on its node, and how many these are.

    >>> share_of_process(Place(rank=5, world_size=8, worker=1, num_workers=2), ranks=[4, 5, 6, 7])
    (3, 8)

    Raises:
        ConfigError: The rank is not one of the node.
    """
    if place.rank not in ranks:
        raise ConfigError(
            f"rank {place.rank} is not on its own node, which has ranks {list(ranks)}; take them "
            "from the trainer"
        )
    number = sorted(set(ranks)).index(place.rank)
    return number * place.num_workers + place.worker, len(set(ranks)) * place.num_workers


def _bytes_of(table: MemberTable, starts: _Ints, stops: _Ints) -> tuple[_Ints, _Ints]:
    """Begin and end of the bytes of samples; to the next sample's, if that follows at once.

    So neighbours leave no hole, and a read may go from one piece to the other.
    """
    begins, ends = bytes_of_samples(
        table.sample_starts, table.offsets, table.sizes, (starts, stops)
    )
    following = table.sample_starts[stops]  # the number of the first member behind the piece
    is_near = (begins < ends) & (following < len(table.offsets))
    following_begins = table.offsets[np.where(is_near, following, 0)] if len(table.offsets) else 0
    is_near &= following_begins - ends <= _NEAR
    return begins, np.where(is_near, following_begins, ends)


def _is_worth_it(block: BlockPieces, pieces: _PieceBytes) -> NDArray[np.bool_]:
    """Whether a whole piece takes less time than what the node uses of it, sample by sample.

    It does not where little is left of a block, or where many nodes share the samples.
    """
    sizes = pieces.ends - pieces.begins
    size_of_sample = sizes / (block.stops - block.starts)
    return (sizes > 0) & is_whole_faster(sizes, size_of_sample, block.uses)


def blocks_of_window(prepared: int, of_blocks: int) -> int:
    """Whole blocks in a window: it holds what is prepared, and is read to the end of a block.

    >>> blocks_of_window(80, of_blocks=40), blocks_of_window(81, of_blocks=40)
    (2, 3)

    Args:
        prepared: Samples that all workers of all nodes prepare at once.
        of_blocks: Samples of a block of each component together.
    """
    return -(-prepared // of_blocks)


def window_of(order: Order, epochs: EpochSchedule, place: Place) -> int:
    """The window of `plan.pieces` with which no more is read at a time than a cache is told of.

    A block of each component, or so many that they hold what all workers prepare at once.
    """
    prepared = epochs.batch_size * place.world_size * place.num_workers
    of_blocks = samples_of_blocks(order)
    return blocks_of_window(prepared, of_blocks) * of_blocks


def samples_of_blocks(order: Order) -> int:
    """Samples of a block of each component together."""
    return sum(block_of(each) or WINDOW for each in components_of(order))


def components_of(order: Order) -> list[Order]:
    """The orders of a mixture's components, or this order alone."""
    return [each.order for each in order.mix] if isinstance(order, MixtureOrder) else [order]


def block_of(order: Order) -> int:
    """Samples that are shuffled together; 0 where there are no blocks."""
    block = int(order.identity().get("shuffle_block", 1))
    return block if block > 1 else 0
