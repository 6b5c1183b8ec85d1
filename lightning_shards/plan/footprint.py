"""What one epoch asks of a node, as numbers: bytes to read, shards to keep, memory for batches.

Estimates from means, not promises: a node that reads k of S shards drawn with replacement meets
S * (1 - (1 - 1/S)**k) different ones in the mean.
"""

from dataclasses import dataclass

from lightning_shards.plan.epoch import EpochPlan

SPARE_BUFFERS = 1
"""Blocks of shared memory of each worker that the trainer may keep batches in."""


@dataclass(frozen=True, slots=True)
class DataShape:
    """A data set in four numbers.

    Attributes:
        shards: how many.
        samples: in all of them.
        size_bytes: of all of them; None if nobody knows.
        is_streamed: whether whole shards are read forward, and not samples by their offsets.
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
    """Who makes the batches of one node.

    Attributes:
        ranks: of the node.
        per_rank: worker processes of a rank; 0 for none.
        prefetch_factor: messages that each keeps ready.
        shuffle_buffer: samples that each holds undecoded.
    """

    ranks: int
    per_rank: int
    prefetch_factor: int
    shuffle_buffer: int = 0


@dataclass(frozen=True, slots=True)
class Footprint:
    """What an epoch asks of one node; bytes are None where nobody knows the sizes.

    >>> plan = EpochPlan(1000, batch_size=10, world_size=4, remainder="drop")
    >>> data = DataShape(10, 1000, 50_000, is_streamed=True)
    >>> needs = footprint(plan, data, Workers(2, 3, 2), "shuffled", message_bytes=100)
    >>> needs.nodes, needs.samples_per_node, needs.bytes_read, needs.shm_bytes
    (2, 500.0, 25000, 2400)

    Attributes:
        nodes: how many there are.
        shards_per_rank: mean share of the shards.
        shards_per_worker: likewise; below 1 where there are more workers than shards.
        samples_per_node: places filled in an epoch, repeats included.
        bytes_read: of shards, in an epoch.
        shards_touched: different shards that a node reads in an epoch.
        cache_bytes: that hold these.
        shm_bytes: batches in /dev/shm, all workers of the node.
        buffer_bytes: undecoded samples in shuffle buffers, likewise.
    """

    nodes: int
    shards_per_rank: float
    shards_per_worker: float
    samples_per_node: float
    bytes_read: int | None
    shards_touched: float
    cache_bytes: int | None
    shm_bytes: int | None
    buffer_bytes: int | None


def buffers_per_worker(prefetch_factor: int) -> int:
    """Messages of one worker process that are in shared memory, each in a buffer of its own.

    torch asks a worker for message number k + prefetch_factor when it hands out number k. While
    that one is made, the others up to k may be on their way or be taken apart. One more is left to
    the trainer, for the batches that it works with. (A message that is larger than any before it
    needs another buffer for a moment.)
    """
    return prefetch_factor + 1 + SPARE_BUFFERS


def footprint(
    plan: EpochPlan,
    data: DataShape,
    workers: Workers,
    sampling: str,
    *,
    message_bytes: int | None = None,
    run: int = 64,
) -> Footprint:
    """What an epoch asks of one node.

    Args:
        plan: of the epoch.
        data: what is read.
        workers: of one node.
        sampling: the order's own word; `resampled` is with replacement.
        message_bytes: of the batches that a worker sends at once, in /dev/shm.
        run: samples that the indexed reader keeps together.
    """
    places, ranks = plan.served + plan.padded, min(workers.ranks, plan.world_size)
    per_node = places * ranks / plan.world_size
    touched = _shards_touched(places, per_node / max(places, 1), data, workers, sampling, run)
    num_workers = ranks * max(workers.per_rank, 1)
    return Footprint(
        nodes=-(-plan.world_size // workers.ranks),
        shards_per_rank=data.shards / plan.world_size,
        shards_per_worker=data.shards / (plan.world_size * max(workers.per_rank, 1)),
        samples_per_node=per_node,
        bytes_read=_times(data.sample_bytes, per_node),
        shards_touched=touched,
        cache_bytes=_times(data.size_bytes, touched / max(data.shards, 1)),
        shm_bytes=_times(
            message_bytes, ranks * workers.per_rank * buffers_per_worker(workers.prefetch_factor)
        ),
        buffer_bytes=_times(
            data.sample_bytes, num_workers * min(workers.shuffle_buffer, data.samples)
        ),
    )


def _times(size: float | None, number: float) -> int | None:
    return None if size is None else round(size * number)


def _shards_touched(
    places: int, share: float, data: DataShape, workers: Workers, sampling: str, run: int
) -> float:
    """Different shards that a node reads in an epoch, in the mean; `share` is its part of all."""
    shards, per_shard = data.shards, data.samples / max(data.shards, 1)
    if not shards or not per_shard:
        return 0.0
    if data.is_streamed and sampling == "resampled":
        return _distinct(shards, places * share / per_shard)
    if data.is_streamed:
        # a worker reads one stretch of the epoch, which begins and ends within a shard
        stretches = workers.ranks * max(workers.per_rank, 1)
        return min(shards, places * share / per_shard + stretches)
    # blocks are shuffled, so that each sample goes to any node
    in_run = min(run or per_shard, per_shard)
    if sampling == "resampled":
        meets = 1 - (1 - share) ** in_run
        return _distinct(shards, places / in_run * meets)
    return shards * (1 - (1 - share) ** (per_shard * places / data.samples))


def _distinct(kinds: float, draws: float) -> float:
    """How many of so many kinds are met in so many draws, in the mean."""
    return kinds * (1 - (1 - 1 / kinds) ** draws)
