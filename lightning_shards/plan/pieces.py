"""The pieces of shards that a node needs next: stretches of samples that are read together."""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lightning_shards.errors import PlanError
from lightning_shards.plan.epoch import EpochSchedule, WorkerEpoch
from lightning_shards.plan.mixture import MixtureOrder
from lightning_shards.plan.order import Order
from lightning_shards.plan.place import Cursor, Place

_Ints = NDArray[np.int64]

WINDOW = 16_384
"""Positions that are looked at together where an order has no blocks, or smaller ones."""


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
        ranks: The data-parallel ranks of the node, ascending.
        world_size: Ranks of all nodes.
        window: Positions that are looked at together where blocks are smaller.

    Raises:
        PlanError: Epochs of no steps, or a footing that lacks a sample of its own positions.
    """
    for turn, epoch in enumerate(epochs.worker_epochs(Place(ranks[0], world_size), cursor)):
        if epoch.steps:
            yield from _pieces_of_epoch(order, turn, epoch, ranks, window)


def _pieces_of_epoch(
    order: Order, turn: int, epoch: WorkerEpoch, ranks: Sequence[int], window: int
) -> Iterator[BlockPieces]:
    start, end, step = epoch.plan.span(0)[0], epoch.plan.span(epoch.steps - 1)[1], 0
    while start < end:
        # starts, stops, first_uses, uses: one entry for each piece, the first two as of `_keys`.
        # of_pieces: the piece of each position from start to stop.
        # used: the positions at which the node uses a sample, ascending; of_used: their pieces.
        footing = _footing(order, epoch.epoch, start, window)
        (starts, stops), most = _intervals(footing), start + max(len(footing), 1)
        of_pieces = _drawn(order, epoch.epoch, (start, min(most, end)), starts, stops)
        stop = start + len(of_pieces)
        used, step = _positions(epoch, ranks, (start, stop), step)
        of_used = of_pieces[used - start]
        uses = np.bincount(of_used, minlength=len(starts))
        first_uses = np.full(len(uses), stop)
        first_uses[of_used[::-1]] = used[::-1]  # the last one that is written stays
        numbers = np.argsort(first_uses)[: np.count_nonzero(uses)]
        shards, firsts = np.divmod(starts[numbers], _WIDTH)
        lasts = stops[numbers] - shards * _WIDTH
        yield BlockPieces(epoch.epoch, start, stop, shards, firsts, lasts, uses[numbers], turn)
        start = stop


def _footing(order: Order, epoch: int, position: int, window: int) -> _Ints:
    """The samples of the block of a position, or of all blocks of its window if that is more."""
    block = order.footing(epoch, position, position + 1)
    if len(block) >= window:
        return block
    first = position - position % window
    return order.footing(epoch, first, first + window)


_WIDTH: Final = 1 << 40
"""More than any sample's number in its shard; of shards there may be 2**23."""


def _keys(ids: _Ints) -> _Ints:
    """Each sample as one number: its shard times `_WIDTH`, plus its number in the shard."""
    return ids[:, 0] * _WIDTH + ids[:, 1]


def _intervals(ids: _Ints) -> tuple[_Ints, _Ints]:
    """The stretches of consecutive samples among these ids, in which each sample comes once.

    Returns:
        The first sample of each, and the one behind its last: int64 of shape (intervals,),
        ascending and disjoint.
    """
    keys = _keys(ids)
    firsts = np.flatnonzero(np.diff(keys, prepend=-2) != 1)
    starts = keys[firsts]
    stops = starts + np.diff(firsts, append=len(keys))
    # Draws with replacement may overlap: what an earlier one has is cut off from a later one.
    ascending = np.lexsort((stops, starts))
    starts, stops = starts[ascending], stops[ascending]
    starts[1:] = np.maximum(starts[1:], np.maximum.accumulate(stops)[:-1])
    is_left = starts < stops
    return starts[is_left], stops[is_left]


def _drawn(order: Order, epoch: int, span: tuple[int, int], starts: _Ints, stops: _Ints) -> _Ints:
    """The number of the piece of each position, up to the first one whose sample is in none.

    Raises:
        PlanError: That is the first position.
    """
    keys = _keys(order.at(epoch, *span))
    numbers = np.searchsorted(starts, keys, side="right") - 1
    length = int(np.append((numbers >= 0) & (keys < stops[numbers]), False).argmin())
    if not length:
        raise PlanError(
            f"the footing of position {span[0]} of epoch {epoch} lacks the sample at this "
            f"position; mend `footing` of {type(order).__name__}"
        )
    return numbers[:length]


def _positions(
    epoch: WorkerEpoch, ranks: Sequence[int], span: tuple[int, int], step: int
) -> tuple[_Ints, int]:
    """The positions within a span at which some ranks use samples, ascending.

    Args:
        epoch: The epoch.
        ranks: Ascending.
        span: start and stop.
        step: One that is not behind the span.

    Returns:
        int64, and the step in which the span ends.
    """
    (start, stop), plan = span, epoch.plan
    if len(ranks) == plan.world_size:
        return np.arange(start, stop), step
    parts: list[_Ints] = []
    while True:
        for rank in ranks:
            begin, end = plan.rank_span(step, rank)
            parts.append(np.arange(max(begin, start), min(end, stop)))
        if plan.span(step)[1] >= stop or step + 1 == epoch.steps:
            return np.concatenate(parts), step
        step += 1


def window_of(order: Order, epochs: EpochSchedule, place: Place) -> int:
    """The window with which no more is read at a time than a cache is told of.

    A block of each component, or so many that they hold what all workers prepare at once.
    """
    prepared = epochs.batch_size * place.world_size * place.num_workers
    of_blocks = samples_of_blocks(order)
    return -(-prepared // of_blocks) * of_blocks


def samples_of_blocks(order: Order) -> int:
    """Samples of a block of each component together."""
    return sum(map(block_of, components_of(order)))


def components_of(order: Order) -> list[Order]:
    """The orders of a mixture's components, or this order alone."""
    return [each.order for each in order.mix] if isinstance(order, MixtureOrder) else [order]


def block_of(order: Order) -> int:
    """Samples that are shuffled together; a window of those where there are no blocks."""
    block = int(order.identity().get("shuffle_block", 1))
    return block if block > 1 else WINDOW
