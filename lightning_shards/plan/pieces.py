"""The pieces of shards that a node needs next: stretches of samples that are read together."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lightning_shards.errors import ConfigError, PlanError
from lightning_shards.plan.epoch import EpochPlan, EpochSchedule, WorkerEpoch
from lightning_shards.plan.order import Order
from lightning_shards.plan.place import Cursor, Place

_Ints = NDArray[np.int64]

WINDOW = 16_384
"""Positions that are looked at together where an order has no blocks, or smaller ones."""

_FIRST_DRAWN = 1024
"""Positions of a shuffled block that are looked at for the order in which its pieces are used."""


class BlockPieces(NamedTuple):
    """The pieces that a node uses in one stretch of an epoch: a block, or what is left of it.

    A sample of the stretch that the node uses is in exactly one of them. All arrays are int64 of
    shape (pieces,), in the order of first use.

    Attributes:
        epoch: Number of the epoch.
        start: First position of the stretch.
        stop: The position behind its last one.
        shards: The shard of each piece.
        starts: Its first sample.
        stops: The sample behind its last one.
        first_uses: The position at which the node first uses a sample of it.
        uses: At how many positions of the stretch the node uses a sample of it.
        turn: How many epochs lie between the cursor and this one. The epochs of an evaluation
            are all epoch 0, and differ in this.
    """

    epoch: int
    start: int
    stop: int
    shards: _Ints
    starts: _Ints
    stops: _Ints
    first_uses: _Ints
    uses: _Ints
    turn: int


def pieces_ahead(
    order: Order,
    epochs: EpochSchedule,
    cursor: Cursor,
    *,
    ranks: Sequence[int],
    world_size: int,
    window: int = WINDOW,
) -> Iterator[BlockPieces]:
    """The pieces that a node needs from the cursor on, block after block, epoch after epoch.

    There is no end to them; the next one costs time and memory for it alone. What a block consists
    of does not depend on the cursor, so that all processes of a node name the same pieces. Blocks
    of a sequence with repeats may have samples in common, each then in a piece of its own.

    Args:
        order: Any order; a block is what its `footing` gives for one position.
        epochs: How the sequence is cut into epochs and steps.
        cursor: Where the node begins.
        ranks: The data-parallel ranks of the node.
        world_size: Ranks of all nodes.
        window: Positions that are looked at together where blocks are smaller.

    Raises:
        ConfigError: A rank that is not in the world, no rank, or no window.
        PlanError: Epochs of no steps, or a footing that lacks a sample of its own positions.
    """
    if not ranks or window < 1:
        raise ConfigError(
            f"a node has at least one rank and a window of at least one position, got ranks "
            f"{list(ranks)} and window={window}; take the ranks from the trainer"
        )
    places = [Place(rank, world_size) for rank in sorted(set(ranks))]
    groups = _neighbours([place.rank for place in places])
    for turn, epoch in enumerate(epochs.worker_epochs(places[0], cursor)):
        yield from _pieces_of_epoch(order, turn, epoch, groups, window)


def _pieces_of_epoch(
    order: Order,
    turn: int,
    epoch: WorkerEpoch,
    groups: list[tuple[int, int]],
    window: int,
) -> Iterator[BlockPieces]:
    if not epoch.steps:
        return
    number, plan = epoch.epoch, epoch.plan
    start, end = plan.span(0)[0], plan.span(epoch.steps - 1)[1]
    are_all_ranks, step = groups == [(0, plan.world_size - 1)], 0
    while start < end:
        footing, span = _footing(order, number, start, window)
        pieces = _Intervals.of(footing)
        if are_all_ranks and span is not None and span[0] == start and span[1] <= end:
            stop, uses = span[1], pieces.stops - pieces.starts
            first_uses = _first_uses(order, number, span, pieces)
        else:
            of_pieces = _drawn(order, number, (start, end), pieces)
            stop = start + len(of_pieces)
            used, step = _positions(plan, groups, (start, stop), step, epoch.steps)
            first_uses, uses = _counted(used, of_pieces[used - start], len(pieces.starts))
        yield _in_order_of_use(turn, number, (start, stop), pieces, first_uses, uses)
        start = stop


def _footing(
    order: Order, epoch: int, position: int, window: int
) -> tuple[_Ints, tuple[int, int] | None]:
    """The samples of the block of a position, or of all blocks of its window if that is more.

    And the positions at which each of them stands once, if there are such.
    """
    span = order.footing_span(position, position + 1)
    if span is None or span[1] - span[0] >= window:
        block = order.footing(epoch, position, position + 1)
        if len(block) >= window:
            return block, span
    first = position - position % window
    return order.footing(epoch, first, first + window), order.footing_span(first, first + window)


class _Intervals(NamedTuple):
    """Disjoint intervals of samples, ascending; int64 of shape (intervals,).

    A sample is one number here: its shard times `width`, plus its number in the shard. A million
    shards leave room for 2**43 samples in each.

    Attributes:
        starts: The first sample of each.
        stops: The sample behind its last one.
        width: More than any sample's number in its shard.
        samples: How many samples they were made of, repeats counted.
    """

    starts: _Ints
    stops: _Ints
    width: int
    samples: int

    @classmethod
    def of(cls, ids: _Ints) -> "_Intervals":
        """The stretches of consecutive samples among these ids, in which each sample comes once."""
        width = int(ids[:, 1].max(initial=0)) + 1
        keys = ids[:, 0] * width + ids[:, 1]
        # The last sample of a shard and the first of the next one may have consecutive keys.
        is_first = np.ones(len(keys), np.bool_)
        is_first[1:] = (np.diff(keys) != 1) | (np.diff(ids[:, 0]) != 0)
        firsts = np.flatnonzero(is_first)
        starts = keys[firsts]
        stops = starts + np.diff(firsts, append=len(keys))
        # Draws with replacement may overlap: what an earlier one has is cut off from a later one.
        ascending = np.lexsort((stops, starts))
        starts, stops = starts[ascending], stops[ascending]
        starts[1:] = np.maximum(starts[1:], np.maximum.accumulate(stops)[:-1])
        is_left = starts < stops
        return cls(starts[is_left], stops[is_left], width, len(ids))

    def find(self, ids: _Ints) -> _Ints:
        """The number of the interval of each of these samples, -1 for those that are in none."""
        keys = ids[:, 0] * self.width + ids[:, 1]
        numbers = np.searchsorted(self.starts, keys, side="right") - 1
        is_there = (numbers >= 0) & (keys < self.stops[numbers]) & (ids[:, 1] < self.width)
        return np.where(is_there, numbers, -1)


def _drawn(order: Order, epoch: int, span: tuple[int, int], pieces: _Intervals) -> _Ints:
    """The number of the piece of each position, up to the first one whose sample is in none.

    Raises:
        PlanError: That is the first position of the span.
    """
    start, end = span
    of_pieces = pieces.find(order.at(epoch, start, min(start + max(pieces.samples, 1), end)))
    strangers = np.flatnonzero(of_pieces < 0)
    if strangers.size and strangers[0] == 0:
        raise PlanError(
            f"the footing of position {start} of epoch {epoch} lacks the sample at this position; "
            f"mend `footing` of {type(order).__name__}"
        )
    return of_pieces[: strangers[0]] if strangers.size else of_pieces


def _counted(used: _Ints, of_pieces: _Ints, number: int) -> tuple[_Ints, _Ints]:
    """Where each of so many pieces is used first, and how often; by the piece of each position."""
    first_uses = np.zeros(number, np.int64)
    first_uses[of_pieces[::-1]] = used[::-1]  # the last one that is written stays
    return first_uses, np.bincount(of_pieces, minlength=number)


def _first_uses(order: Order, epoch: int, span: tuple[int, int], pieces: _Intervals) -> _Ints:
    """Where each piece is used first, in a span in which every sample of them stands once.

    As blocks are shuffled, few positions show nearly all pieces.
    """
    (start, stop), length = span, _FIRST_DRAWN
    first_uses = np.full(len(pieces.starts), stop)
    while start < stop and (first_uses == span[1]).any():
        of_pieces = _drawn(order, epoch, (start, min(start + length, stop)), pieces)
        numbers, first = np.unique(of_pieces, return_index=True)
        first_uses[numbers] = np.minimum(first_uses[numbers], start + first)
        start, length = start + len(of_pieces), 2 * length
    return first_uses


def _in_order_of_use(
    turn: int,
    epoch: int,
    span: tuple[int, int],
    pieces: _Intervals,
    first_uses: _Ints,
    uses: _Ints,
) -> BlockPieces:
    """The intervals that are used, by what they are made of; one entry each."""
    start, stop = span
    numbers = np.flatnonzero(uses)
    numbers = numbers[np.argsort(first_uses[numbers])]
    shards = pieces.starts[numbers] // pieces.width
    begins = shards * pieces.width
    starts, stops = pieces.starts[numbers] - begins, pieces.stops[numbers] - begins
    first_uses, uses = first_uses[numbers], uses[numbers].astype(np.int64)
    return BlockPieces(epoch, start, stop, shards, starts, stops, first_uses, uses, turn)


def _positions(
    plan: EpochPlan,
    groups: list[tuple[int, int]],
    span: tuple[int, int],
    step: int,
    num_steps: int,
) -> tuple[_Ints, int]:
    """The positions within a span at which some ranks use samples, ascending.

    Args:
        plan: Of the epoch.
        groups: First and last of neighbouring ranks.
        span: start and stop.
        step: One that is not behind the span.
        num_steps: Of the epoch.

    Returns:
        int64, and the step in which the span ends.
    """
    start, stop = span
    if groups == [(0, plan.world_size - 1)]:
        return np.arange(start, stop), step
    parts: list[_Ints] = [np.empty(0, np.int64)]
    while True:
        for first, last in groups:
            begin, end = plan.rank_span(step, first)[0], plan.rank_span(step, last)[1]
            parts.append(np.arange(max(begin, start), min(end, stop), dtype=np.int64))
        if plan.span(step)[1] >= stop or step + 1 == num_steps:
            return np.concatenate(parts), step
        step += 1


def _neighbours(ranks: Sequence[int]) -> list[tuple[int, int]]:
    """First and last of each group of consecutive ranks.

    >>> _neighbours([0, 1, 2, 6, 8, 9])
    [(0, 2), (6, 6), (8, 9)]
    """
    groups: list[tuple[int, int]] = []
    for rank in ranks:
        if groups and groups[-1][1] == rank - 1:
            groups[-1] = groups[-1][0], rank
        else:
            groups.append((rank, rank))
    return groups
