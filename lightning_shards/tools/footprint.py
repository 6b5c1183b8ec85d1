"""The footprint of one epoch on a node: bytes to read, shards to keep, memory for batches.

The numbers are expected values, not bounds: a node that draws k times from S shards with
replacement reads S * (1 - (1 - 1/S)**k) different shards on average.
"""

from dataclasses import dataclass
from itertools import takewhile
from typing import Final

from lightning_shards.plan.epoch import EpochPlan, EpochSchedule
from lightning_shards.plan.order import Order
from lightning_shards.plan.pieces import pieces_ahead
from lightning_shards.plan.place import Cursor

_NODES_ASKED: Final = 8
_POSITIONS_ASKED: Final = 2**17
"""What `sharing_of_nodes` looks at: 10 ms for each 16,384 positions of a node."""


@dataclass(frozen=True, slots=True)
class DataShape:
    """A data set in four numbers.

    Attributes:
        shards: Number of shards.
        samples: Number of samples in all shards.
        size_bytes: Size of all shards; None if unknown.
        is_streamed: Whether whole shards are read forward, rather than samples by their offsets.
    """

    shards: int
    samples: int
    size_bytes: int | None
    is_streamed: bool

    @property
    def sample_bytes(self) -> float | None:
        """Mean bytes of one sample in its shard."""
        return None if self.size_bytes is None else self.size_bytes / max(self.samples, 1)


@dataclass(frozen=True, slots=True)
class Workers:
    """The workers that make the batches of one node.

    Attributes:
        ranks: Ranks on the node.
        per_rank: Worker processes of each rank; 0 for none.
        shuffle_buffer: Undecoded samples that each worker holds.
    """

    ranks: int
    per_rank: int
    shuffle_buffer: int = 0


@dataclass(frozen=True, slots=True)
class Footprint:
    """What an epoch asks of one node; numbers of bytes are None where sizes are unknown.

    >>> plan = EpochPlan(1000, batch_size=10, world_size=4, remainder="drop")
    >>> data = DataShape(10, 1000, 50_000, is_streamed=True)
    >>> needs = footprint(plan, data, Workers(2, 3), "shuffled")
    >>> needs.nodes, needs.samples_per_node, needs.bytes_read
    (2, 500.0, 25000)

    Attributes:
        nodes: Number of nodes.
        shards_per_rank: Shards divided by ranks.
        shards_per_worker: Shards divided by workers; below 1 if there are more workers.
        samples_per_node: Samples that a node serves in an epoch, repeats included.
        bytes_read: bytes of shards that a node reads in an epoch.
        shards_touched: Different shards that a node reads in an epoch.
        cache_bytes: Size of these shards.
        buffer_bytes: Undecoded samples in the shuffle buffers of all workers of the node.
    """

    nodes: int
    shards_per_rank: float
    shards_per_worker: float
    samples_per_node: float
    bytes_read: int | None
    shards_touched: float
    cache_bytes: int | None
    buffer_bytes: int | None


def footprint(
    plan: EpochPlan,
    data: DataShape,
    workers: Workers,
    sampling: str,
    *,
    run: int = 64,
) -> Footprint:
    """What an epoch asks of one node.

    Args:
        plan: The plan of the epoch.
        data: The data set.
        workers: The workers of one node.
        sampling: The order's own word; `resampled` is with replacement.
        run: Consecutive samples that the indexed reader keeps together.
    """
    served, ranks = plan.served + plan.padded, min(workers.ranks, plan.world_size)
    per_node = served * ranks / plan.world_size
    touched = _shards_touched(served, per_node / max(served, 1), data, workers, sampling, run)
    num_workers = ranks * max(workers.per_rank, 1)
    return Footprint(
        nodes=-(-plan.world_size // workers.ranks),
        shards_per_rank=data.shards / plan.world_size,
        shards_per_worker=data.shards / (plan.world_size * max(workers.per_rank, 1)),
        samples_per_node=per_node,
        bytes_read=_times(data.sample_bytes, per_node),
        shards_touched=touched,
        cache_bytes=_times(data.size_bytes, touched / max(data.shards, 1)),
        buffer_bytes=_times(
            data.sample_bytes, num_workers * min(workers.shuffle_buffer, data.samples)
        ),
    )


def _times(size: float | None, number: float) -> int | None:
    return None if size is None else round(size * number)


def _shards_touched(
    served: float, share: float, data: DataShape, workers: Workers, sampling: str, run: int
) -> float:
    """Different shards that a node reads on average; `share` is its fraction of all samples."""
    shards, per_shard = data.shards, data.samples / max(data.shards, 1)
    if not shards or not per_shard:
        return 0.0
    if data.is_streamed and sampling == "resampled":
        return _distinct(shards, served * share / per_shard)
    if data.is_streamed:
        # Each worker reads one stretch of the epoch, which begins and ends within a shard.
        stretches = workers.ranks * max(workers.per_rank, 1)
        return min(shards, served * share / per_shard + stretches)
    # Blocks are shuffled, so each sample may go to any node.
    in_run = min(run or per_shard, per_shard)
    if sampling == "resampled":
        meets = 1 - (1 - share) ** in_run
        return _distinct(shards, served / in_run * meets)
    return shards * (1 - (1 - share) ** (per_shard * served / data.samples))


def _distinct(kinds: float, draws: float) -> float:
    """The mean number of different kinds in this many draws with replacement."""
    return kinds * (1 - (1 - 1 / kinds) ** draws)


def sharing_of_nodes(
    order: Order, epochs: EpochSchedule, ranks_of_node: int, world_size: int
) -> tuple[float, int]:
    """How often all nodes together fetch what an epoch serves, and the pieces of a rank's batch.

    The former is 1 where each node has its own pieces, and nearly the number of nodes where each
    needs all of them. It is that of the first blocks of an epoch, the latter of its first batch.

    Args:
        order: An order that gives each sample once.
        epochs: How the sequence is cut into epochs and steps.
        ranks_of_node: Ranks of each node; the last one may have fewer.
        world_size: Ranks of all nodes.
    """
    starts = range(0, world_size, ranks_of_node)
    fetched = served = 0
    for start in starts[:: -(-len(starts) // _NODES_ASKED)]:
        ranks = range(start, min(start + ranks_of_node, world_size))
        ahead = pieces_ahead(order, epochs, Cursor(), ranks=ranks, world_size=world_size)
        for block in takewhile(lambda each: not each.turn and each.start < _POSITIONS_ASKED, ahead):
            fetched += int((block.stops - block.starts).sum())
            served += block.stop - block.start
    first_steps = epochs.with_limit(1)
    ahead = pieces_ahead(order, first_steps, Cursor(), ranks=[0], world_size=world_size)
    of_batch = sum(len(block.shards) for block in takewhile(lambda each: not each.turn, ahead))
    return fetched / served * len(starts), of_batch
