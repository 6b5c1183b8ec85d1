"""The stages of a stream: slices of shards, their samples, decoded fields and transforms.

Which slices a worker reads in an epoch, `plan/` decides.
"""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import count, islice
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np

from lightning_shards.errors import (
    ConfigError,
    DamagedShardError,
    SampleError,
    ShardError,
    TransformError,
    count_of,
    leave_out_own_frames,
)
from lightning_shards.plan.draws import shard_draws, shard_order, spans, stream_start
from lightning_shards.plan.epoch import WorkerEpoch
from lightning_shards.plan.place import Cursor, Place
from lightning_shards.readers.bad_samples import BadSampleLedger
from lightning_shards.readers.source import ServedSample, Source
from lightning_shards.samples.collate import LoadedBatch, Sample
from lightning_shards.samples.fields import Field, LackingField
from lightning_shards.samples.stage_clock import StageClock
from lightning_shards.samples.transforms import SampleTransforms
from lightning_shards.shards.index import ShardIndex
from lightning_shards.shards.members import StreamedKeys
from lightning_shards.shards.storage.protocol import Storage
from lightning_shards.shards.storage.schemes import (
    MakeStorage,
    Storages,
    StreamOnlyStorage,
    program_problem,
)
from lightning_shards.shards.tar.tar_bytes import read_samples, stream_samples
from lightning_shards.shards.urls import expand_urls, is_local, redact

_DRAWS_AT_ONCE = 64
"""Draws of one worker computed together; a worker rarely opens more shards in some minutes."""


class ShardSlice(NamedTuple):
    """The samples to read of one shard: `take` samples after the first `skip`; None: the rest.

    Where a filter is known to leave some of a shard, these are samples of what is left.
    """

    shard: int
    skip: int = 0
    take: int | None = None


class Draws(NamedTuple):
    """The draws of shards that one worker takes out of a sequence that all workers share.

    Attributes:
        seed: Key of the sequence, with the next two.
        epoch: The epoch that it begins in; 0 where it is that of the whole run.
        resumed_at: Samples of this epoch that were trained before.
        slot: The first of its draws; all workers begin with draws of their own.
        stride: How many draws later the next one of its own comes.
    """

    seed: int
    epoch: int
    resumed_at: int
    slot: int
    stride: int


def drawn_slices(index: ShardIndex, draws: Draws, skip: int) -> Iterator[ShardSlice]:
    """The shards that one worker draws, without end, behind `skip` samples of them.

    To skip any, the counts of the shards must be known.
    """
    counts, seed, epoch = index.kept_counts, draws.seed, draws.epoch
    if counts is not None:
        skip += stream_start(counts, seed, draws.slot)
    for start in count(0, draws.stride * _DRAWS_AT_ONCE):
        span = start, start + draws.stride * _DRAWS_AT_ONCE
        of_all = shard_draws(index.num_shards, seed, epoch, *span, resumed_at=draws.resumed_at)
        drawn = of_all[draws.slot :: draws.stride]
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


_SAMPLES_LOOKED_AT = 100
"""Samples of a stream that are read for an optional field before a fit."""


class _Wanted(NamedTuple):
    """The samples of one shard that are to be read.

    Attributes:
        numbers: Their numbers in the shard, ascending.
        end_shard: Whether none of those that are left comes after them, so that the shard is read
            to its end, to see that nothing follows.
    """

    numbers: Sequence[int]
    end_shard: bool


