"""The indexed reader: a batch is a pure function of (shards, seed, epoch, position).

Sample ids come from an `Order`, and bytes are found by the member table of each shard. A batch is
the same whichever worker makes it and wherever the stream was started. The samples may be those of
one data set, or of the components of a mixture, each with a recipe of its own.
"""

import dataclasses
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain, count, groupby
from typing import TYPE_CHECKING, Final, TypeVar, cast

import numpy as np

from lightning_shards.errors import TransformError
from lightning_shards.plan.epoch import WorkerEpoch
from lightning_shards.plan.order import Order
from lightning_shards.plan.place import Cursor, Place
from lightning_shards.readers.bad_samples import (
    BAD,
    SAMPLES_TRIED,
    StandIn,
    bad_sample,
    refused,
    weights_of,
)
from lightning_shards.readers.batch_reader import BatchReader, can_decode
from lightning_shards.readers.open_shards import OpenShards, read_sample
from lightning_shards.readers.read_ahead import ReadBuffer
from lightning_shards.readers.recipe import ShardSource, in_turn
from lightning_shards.readers.source import (
    ServedSample,
    SourceDescription,
    metered,
    shard_identity,
)
from lightning_shards.samples.collate import BadSample, LoadedBatch, Sample, ids_of
from lightning_shards.samples.generators import SampleSeeds
from lightning_shards.samples.stage_clock import StageClock
from lightning_shards.samples.tensors import Arena, torch_if_loaded
from lightning_shards.shards.files import CacheFolder
from lightning_shards.shards.members import MemberTable
from lightning_shards.shards.storage.protocol import FetchTotals
from lightning_shards.shards.storage.schemes import Storages
from lightning_shards.shards.tables import TableStore, build_tables
from lightning_shards.shards.urls import is_local, redact

if TYPE_CHECKING:
    from lightning_shards.plan.mixture import MixtureOrder
    from lightning_shards.remote.ahead import FetchAhead
    from lightning_shards.shards.joins.kept import Joined

_T = TypeVar("_T")

_MOST_CHECKED = 1000
"""Local shards whose samples are checked before a fit: about 2 ms each."""

_STRETCH: Final = 16_384
"""Positions of an epoch that are looked up together; as many as a block has by default."""

_MOST_STRETCHES: Final = 4
"""At most so many stretches of a single data set are looked up together, one for each component.
A stretch that needs only a part of each component's block reads nearly all of the block, and the
next stretch reads it again."""


