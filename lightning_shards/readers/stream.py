"""The stream reader, and the door to webdataset: whole shards, read forward, from any URL.

One epoch of one worker is a `webdataset.pipeline.DataPipeline`::

    shard parts -> tar expansion -> shuffle -> decode fields -> user's stages -> transforms
                                                                                      |
                                                     batches of the planned sizes  <--+

Which shards those are is arithmetic on (seed, epoch, place), in `plan/draws.py`. webdataset's own
node and worker splits are not used: they ask the environment for the rank, repeat epoch 0 in fresh
workers, and give ranks unequal shares.
"""

from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from webdataset.filters import shuffle
from webdataset.pipeline import DataPipeline
from webdataset.tariterators import group_by_keys, tar_file_expander

from lightning_shards.errors import DamagedShardError, SampleError, StateError
from lightning_shards.plan.cursor import Cursor
from lightning_shards.plan.digest import digest_share
from lightning_shards.plan.order import SampleOrder, Sampling
from lightning_shards.plan.place import Place
from lightning_shards.plan.schedule import EpochSchedule, WorkerEpoch
from lightning_shards.readers.bad_samples import (
    SAMPLES_TRIED,
    BadSampleLedger,
    epochs_to_try,
    first_good_sample,
    weights_of,
)
from lightning_shards.readers.replay import read_again, require_no_stages
from lightning_shards.readers.shard_sampler import ShardSlice, Watch, exact_slices, resampled_slices
from lightning_shards.readers.source import ServedSample, SourceDescription, shard_identity
from lightning_shards.readers.user_stages import NamedStage, Stage, named_callables
from lightning_shards.samples.arena import Arena
from lightning_shards.samples.collate import BatchFormat, LoadedBatch, Sample, make_batch
from lightning_shards.samples.field_stages import ApplyTransforms, DecodeFields
from lightning_shards.samples.fields import (
    Field,
    SampleTransforms,
    Transform,
    counted,
    draw_from_globals,
    repeated,
)
from lightning_shards.samples.seeds import SampleSeeds, preserved_globals, python_generator
from lightning_shards.samples.stage_clock import StageClock
from lightning_shards.shards.index import ShardIndex
from lightning_shards.shards.storage.fetching import fetch_problem, require_given
from lightning_shards.shards.storage.schemes import Storages, has_ranges
from lightning_shards.shards.tar.tar_bytes import read_samples
from lightning_shards.shards.tar.walk import RESERVED_SUFFIXES, split_name
from lightning_shards.shards.urls import redact, require_hosts

_STAGE_POSITIONS = 1 << 48
"""Where the positions that seed stages begin, far above those of samples."""

_SHUFFLE_POSITIONS = 1 << 49
"""Likewise for the shuffle buffers."""


