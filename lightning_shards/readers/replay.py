"""Which samples the batches of given steps hold, without decoding any of them.

What the indexed reader serves is arithmetic. What the stream reader serves depends on the number of
workers and on its shuffle buffers, so its shards are read again from the beginning of the epoch.

A sample that proves bad when it is decoded is shown where it was planned, and not its substitute.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, cast

from lightning_shards.errors import ConfigError
from lightning_shards.plan.cursor import Cursor
from lightning_shards.plan.place import Place
from lightning_shards.readers.source import ServedSample, Source
from lightning_shards.samples.collate import LoadedBatch


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
        ConfigError: there is no such epoch or step, or the source cannot tell: what stages do to
            samples is not known without running them.
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
    return source.replay(place, epoch, steps, num_workers)


def require_no_stages(stages: Sequence[object]) -> None:
    """Refuse to tell the keys of samples that stages may drop, add or move.

    Raises:
        ConfigError: there are stages.
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
    """The rows of batches that are made again, all of them from the beginning of the epoch on.

    `bare` makes batches that are dicts with `__key__` and `__id__`. Step t is the batch number
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
        rows.append([ServedSample(k, *each) for k, each in zip(batch["__key__"], ids, strict=True)])
    return rows