@dataclass(frozen=True, kw_only=True)
class IndexedSource(ShardSource):
    """Reads samples of shards by their offsets, and gives equal batches for equal cursors.

    Attributes:
        order: Gives the sample at each position of an epoch; of a mixture a `MixtureOrder`.
        cache: Folder of the member tables.
        joined: The shards of each component that has joins, with these.
    """

    order: Order
    cache: CacheFolder
    joined: "tuple[Joined, ...]" = ()

    def identity(self) -> dict[str, int | str]:
        """The values that a resumed run must have, too: those of the shards and of the order."""
        order = self.order.identity()
        for each in self.joined:
            order |= each.identity()
        if self.slots is not None:
            return order | {"reader": "indexed"}
        own = str(order["sampling"]), self.seed, self.index, self.recipes[0].transforms
        return shard_identity("indexed", *own, self.recipes[0].fields) | order

    def describe(self) -> SourceDescription:
        """The properties of all components; the order's identity gives the sampling and the run."""
        order = self.order
        mixture = None if self.slots is None else cast("MixtureOrder", order)
        parts = [order] if mixture is None else [each.order for each in mixture.mix]
        return self.described(
            "indexed",
            str(order.identity()["sampling"]),
            run=min(int(part.identity().get("shuffle_run", 1)) for part in parts),
            order=order,
            mixture=None if mixture is None else mixture.mixture_identity,
        )

    def prepare(self) -> None:
        """List the members of all shards that are scanned, make the joins, and check all samples.

        Raises:
            ShardError: A shard or a joined table cannot be read, or a sample lacks a member.
        """
        with closing(Storages(self.storages)) as storages:
            store = TableStore(self.cache, storages=storages)
            build_tables(self.index.urls, store)
            for each in self.joined:
                each.opened(self.cache, store).prepare()
        store = TableStore(self.cache)
        for part, first in zip(self.index.parts, self.index.first_shards, strict=True):
            if part.num_shards <= _MOST_CHECKED and all(map(is_local, part.urls)):
                for shard, url in enumerate(part.urls, first):
                    self._require_members(shard, store.table_of(url))

    def batches(
        self, place: Place, cursor: Cursor, arena: Arena | None = None
    ) -> Iterator[LoadedBatch]:
        """The batches of one worker from the cursor on, beyond the ends of epochs, without end.

        Raises:
            ShardError: A shard has changed or is damaged, or a sample cannot be made.
        """
        clock, reader = StageClock(), None
        with self._reading(place, cursor) as (shards, ahead, totals):
            if all(can_decode(field) for recipe in self.recipes for field in recipe.fields):
                buffer = ReadBuffer(ahead)
                reader = BatchReader(shards, self, clock, arena=arena, buffer=buffer)
            maker = WorkerBatches(self, shards, clock, arena, reader)
            made = map(maker.batches, self.epochs.worker_epochs(place, cursor))
            if ahead is not None:
                made = map(
                    ahead.announcing, count(), self.epochs.worker_epochs(place, cursor), made
                )
            batches = chain.from_iterable(made)
            yield from batches if totals is None else metered(batches, totals)

    @contextmanager
    def _reading(
        self, place: Place, cursor: Cursor
    ) -> "Generator[tuple[OpenShards, FetchAhead | None, Callable[[], FetchTotals] | None]]":
        """The shards that one worker reads from the cursor on, what fetches ahead, and its sums."""
        with self._opened() as opened, ExitStack() as stack:
            if self.storages is None:
                yield opened, None, None
                return
            # what is remote is imported by who reads it
            from lightning_shards.remote.ahead import (
                FetchAhead,
                PiecePlan,
                ShardTables,
                share_of_process,
            )

            tables = ShardTables(self.index, self.cache, self.storages, share_of_process(place))
            stack.callback(tables.close)
            plan = PiecePlan(self.order, self.epochs, cursor, place, self.index.urls, tables)
            at, ahead = opened.storages, None
            if any(storage.fetches_ahead for storage, _ in at.grouped(self.index.urls)):
                ahead = FetchAhead(plan.announcements(), at)
                stack.callback(ahead.close)

            def totals() -> FetchTotals:
                announced = FetchTotals(table_wait_s=0.0 if ahead is None else ahead.waited_s)
                return at.fetch_totals().plus(tables.fetch_totals()).plus(announced)

            yield opened, ahead, totals

    def _opened(self) -> OpenShards:
        return OpenShards(self.index, self.cache, storages=self.storages, joined=self.joined)

    def replay(
        self, place: Place, epoch: int, steps: range, num_workers: int
    ) -> list[list[ServedSample]]:
        """The rows of one rank's batches: ids from the order, and keys from the member tables.

        Raises:
            ShardError: A shard cannot be read, or has changed.
        """
        plan = self.epochs.plan(place.world_size)
        with OpenShards(self.index, self.cache, storages=self.storages) as shards:
            return [
                [
                    ServedSample(shards.reader(shard).table.key(sample), shard, sample)
                    for shard, sample in self.order.at(epoch, start, stop).tolist()
                ]
                for start, stop in (plan.rank_span(step, place.rank) for step in steps)
            ]

    @contextmanager
    def trying(self, place: Place) -> Generator[Callable[[int, int], Sample]]:
        """As of `ShardSource`; tries are far from each other, as one cause may damage neighbours.

        Each rank tries others.
        """
        with self._opened() as shards:
            maker = WorkerBatches(self, shards, StageClock())

            def made_row(number: int, attempt: int) -> Sample:
                order = in_turn(self.index.parts[number])
                at = (attempt * max(1, order.samples // SAMPLES_TRIED) + place.rank) % order.samples
                ((shard, sample),) = order.at(0, at, at + 1).tolist()
                return maker.row_alone(int(self.index.first_shards[number]) + shard, sample, at)

            yield made_row

    def _require_members(self, shard: int, table: MemberTable) -> None:
        """Check that all samples of a shard that a filter keeps have all fields that they need.

        Raises:
            MissingFieldError: One lacks a field, and no other sample may stand for it.
        """
        if self.max_bad is not None:
            return
        number = self.index.component_of(shard)
        kept, first = self.index.parts[number].kept, int(self.index.first_shards[number])
        for field in self.recipes[number].fields:
            lacking = np.flatnonzero(table.members_with(field.suffixes) < 0)
            if len(lacking) and kept is not None:
                lacking = np.intersect1d(lacking, kept.of_shard(shard - first))
            if len(lacking) and not (field.is_optional or field.is_joined):
                where = f"sample {table.key(lacking[0])!r} of {redact(self.index.urls[shard])}"
                raise field.lacking(where, table.suffixes_of(lacking[0]))


@dataclass
class WorkerBatches:
    """Makes the batches of one worker.

    The first good sample that follows in the order replaces a bad one. It does not depend on the
    worker, so batches are equal under any number of workers.

    Attributes:
        source: Its order gives the sample at each position of an epoch, its recipes make rows.
        shards: The open shards that samples are read from.
        clock: Measures the time of each stage.
        arena: Memory for the tensors of batches, as far as they fit.
        reader: Makes batches field by field; None if that is not possible.
        unreadable: Ids of samples that could not be read. They are not tried again: n of them in a
            row would cost n**2 reads.
    """

    source: IndexedSource
    shards: OpenShards
    clock: StageClock
    arena: Arena | None = None
    reader: BatchReader | None = None
    unreadable: set[tuple[int, int]] = dataclasses.field(default_factory=set[tuple[int, int]])

    def batches(self, worker_epoch: WorkerEpoch) -> Iterator[LoadedBatch]:
        """The batches of one epoch: of each step of this worker the samples at its positions.

        The plan says which positions these are, and the order which samples stand there. Steps that
        are near each other are looked up together.

        Raises:
            ShardError: A shard has changed or is damaged, or a sample cannot be made.
        """
        self._begin(worker_epoch.epoch)
        stretch = _STRETCH * min(len(self.source.recipes), _MOST_STRETCHES)
        own = ((step, worker_epoch.span(step)) for step in worker_epoch.own_steps())
        for _, together in groupby(own, lambda step_span: step_span[1][0] // stretch):
            steps = list(together)
            if self.reader is not None:
                spans = [span for _, span in steps]
                ids = self.source.order.at_spans(self._epoch, spans)
                self.reader.look_up(ids, spans, self._transforms)
            for number, (step, span) in enumerate(steps):
                loaded = _seeded(partial(self._batch, number, span, worker_epoch.weights(step)))
                if self.source.collation.collate_fn is not None:
                    with self.clock.on("collate"):  # told with the next batch
                        loaded = self.source.collation.finished(loaded)
                yield loaded

    def row_alone(self, shard: int, sample: int, position: int) -> Sample:
        """The row that a sample would be at this position of the first epoch.

        Raises:
            ShardError: It cannot be made.
        """
        self._begin(0)
        try:
            return _seeded(partial(self._row, position, shard, sample))
        except BAD as error:
            raise refused(error) from error.__cause__

    def _begin(self, epoch: int) -> None:
        """Make the transforms that the number of the epoch keys."""
        self._epoch, seeds, source = epoch, SampleSeeds(self.source.seed, epoch), self.source
        made = {
            number: source.recipes[number].keyed(seeds, self.clock)
            for number in set(source.made_by)
        }
        self._transforms = [made[number] for number in source.made_by]

    def _batch(self, number: int, span: tuple[int, int], planned: list[int]) -> LoadedBatch:
        """The batch at these positions, which is number `number` of those that were looked up."""
        if self.reader is not None:
            try:
                return self.reader.batch(number, planned)
            except BAD as error:
                if self.source.max_bad is None and isinstance(error, TransformError):
                    refused(error)
                    raise  # it names the bad sample; a second try might succeed and hide it
        return self._batch_by_samples(span, planned)

    def _batch_by_samples(self, span: tuple[int, int], planned: list[int]) -> LoadedBatch:
        """The same, made sample by sample; its errors name the bad sample."""
        rows, bad = self._rows(*span)
        weights = planned if self.source.max_bad is None else weights_of(rows, planned)
        # a bad sample that is repeated is counted only where it is no repeat
        reported = [bad[row] for row in bad if not planned or planned[row]]
        with self.clock.on("collate"):
            numbers = self.source.components_of(ids_of(rows)[:, 0]).tolist()
            loaded = self.source.batch_of(rows, numbers, weights, reported, self.arena)
        return loaded._replace(stages=self.clock.take())

    def _rows(self, start: int, stop: int) -> tuple[list[Sample], dict[int, BadSample]]:
        """The rows at these positions of the epoch, and the bad samples by row."""
        rows: list[Sample] = []
        bad: dict[int, BadSample] = {}
        ids = self.source.order.at(self._epoch, start, stop).tolist()
        for position, (shard, sample) in enumerate(ids, start):
            with self.clock.on("open"):
                self.shards.reader(shard)  # a changed shard is not a bad sample
            try:
                rows.append(self._row(position, shard, sample))
            except BAD as error:
                rows.append(self._stand_in(position, (shard, sample), error))
                bad[position - start] = bad_sample(shard, sample, error)
        return rows, bad

    def _row(self, position: int, shard: int, sample: int) -> Sample:
        number = self.source.index.component_of(shard)
        transforms, fields = self._transforms[number], self.source.recipes[number].fields
        try:
            row = read_sample(self.shards, fields, shard, sample, self.clock)
        except BAD:
            self.unreadable.add((shard, sample))
            raise
        return transforms.apply(row, position)

    def _stand_in(self, position: int, bad: tuple[int, int], error: Exception) -> Sample:
        """The substitute of a bad sample; its error, if the budget ends before a good one."""
        if self.source.max_bad is None:
            raise refused(error)
        tried = {bad}
        # what follows in a small component begins again with the same ones
        for sample_id in self._following(position, self.source.max_bad + 1):
            if sample_id in tried:
                continue
            tried.add(sample_id)
            if sample_id in self.unreadable:
                continue
            self.shards.reader(sample_id[0])
            with suppress(*BAD):
                return StandIn(self._row(position, *sample_id))
        error.add_note(f"of {len(tried) - 1} other samples that follow in the order none is good")
        raise error

    def _following(self, position: int, most: int) -> Iterator[tuple[int, int]]:
        """Ids of possible substitutes; most often one is enough, so the first look-up is small."""
        order, looked_at, size = self.source.order, 0, 1
        most = min(most, order.samples)
        while looked_at < most:
            following = order.following(self._epoch, position, size).tolist()
            yield from ((shard, sample) for shard, sample in following[looked_at:])
            looked_at, size = size, min(2 * size, most)


def _seeded(make: Callable[[], _T]) -> _T:
    """What this makes; made once more if it loaded torch, whose generators are seeded only now."""
    had_torch = torch_if_loaded() is not None
    made = make()
    return made if had_torch or torch_if_loaded() is None else make()
