"""Which samples the batches of given steps hold, without decoding any of them.

What the indexed reader serves is arithmetic. What the stream reader serves depends on the number of
workers and on its shuffle buffers, so its shards are read again from the beginning of the epoch.

A sample that proves bad when it is decoded is shown where it was planned, and not its substitute.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple, cast

from lightning_shards.errors import ConfigError
from lightning_shards.plan.cursor import Cursor
from lightning_shards.plan.place import Place
from lightning_shards.readers.indexed import IndexedSource
from lightning_shards.readers.open_shards import OpenShards
from lightning_shards.readers.source import Source
from lightning_shards.readers.stream import StreamSource
from lightning_shards.samples.collate import LoadedBatch


class ServedSample(NamedTuple):
    """One row of a batch: a sample's key, and its id."""

    key: str
    shard: int
    sample: int


def batch_keys(
    source: Source, place: Place, epoch: int, steps: range, *, num_workers: int
) -> list[list[ServedSample]]:
    """The rows of one rank's batch at each of these steps of an epoch begun at its start.

    Args:
        source: what makes the batches in training.
        place: the rank and the world size.
        epoch: its number; an evaluation split reads epoch 0 each time.
        steps: consecutive steps, counted from the beginning of the epoch.
        num_workers: workers of each rank, on which the stream reader's order depends.

    Raises:
        ConfigError: there is no such epoch or step, or a stream has stages: what they do to samples
            is not known here.
        ShardError: a shard cannot be read, or changed.
    """
    planned = source.epochs.steps(place.world_size)
    if epoch < 0:
        raise ConfigError(f"epoch must be at least 0, got {epoch}; epochs count from 0")
    if not 0 <= steps.start < steps.stop <= planned:
        raise ConfigError(
            f"steps {steps.start}:{steps.stop} are not in an epoch of {planned} steps; take A:B "
            f"with 0 <= A < B <= {planned}"
        )
    epoch = 0 if source.epochs.pinned else epoch
    if isinstance(source, IndexedSource):
        return _indexed_rows(source, place, epoch, steps)
    if not isinstance(source, StreamSource):
        raise ConfigError(f"a {type(source).__name__} cannot be replayed, only readers of shards")
    if source.stages:
        raise ConfigError(
            f"the {len(source.stages)} `stages` of this split may drop, add or move samples, so "
            "that their keys cannot be told without running them; iterate over "
            "ShardDataModule.loader() and read `__key__` of its batches"
        )
    return _stream_rows(source, place, epoch, steps, num_workers)


def _indexed_rows(
    source: IndexedSource, place: Place, epoch: int, steps: range
) -> list[list[ServedSample]]:
    order, plan = source.order(), source.epochs.plan(place.world_size)
    with OpenShards(source.index, source.cache_dir) as shards:
        return [
            [
                ServedSample(shards.members(shard, sample)["__key__"], shard, sample)
                for shard, sample in order.at(epoch, *plan.rank_span(step, place.rank)).tolist()
            ]
            for step in steps
        ]


def _stream_rows(
    source: StreamSource, place: Place, epoch: int, steps: range, num_workers: int
) -> list[list[ServedSample]]:
    """Step t is the batch number t // num_workers of worker t % num_workers."""
    bare = replace(source, fields=(), transforms={}, batch_format="dict")
    batches: dict[int, Iterator[LoadedBatch]] = {}
    rows: list[list[ServedSample]] = []
    for step in steps:
        before, worker = divmod(step, num_workers)
        if worker not in batches:
            share = bare.batches(place.with_worker(worker, num_workers), Cursor(epoch))
            batches[worker] = islice(share, before, None)
        batch = cast("dict[str, Any]", next(batches[worker]).batch)
        ids = batch["__id__"].tolist()
        rows.append([ServedSample(k, *each) for k, each in zip(batch["__key__"], ids, strict=True)])
    return rows
