"""Telling a storage what to fetch ahead of the batches.

Only the first batch waits for the arithmetic, and not for long.
"""

import logging
import sys
import threading
from bisect import bisect_right
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Final, TypeVar

from lightning_shards.errors import IndexMismatchError
from lightning_shards.plan.epoch import WorkerEpoch
from lightning_shards.shards.ahead.piece_plan import Announcement, PiecePlan
from lightning_shards.shards.ahead.shard_tables import ShardTables
from lightning_shards.shards.storage.schemes import Storages
from lightning_shards.system.process import Fetching, wait_for_event

_FIRST_S: Final = 5.0
"""A first batch waits so long for the first announcement, which takes a few requests: in a cache
that is filled it then finds what it wants, and a shard that was replaced is known before its old
bytes are read from the cache."""

_SECOND: Final = 2
"""When this batch is asked for, the first one has been made."""

Position = tuple[int, int]
"""How many epochs lie between the cursor and this one, and the position in it."""


_T = TypeVar("_T")

_log = logging.getLogger(__name__)


class FetchAhead:
    """Announces pieces when the batches come to the position from which on they are wanted.

    The thread that does so is started by the first `reach`. If the pieces of a block cannot be
    known, the thread ends with a warning: batches then fetch what they need, and raise the error if
    it is one of theirs. A shard that was replaced is an error of the next batch. What follows the
    first announcement is asked for when the first batch is made, which so shares the network with
    no tables of later blocks.

    Args:
        announcements: Those from some position on, in the order of the batches, without end. They
            are asked for by the thread alone.
        storages: Are told what to fetch.
        end: Lets go of what the announcements read by; called by `close` and once more when the
            thread ends, which may be later.

    Attributes:
        waited_s: Seconds that the first batch waited for the first announcement.
    """

    def __init__(
        self,
        announcements: Callable[[], Iterator[Announcement]],
        storages: Storages,
        end: Callable[[], None] = lambda: None,
    ) -> None:
        self._announcements, self._storages, self._end = announcements, storages, end
        self._changed = threading.Condition()
        self._reached: Position = (0, -1)
        self._due = self._reached
        self._announced_until: Position | None = self._due
        self._left: tuple[int, WorkerEpoch, range] | None = None  # turn, and steps from this one on
        self._batches, self._is_closed = 0, False
        self._error: IndexMismatchError | None = None
        self._has_announced = threading.Event()
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
        until, left = self._announced_until, self._left
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
        with self._changed:
            self._reached = max(self._reached, (turn, position))
            self._batches += 1
            is_first = self._batches == 1
            # to wake the thread costs more than all else of this, so it is not done for each batch
            if self._reached >= self._due or self._batches == _SECOND:
                self._changed.notify_all()
        if is_first:
            self._start()
            began = perf_counter()
            with Fetching():
                wait_for_event(self._has_announced, _FIRST_S)
            self.waited_s = perf_counter() - began
        with self._changed:
            if self._error is not None:
                raise self._error

    def close(self) -> None:
        """Announce nothing more. The thread ends with the table that it may be reading."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._end()

    def _start(self) -> None:
        try:
            threading.Thread(target=self._run, name="fetch-ahead", daemon=True).start()
        except RuntimeError as error:  # the batches fetch what they need
            _log.warning("nothing is fetched ahead of the batches: %s (ulimit -u)", error)
            self._has_announced.set()
            self._announced_until = None
            self._end()

    def _run(self) -> None:
        try:
            for announcement in self._announcements():
                if not self._is_announced(announcement):
                    break
        except IndexMismatchError as error:
            with self._changed:
                self._error = error
        except Exception as error:  # noqa: BLE001 the batches raise what is an error of theirs
            with self._changed:
                is_closed = self._is_closed
            if not is_closed:
                _log.warning("nothing more is fetched ahead of the batches: %s", error)
        finally:
            self._announced_until = None
            self._has_announced.set()
            self._end()

    def _is_announced(self, announcement: Announcement) -> bool:
        """Announce it when the batches have come there.

        Returns:
            Whether it was announced; not after `close`.
        """
        turn, position, stop, reads = announcement
        with self._changed:
            self._due = (turn, position)
            self._changed.wait_for(lambda: self._is_closed or self._reached >= self._due)
            if self._is_closed:
                return False
            # with the lock: nothing is announced after `close`
            self._storages.fetch_ahead(reads)
            self._announced_until = (turn, stop)
            is_first = not self._has_announced.is_set()
            self._has_announced.set()
            if is_first:  # no tables of later blocks are fetched beside it
                self._changed.wait_for(lambda: self._is_closed or self._batches >= _SECOND)
        return True


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
    groups = storages.grouped(plan.urls)  # made here: a thread asks for them later
    fetches_ahead = any(storage.fetches_ahead for storage, _ in groups)
    # what is read in the order of the file is read in long ranges as it is
    if not fetches_ahead or plan.order.identity()["sampling"] == "sequential":
        yield None
        return
    ahead = FetchAhead(plan.announcements, storages, tables.close)
    try:
        yield ahead
    finally:
        ahead.close()
