"""What a stream is made of: slices of shards, their undecoded samples, and the user's stages.

Which slices a worker reads in an epoch, `plan/` decides.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from itertools import count, islice
from typing import Any, NamedTuple, cast

import numpy as np

from lightning_shards.errors import (
    DamagedShardError,
    ShardError,
    TransformError,
    leave_out_own_frames,
)
from lightning_shards.plan.draws import shard_draws, shard_order, spans, stream_start
from lightning_shards.plan.epoch import WorkerEpoch
from lightning_shards.plan.place import Cursor, Place
from lightning_shards.readers.recipe import Stage
from lightning_shards.readers.source import ServedSample, Source
from lightning_shards.samples.collate import LoadedBatch, Sample
from lightning_shards.shards.index import ShardIndex
from lightning_shards.shards.members import repeat_of, split_error
from lightning_shards.shards.patterns import expand_urls
from lightning_shards.shards.storage.protocol import Storage
from lightning_shards.shards.storage.schemes import Storages, StreamOnlyStorage
from lightning_shards.shards.tar.tar_bytes import open_tar
from lightning_shards.shards.tar.tar_streams import read_samples, stream_samples
from lightning_shards.shards.tar.walk import group_members, walk_members
from lightning_shards.shards.urls import is_local, redact

_DRAWS_AT_ONCE = 64
"""Draws of one worker computed together; a worker rarely opens more shards in some minutes."""


class ShardSlice(NamedTuple):
    """The samples `skip` to `stop` of one shard; None: the rest, and nothing may follow.

    Where a filter is known to leave some of a shard, these are samples of what is left.
    """

    shard: int
    skip: int = 0
    stop: int | None = None


def drawn_slices(
    index: ShardIndex, seed: int, begin: tuple[int, int], draws: tuple[int, int], skip: int
) -> Iterator[ShardSlice]:
    """The shards that one worker draws, without end, behind `skip` samples of them.

    To skip any, the counts of the shards must be known.

    Args:
        index: The shards.
        seed: Key of the sequence of draws that all workers share.
        begin: The epoch that it begins in, and the samples of this epoch that were trained before;
            both 0 where it is that of the whole run.
        draws: The first draw of this worker, and how many draws later the next of its own comes.
        skip: Samples that it took before.
    """
    counts, (epoch, resumed_at), (slot, stride) = index.kept_counts, begin, draws
    if counts is not None:
        skip += stream_start(counts, seed, slot)
    for start in count(0, stride * _DRAWS_AT_ONCE):
        span = start, start + stride * _DRAWS_AT_ONCE
        of_all = shard_draws(index.num_shards, seed, epoch, *span, resumed_at=resumed_at)
        drawn = of_all[slot::stride]
        if skip:
            assert counts is not None
            ends = np.cumsum(counts[drawn])
            first = int(np.searchsorted(ends, skip, side="right"))
            if first == len(drawn):
                skip -= int(ends[-1])
                continue
            shard = int(drawn[first])
            yield ShardSlice(shard, skip=skip - int(ends[first] - counts[shard]))
            drawn, skip = drawn[first + 1 :], 0
        yield from map(ShardSlice, drawn.tolist())


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
    for start, last in spans(worker_epoch.plan, worker_epoch.place, weight):
        position = start
        while position < last:
            number = int(np.searchsorted(stops, position, side="right"))
            begin, end = int(stops[number] - counts[order[number]]), int(stops[number])
            stop = None if last >= end else last - begin
            yield ShardSlice(int(order[number]), position - begin, stop)
            position = end


_SAMPLES_LOOKED_AT = 100
"""Samples whose headers are read to see which suffixes there are."""


def first_suffixes(urls: str | Sequence[str]) -> set[str]:
    """The suffixes of the first samples of the first shard; empty if it cannot be read here."""
    with suppress(ShardError, OSError, StopIteration):
        first = next(filter(is_local, expand_urls(urls)[:1]))
        with open_tar(first) as data:
            samples = group_members(walk_members(data, first), first)
            return {
                suffix for _, members in islice(samples, _SAMPLES_LOOKED_AT) for suffix in members
            }
    return set()


_MOST_KEYS = 100_000
"""Keys of a streamed shard that are remembered."""


def read_shard(
    url: str, expected: int | None, skip: int = 0, storages: Storages | None = None
) -> Generator[Sample]:
    """The samples of one shard in file order, each a dict of suffix to bytes.

    Args:
        url: The shard.
        expected: How many samples the index says it holds, None when unknown.
        skip: Samples to pass over; of local shards they are not read.
        storages: What reads it; None: the package's own, closed at the end.

    Raises:
        ShardNotFoundError: There is no such shard.
        FileAccessError: Its store refuses to give it.
        IndexMismatchError: It was replaced while it was read.
        StorageError: Its bytes could not be had, after all retries.
        DamagedShardError: It cannot be read to its end, or holds another number of samples.
        SampleError: The members of a sample are not adjacent.
    """
    number, read_by, keys = skip, storages or Storages(), dict[str, frozenset[str]]()
    try:
        for sample in _samples(url, skip, read_by.of(url)):
            _require_count(number != expected, url, f"more than {number}", expected)
            suffixes = [name for name in sample if not name.startswith("__")]
            if repeat_of(sample["__key__"], suffixes, keys, _MOST_KEYS) == "split":
                raise split_error(url, sample["__key__"], suffixes)
            yield sample
            number += 1
        at_most = "at most " * (0 < number == skip)  # all that it has was passed over
        _require_count(expected in (None, number), url, f"{at_most}{number}", expected)
    finally:
        if storages is None:
            read_by.close()


def _samples(url: str, skip: int, storage: Storage) -> Iterator[Sample]:
    if is_local(url):
        yield from read_samples(url, skip)  # which holds the open file by itself
    elif isinstance(storage, StreamOnlyStorage):
        yield from islice(_of_program(url, storage), skip, None)
    else:
        with storage.open_stream(url) as stream:
            yield from stream_samples(stream, url, skip)


def _of_program(url: str, storage: Storage) -> Iterator[Sample]:
    """The samples of a shard that a program gives, which may end with an error of its own.

    Raises:
        DamagedShardError: It cannot be read to its end.
    """
    number, problem = 0, ""
    try:
        with storage.open_stream(url) as stream:
            for sample in stream_samples(stream, url):
                yield sample
                number += 1
    except DamagedShardError:
        raise
    except Exception as error:  # noqa: BLE001 whatever webdataset or a program raise
        problem = f"{type(error).__name__}: {error}"
    if problem:  # outside: that error holds the whole URL, and would be the context of this one
        raise DamagedShardError(
            f"{redact(url)} cannot be read on after {number} samples: {problem}; check that it can "
            "be fetched, then fetch or write it again"
        )


def _require_count(is_right: bool, url: str, found: str, expected: int | None) -> None:
    if not is_right:
        raise DamagedShardError(
            f"{redact(url)} gave {found} samples where its index says {expected}: it is damaged "
            "or was changed after it was counted; write it again, or bring the index up to date"
        )


_BUFFERED_FIRST = 100
"""Samples in a shuffle buffer before the first one leaves it."""


def buffered(
    samples: Iterator[Sample], size: int, randint: Callable[[int, int], int]
) -> Iterator[Sample]:
    """The samples in the order of webdataset's `shuffle` with a buffer of this size.

    Until it is full two samples enter it for each that leaves. It is not webdataset's own, because
    the import of torch with it takes longer than all else before the first batch.

    Args:
        samples: What enters.
        size: Of the full buffer, at least 1.
        randint: As of `random.Random`; both ends can be drawn.
    """
    buffer: list[Sample] = []
    for sample in samples:
        buffer += [sample, *islice(samples, int(len(buffer) + 1 < size))]
        if len(buffer) >= min(_BUFFERED_FIRST, size):
            yield _taken_from(buffer, randint)
    while buffer:
        yield _taken_from(buffer, randint)


def _taken_from(buffer: list[Sample], randint: Callable[[int, int], int]) -> Sample:
    number = randint(0, len(buffer) - 1)
    buffer[number], buffer[-1] = buffer[-1], buffer[number]
    return buffer.pop()


def staged(number: int, stage: Stage, samples: Iterator[Sample]) -> Iterator[Sample]:
    """What a stage, of this number in `stages`, makes of these samples.

    Raises:
        TransformError: The stage raised an error, which is the cause of this one.
        ShardError: What is read or decoded before the stage failed.
    """
    try:
        yield from stage(samples)
    except ShardError:
        raise
    except Exception as error:
        leave_out_own_frames(error)
        name = getattr(stage, "__name__", type(stage).__name__)
        raise TransformError(
            f"stages[{number}], which is {name}, failed: {type(error).__name__}: {error}; "
            "it is called with an iterator of samples, each a dict of fields"
        ) from error


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
