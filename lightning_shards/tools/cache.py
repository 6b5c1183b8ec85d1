"""`lightning-shards cache`: lists, fills, checks and clears what a node keeps of shards."""

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from lightning_shards.errors import ConfigError, count_of
from lightning_shards.shards.private_files import CacheFolder, MadeFile, clear_made, list_made
from lightning_shards.shards.progress_line import bytes_bar
from lightning_shards.shards.remote.cache.limits import kept_fraction
from lightning_shards.shards.remote.cache.piece_files import group_of
from lightning_shards.shards.remote.cache.piece_folder import PieceFolder, folder_of_pieces
from lightning_shards.shards.remote.cache.upkeep import (
    CheckedPieces,
    FolderListing,
    Freed,
    check_pieces,
    clear_pieces,
    list_pieces,
    piece_folders,
)
from lightning_shards.system.cpus import num_cpus
from lightning_shards.tools.console import FAILED, human, require_large_enough, run_tool, table

_EPILOG: Final = """list: what is there, and which runs have it open; joins and what filters
have left, too. fill: fetch what the first
epoch of a split needs, up to the limit, so that a run does not begin with an empty cache; run again
after an interruption, it goes on. verify: hold length and CRC-32 of each piece against what was
written, and remove what is damaged. clear: remove all pieces, never while a run has them open,
unless --force is given, and all joins and filters; a run that needs one makes
it again. On a network file system each machine has pieces of its own; those of all machines are
cleared by --all-hosts, which is for machines that do not come back. Member tables and counts stay.
Exit status: 0 done, 1 verify has found damaged pieces, 2 not done."""

_MAX_LISTED: Final = 20

