"""Filling the cache of a node before a run: what its first epoch needs, up to the limit."""

from collections.abc import Iterator
from contextlib import closing
from copy import copy
from dataclasses import replace
from functools import partial
from itertools import accumulate, islice
from typing import Final

from lightning_shards.errors import ConfigError
from lightning_shards.plan.place import Cursor, Place
from lightning_shards.readers.indexed import IndexedSource
from lightning_shards.remote.ahead import PiecePlan, ShardTables
from lightning_shards.remote.cache import PieceCache, kept_fraction, limit_of_pieces
from lightning_shards.remote.pieces import TRAILER_BYTES, Piece, share_of
from lightning_shards.remote.storage import MakeRemoteStorage, pieces_of
from lightning_shards.remote.transport import RemoteTransport, RequestThreads
from lightning_shards.shards.progress_line import progress_bar
from lightning_shards.shards.urls import is_local

_BLOCKS: Final = 2
"""Blocks that are fetched whole: batches begin with them. Of the later ones the cache keeps a
fraction, and only that is worth fetching before the run."""

_AT_ONCE: Final = 4
"""Pieces that are planned together, for each connection."""


def _remote_of(source: IndexedSource) -> tuple[MakeRemoteStorage, PieceCache]:
    """What makes the storage of a source's remote shards, and their cache."""
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


def fill(source: IndexedSource, place: Place, connections: int) -> dict[str, int]:
    """Fetch the pieces of a source's first epoch; what is there is not fetched again.

    `place` is that of the first rank of the node.

    Returns:
        How many pieces of the first epoch are there, their bytes, those that were fetched now, and
        whether the cache is full, so that there was no room for the others.

    Raises:
        ConfigError: The source fetches nothing ahead that could be kept.
        ShardError: A table or a piece cannot be had; what was fetched stays.
    """
    maker, given = _remote_of(source)
    most = min(given.need.reads_bytes, given.need.limit_bytes)
    settings = replace(maker.settings, connections=connections)
    with (
        progress_bar("fetched", most, "B") as step,
        closing(copy(given)) as cache,
        closing(RemoteTransport(settings)) as transport,
        closing(RequestThreads(connections)) as threads,
        closing(ShardTables(source.index, source.cache, source.storages)) as tables,
    ):
        load = partial(_is_there, cache=cache, transport=transport)
        pieces = _pieces(source, place, tables, kept_fraction([cache.need]))
        number, size_bytes, room = 0, 0, limit_of_pieces([cache.need])
        while room >= 0 and (some := list(islice(pieces, _AT_ONCE * connections))):
            taken = list(accumulate(piece.size + TRAILER_BYTES for piece in some))
            fitting = sum(size <= room for size in taken)  # others would only drop one of them
            begun = [threads.begin(partial(load, piece)) for piece in some[:fitting]]
            room -= taken[-1]
            for piece, is_there in zip(some, begun, strict=False):
                if is_there.result():
                    number, size_bytes = number + 1, size_bytes + piece.size
                    step(piece.size)
                else:
                    room = -1
        fetched = int(transport.counts.fetched_bytes)
    counts = {"pieces": number, "size_bytes": size_bytes, "fetched_bytes": fetched}
    return counts | {"is_full": room < 0}


def _pieces(
    source: IndexedSource, place: Place, tables: ShardTables, fraction: float
) -> Iterator[Piece]:
    """Each piece once, in the order of first use: of the first blocks all, then what stays."""
    at = source.order, source.epochs, Cursor(), place
    plan = PiecePlan(*at, source.index.urls, tables)
    named = set[Piece]()
    for number, block in enumerate(plan.first_epoch()):
        for piece in pieces_of(read for read in block.reads if not is_local(read.url)):
            if piece in named:
                continue  # a component of a mixture stays in its block, or is passed again
            if number < _BLOCKS or share_of(piece.folder, piece.name) < fraction:
                named.add(piece)
                yield piece


def _is_there(piece: Piece, cache: PieceCache, transport: RemoteTransport) -> bool:
    """Whether the piece is in the cache now, or another process is just fetching it."""
    return cache.has(piece) or cache.load(piece, transport.chunks(*piece)) is not False
