"""The shard sampler: the slices of shards that a worker reads in an epoch, as `plan/` decides."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

import numpy as np

from lightning_shards.errors import SampleError
from lightning_shards.plan.draws import draw_sample, shard_draws, shard_order, spans
from lightning_shards.plan.epoch import WorkerEpoch
from lightning_shards.samples.collate import Sample
from lightning_shards.shards.index import ShardIndex

_DRAWS_AT_ONCE = 16
"""Draws of one worker computed together; a worker rarely opens more shards in a minute."""


class ShardSlice(NamedTuple):
    """The samples to read of one shard: `take` samples after the first `skip`; None: the rest.

    Where a filter is known to leave some of a shard, these are samples of what is left.
    """

    shard: int
    skip: int = 0
    take: int | None = None


def resampled_slices(
    index: ShardIndex, seed: int, worker_epoch: WorkerEpoch
) -> Iterator[ShardSlice]:
    """The shards that one worker draws in one epoch, without end.

    All workers share one sequence of draws: each takes every `stride`-th draw, where ranks come
    first and then workers. If the counts are known, a worker begins within a shard, at a uniformly
    drawn sample, because epochs shorter than a shard would never see its end otherwise.
    """
    place, done = worker_epoch.place, worker_epoch.plan.done
    slot = place.worker * place.world_size + place.rank
    stride = place.world_size * place.num_workers
    if index.kept_counts is not None:
        shard, sample = draw_sample(
            index.kept_counts, seed, worker_epoch.epoch, slot, resumed_at=done
        )
        yield ShardSlice(shard, skip=sample)
    for start in count(0, stride * _DRAWS_AT_ONCE):
        stop = start + stride * _DRAWS_AT_ONCE
        draws = shard_draws(
            index.num_shards, seed, worker_epoch.epoch, start, stop, resumed_at=done
        )
        yield from map(ShardSlice, draws[slot::stride].tolist())


def exact_slices(
    index: ShardIndex, seed: int, worker_epoch: WorkerEpoch, weight: int, shuffled: bool
) -> Iterator[ShardSlice]:
    """The slices that one worker reads in an epoch that serves each sample once.

    Args:
        index: The shards, with known counts.
        seed: Key of the order of shards.
        worker_epoch: The worker's part of the epoch.
        weight: 1 for the samples themselves, 0 for the repeats that fill the last step.
        shuffled: Whether shards come in a new order each epoch.
    """
    counts = index.kept_counts
    assert counts is not None  # the data module refuses exact sampling without counts
    # order: int64, shape (num_shards,), the shards in the order of this epoch
    # stops: int64, shape (num_shards,), the position after the last sample of each of them
    order = shard_order(index.num_shards, seed, worker_epoch.epoch, shuffled)
    stops = np.cumsum(counts[order])
    for span in spans(worker_epoch.plan, worker_epoch.place):
        if span.weight != weight:
            continue
        position = span.start
        while position < span.stop:
            number = int(np.searchsorted(stops, position, side="right"))
            begin = int(stops[number] - counts[order[number]])
            stop = min(span.stop, int(stops[number]))
            yield ShardSlice(int(order[number]), position - begin, stop - position)
            position = stop


@dataclass
class Watch:
    """Raises if shards or stages give no sample, because the stream would read for ever then."""

    limit: int
    slices: int = 0

    def opened(self) -> None:
        """Count a slice of a shard before it is read."""
        self.slices += 1
        if self.slices > self.limit:
            raise SampleError(
                f"no sample came out of {self.limit} shards in a row: they are empty, or a stage "
                "or a filter drops every sample; look at the shards, `stages`, `keep` and `exclude`"
            )

    def arrived(self, samples: Iterator[Sample]) -> Iterator[Sample]:
        """The last stage, in which each sample that arrives sets the count to 0."""
        for sample in samples:
            self.slices = 0
            yield sample