@dataclass(frozen=True)
class StreamSource:
    """Streams whole shards through webdataset; restarts from any cursor, with fresh draws.

    Attributes:
        index: The shards and, where known, how many samples each holds.
        epochs: How the stream is cut into epochs.
        sampling: `resampled` draws shards with replacement; the others serve each sample once.
        seed: Keys every draw, shuffle and transform.
        fields: What is taken from each sample.
        transforms: One callable per field that has one.
        stages: The user's stages, after the fields are decoded and before the transforms.
        shuffle_buffer: Samples held by webdataset's shuffle; 0 for none, as `sequential` has.
        batch_format: A dict, or the fields in order as a tuple.
        max_bad: Bad samples of an epoch, over all ranks, that are replaced; None: the first raises.
    """

    index: ShardIndex
    epochs: EpochSchedule
    sampling: Sampling
    seed: int
    fields: tuple[Field, ...]
    transforms: dict[str, Transform]
    stages: tuple[Stage, ...] = ()
    shuffle_buffer: int = 1000
    batch_format: BatchFormat = "dict"
    max_bad: int | None = None

    def identity(self) -> dict[str, int | str]:
        """What the batches depend on, for a checkpoint; each start has draws of its own."""
        own = (self.sampling, self.seed, self.index, self.transforms, self.fields)
        return shard_identity("stream", *own)

    def describe(self) -> SourceDescription:
        """Whole shards are kept together."""
        return SourceDescription(
            reader="stream",
            sampling=self.sampling,
            index=self.index,
            is_streamed=True,
            run=0,
            shuffle_buffer=self.shuffle_buffer,
            max_bad=self.max_bad,
            fields=self.fields,
            draws_from_globals=tuple(self.draws_from_globals),
            callables=named_callables(self.transforms, self.stages),
        )

    def prepare(self) -> None:
        """Nothing: a stream needs no tables."""

    def with_epochs(self, epochs: EpochSchedule) -> "StreamSource":
        """The same samples, cut into other epochs."""
        return replace(self, epochs=epochs)

    def batches(
        self, place: Place, cursor: Cursor, arena: Arena | None = None
    ) -> Iterator[LoadedBatch]:
        """The batches of one worker from the cursor on, over the ends of epochs, without end.

        Raises:
            StateError: The cursor is inside an epoch that serves each sample once. Ranks and
                workers read stretches of their own, not the epoch's first samples.
            ShardError: A shard, a sample or a stage cannot give what was planned.
        """
        if cursor.samples and self.sampling != "resampled":
            raise StateError(
                f"the stream reader cannot begin {cursor.samples} samples into an epoch with "
                f"sampling={self.sampling!r}; resume from a checkpoint of an epoch's end, or train "
                "with sampling='resampled'"
            )
        for worker_epoch in self.epochs.worker_epochs(place, cursor):
            yield from self._batches_of(worker_epoch, arena)

    @property
    def draws_from_globals(self) -> list[str]:
        """Transforms and stages that may draw from the generators of the whole process."""
        transforms = [f"the transform of {name!r}" for name in draw_from_globals(self.transforms)]
        return transforms + [
            f"stages[{number}]"
            for number, stage in enumerate(self.stages)
            if getattr(stage, "deterministic", False) is not True
        ]

    def first_sample(self, place: Place) -> LoadedBatch:
        """A batch of one sample, to see that fields, stages and transforms fit; none is replaced.

        Raises:
            ShardError: They do not.
        """
        require_hosts(self.index.urls)
        alone = replace(
            self,
            sampling="resampled",
            shuffle_buffer=0,
            epochs=epochs_to_try(place),
            max_bad=None,
            transforms=repeated(self.transforms),
        )
        # without counts a shard is read from its start, which costs least; with them from anywhere
        first = replace(alone, index=replace(self.index, counts=None))
        others = [] if self.max_bad is None else [alone] * (SAMPLES_TRIED - 1)
        return first_good_sample([first, *others], place)

    def expected_digest(self, epoch: int, start: int, stop: int, place: Place) -> int | None:
        """A rank's share of the digest of a whole epoch that serves each sample once.

        None for the rest: in which order they come depends on the numbers of ranks and workers.
        """
        counts = self.index.counts
        if self.sampling == "resampled" or counts is None or (start, stop) != (0, counts.sum()):
            return None
        return digest_share(SampleOrder(counts, self.seed, "sequential"), epoch, start, stop, place)

    def replay(
        self, place: Place, epoch: int, steps: range, num_workers: int
    ) -> list[list[ServedSample]]:
        """The rows of a rank's batches: the shards are read again, and nothing is decoded."""
        require_no_stages(self.stages)
        bare = replace(self, fields=(), transforms={}, batch_format="dict")
        return read_again(bare, place, epoch, steps, num_workers)

    def _batches_of(self, worker_epoch: WorkerEpoch, arena: Arena | None) -> Iterator[LoadedBatch]:
        ledger, clock = BadSampleLedger(self.max_bad, worker_epoch.epoch), StageClock()
        samples = ledger.fill(
            self._samples(worker_epoch, ledger, clock), lambda: self._spare(worker_epoch)
        )
        draws_from_globals = bool(self.draws_from_globals)
        for step in worker_epoch.own_steps():
            if draws_from_globals:
                with preserved_globals():
                    self._seed_stages(worker_epoch, step)
                    loaded = self._batch(samples, worker_epoch, step, clock, arena)
            else:
                loaded = self._batch(samples, worker_epoch, step, clock, arena)
            yield loaded._replace(bad=tuple(ledger.take()), stages=clock.take())

    def _batch(
        self,
        samples: Iterator[Sample],
        worker_epoch: WorkerEpoch,
        step: int,
        clock: StageClock,
        arena: Arena | None,
    ) -> LoadedBatch:
        size = worker_epoch.plan.size(step, worker_epoch.place.rank)
        rows = list(counted(islice(samples, size), self.fields, self.transforms))
        if len(rows) < size:
            raise SampleError(
                f"only {len(rows)} of {size} samples are left for a batch: a stage dropped some, "
                "but each is planned once; stages that drop samples need sampling='resampled'"
            )
        if self._is_last(worker_epoch, step) and any(samples):
            raise SampleError(
                "a stage made more samples than it was given, but each sample is planned once; "
                "stages that add samples need sampling='resampled'"
            )
        names = [field.name for field in self.fields]
        planned = worker_epoch.weights(step)
        weights = planned if self.max_bad is None else weights_of(rows, planned)
        with clock.on("collate"):
            return make_batch(rows, names, weights, self.batch_format, arena=arena)

    def _is_last(self, worker_epoch: WorkerEpoch, step: int) -> bool:
        """Whether this batch is the end of all that was planned for this worker and epoch."""
        is_whole = self.sampling != "resampled" and worker_epoch.steps == worker_epoch.plan.steps
        return is_whole and step == worker_epoch.own_steps()[-1]

    def _samples(
        self, worker_epoch: WorkerEpoch, ledger: BadSampleLedger, clock: StageClock
    ) -> Iterator[Sample]:
        """The samples of one epoch; repeats (weight 0) come last, by a pipeline of their own."""
        if self.sampling == "resampled":
            parts = resampled_slices(self.index, self.seed, worker_epoch)
            yield from self._pipeline(worker_epoch, parts, ledger, clock)
            return
        for weight in (1, 0):
            ledger.are_counted = weight == 1
            is_shuffled = self.sampling == "shuffled"
            parts = exact_slices(self.index, self.seed, worker_epoch, weight, is_shuffled)
            yield from self._pipeline(worker_epoch, parts, ledger, clock)

    def _spare(self, worker_epoch: WorkerEpoch) -> Sample:
        """A good sample from anywhere, for a worker that has none of its own."""
        ledger = BadSampleLedger(self.max_bad, worker_epoch.epoch)
        parts = map(ShardSlice, range(self.index.num_shards))
        for sample in self._pipeline(worker_epoch, parts, ledger, StageClock()):
            return sample
        raise SampleError(
            "not one sample of these shards is good, so none can stand for a bad one; "
            "on_bad_sample='raise' shows what is wrong with the first"
        )

    def _pipeline(
        self,
        worker_epoch: WorkerEpoch,
        parts: Iterator[ShardSlice],
        ledger: BadSampleLedger,
        clock: StageClock,
    ) -> Iterator[Sample]:
        place = worker_epoch.place
        seeds = SampleSeeds(self.seed, worker_epoch.epoch, worker_epoch.plan.done)
        slot = place.worker * place.world_size + place.rank
        # where samples may be bad, it is their number that ends the stream
        limit = 2 * self.index.num_shards + self.shuffle_buffer + 16 + (self.max_bad or 0)
        watch = Watch(limit)
        is_planned = self.sampling != "resampled"
        stages: list[Any] = [lambda: parts, _Expand(self.index, watch, ledger, is_planned, clock)]
        if self.sampling != "sequential" and self.shuffle_buffer > 1:
            rng = python_generator(seeds, _SHUFFLE_POSITIONS + slot)
            stages.append(shuffle(self.shuffle_buffer, rng=rng))
        stages.append(DecodeFields(self.fields, ledger.lose, clock))
        stages += [NamedStage(number, stage) for number, stage in enumerate(self.stages)]
        transforms = SampleTransforms(self.transforms, seeds, clock)
        stride = place.world_size * place.num_workers
        stages.append(ApplyTransforms(transforms, slot, stride, ledger.lose))
        stages.append(watch.arrived)
        return iter(DataPipeline(*stages))

    def _seed_stages(self, worker_epoch: WorkerEpoch, step: int) -> None:
        position = _STAGE_POSITIONS + step * worker_epoch.place.world_size + worker_epoch.place.rank
        SampleSeeds(self.seed, worker_epoch.epoch, worker_epoch.plan.done).seed_globals(position)