@dataclass(frozen=True)
class ReadSlices:
    """The stage that reads slices of shards; a sample that comes out knows its `__id__`.

    Shards are numbered from `first_shard` on, as those of a component of a mixture are.

    A damaged shard costs samples, which the ledger replaces if it may. An error of the store does
    not: it is raised, since others could read what this process could not.
    """

    index: ShardIndex
    watch: Watch
    ledger: BadSampleLedger
    is_planned: bool
    clock: StageClock
    storages: Storages
    first_shard: int = 0

    def __call__(self, slices: Iterator[ShardSlice]) -> Generator[Sample]:
        """The samples of these slices, one after the other."""
        for part in slices:
            wanted = self._wanted(part)
            if wanted is not None and not wanted.numbers:
                continue  # not worth opening, and no sign of a stream that gives nothing
            self.watch.opened()
            yield from self._read(part, wanted)

    def _wanted(self, part: ShardSlice) -> _Wanted | None:
        """The samples of a slice; None where it is not known how many or which ones a shard has."""
        counts, kept = self.index.kept_counts, self.index.kept
        if kept is not None:
            numbers: Sequence[int] = kept.of_shard(part.shard).tolist()
        elif counts is not None:
            numbers = range(int(counts[part.shard]))
        else:
            return None
        stop = len(numbers) if part.take is None else part.skip + part.take
        return _Wanted(numbers[part.skip : stop], stop == len(numbers))

    def _read(self, part: ShardSlice, wanted: _Wanted | None) -> Iterator[Sample]:
        shard, url, done = part.shard, self.index.urls[part.shard], 0
        numbers = None if wanted is None else wanted.numbers
        number = part.skip if numbers is None else numbers[0]
        stop = None if wanted is None or wanted.end_shard else len(wanted.numbers)
        try:
            with closing(read_shard(url, self._count(shard), number, self.storages)) as samples:
                stamped = self.clock.each(samples, "read")
                while done != stop:
                    sample = next(stamped, None)
                    if sample is None:
                        break
                    if self._is_wanted(sample, (shard, number), numbers, done):
                        sample["__id__"] = (self.first_shard + shard, number)
                        yield sample
                        done += 1
                    number += 1
        except DamagedShardError as error:
            self._lose((shard, number), None if numbers is None else numbers[done:], error)

    def _count(self, shard: int) -> int | None:
        """All samples of a shard, with those that a filter leaves out."""
        return None if self.index.counts is None else int(self.index.counts[shard])

    def _is_wanted(
        self, sample: Sample, sample_id: tuple[int, int], numbers: Sequence[int] | None, done: int
    ) -> bool:
        """Whether this is the next wanted sample, of which `done` have come."""
        if numbers is not None:
            return done < len(numbers) and numbers[done] == sample_id[1]
        tests = self.index.key_tests
        return tests is None or tests.keeps(*sample_id, sample["__key__"])

    def _lose(
        self, sample_id: tuple[int, int], left: Sequence[int] | None, error: DamagedShardError
    ) -> None:
        """Leave out what could not be read from this sample on; `left` are those wanted of it."""
        (shard, number), expected = sample_id, self._count(sample_id[0])
        if left is not None and not left and expected is not None and number >= expected:
            raise error  # nothing is lost: there is more than there was
        if left and self.is_planned:
            self.ledger.lose_planned(self.first_shard + shard, left, error)
        else:
            self.ledger.lose_rest(self.first_shard + shard, number, error)


def lacking_members(
    index: ShardIndex, fields: Sequence[Field], makers: Mapping[str, MakeStorage] | None
) -> list[LackingField]:
    """The optional fields that the first samples of the first shard that has some lack.

    Of a damaged shard what is before the damage is looked at: the first batch says what is wrong.

    Raises:
        ShardError: As of `read_shard`.
    """
    lacking = [field for field in fields if field.is_optional]
    if not lacking:
        return []
    filled = range(index.num_shards) if index.counts is None else np.flatnonzero(index.counts)
    url, number, is_read = index.urls[filled[0]], 0, False
    with (
        suppress(DamagedShardError),
        closing(Storages(makers)) as storages,
        closing(read_shard(url, None, 0, storages)) as samples,
    ):
        for sample in islice(samples, _SAMPLES_LOOKED_AT):
            number += 1
            lacking = [field for field in lacking if not field.suffixes_in(sample)]
            if not lacking:
                return []
        is_read = next(samples, None) is None
    looked_at = f"the first {count_of(number, 'sample')} of {redact(url)}"
    are_all = is_read and len(filled) == 1
    return [LackingField(field.name, field.suffixes, looked_at, are_all) for field in lacking]


