"""The shards that one worker reads batches from: open, and fetched ahead where they are remote."""

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from lightning_shards.plan.cursor import Cursor
from lightning_shards.plan.order import Order
from lightning_shards.plan.place import Place
from lightning_shards.plan.schedule import EpochSchedule, WorkerEpoch
from lightning_shards.readers.ahead.fetch_ahead import FetchAhead
from lightning_shards.readers.ahead.fetch_meter import FetchMeter
from lightning_shards.readers.ahead.piece_plan import PiecePlan, share_of_process
from lightning_shards.readers.ahead.read_ahead import ReadBuffer
from lightning_shards.readers.ahead.remote_batches import (
    ShardTables,
    buffer_beside,
    fetched_ahead,
)
from lightning_shards.readers.ahead.source_cache import window_of
from lightning_shards.readers.open_shards import OpenShards
from lightning_shards.samples.collate import LoadedBatch
from lightning_shards.shards.index import ShardIndex
from lightning_shards.shards.joins.finding import JoinedShards
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.storage.schemes import MakeStorage, shared_out


@dataclass(frozen=True)
class Reading:
    """What the batches of one worker are read by.

    Attributes:
        shards: The open shards.
        ahead: Whom the batches tell where they are; None if nothing is fetched ahead.
        meter: Tells each batch what was fetched for it; None if all shards are at hand.
    """

    shards: OpenShards
    ahead: FetchAhead | None
    meter: FetchMeter | None

    def new_buffer(self, share: int = 1) -> ReadBuffer:
        """Memory for what is read together, if so many have such memory."""
        return buffer_beside(self.ahead, self.shards.storages, share)

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
    joined: Sequence[JoinedShards] = (),
    place: Place,
    cursor: Cursor,
) -> Generator[Reading]:
    """What one worker reads these shards by from the cursor on; it is closed at the end.

    Raises:
        ConfigError: The rank is not one of its own node.
    """
    shared = shared_out(storages, len(place.ranks_of_node))
    share = share_of_process(place, place.ranks_of_node)
    tables = ShardTables(index, cache, shared, share)
    plan = PiecePlan(
        order=order,
        epochs=epochs,
        cursor=cursor,
        place=place,
        ranks=place.ranks_of_node,
        urls=index.urls,
        tables_of=tables.tables_of,
        require_same=tables.require_same,
        window=window_of(order, epochs, place),
    )
    with (
        OpenShards(
            index, cache, storages=shared, joined=joined, unwritten=tables.unwritten
        ) as shards,
        fetched_ahead(shards, plan, tables) as ahead,
    ):
        meter = FetchMeter(
            lambda: shards.storages.fetch_totals().plus(tables.fetch_totals()), ahead
        )
        yield Reading(shards, ahead, None if storages is None else meter)
