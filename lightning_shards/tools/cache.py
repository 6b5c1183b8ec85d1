"""`lightning-shards cache`: lists, fills and clears what a node keeps of shards."""

from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import closing
from copy import copy
from dataclasses import replace
from functools import partial
from itertools import accumulate, islice
from typing import Any, Final

from lightning_shards.errors import ConfigError
from lightning_shards.plan.place import Cursor, Place
from lightning_shards.readers.indexed import IndexedSource
from lightning_shards.remote.ahead import PiecePlan, ShardTables
from lightning_shards.remote.cache import (
    PieceCache,
    clear_pieces,
    kept_fraction,
    limit_of_pieces,
    list_pieces,
)
from lightning_shards.remote.pieces import TRAILER_BYTES, Piece, share_of
from lightning_shards.remote.storage import MakeRemoteStorage, pieces_of
from lightning_shards.remote.transport import RemoteTransport, RequestThreads
from lightning_shards.shards.files import CacheFolder
from lightning_shards.shards.made_files import clear_made, list_made
from lightning_shards.shards.progress_line import progress_bar
from lightning_shards.shards.urls import is_local
from lightning_shards.tools.console import at_least, config_parser, report, run_tool

_BLOCKS: Final = 2
"""Blocks that are fetched whole: batches begin with them. Of the later ones the cache keeps a
fraction, and only that is worth fetching before the run."""

_AT_ONCE: Final = 4
"""Pieces that are planned together, for each connection."""


_EPILOG: Final = """\
list: what is there, and how many runs have it open. fill: fetch what the first epoch of a split
needs, up to the limit; run again after an interruption, it goes on. clear: remove all pieces, never
while a run has them open, unless --force is given, and what was made of joins and filters; a run
that needs it makes it again. Member tables and counts stay."""

_OF_FILL: Final = ("config", "split", "ranks_per_node", "node")
_ACTION_OF: Final = {**dict.fromkeys(_OF_FILL, "fill"), "force": "clear"}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    what = "Look after what this machine keeps of shards."
    parser = config_parser("cache", what, _EPILOG)
    add = parser.add_argument
    add("action", choices=tuple(_ACTIONS))
    add("--cache-dir", metavar="DIR", help="list, clear: default: ~/.cache/lightning_shards")
    add("--split", help="fill: train, val, test or predict, or a set: val/NAME; default: train")
    ranks, node = "fill: default: the trainer's devices", "fill: for which node; default: 0"
    add("--ranks-per-node", type=at_least(1), metavar="N", help=ranks)
    add("--node", type=at_least(0), metavar="N", help=node)
    add("--force", action="store_true", help="clear: also what a run has open")
    run_tool("cache", _run, parser.parse_args(arguments))


def _run(options: Namespace) -> int:
    for option, action in _ACTION_OF.items():
        if getattr(options, option) and options.action != action:
            raise ConfigError(f"--{option.replace('_', '-')} is for `cache {action}`")
    report(_ACTIONS[options.action](options), as_json=options.json)
    return 0


def _list(options: Namespace) -> dict[str, Any]:
    cache = CacheFolder(options.cache_dir)
    made = [
        {"path": str(path), "bytes": size, "of": of}
        for path, (of, size) in list_made(cache).items()
    ]
    return {"cache_dir": str(cache.root), "folders": list_pieces(cache), "made": made}


def _fill(options: Namespace) -> dict[str, Any]:
    if options.config is None or options.cache_dir is not None:
        raise ConfigError("`cache fill` needs --config, which names the folder, and no --cache-dir")
    from lightning_shards.tools.configured_data import open_data, source_of, trainer_size

    data, split = open_data(options.config), options.split or "train"
    trainer = trainer_size(options.config, "--ranks-per-node", options.ranks_per_node)
    ranks = options.ranks_per_node or trainer.devices
    first = ranks * (options.node or 0)
    place = Place(first, ranks * trainer.nodes, num_nodes=trainer.nodes)
    source = source_of(data, split)
    if not isinstance(source, IndexedSource):
        raise ConfigError(
            "only what the indexed reader fetches is kept, and these shards are streamed; make "
            "member tables by `lightning-shards index --format wids,members` and put them beside "
            "the shards"
        )
    return fill(source, place, data.loader.connections)


def _clear(options: Namespace) -> dict[str, Any]:
    cache = CacheFolder(options.cache_dir)
    pieces, size = clear_pieces(cache, force=options.force)
    files, made = clear_made(cache)
    return {"pieces": pieces, "size_bytes": size, "made_files": files, "made_bytes": made}


_ACTIONS: Final = {"list": _list, "fill": _fill, "clear": _clear}


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