def first_suffixes(urls: str | Sequence[str]) -> set[str]:
    """The suffixes of the first samples of the first shard; empty if it cannot be read here."""
    with suppress(ShardError, OSError, StopIteration):
        first = next(filter(is_local, expand_urls(urls)[:1]))
        with closing(read_shard(first, None)) as samples:
            looked_at = islice(samples, _SAMPLES_LOOKED_AT)
            return {name for sample in looked_at for name in sample if not name.startswith("__")}
    return set()


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
    number, read_by, keys = skip, storages or Storages(), StreamedKeys(url)
    try:
        for sample in _samples(url, skip, read_by.of(url)):
            _require_count(number != expected, url, f"more than {number}", expected)
            keys.add(sample["__key__"], [name for name in sample if not name.startswith("__")])
            yield sample
            number += 1
        _require_count(expected in (None, number), url, str(number), expected)
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
        problem = f"{type(error).__name__}: {program_problem(error)}"
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


OnBad: TypeAlias = Callable[[Sample, SampleError], None]
"""Called with a sample that a stage cannot make: it raises, or the sample is left out."""

_KEPT = ("__key__", "__url__", "__local_path__", "__id__")
"""The keys of a sample that are not suffixes of members."""


@dataclass(frozen=True)
class DecodeFields:
    """A stage that turns members into fields and keeps the keys that identify the sample.

    `seed_decoders` is called with the number of each sample before its members are decoded.
    """

    fields: tuple[Field, ...]
    on_bad: OnBad
    clock: StageClock
    seed_decoders: Callable[[int], None]

    def __call__(self, samples: Iterator[Sample]) -> Iterator[Sample]:
        """Decode sample by sample."""
        for number, members in enumerate(samples):
            self.seed_decoders(number)
            kept = {key: members[key] for key in _KEPT if key in members}
            try:
                with self.clock.on("decode"):
                    decoded = {field.name: field.decode(members) for field in self.fields}
            except SampleError as error:
                self.on_bad(members, error)
                continue
            yield kept | decoded


@dataclass(frozen=True)
class ApplyTransforms:
    """A stage that transforms its sample number i as the one at position ``first + i * stride``.

    No other worker or rank has the same position in this epoch.
    """

    transforms: SampleTransforms
    first: int
    stride: int
    on_bad: OnBad

    def __call__(self, samples: Iterator[Sample]) -> Iterator[Sample]:
        """Transform sample by sample."""
        for number, sample in enumerate(samples):
            try:
                transformed = self.transforms.apply(sample, self.first + number * self.stride)
            except SampleError as error:
                self.on_bad(sample, error)
                continue
            yield transformed


Stage: TypeAlias = Callable[[Iterator[Any]], Iterator[Any]]
"""A webdataset-style stage: from an iterator of samples to an iterator of samples."""


@dataclass(frozen=True)
class NamedStage:
    """A stage whose errors name it by its number in `stages`."""

    number: int
    stage: Stage

    def __call__(self, samples: Iterator[Sample]) -> Iterator[Sample]:
        """The samples that the stage makes of these.

        Raises:
            TransformError: The stage raised an error, which is the cause of this one.
            ShardError: What is read or decoded before the stage failed.
        """
        try:
            yield from self.stage(samples)
        except ShardError:
            raise
        except Exception as error:
            leave_out_own_frames(error)
            name = getattr(self.stage, "__name__", type(self.stage).__name__)
            raise TransformError(
                f"stages[{self.number}], which is {name}, failed: {type(error).__name__}: {error}; "
                "it is called with an iterator of samples, each a dict of fields"
            ) from error


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