@dataclass(frozen=True)
class _Expand:
    """The stage that reads parts of shards; a sample that comes out knows its `__id__`."""

    index: ShardIndex
    watch: Watch
    ledger: BadSampleLedger
    is_planned: bool
    clock: StageClock

    def __call__(self, parts: Iterator[ShardSlice]) -> Iterator[Sample]:
        for part in parts:
            expected = None if self.index.counts is None else int(self.index.counts[part.shard])
            if expected == 0:
                continue  # not worth opening, and no sign of a stream that gives nothing
            self.watch.opened()
            yield from self._read(part, expected)

    def _read(self, part: ShardSlice, expected: int | None) -> Iterator[Sample]:
        url, (shard, number, take) = self.index.urls[part.shard], part
        stop = expected if take is None else number + take
        if stop == expected:
            take = None  # read to the end, to see that nothing follows
        try:
            with closing(read_shard(url, expected, number)) as samples:
                for sample in islice(self.clock.each(samples, "read"), take):
                    sample["__id__"] = (shard, number)
                    yield sample
                    number += 1
        except DamagedShardError as error:
            if stop is not None and number >= stop:
                raise  # nothing is lost: there is more than there was
            if number == part.skip and not has_ranges(url):
                with closing(fetch_samples(url)) as samples:  # a missing one is not just damaged
                    next(samples, None)
            if self.is_planned:
                assert stop is not None  # exact sampling has counts
                self.ledger.lose_planned(shard, range(number, stop), error)
            else:
                self.ledger.lose_rest(shard, number, error)


