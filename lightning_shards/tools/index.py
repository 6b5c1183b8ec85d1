"""`lightning-shards index`: scans shards, reports their faults, and writes their indexes."""

from argparse import BooleanOptionalAction, Namespace
from collections.abc import Sequence
from pathlib import Path

from lightning_shards.dataprep.index import FORMATS, IndexOptions, index_shards
from lightning_shards.tools.console import (
    report,
    run_tool,
    settings_of,
    shard_parser,
    shards_of,
    status_of,
)

_EPILOG = """\
Formats: wids (wids.json, the index of this package and of webdataset), members (NAME.tar.members:
the member table of each shard, with crc32s, by which training reads remote samples). All shards
must be in one folder. Remote ones are read once, as streams; what was read is kept in the cache
folder, and a run that was killed goes on when the same command is given again. The wids JSON is
written only if all shards could be read. Exit status: 0 written, 1 something is wrong with the
shards, 2 not done, or some shards could not be read."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = shard_parser("index", "Count samples, list members, write indexes.", _EPILOG)
    add = parser.add_argument
    formats = f"any of {', '.join(FORMATS)}; default: wids"
    add("--format", default="wids", metavar="A,B", help=formats)
    checksums = (
        "read every byte: crc32 of each member for its table, MD5 of each local shard for the "
        "JSON; default: of remote shards, and with the format members"
    )
    add("--checksums", action=BooleanOptionalAction, help=checksums)
    place = parser.add_mutually_exclusive_group().add_argument
    place("--output", type=Path, metavar="DIR", help="write the indexes to this folder")
    place("--upload", action="store_true", help="put the indexes beside remote shards")
    run_tool("index", _index, parser.parse_args(arguments))


def _index(options: Namespace) -> int:
    wanted = IndexOptions(
        settings_of(options), options.format.split(","), options.checksums, options.output,
        is_uploaded=options.upload, processes=options.processes,
    )  # fmt: skip
    seen, written = index_shards(shards_of(options), wanted)
    note = None if written else "no index was written: repair the shards"
    report(seen.document() | {"written": written, "note": note}, as_json=options.json)
    return status_of(seen.failures)
