"""Telling storages what to fetch ahead of the batches: the pieces of this block and of the next.

`plan.pieces` names the pieces of each block by their samples, and the member tables say which bytes
these are. All processes of a node know the same list, and each begins with its share of it: every
n-th piece. When that is there, it goes on with what the others have not fetched yet, so that no
piece waits for a process that lags or has ended.

From the middle of a block on, only the next one is fetched. A piece of this block would come when
half of its samples have been read already, and where the network is hardly faster than the model
the next block would never be complete when it begins.

Where samples are large, a piece is a sample, and what is fetched ahead are the process's own next
batches.
"""

import hashlib
import logging
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, takewhile
from threading import Event
from typing import Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from lightning_shards.errors import IndexMismatchError
from lightning_shards.plan.alike import AlikeOrder
from lightning_shards.plan.epoch import EpochSchedule, WorkerEpoch
from lightning_shards.plan.kept_order import KeptOrder
from lightning_shards.plan.order import Order
from lightning_shards.plan.pieces import (
    block_of,
    components_of,
    pieces_ahead,
    samples_of_blocks,
    window_of,
)
from lightning_shards.plan.place import Cursor, Place
from lightning_shards.plan.strands import shares_of_nodes
from lightning_shards.remote.backend import TransportSettings
from lightning_shards.remote.cache import CacheNeed
from lightning_shards.remote.storage import remote_storages
from lightning_shards.remote.transport import RequestThreads
from lightning_shards.shards.files import CacheFolder
from lightning_shards.shards.index import ShardIndex
from lightning_shards.shards.members import MemberTable, ShardReader
from lightning_shards.shards.storage.protocol import FetchTotals, ShardReads
from lightning_shards.shards.storage.schemes import MakeStorage, Storages
from lightning_shards.shards.tables import TableStore
from lightning_shards.shards.urls import is_local, without_credentials
from lightning_shards.system.process import Fetching, wait_for_event

_Ints = NDArray[np.int64]
_T = TypeVar("_T")

_TABLES: Final = 128
"""Member tables that are fetched together."""

_OTHERS_S: Final = 0.5
"""Seconds for which the tables that other processes of the node fetch are waited for."""

_LOOK_S: Final = 0.01

_NEAR: Final = 1 << 14
"""Bytes between neighbours in a shard up to which a read may go from one to the other."""

_LARGE_SAMPLE: Final = 1 << 20
"""Mean bytes of a sample from which on samples are fetched one by one: such a request is long
enough by itself, and of a piece a batch would use a small part only."""

_REQUEST_BYTES: Final = 2_400_000
"""A request takes as much longer than its bytes as so many bytes take: 30 ms at 80 MB/s."""

_PLANNED: Final = 2
"""Announcements that are worked out before they are due: small blocks have one for each batch."""

_FIRST_S: Final = 5.0
"""A first batch waits so long for the first announcement, which takes a few requests: in a cache
that is filled it then finds what it wants, and a shard that was replaced is known before its old
bytes are read from the cache."""

_log = logging.getLogger(__name__)