def read_shard(url: str, expected: int | None, skip: int = 0) -> Generator[Sample]:
    """The samples of one shard in file order, each a dict of suffix to bytes.

    Shards with ranges are read by our own strict walk, several times as fast as `tarfile`.

    Args:
        url: A local path or a URL that webdataset can open.
        expected: How many samples the index says it holds, None when unknown.
        skip: Samples to pass over; where there are ranges they are not read.

    Raises:
        ShardNotFoundError: There is no such file.
        DamagedShardError: It cannot be fetched or read to its end, or holds another number.
    """
    number, storage = skip, Storages().of(url)
    if storage.has_ranges:
        samples = read_samples(url, skip, storage)
    else:
        samples = islice(fetch_samples(url), skip, None)
    for sample in samples:
        _require_count(number != expected, url, f"more than {number}", expected)
        yield sample
        number += 1
    _require_count(expected in (None, number), url, str(number), expected)


def fetch_samples(url: str) -> Generator[Sample]:
    """The samples of a remote shard, by webdataset's openers and tar expansion.

    Raises:
        ShardNotFoundError: Its server says that there is no such shard.
        FileAccessError: Its server says that it may not be read.
        DamagedShardError: It cannot be fetched or read to its end.
    """
    number, problem = 0, ""
    try:
        with Storages().of(url).open_stream(url) as stream:
            files = tar_file_expander(iter([{"url": url, "stream": stream}]))
            for sample in group_by_keys(_require_unreserved(files)):
                yield sample
                number += 1
    except Exception as error:  # noqa: BLE001 whatever webdataset, tarfile or curl raise
        problem = f"{type(error).__name__}: {fetch_problem(error)}"
    if problem:  # outside: that error holds the whole URL, and would be the context of this one
        if not number:
            require_given(url)
        raise DamagedShardError(
            f"{redact(url)} cannot be read on after {number} samples: {problem}; check that it can "
            "be fetched, then fetch or write it again"
        )


def _require_unreserved(files: Iterator[Any]) -> Iterator[Any]:
    """The files, if none has a name that samples use for themselves."""
    for file in files:
        parts = split_name(file.get("fname", ""))
        if parts is not None and parts[1] in RESERVED_SUFFIXES:
            raise ValueError(f"it has a member {file['fname']!r}: {parts[1]} is reserved")
        yield file


def _require_count(is_right: bool, url: str, found: str, expected: int | None) -> None:
    if not is_right:
        raise DamagedShardError(
            f"{redact(url)} gave {found} samples where its index says {expected}: it is damaged "
            "or was changed after it was counted; write it again, or bring the index up to date"
        )
