"""`lightning-shards cache`: lists, fills and clears what a node keeps of shards."""

from argparse import Namespace
from collections.abc import Sequence
from typing import Any, Final

from lightning_shards.errors import ConfigError
from lightning_shards.remote.cache import clear_pieces, list_pieces
from lightning_shards.shards.files import CacheFolder
from lightning_shards.shards.made_files import clear_made, list_made
from lightning_shards.tools.console import at_least, config_parser, report, run_tool

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
    from lightning_shards.plan.place import Place
    from lightning_shards.readers.indexed import IndexedSource
    from lightning_shards.tools.configured_data import open_data, source_of, trainer_size
    from lightning_shards.tools.filling import fill

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