_OF_ONE_ACTION: Final = {
    "split": "fill",
    "ranks_per_node": "fill",
    "force": "clear",
    "all_hosts": "clear",
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = ArgumentParser(
        prog="lightning-shards cache",
        description="Look after what this machine keeps of shards.",
        epilog=_EPILOG,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("action", choices=tuple(_ACTIONS))
    add("--config", type=Path, metavar="C", help="a YAML with a section `data`; needed by fill")
    add("--cache-dir", metavar="DIR", help="default: the config's, else ~/.cache/lightning_shards")
    add("--split", help="fill: train, val, test or predict, or a set: val/NAME; default: train")
    add("--ranks-per-node", type=int, metavar="N", help="fill: default: the trainer's devices")
    add("--force", action="store_true", help="clear: also what a run has open")
    add("--all-hosts", action="store_true", help="clear: also what other machines left")
    add("--json", action="store_true", help="print one JSON document")
    run_tool("cache", _run, parser.parse_args(arguments))


def _run(options: Namespace) -> int:
    require_large_enough(options, ranks_per_node=1)
    for option, action in _OF_ONE_ACTION.items():
        if getattr(options, option) and options.action != action:
            raise ConfigError(f"--{option.replace('_', '-')} is for `cache {action}`")
    if options.config is not None and options.cache_dir is not None:
        raise ConfigError("--config names the cache folder, too: give it or --cache-dir")
    return _ACTIONS[options.action](options)


def _cache_of(options: Namespace) -> CacheFolder:
    if options.config is None:
        return CacheFolder(options.cache_dir)
    from lightning_shards.tools.configured_data import open_data

    return CacheFolder(open_data(options.config).loader_config.cache_dir)


def _list(options: Namespace) -> int:
    cache = _cache_of(options)
    listings, made = list(map(list_pieces, piece_folders(cache))), list_made(cache)
    if options.json:
        folders, of_runs = list(map(_document, listings)), {of: _files(made[of]) for of in made}
        print(json.dumps({"cache_dir": str(cache.root), "folders": folders, "made": of_runs}))
        return 0
    if not listings and not made:
        print(f"{cache.root} keeps nothing of remote shards, joins and filters")
    for listing in listings:
        print(_as_text(listing))
    for of, files in made.items():
        print(_made_text(of, files))
    return 0


def _files(files: Sequence[MadeFile]) -> list[dict[str, Any]]:
    return [{"path": str(file.path), "bytes": file.size_bytes} for file in files]


def _made_text(of: str, files: Sequence[MadeFile]) -> str:
    size = sum(file.size_bytes for file in files)
    line = f"{of}: {human(size)} in {count_of(len(files), 'file')}"
    rows = [[file.path.name, human(file.size_bytes)] for file in files]
    lines = [line, table([["file", "size"], *rows[:_MAX_LISTED]])]
    if len(files) > _MAX_LISTED:
        lines.append(f"and {len(files) - _MAX_LISTED:,} more, see --json")
    return "\n".join(lines)


def _document(listing: FolderListing) -> dict[str, Any]:
    return {
        "path": str(listing.path),
        "pieces": listing.pieces,
        "bytes": listing.size_bytes,
        "writing_bytes": listing.writing_bytes,
        "kept_fraction": kept_fraction(listing.runs) if listing.runs else None,
        "objects": [each._asdict() for each in listing.objects],
        "runs": [need._asdict() for need in listing.runs],
    }


def _as_text(listing: FolderListing) -> str:
    pieces, shards = count_of(listing.pieces, "piece"), count_of(len(listing.objects), "shard")
    lines = [f"{listing.path}: {human(listing.size_bytes)} in {pieces} of {shards}"]
    if listing.writing_bytes:
        lines.append(f"being written: {human(listing.writing_bytes)}")
    largest = sorted(listing.objects, key=lambda each: -each.size_bytes)
    if largest:
        # its first digits are the group, which the shards of a data set have in common
        rows = [
            [
                each.name.removeprefix(group_of(each.name))[:16],
                f"{each.pieces:,}",
                human(each.size_bytes),
            ]
            for each in largest
        ]
        lines.append(table([["shard (hash)", "pieces", "size"], *rows[:_MAX_LISTED]]))
    if len(largest) > _MAX_LISTED:
        lines.append(f"and {len(largest) - _MAX_LISTED:,} more, see --json")
    lines += [
        f"open: a run that reads {human(need.reads_bytes)} an epoch, at most "
        f"{human(need.limit_bytes)} of it kept; it works on {human(need.working_set_bytes)}"
        for need in listing.runs
    ]
    if listing.runs:
        lines.append(f"of what they read, {kept_fraction(listing.runs):.0%} stay for later epochs")
    else:
        lines.append("no run has it open")
    return "\n".join(lines)


def _fill(options: Namespace) -> int:
    if options.config is None:
        raise ConfigError("`cache fill` needs --config: what a run of it reads is fetched")
    from lightning_shards.plan.place import Place
    from lightning_shards.readers.ahead.filling import Filling
    from lightning_shards.tools.configured_data import (
        note_unknown_devices,
        open_data,
        require_split,
        trainer_size,
    )

    configured, split = open_data(options.config), options.split or "train"
    require_split(configured, split)
    cache = CacheFolder(configured.loader_config.cache_dir)
    devices, nodes = trainer_size(options.config)
    if devices is None and options.ranks_per_node is None:
        note_unknown_devices("cache fill", options.config, "--ranks-per-node")
    ranks = options.ranks_per_node or devices or 1
    place = Place(world_size=ranks * nodes, num_nodes=nodes)
    filling = Filling(configured.source(split), place, configured.loader_config.connections)
    with bytes_bar("fetched", filling.most_bytes) as step:
        filled = filling.run(step)
    if options.json:
        print(json.dumps(filled._asdict()))
        return 0
    there, fetched = human(filled.size_bytes), human(filled.fetched_bytes)
    pieces = count_of(filled.pieces, "piece")
    print(f"{cache.root} holds {there} in {pieces} of the first epoch, {fetched} fetched now")
    if filled.is_full:
        print("the cache is full: the rest is fetched by the run")
    return 0


def _own_folder(options: Namespace) -> PieceFolder | None:
    """The folder of this machine's pieces; None if there is none."""
    cache = _cache_of(options)
    path = folder_of_pieces(cache)
    return next((each for each in piece_folders(cache) if each.path == path), None)


def _verify(options: Namespace) -> int:
    folder = _own_folder(options)
    size = 0 if folder is None else list_pieces(folder).size_bytes
    with bytes_bar("verified", size) as step:
        found = None if folder is None else check_pieces(folder, threads=num_cpus(), step=step)
    pieces, size_bytes, damaged, unreadable = found or CheckedPieces(0, 0, [])
    if options.json:
        wrong = {"damaged": damaged, "unreadable": unreadable}
        print(json.dumps({"pieces": pieces, "bytes": size_bytes, **wrong}))
    else:
        for path in damaged[:_MAX_LISTED]:
            print(f"wrong: {path} was damaged, and is removed")
        for what in unreadable[:_MAX_LISTED]:
            print(f"wrong: the disk does not give {what}; it is removed: check that disk")
        print(f"{human(size_bytes)} in {count_of(pieces, 'piece')}, {len(damaged):,} damaged")
    return FAILED if damaged or unreadable else 0


def _clear(options: Namespace) -> int:
    if options.all_hosts:
        folders = piece_folders(_cache_of(options))
    else:
        folders = [folder for folder in [_own_folder(options)] if folder is not None]
    (pieces, size_bytes), refused = _cleared(folders, force=options.force)
    if refused is not None and not options.all_hosts:
        raise refused
    files, made_bytes = clear_made(_cache_of(options))
    if options.json:
        freed = {"pieces": pieces, "bytes": size_bytes, "made_files": files}
        print(json.dumps(freed | {"made_bytes": made_bytes}))
    else:
        print(f"freed {human(size_bytes)} in {count_of(pieces, 'piece')}")
        if files:
            print(f"freed {human(made_bytes)} in {count_of(files, 'file')} of joins and filters")
    if refused is not None:  # another machine may still use its own
        raise refused
    return 0


def _cleared(folders: Sequence[PieceFolder], *, force: bool) -> tuple[Freed, ConfigError | None]:
    """What was removed from these folders, and why one of them was left as it is."""
    pieces, size_bytes, refused = 0, 0, None
    for folder in folders:
        try:
            freed = clear_pieces(folder, force=force)
        except ConfigError as error:
            refused = error
        else:
            pieces, size_bytes = pieces + freed.pieces, size_bytes + freed.size_bytes
    return Freed(pieces, size_bytes), refused


_ACTIONS: Final = {"list": _list, "fill": _fill, "verify": _verify, "clear": _clear}