class ShardTables:
    """The member tables of shards by their numbers, for one thread.

    Each process of a node fetches its share of the tables that all of them need, shard number
    modulo processes, and finds the others in the cache folder as soon as they are there. What does
    not come, since its process lags or has ended, it fetches, too.

    Args:
        index: The shards and their counts, which are known.
        cache: Where tables are kept.
        storages: Make what reads the shards, for the tables alone.
        share: The number of this process among those of the node that fetch, and how many these
            are.
    """

    def __init__(
        self,
        index: ShardIndex,
        cache: CacheFolder,
        storages: Mapping[str, MakeStorage] | None,
        share: tuple[int, int] = (0, 1),
    ) -> None:
        self._index, self._storages, self._share = index, Storages(storages), share
        self._tables = TableStore(cache, storages=self._storages)
        self._same = set[str]()  # shards that are what their tables say

    def each(self, shards: Sequence[int]) -> Iterator[MemberTable]:
        """The tables of these shards, many fetched at once where they are not kept.

        Raises:
            ShardError: As of `TableStore.table_of`.
        """
        counts = self._index.counts
        assert counts is not None  # the indexed reader has them
        for first in range(0, len(shards), _TABLES):
            some = shards[first : first + _TABLES]
            self._fetch(some)
            for shard in some:
                url, expected = self._index.urls[shard], int(counts[shard])
                yield self._tables.table_of(url, expected_samples=expected)

    def require_same(self, shards: Sequence[int]) -> None:
        """Ask the stores once whether remote ones of these shards are what their tables say.

        Where all of a shard is in the cache, no read would show that its object was replaced. Those
        are not asked about whose tables were fetched here, because size and version of a shard are
        asked for with its table.

        Raises:
            IndexMismatchError: One is another version; its run is the last with the old tables.
            ShardError: A store does not answer.
        """
        numbers = {self._index.urls[shard]: shard for shard in shards}
        for storage, urls in self._storages.grouped(numbers.keys() - self._same):
            if not storage.is_remote:
                continue  # it is compared when it is opened
            _, stats = storage.read_beside((), 0, urls)
            tables = self.each([numbers[url] for url in urls])
            for url, table, stat in zip(urls, tables, stats, strict=True):
                refresh = partial(self._tables.refresh, self._index.urls)
                ShardReader(url, table, storage, on_change=refresh).require_same(stat)
        self._same.update(numbers)

    def fetch_totals(self) -> FetchTotals:
        """What was fetched for the tables; nobody waits for it."""
        return self._storages.fetch_totals()._replace(table_wait_s=0.0, member_wait_s=0.0)

    def close(self) -> None:
        """End the threads and connections of the storages."""
        self._storages.close()

    def _fetch(self, shards: Sequence[int]) -> None:
        number, processes = self._share
        urls = [self._index.urls[shard] for shard in shards]
        own = [url for shard, url in zip(shards, urls, strict=True) if shard % processes == number]
        self._same.update(self._tables.fetch(own))
        until = time.perf_counter() + _OTHERS_S
        while self._tables.missing(urls) and time.perf_counter() < until:
            time.sleep(_LOOK_S)
        self._same.update(self._tables.fetch(urls))


class Announcement(NamedTuple):
    """What is to be fetched from a position of the sequence on, and nothing else.

    Attributes:
        turn: How many epochs lie between the cursor and this one.
        start: The position in the epoch.
        stop: The position behind the block or the batch, where another announcement follows.
        reads: One range each, in the order in which they are fetched.
    """

    turn: int
    start: int
    stop: int
    reads: list[ShardReads]


