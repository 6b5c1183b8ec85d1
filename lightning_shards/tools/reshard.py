"""`lightning-shards reshard`: cuts, merges, shuffles, sorts or edits shards into new ones."""

from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Sequence
from typing import Any

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
    output_of,
    packing_of,
    print_report,
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
are joined. A classes.json beside the shards is written beside the new ones, too. Compressed tars
(gzip, bzip2, xz; zstandard from Python 3.14 on) are unpacked to DIR until the shards are written.
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
    add("--fields", metavar="A,B", help="the only fields that are kept, by their new names")
    return parser


def _reshard(options: Namespace) -> int:
    packing, output, edit = packing_of(options), output_of(options), _edit(options)
    paths = require_local(expand_urls(options.urls), "reshard")
    may_rename = options.duplicate_keys == "prefix"
    with plain_copies(paths, output.folder, processes=options.processes) as copies:
        listing = list_tars(paths, copies=copies, processes=options.processes)
        written = rewrite(
            listing.catalog,
            packing,
            output,
            edit,
            may_rename_keys=may_rename,
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
    rename = dict(map(_renaming, options.rename))
    only = tuple(options.fields.split(",")) if options.fields else ()
    return Edit(
        rename=rename,
        only=only,
        transform=functions["map"],
        keeps=functions["filter"],
        settings=settings | {"rename": rename, "fields": only},
    )


def _renaming(text: str) -> tuple[str, str]:
    old, equals, new = text.partition("=")
    if not (old and equals and new):
        raise ConfigError(f"--rename must be OLD=NEW, like jpeg=jpg, got {text!r}")
    return old, new
