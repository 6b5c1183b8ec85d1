"""Telling a storage what to fetch ahead of the batches.

Only the first batch waits for the arithmetic, and not for long.
"""

import logging
import sys
import threading
from bisect import bisect_right
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from time import perf_counter
from typing import Final, TypeVar

from lightning_shards.errors import IndexMismatchError
from lightning_shards.plan.epoch import WorkerEpoch
from lightning_shards.remote.ahead.piece_plan import Announcement, PiecePlan
from lightning_shards.remote.ahead.shard_tables import ShardTables
from lightning_shards.remote.request_threads import RequestThreads
from lightning_shards.shards.storage.schemes import Storages
from lightning_shards.system.process import Fetching, wait_for_event

_FIRST_S: Final = 5.0
"""A first batch waits so long for the first announcement, which takes a few requests: in a cache
that is filled it then finds what it wants, and a shard that was replaced is known before its old
bytes are read from the cache."""

_T = TypeVar("_T")

_log = logging.getLogger(__name__)


class FetchAhead:
    """Announces pieces when the batches come to the position from which on they are wanted.

    The next announcement is worked out by a thread, which takes tables. What follows the first one
    is asked for when the first batch is made, which so shares the network with no tables of later
    blocks. If the pieces of a block cannot be known, a warning says so: batches then fetch what
    they need, and raise the error if it is one of theirs. A shard that was replaced is an error of
    the next batch.

    Args:
        announcements: Those from some position on, in the order of the batches, without end.
        storages: Are told what to fetch.
        end: Lets go of what the announcements read by; called by `close`, and once more where an
            announcement is worked out then.

    Attributes:
        waited_s: Seconds that the first batch waited for the first announcement.
    """

    def __init__(
        self,
        announcements: Iterator[Announcement],
        storages: Storages,
        end: Callable[[], None] = lambda: None,
    ) -> None:
        self._announcements, self._storages, self._end = announcements, storages, end
        self._thread = RequestThreads(1)
        self._next: Future[Announcement | None] | None = None
        self._until: tuple[int, int] | None = (0, -1)  # what was announced; None: nothing more is
        self._left: tuple[int, WorkerEpoch, range] | None = None  # turn, and steps from this one on
        self._batches, self._is_closed = 0, False
        self.waited_s = 0.0

    def announcing(self, turn: int, epoch: WorkerEpoch, batches: Iterator[_T]) -> Iterator[_T]:
        """The batches of an epoch; the position of each one is reached before it is read."""
        steps = epoch.own_steps()
        for number, step in enumerate(steps):
            self._left = turn, epoch, steps[number:]
            self.reach(turn, epoch.span(step)[1] - 1)
            yield next(batches)

    def most_batches(self) -> int:
        """How many batches may be read together from the one on that was reached last.

        The first batch of a block is read when that block has been announced with the next one.
        Before that, nothing would be on the way behind the pieces that it waits for.
        """
        until, left = self._until, self._left
        if until is None:
            return sys.maxsize
        if left is None or left[0] != until[0]:
            return 1
        _, epoch, steps = left
        return max(1, bisect_right(steps, until[1], key=lambda step: epoch.span(step)[1]))

    def reach(self, turn: int, position: int) -> None:
        """The batches have come to a position.

        Args:
            turn: How many epochs lie between the cursor and this one.
            position: The last one of the next batch, in its epoch.

        Raises:
            IndexMismatchError: A shard is another one than when its members were listed.
        """
        self._batches += 1
        is_first = self._batches == 1
        if self._next is None:
            self._next = self._thread.begin(self._plan)
        if is_first:
            began, is_there = perf_counter(), threading.Event()
            self._next.add_done_callback(lambda _: is_there.set())
            with Fetching():
                wait_for_event(is_there, _FIRST_S)
            self.waited_s = perf_counter() - began
        while (planned := self._planned()) is not None and (turn, position) >= planned[:2]:
            self._storages.prefetch(planned.reads)
            self._until = planned.turn, planned.stop
            self._next = None if is_first else self._thread.begin(self._plan)

    def close(self) -> None:
        """Announce nothing more. The thread ends with the table that it may be reading."""
        self._is_closed = True
        self._thread.close()
        self._end()

    def _plan(self) -> Announcement | None:
        try:
            return next(self._announcements, None)
        finally:
            if self._is_closed:
                self._end()

    def _planned(self) -> Announcement | None:
        """The next announcement, if it is known by now."""
        if self._until is None or self._next is None or not self._next.done():
            return None
        try:
            return self._next.result()
        except IndexMismatchError:
            raise
        except Exception as error:  # noqa: BLE001 the batches raise what is an error of theirs
            _log.warning("nothing more is fetched ahead of the batches: %s", error)
        self._until = None
        return None


@contextmanager
def fetched_ahead(
    storages: Storages, plan: PiecePlan, tables: ShardTables
) -> Generator[FetchAhead | None]:
    """Whom the batches tell where they are; None if nothing is to be fetched ahead.

    Args:
        storages: Are told what to fetch.
        plan: What the batches need.
        tables: What the plan takes its tables from; closed at the end.
    """
    fetches_ahead = any(storage.fetches_ahead for storage, _ in storages.grouped(plan.urls))
    # what is read in the order of the file is read in long ranges as it is
    if not fetches_ahead or plan.order.identity()["sampling"] == "sequential":
        yield None
        return
    ahead = FetchAhead(plan.announcements(), storages, tables.close)
    try:
        yield ahead
    finally:
        ahead.close()
