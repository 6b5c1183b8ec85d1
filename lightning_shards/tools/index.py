"""`lightning-shards index`: scans shards, reports their faults, and writes their indexes."""

import json
from argparse import BooleanOptionalAction, Namespace
from collections.abc import Sequence
from pathlib import Path

from lightning_shards.dataprep.index import FORMATS, Indexed, IndexOptions, index_shards
from lightning_shards.errors import count_of
from lightning_shards.shards.beside import WIDS
from lightning_shards.tools.console import (
    human,
    print_findings,
    run_tool,
    shard_parser,
    status_of,
)
from lightning_shards.tools.shard_options import add_shard_options, settings_of, shards_of

_EPILOG = """Formats: wids (the index of this package and of webdataset's wids), members
(NAME.tar.members beside each shard: its member table with crc32s, by which training reads samples
of remote shards), sizes (sizes.json of open_clip), dali (NAME.idx of wds2idx beside each shard).
Remote shards are read once, as streams, and nothing is copied. What was read is kept in the cache
folder, so that a run that was killed goes on when the same command is given again. Training finds
beside remote shards what --upload puts there. Exit status: 0 written, 1 something is wrong with the
shards, 2 not done, or some shards could not be read."""
_MAX_NAMED = 8


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
    add_shard_options(parser)
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
    if options.json:
        seen = made.survey
        document = {
            "shards": len(seen.shards),
            "samples": seen.samples,
            "bytes": seen.size_bytes,
            "fields": {suffix: sizes.samples for suffix, sizes in seen.fields.items()},
            "findings": [finding.as_json() for finding in seen.findings],
            "written": made.written,
        }
        print(json.dumps(document))
    else:
        _print(made)
    return 0 if made.written else status_of(made.survey.failures)


def _print(made: Indexed) -> None:
    seen, written = made
    print_findings(seen.findings)
    held = f"{count_of(seen.samples, 'sample')} in {count_of(len(seen.shards), 'shard')}"
    print(f"{held}, {human(seen.size_bytes)}")
    for path in written[-_MAX_NAMED:]:
        print(f"wrote {path}")
    if len(written) > _MAX_NAMED:
        print(f"and {len(written) - _MAX_NAMED:,} more")
    if not written:
        print("no index was written: repair the shards, or give --allow-problems")
