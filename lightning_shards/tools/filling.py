"""Filling the cache of a node before a run: what its first epoch needs, up to the limit."""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import ExitStack
from copy import copy
from dataclasses import replace
from functools import partial
from threading import Event
from typing import Final, NamedTuple

from lightning_shards.errors import ConfigError, ShardError
from lightning_shards.plan.place import Cursor, Place
from lightning_shards.readers.indexed import IndexedSource
from lightning_shards.shards.ahead.piece_plan import PiecePlan, window_of
from lightning_shards.shards.ahead.shard_tables import ShardTables
from lightning_shards.shards.remote.cache import PieceCache, kept_fraction, limit_of_pieces
from lightning_shards.shards.remote.pieces import TRAILER_BYTES, Piece, share_of
from lightning_shards.shards.remote.request_threads import RequestThreads
from lightning_shards.shards.remote.transport import (
    RemoteTransport,
    StampedTransport,
    Transport,
)
from lightning_shards.shards.storage.fetcher import pieces_of
from lightning_shards.shards.storage.remote import MakeRemoteStorage, version_number
from lightning_shards.shards.urls import is_local

_BLOCKS: Final = 2
"""Blocks that are fetched whole: batches begin with them. Of the later ones the cache keeps a
fraction, and only that is worth fetching before the run."""

_LOOK_S: Final = 0.05
"""How often a piece is looked for that another process fetches."""

_BEGUN_S: Final = 5.0
"""Seconds for what is under way when a piece cannot be had: what comes till then is kept."""


class Filled(NamedTuple):
    """What the cache holds after it was filled.

    Attributes:
        pieces: Pieces of the first epoch that are there.
        size_bytes: Their bytes.
        fetched_bytes: Those of them that were fetched now.
        is_full: Whether there was no room for the others.
    """

    pieces: int
    size_bytes: int
    fetched_bytes: int
    is_full: bool


class Filling:
    """Fetches the pieces of a source's first epoch; what is there is not fetched again.

    Args:
        source: Its shards are remote and have member tables.
        place: Of the first rank of the node.
        connections: Requests at once.

    Raises:
        ConfigError: The source fetches nothing ahead that could be kept.
    """

    def __init__(self, source: IndexedSource, place: Place, connections: int) -> None:
        self._source, self._place, self._connections = source, place, connections
        self._maker, self._cache = _cached_storage(self._source)
        self.most_bytes = min(self._cache.need.reads_bytes, self._cache.need.limit_bytes)

    def run(self, step: Callable[[int], object] = int) -> Filled:
        """Fetch them.

        Args:
            step: Called with the bytes of each piece that is there.

        Raises:
            ShardError: A table or a piece cannot be had; what was fetched before stays, and what
                comes within seconds.
        """
        with ExitStack() as stack:
            cache = copy(self._cache)
            stack.callback(cache.close)
            settings = replace(self._maker.settings, connections=self._connections)
            transport = StampedTransport(RemoteTransport(settings), version_number)
            stack.callback(transport.close)
            threads = RequestThreads(self._connections)
            stack.callback(threads.close)
            ended = Event()
            stack.callback(ended.set)
            load = partial(_is_kept, cache=cache, transport=transport, ended=ended)
            room = limit_of_pieces([cache.need])
            number = size_bytes = 0
            for piece, is_kept in _loaded(self._pieces(stack), load, threads, room):
                if not is_kept:
                    return Filled(number, size_bytes, transport.counts.bytes, is_full=True)
                number, size_bytes = number + 1, size_bytes + piece.size
                step(piece.size)
            return Filled(number, size_bytes, transport.counts.bytes, is_full=False)

    def _pieces(self, stack: ExitStack) -> Iterator[Piece]:
        """Each piece once, in the order of first use: of the first blocks all, then what stays."""
        source, place = self._source, self._place
        tables = ShardTables(source.index, source.cache, source.storages, is_patient=False)
        stack.callback(tables.close)
        plan = PiecePlan(
            order=source.order,
            epochs=source.epochs,
            cursor=Cursor(),
            place=place,
            ranks=place.ranks_of_node,
            urls=source.index.urls,
            tables_of=tables.tables_of,
            window=window_of(source.order, source.epochs, place),
        )
        fraction, named = kept_fraction([self._cache.need]), set[Piece]()
        for number, block in enumerate(plan.first_epoch()):
            for piece in pieces_of(read for read in block.reads if not is_local(read.url)):
                if piece in named:
                    continue  # a component of a mixture stays in its block, or is passed again
                if number < _BLOCKS or share_of(piece.folder, piece.name) < fraction:
                    named.add(piece)
                    yield piece


def _cached_storage(source: IndexedSource) -> tuple[MakeRemoteStorage, PieceCache]:
    makers = [*(source.storages or {}).values()]
    remote = next((each for each in makers if isinstance(each, MakeRemoteStorage)), None)
    if remote is None:
        raise ConfigError("these shards are not remote, so there is nothing to fetch")
    if remote.cache is None:
        why = "the cache folder has no room for it (see the warning)"
        if source.order.identity()["sampling"] == "sequential":
            why = "sampling='sequential' reads shards in the order of the files"
        raise ConfigError(f"nothing is kept of these shards: {why}; so there is nothing to fill")
    return remote, remote.cache


def _loaded(
    pieces: Iterator[Piece], load: Callable[[Piece], bool], threads: RequestThreads, room: int
) -> Iterator[tuple[Piece, bool]]:
    """Each piece, and whether it is in the cache; some are fetched while one is waited for.

    `room` is what all of them may take: what goes beyond it would only drop one of them.
    """
    begun = deque[tuple[Piece, Future[bool]]]()
    for piece in pieces:
        room -= piece.size + TRAILER_BYTES
        if room < 0:
            over = Future[bool]()
            over.set_result(False)
            begun.append((piece, over))
            break
        begun.append((piece, threads.begin(partial(load, piece))))
        if len(begun) >= threads.limit:
            yield _first(begun)
    while begun:
        yield _first(begun)


def _first(begun: deque[tuple[Piece, Future[bool]]]) -> tuple[Piece, bool]:
    """The first of the pieces that are under way; where it cannot be had, others may yet come."""
    piece, future = begun.popleft()
    try:
        return piece, future.result()
    except ShardError:
        wait([each for _, each in begun], _BEGUN_S)
        raise


def _is_kept(piece: Piece, cache: PieceCache, transport: Transport, ended: Event) -> bool:
    """Whether the piece is in the cache now; it is fetched, by this process or by another one.

    One that another process holds is waited for until it is there, or until that process lets go
    of it and this one fetches it.
    """

    def fetch() -> bytearray:
        return transport.read(piece.url, piece.begin, piece.end, piece.version).data

    while (is_there := cache.has(piece) or cache.load(piece, fetch)) is None:
        if ended.wait(_LOOK_S):
            return False
    return is_there
