"""`lightning-shards reshard`: cuts, merges, shuffles, sorts or edits shards into new ones."""

from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Sequence
from typing import Any

from lightning_shards.dataprep.writing.apart import require_apart
from lightning_shards.dataprep.writing.listing import list_tars
from lightning_shards.dataprep.writing.plain_copies import plain_copies
from lightning_shards.dataprep.writing.rewriting import Edit, rewrite
from lightning_shards.errors import ConfigError
from lightning_shards.shards.storage.local_copies import require_local
from lightning_shards.shards.urls import expand_urls
from lightning_shards.tools.console import run_tool
from lightning_shards.tools.output_options import (
    RESUMING,
    add_output_options,
    load_function,
    output_folders,
    output_of,
    packing_of,
    print_report,
    require_known_fields,
)

_EPILOG = f"""\
{RESUMING}

  lightning-shards reshard 'old-{{000..999}}.tar' --order shuffled --seed 1 --out new
  lightning-shards reshard 'old-*.tar' --num-shards 64 --rename jpeg=jpg --out new
  lightning-shards reshard 'old-*.tar' --filter my_module:is_sharp --keep 0.1 --out new

A function takes a sample, a dict of `__key__` and the bytes of each field. That of --filter says
whether the sample is kept; that of --map gives the sample to write, with the same key. Both must
always give the same for the same sample. Samples are read one at a time from where they are, so
only the list of them is in memory (100 bytes each). Members of a sample that are apart in a tar
are joined, a link in the place of one is refused, and hidden files such as ._x of macOS are left
out. Tars are held against the indexes beside them and in the cache folder, and one that differs is
refused: index it again if that was meant. A classes.json beside the shards is written beside the
new ones, too. Compressed tars (gzip, bzip2, xz; zstandard from Python 3.14 on) are unpacked to DIR
until the shards are written.
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    run_tool("reshard", _reshard, _parser().parse_args(arguments))


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="lightning-shards reshard",
        description="Write the samples of shards to other shards, with their index.",
        epilog=_EPILOG,
        formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("urls", nargs="+", help="local tars: paths with braces or wildcards")
    add_output_options(parser, order="source")
    add("--filter", metavar="FUNCTION", help="import path of a function: keep the sample?")
    add("--map", metavar="FUNCTION", help="import path of a function: the sample to write")
    add("--rename", action="append", default=[], metavar="OLD=NEW", help="a field, before --map")
    add("--fields", metavar="A,B", help="the only fields kept, by their new names, before --map")
    return parser


def _reshard(options: Namespace) -> int:
    packing, output, edit = packing_of(options), output_of(options), _edit(options)
    paths = require_local(expand_urls(options.urls), "reshard")
    require_apart(paths, output_folders(options))
    with plain_copies(paths, output.folder, processes=options.processes) as copies:
        listing = list_tars(paths, cache=options.cache, copies=copies, processes=options.processes)
        if len(listing.catalog):
            _require_fields(edit, listing.catalog.fields)
        written = rewrite(
            listing.catalog,
            packing,
            output,
            edit,
            duplicate_keys=options.duplicate_keys,
            classes=listing.classes,
        )
    print_report(options, listing, written)
    return 0


def _edit(options: Namespace) -> Edit:
    settings: dict[str, Any] = {}
    functions: dict[str, Any] = {"filter": None, "map": None}
    for name in functions:
        path = getattr(options, name)
        if path is not None:
            functions[name], settings[name] = load_function(path)
    rename, only = _renamings(options.rename), _kept_fields(options.fields)
    return Edit(
        rename=rename,
        only=only,
        transform=functions["map"],
        keeps=functions["filter"],
        settings=settings | {"rename": rename, "fields": only},
    )


def _renamings(texts: Sequence[str]) -> dict[str, str]:
    """New names by old ones."""
    renamed: dict[str, str] = {}
    for text in texts:
        old, _, new = (part.strip() for part in text.partition("="))
        if not (old and new):
            raise ConfigError(f"--rename must be OLD=NEW, like jpeg=jpg, got {text!r}")
        if old in renamed:
            raise ConfigError(
                f"--rename gives {old!r} two names, {renamed[old]!r} and {new!r}; give it one"
            )
        renamed[old] = new
    return renamed


def _kept_fields(text: str | None) -> tuple[str, ...]:
    if text is None:
        return ()
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise ConfigError(f"--fields must be names with commas between, like jpg,cls, got {text!r}")
    return names


def _require_fields(edit: Edit, fields: Sequence[str]) -> None:
    """Refuse a field that no sample has, because another one would be left out without a word."""
    require_known_fields("--rename", edit.rename, fields)
    renamed = [edit.rename.get(name, name) for name in fields]
    require_known_fields("--fields", edit.only, renamed)