@dataclass(frozen=True)
class PiecePlan:
    """What the pieces of a process follow from.

    Attributes:
        order: The order of samples.
        epochs: How the sequence is cut into epochs and steps.
        cursor: Where the process begins; the same for all processes of the node.
        place: Of this process.
        urls: Of all shards, by their numbers.
        tables: Their member tables. One process of the node asks for each shard whether it is what
            its table says.
    """

    order: Order
    epochs: EpochSchedule
    cursor: Cursor
    place: Place
    urls: Sequence[str]
    tables: ShardTables

    def announcements(self) -> Iterator[Announcement]:
        """What to fetch from the cursor on, block after block, without end.

        Asking for the next one costs time for one block, and reads the tables of its shards.

        Raises:
            IndexMismatchError: A shard is another one than when its members were listed.
            ShardError: A member table cannot be read.
        """
        block, is_large = next(blocks := self._blocks())
        if is_large:  # while a batch is read, which is done at once, the two that follow come
            reading, following = next(batches := self._batches(self.place)), next(batches)
            for batch in batches:
                yield reading._replace(reads=following.reads + batch.reads)
                reading, following = following, batch
        yield block
        for following, _ in blocks:
            yield block._replace(reads=block.reads + following.reads)
            yield block._replace(start=(block.start + block.stop) // 2, reads=following.reads)
            block = following

    def first_epoch(self) -> Iterator[Announcement]:
        """What the node needs of the cursor's epoch, block after block or batch after batch.

        Raises:
            ShardError: As of `announcements`.
        """
        block, is_large = next(blocks := self._blocks())
        ahead = chain([block], (following for following, _ in blocks))
        if is_large:  # the batches of all ranks of the node, step after step
            places = (replace(self.place, rank=rank) for rank in self.place.ranks_of_node)
            ahead = chain.from_iterable(zip(*map(self._batches, places), strict=True))
        yield from takewhile(lambda planned: not planned.turn, ahead)

    def _blocks(self) -> Iterator[tuple[Announcement, bool]]:
        """The blocks of the node, and whether their samples are large.

        Of a block first come the pieces that this process fetches, then the share of the others.
        Pieces are not there of which so little is used, because little is left of the block or
        many nodes share it, that their samples are read one by one.
        """
        place = self.place
        ahead = pieces_ahead(
            self.order,
            self.epochs,
            self.cursor,
            ranks=place.ranks_of_node,
            world_size=place.world_size,
            window=window_of(self.order, self.epochs, place),
        )
        process, processes = share_of_process(place)
        for block in ahead:
            begins, ends, stamps = self._bytes_of(block.shards, block.starts, block.stops)
            self.tables.require_same([each for each in stamps if each % processes == process])
            numbers, samples = np.arange(len(block.shards)), block.stops - block.starts
            in_order = np.argsort(numbers % processes != process, kind="stable")
            sizes = ends - begins
            # whole pieces take less time than the samples that are used, one by one
            one_by_one = block.uses * (sizes / samples + _REQUEST_BYTES)
            is_wanted = (sizes > 0) & (sizes + _REQUEST_BYTES <= one_by_one)
            rows = in_order[is_wanted[in_order]]
            reads = self._reads(block.shards[rows], begins[rows], ends[rows], stamps)
            is_large = is_sample_the_unit(int(sizes.sum()), int(samples.sum()))
            yield Announcement(block.turn, block.start, block.stop, reads), is_large

    def _batches(self, place: Place) -> Iterator[Announcement]:
        """The batches of one process, each sample as a piece."""
        for turn, epoch in enumerate(self.epochs.worker_epochs(place, self.cursor)):
            for step in epoch.own_steps():
                start, stop = epoch.span(step)
                shards, samples = self.order.at(epoch.epoch, start, stop).T
                begins, ends, stamps = self._bytes_of(shards, samples, samples + 1)
                self.tables.require_same(list(stamps))
                rows = begins < ends
                reads = self._reads(shards[rows], begins[rows], ends[rows], stamps)
                yield Announcement(turn, start, stop, reads)

    def _bytes_of(
        self, shards: _Ints, starts: _Ints, stops: _Ints
    ) -> tuple[_Ints, _Ints, dict[int, tuple[int, int]]]:
        """Begin and end of the bytes of consecutive samples of shards; and what each shard must be.

        All arrays are int64 of shape (pieces,). A piece without a member begins and ends at 0.
        """
        begins, ends = np.zeros_like(starts), np.zeros_like(starts)
        by_shard = np.argsort(shards, kind="stable")
        numbers, firsts = np.unique(shards[by_shard], return_index=True)
        groups, stamps = np.split(by_shard, firsts[1:]), dict[int, tuple[int, int]]()
        listed: list[int] = numbers.tolist()
        for shard, table, rows in zip(listed, self.tables.each(listed), groups, strict=True):
            begins[rows], ends[rows] = _bytes_in(table, starts[rows], stops[rows])
            stamps[shard] = table.stamp
        return begins, ends, stamps

    def _reads(
        self, shards: _Ints, begins: _Ints, ends: _Ints, stamps: Mapping[int, tuple[int, int]]
    ) -> list[ShardReads]:
        of_each: list[list[int]] = np.stack([shards, begins, ends], axis=1).tolist()
        return [
            ShardReads(self.urls[shard], [begin], [end], stamps[shard])
            for shard, begin, end in of_each
        ]


def share_of_process(place: Place) -> tuple[int, int]:
    """The number of a process among those that fetch on its node, and how many these are.

    >>> share_of_process(Place(rank=5, world_size=8, worker=1, num_workers=2, num_nodes=2))
    (3, 8)
    """
    ranks = place.ranks_of_node
    number = (place.rank - ranks.start) * place.num_workers + place.worker
    return number, len(ranks) * place.num_workers


def _bytes_in(table: MemberTable, starts: _Ints, stops: _Ints) -> tuple[_Ints, _Ints]:
    """Begin and end of the bytes of samples of a shard, int64 of one shape (pieces,).

    A piece goes to the next sample, if that follows at once. So neighbours leave no hole, and a
    read may go from one piece to the other.
    """
    if not len(table.offsets):
        return np.zeros_like(starts), np.zeros_like(starts)
    # firsts, behind: the numbers of the first member of each piece, and of that behind its last one
    firsts, behind = table.sample_starts[starts], table.sample_starts[stops]
    is_empty = firsts >= behind
    lasts, most = np.where(is_empty, 0, behind - 1), len(table.offsets) - 1
    begins = np.where(is_empty, 0, table.offsets[np.minimum(firsts, most)])
    ends = np.where(is_empty, 0, table.offsets[lasts] + table.sizes[lasts])
    following = table.offsets[np.minimum(behind, most)]
    is_near = ~is_empty & (behind <= most) & (following - ends <= _NEAR)
    return begins, np.where(is_near, following, ends)


def is_sample_the_unit(size_bytes: int, samples: int) -> bool:
    """Whether samples are fetched one by one, because they are large."""
    return size_bytes >= _LARGE_SAMPLE * max(samples, 1)


class FetchAhead:
    """Announces pieces when the batches come to the position from which on they are wanted.

    Only the first batch waits for the arithmetic, and not for long: the next two announcements,
    which may be due together, are worked out by a thread, which takes tables. What follows the
    first one is asked for when the first batch is made, which so shares the network with no tables
    of later blocks. If the pieces of a block cannot be known, a warning says so: batches then fetch
    what they need, and raise the error if it is one of theirs. A shard that was replaced is an
    error of the next batch.

    Args:
        announcements: Those from some position on, in the order of the batches, without end.
        storages: Are told what to fetch.

    Attributes:
        waited_s: Seconds that the first batch waited for the first announcement.
        are_there: Whether all that was announced last was in the cache already.
    """

    def __init__(self, announcements: Iterator[Announcement], storages: Storages) -> None:
        self._plan = partial(next, announcements, None)
        self._storages, self._thread = storages, RequestThreads(1)
        self._plans = deque[Future[Announcement | None]]()
        self._has_begun, self.are_there, self.waited_s = False, False, 0.0
        self._until: tuple[int, int] = (0, -1)  # turn and position behind what was announced
        self._left: tuple[int, WorkerEpoch, range] | None = None  # turn, and steps not yet read

    def announcing(self, turn: int, epoch: WorkerEpoch, batches: Iterator[_T]) -> Iterator[_T]:
        """The batches of an epoch; the position of each one is reached before it is read."""
        steps = epoch.own_steps()
        for number, step in enumerate(steps):
            self._left = turn, epoch, steps[number:]
            self.reach(turn, epoch.span(step)[1] - 1)
            yield next(batches)

    def most_batches(self) -> int:
        """How many batches may be read together, from the one on that was reached last.

        Of those behind the announced ones no piece is on its way: their samples would be fetched
        one by one now, and their pieces once more when they are announced.
        """
        if self._left is None or self._left[0] != self._until[0]:
            return 1
        _, epoch, steps = self._left
        return max(1, bisect_right(steps, self._until[1], key=lambda step: epoch.span(step)[1]))

    def reach(self, turn: int, position: int) -> None:
        """The batches have come to a position, which is the last one of the next batch.

        Raises:
            IndexMismatchError: A shard is another one than when its members were listed.
        """
        is_first, self._has_begun = not self._has_begun, True
        while len(self._plans) < (1 if is_first else _PLANNED):
            self._plans.append(self._thread.begin(self._plan))
        if is_first:
            began, is_known = time.perf_counter(), Event()
            self._plans[0].add_done_callback(lambda _: is_known.set())
            with Fetching():
                wait_for_event(is_known, _FIRST_S)
            self.waited_s = time.perf_counter() - began
        while (planned := self._planned()) is not None and (turn, position) >= planned[:2]:
            self.are_there = self._storages.prefetch(planned.reads)
            self._until = planned.turn, planned.stop
            self._plans.popleft()
            if not is_first:
                self._plans.append(self._thread.begin(self._plan))

    def close(self) -> None:
        """Announce nothing more. The thread ends with the table that it may be reading."""
        self._thread.close()

    def _planned(self) -> Announcement | None:
        """The next announcement, if it is known by now."""
        if not self._plans or not self._plans[0].done():
            return None
        try:
            return self._plans[0].result()
        except IndexMismatchError:
            raise
        except Exception as error:  # noqa: BLE001 the batches raise what is an error of theirs
            _log.warning("nothing more is fetched ahead of the batches: %s", error)
        self._plans[0] = self._thread.begin(self._plan)  # which has ended
        return None


_LARGE_BATCHES = 3
"""Batches of large samples that are worked on: that which is read and two that follow."""

_MESSAGE_BYTES, _MESSAGE_BATCHES = 1 << 22, 16
"""A worker hands over several small batches in one message, which has so much at most."""


def need_of_source(
    index: ShardIndex,
    order: Order,
    folder: CacheFolder,
    settings: TransportSettings,
    *,
    prepared: int,
    messages: int = 0,
    batch_size: int = 1,
    nodes: int = 1,
) -> CacheNeed | None:
    """What is read, by the sizes in the index; where it has none, as the table of one shard says.

    Each component of a mixture counts by itself. `messages` are those of batches that the workers
    of a node keep ready, `prepared` the samples of a batch times these workers; `nodes` read from
    the same window. None: nothing is fetched ahead, as in the order of the files.

    Raises:
        ShardError: The table of the shard cannot be had, and the index has no sizes.
    """
    if order.identity()["sampling"] == "sequential" or index.counts is None or not index.samples:
        return None
    of_blocks, reads, works = samples_of_blocks(order), 0, 0
    blocks = -(-prepared * nodes // of_blocks)
    for part, each in zip(index.parts, components_of(order), strict=True):
        samples, size = part.samples or 0, _bytes_of(part, folder, settings)
        if not size or not samples:
            continue
        is_large = is_sample_the_unit(size, samples)
        in_message = min(_MESSAGE_BATCHES * batch_size, _MESSAGE_BYTES * samples // size)
        ready = messages * nodes * max(batch_size, in_message)
        small = 2 * blocks * _read_of_block(each) + ready * block_of(each) // of_blocks
        at_a_time = _LARGE_BATCHES * prepared if is_large else small
        reads, works = reads + size, works + min(size, size * at_a_time // samples)
    if not reads:
        return None
    urls = "\n".join(map(without_credentials, index.urls))
    data = hashlib.sha256(urls.encode(errors="surrogateescape")).hexdigest()[:16]
    return CacheNeed(data, reads // shares_of_nodes(order, nodes), works)


def _read_of_block(order: Order) -> int:
    """Samples that are read for one block of an order without components, on average at most."""
    samples = block_of(order)
    order = order.inner if isinstance(order, AlikeOrder) else order
    return order.with_gaps(samples) if isinstance(order, KeptOrder) else samples


def _bytes_of(index: ShardIndex, folder: CacheFolder, settings: TransportSettings) -> int:
    """Of all shards; 0 if none is read from afar."""
    counts, samples = index.counts, index.samples or 0
    assert counts is not None  # the caller sees to it
    shards = (number for number, url in enumerate(index.urls) if not is_local(url))
    first = next((number for number in shards if counts[number]), None)
    if first is None:
        return 0
    if index.size_bytes is not None:
        return index.size_bytes
    count = int(counts[first])
    with closing(Storages(remote_storages(settings))) as storages:
        store = TableStore(folder, storages=storages)
        table = store.table_of(index.urls[first], expected_samples=count)
    return table.file_size * samples // count
