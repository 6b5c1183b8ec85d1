"""`lightning-shards index`: scans shards, reports their faults, and writes their indexes."""

from argparse import BooleanOptionalAction, Namespace
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lightning_shards.dataprep.index import FORMATS, IndexOptions, index_shards
from lightning_shards.shards.beside import WIDS
from lightning_shards.tools.console import report, run_tool
from lightning_shards.tools.shard_options import settings_of, shard_parser, shards_of, status_of

_EPILOG = """\
Formats: wids (the index of this package and of webdataset's wids), members
(NAME.tar.members beside each shard: its member table with crc32s, by which training reads samples
of remote shards), sizes (sizes.json of open_clip), dali (NAME.idx of wds2idx beside each shard).
Remote shards are read once, as streams, and nothing is copied. What was read is kept in the cache
folder, so that a run that was killed goes on when the same command is given again. Training finds
beside remote shards what --upload puts there. Exit status: 0 written, 1 something is wrong with the
shards, 2 not done, or some shards could not be read."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = shard_parser("index", "Count samples, list members, write indexes.", _EPILOG)
    add = parser.add_argument
    add("--format", default="wids", metavar="A,B", help=f"any of {', '.join(FORMATS)}")
    add("--wids", default=WIDS, metavar="NAME", help="file name of the wids JSON")
    add(
        "--checksums",
        action=BooleanOptionalAction,
        help="read every byte: crc32 of each member for its table, MD5 of each local shard for the "
        "JSON; default: of remote shards, and with the format members",
    )
    add("--allow-problems", action="store_true", help="write the indexes whatever is found")
    add(
        "--force",
        action="store_true",
        help="replace index files that list other shards, or that another program wrote",
    )
    add("--output", type=Path, metavar="DIR", help="of remote shards: a folder for the indexes")
    add("--upload", action="store_true", help="of remote shards: put the indexes beside them")
    run_tool("index", _index, parser.parse_args(arguments))


def _index(options: Namespace) -> int:
    wanted = IndexOptions(
        options.cache,
        settings_of(options),
        formats=tuple(name.strip() for name in options.format.split(",")),
        wids_name=options.wids,
        checksums=options.checksums,
        output=options.output,
        is_uploaded=options.upload,
        allows_problems=options.allow_problems,
        is_forced=options.force,
        processes=options.processes,
    )
    made = index_shards(shards_of(options), wanted)
    seen = made.survey
    document: dict[str, Any] = {
        "shards": len(seen.shards),
        "samples": seen.samples,
        "bytes": seen.size_bytes,
        "fields": {suffix: sizes.samples for suffix, sizes in seen.fields.items()},
        "findings": list(map(asdict, seen.findings)),
        "written": made.written,
    }
    if not made.written:
        document["note"] = "no index was written: repair the shards, or give --allow-problems"
    report(document, as_json=options.json)
    return 0 if made.written else status_of(seen.failures)
