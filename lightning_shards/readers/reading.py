"""What one worker reads its batches from: open shards, fetched ahead where they are remote."""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from lightning_shards.plan.epoch import EpochSchedule, WorkerEpoch
from lightning_shards.plan.order import Order
from lightning_shards.plan.place import Cursor, Place
from lightning_shards.readers.open_shards import OpenShards
from lightning_shards.readers.read_ahead import MOST_BYTES, ReadBuffer
from lightning_shards.samples.collate import LoadedBatch
from lightning_shards.samples.stage_clock import STAGES
from lightning_shards.shards.index import ShardIndex
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.storage.protocol import NO_FETCHES, FetchTotals
from lightning_shards.shards.storage.schemes import MakeStorage

if TYPE_CHECKING:
    from lightning_shards.remote.ahead import FetchAhead
    from lightning_shards.shards.joins.kept import Joined

_MOST_BYTES: Final = 4 * 2**20
"""Batches that are read together have so many bytes at most while pieces are fetched ahead. Of 64
MiB a process would read most of its share of a block before the pieces are there."""


@dataclass(frozen=True)
class Reading:
    """What the batches of one worker are read by.

    Attributes:
        shards: The open shards.
        ahead: Whom the batches tell where they are; None if nothing is fetched ahead.
        meter: Tells each batch what was fetched for it; None if all shards are at hand.
    """

    shards: OpenShards
    ahead: "FetchAhead | None" = None
    meter: "FetchMeter | None" = None

    def new_buffer(self) -> ReadBuffer:
        """Memory for what is read together, as much as goes with what is fetched ahead.

        The first batch is then read alone, since each of its samples is a request. Where all that
        was to be fetched is in the cache, as much is read together as of local files.
        """
        ahead = self.ahead
        if ahead is None:
            return ReadBuffer()
        return ReadBuffer(
            limit=1, most_bytes=lambda: MOST_BYTES if ahead.are_there else _MOST_BYTES
        )

    def followed(
        self, turn: int, worker_epoch: WorkerEpoch, batches: Iterator[LoadedBatch]
    ) -> Iterator[LoadedBatch]:
        """The batches of an epoch, which number `turn` is of those since the cursor."""
        if self.ahead is not None:
            batches = self.ahead.announcing(turn, worker_epoch, batches)
        return batches if self.meter is None else self.meter.each(batches)


@contextmanager
def reading_shards(
    index: ShardIndex,
    cache: CacheFolder,
    storages: Mapping[str, MakeStorage] | None,
    order: Order,
    epochs: EpochSchedule,
    *,
    joined: "Sequence[Joined]" = (),
    place: Place,
    cursor: Cursor,
) -> Generator[Reading]:
    """What one worker reads these shards by from the cursor on; it is closed at the end."""
    if storages is None:
        with OpenShards(index, cache, joined=joined) as shards:
            yield Reading(shards)
        return
    # what is remote is imported by who reads it
    from lightning_shards.remote.ahead import FetchAhead, PiecePlan, ShardTables, share_of_process

    tables = ShardTables(index, cache, storages, share_of_process(place))
    plan = PiecePlan(order, epochs, cursor, place, index.urls, tables)
    opened = OpenShards(index, cache, storages=storages, joined=joined)
    with ExitStack() as stack:
        shards = stack.enter_context(opened)
        stack.callback(tables.close)
        at, ahead = shards.storages, None
        if any(storage.fetches_ahead for storage, _ in at.grouped(index.urls)):
            ahead = FetchAhead(plan.announcements(), at)
            stack.callback(ahead.close)

        def totals() -> FetchTotals:
            waited_s = 0.0 if ahead is None else ahead.waited_s
            announced = FetchTotals(table_wait_s=waited_s)
            return at.fetch_totals().plus(tables.fetch_totals()).plus(announced)

        yield Reading(shards, ahead, FetchMeter(totals))


class FetchMeter:
    """Takes the totals of a stream's storages after each of its batches.

    Args:
        totals: Gives the totals so far, with the waits of the thread that makes the batches.
    """

    def __init__(self, totals: Callable[[], FetchTotals]) -> None:
        self._totals, self._taken = totals, NO_FETCHES

    def each(self, batches: Iterator[LoadedBatch]) -> Iterator[LoadedBatch]:
        """The batches; the time in which they waited for bytes from afar counts as `fetch`."""
        for loaded in batches:
            totals = self._totals()
            fetched, self._taken = totals.since(self._taken), totals
            if fetched == NO_FETCHES:
                yield loaded
                continue
            stages = dict(zip(STAGES, loaded.stages, strict=False))
            stages["open"] = max(0.0, stages["open"] - fetched.table_wait_s)
            stages["read"] = max(0.0, stages["read"] - fetched.member_wait_s)
            yield loaded._replace(stages=(*stages.values(), fetched.wait_s), fetched=fetched)
