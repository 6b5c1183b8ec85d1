"""`lightning-shards cache`: lists, fills, checks and clears what a node keeps of shards."""

from argparse import Namespace
from collections.abc import Sequence
from typing import Any, Final

from lightning_shards.errors import ConfigError
from lightning_shards.shards.private_files import CacheFolder, clear_made, list_made
from lightning_shards.shards.progress_line import bytes_bar
from lightning_shards.shards.remote.cache.piece_folder import PieceFolder, folder_of_pieces
from lightning_shards.shards.remote.cache.upkeep import (
    CheckedPieces,
    Freed,
    check_pieces,
    clear_pieces,
    list_pieces,
    piece_folders,
)
from lightning_shards.system.process import num_cpus
from lightning_shards.tools.console import (
    FAILED,
    config_parser,
    report,
    require_large_enough,
    run_tool,
)

_EPILOG: Final = """\
list: what is there, and how many runs have it open. fill: fetch what the first epoch of a split
needs, up to the limit; run again after an interruption, it goes on. verify: hold length and CRC-32
of each piece against what was written, and remove what is damaged. clear: remove all pieces, never
while a run has them open, unless --force is given, and what was made of joins and filters; a run
that needs it makes it again. On a network file system each machine has pieces of its own; those of
all machines are cleared by --all-hosts, which is for machines that do not come back. Member tables
and counts stay. Exit status: 0 done, 1 verify has found damaged pieces, 2 not done."""

_OF_ONE_ACTION: Final = {
    "split": "fill",
    "ranks_per_node": "fill",
    "force": "clear",
    "all_hosts": "clear",
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    what = "Look after what this machine keeps of shards."
    parser = config_parser("cache", what, _EPILOG)
    add = parser.add_argument
    add("action", choices=tuple(_ACTIONS))
    add("--cache-dir", metavar="DIR", help="default: the config's, else ~/.cache/lightning_shards")
    add("--split", help="fill: train, val, test or predict, or a set: val/NAME; default: train")
    add("--ranks-per-node", type=int, metavar="N", help="fill: default: the trainer's devices")
    add("--force", action="store_true", help="clear: also what a run has open")
    add("--all-hosts", action="store_true", help="clear: also what other machines left")
    run_tool("cache", _run, parser.parse_args(arguments))


def _run(options: Namespace) -> int:
    require_large_enough(options, ranks_per_node=1)
    for option, action in _OF_ONE_ACTION.items():
        if getattr(options, option) and options.action != action:
            raise ConfigError(f"--{option.replace('_', '-')} is for `cache {action}`")
    if options.config is not None and options.cache_dir is not None:
        raise ConfigError("--config names the cache folder, too: give it or --cache-dir")
    document = _ACTIONS[options.action](options)
    report(document, as_json=options.json)
    return FAILED if document.get("damaged") or document.get("unreadable") else 0


def _cache_of(options: Namespace) -> CacheFolder:
    if options.config is None:
        return CacheFolder(options.cache_dir)
    from lightning_shards.tools.configured_data import open_data

    return CacheFolder(open_data(options.config).loader_config.cache_dir)


def _list(options: Namespace) -> dict[str, Any]:
    cache = _cache_of(options)
    folders = [
        {
            "path": str(listing.path),
            "pieces": listing.pieces,
            "bytes": listing.size_bytes,
            "shards": len(listing.objects),
            "open_runs": len(listing.runs),
        }
        for listing in map(list_pieces, piece_folders(cache))
    ]
    made = [
        {"path": str(file.path), "bytes": file.size_bytes, "of": of}
        for of, files in list_made(cache).items()
        for file in files
    ]
    return {"cache_dir": str(cache.root), "folders": folders, "made": made}


def _fill(options: Namespace) -> dict[str, Any]:
    if options.config is None:
        raise ConfigError("`cache fill` needs --config: what a run of it reads is fetched")
    from lightning_shards.plan.place import Place
    from lightning_shards.readers.ahead.filling import Filling
    from lightning_shards.tools.configured_data import open_data, require_split, trainer_size

    configured, split = open_data(options.config), options.split or "train"
    require_split(configured, split)
    trainer = trainer_size("cache fill", options.config, "--ranks-per-node", options.ranks_per_node)
    ranks = options.ranks_per_node or trainer.devices or 1
    place = Place(world_size=ranks * trainer.nodes, num_nodes=trainer.nodes)
    filling = Filling(configured.source(split), place, configured.loader_config.connections)
    with bytes_bar("fetched", filling.most_bytes) as step:
        return filling.run(step)._asdict()


def _own_folders(options: Namespace) -> list[PieceFolder]:
    """The folder of this machine's pieces, if there is one."""
    cache = _cache_of(options)
    return [each for each in piece_folders(cache) if each.path == folder_of_pieces(cache)]


def _verify(options: Namespace) -> dict[str, Any]:
    found = CheckedPieces(0, 0, [])
    for folder in _own_folders(options):
        with bytes_bar("verified", list_pieces(folder).size_bytes) as step:
            found = check_pieces(folder, threads=num_cpus(), step=step)
    return found._asdict()


def _clear(options: Namespace) -> dict[str, Any]:
    cache, own = _cache_of(options), _own_folders(options)
    freed, refused = Freed(0, 0), list[str]()
    for folder in piece_folders(cache) if options.all_hosts else own:
        try:
            pieces, size_bytes = clear_pieces(folder, force=options.force)
        except ConfigError as error:  # another machine may still use its own
            refused.append(str(error))
        else:
            freed = Freed(freed.pieces + pieces, freed.size_bytes + size_bytes)
    files, made_bytes = clear_made(cache)
    if refused:
        raise ConfigError("; ".join(refused))
    return {**freed._asdict(), "made_files": files, "made_bytes": made_bytes}


_ACTIONS: Final = {"list": _list, "fill": _fill, "verify": _verify, "clear": _clear}
