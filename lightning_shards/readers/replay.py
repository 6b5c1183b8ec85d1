"""The replay of steps: which samples their batches hold, found without decoding.

For the indexed reader this is arithmetic. The order of the stream reader depends on the number of
workers and on the shuffle buffers, so its shards are read again from the beginning of the epoch.

A sample that is bad only when decoded is listed as it was planned; its substitute is not.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, cast

from lightning_shards.errors import ConfigError
from lightning_shards.plan.place import Cursor, Place
from lightning_shards.readers.source import ServedSample, Source
from lightning_shards.samples.collate import LoadedBatch


def batch_keys(
    source: Source, place: Place, epoch: int, steps: range, *, num_workers: int
) -> list[list[ServedSample]]:
    """The rows of one rank's batch at each of these steps of an epoch, begun at its first sample.

    Args:
        source: The source that makes the batches in training.
        place: The rank and the world size.
        epoch: Number of the epoch; an evaluation split reads epoch 0 each time.
        steps: Consecutive steps, counted from the beginning of the epoch.
        num_workers: Number of workers of each rank; the stream reader's order depends on it.

    Raises:
        ConfigError: There is no such epoch or step, or the samples are unknown: the effect of
            stages is unknown without running them.
        ShardError: A shard cannot be read, or has changed.
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
    return source.replay(place, epoch, steps, num_workers)


def require_no_stages(stages: Sequence[object]) -> None:
    """Refuse a replay if stages may drop, add or move samples.

    Raises:
        ConfigError: There are stages.
    """
    if stages:
        raise ConfigError(
            f"the {len(stages)} `stages` of this split may drop, add or move samples, so that "
            "their keys cannot be told without running them; iterate over "
            "ShardDataModule.loader() and read `__key__` of its batches"
        )


def read_again(
    bare: Source, place: Place, epoch: int, steps: range, num_workers: int
) -> list[list[ServedSample]]:
    """The rows of these steps, from batches made again from the beginning of the epoch on.

    `bare` makes batches that are dicts with `__key__` and `__id__`. Step t is batch
    t // num_workers of worker t % num_workers.
    """
    batches: dict[int, Iterator[LoadedBatch]] = {}
    rows: list[list[ServedSample]] = []
    for step in steps:
        before, worker = divmod(step, num_workers)
        if worker not in batches:
            share = bare.batches(place.with_worker(worker, num_workers), Cursor(epoch))
            batches[worker] = islice(share, before, None)
        batch = cast("dict[str, Any]", next(batches[worker]).batch)
        ids = batch["__id__"].tolist()
        pairs = zip(batch["__key__"], ids, strict=True)
        rows.append([ServedSample(key, *sample_id) for key, sample_id in pairs])
    return rows
