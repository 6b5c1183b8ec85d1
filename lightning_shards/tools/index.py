"""`lightning-shards index`: scans shards, reports their faults, and writes their indexes."""

import json
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightning_shards.dataprep.indexes.indexing import (
    FORMATS,
    IndexFiles,
    find_stale_counts,
    write_index,
)
from lightning_shards.dataprep.inspection.survey import Survey, survey
from lightning_shards.errors import count_of
from lightning_shards.shards.beside import WIDS
from lightning_shards.tools.console import FAILED, human, print_findings, run_tool, shard_parser
from lightning_shards.tools.shard_options import add_shard_options, shards_of

_EPILOG = """Formats: wids (the index of this package and of webdataset's wids), sizes (sizes.json
of open_clip), dali (NAME.idx of wds2idx beside each shard), energon (NAME.tar.idx and .nv-meta),
card (a README.md for the Hugging Face Hub). Remote shards are fetched whole, one at a time for each
process, into the folder of temporary files (TMPDIR); training finds their counts in a wids.json or
sizes.json that was uploaded from --output. Exit status: 0 written, 1 something is wrong with the
shards, 2 not done."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = shard_parser("index", "Count samples, list members, write indexes.", _EPILOG)
    parser.add_argument(
        "--format", default="wids", metavar="A,B", help=f"any of {', '.join(FORMATS)}"
    )
    parser.add_argument("--wids", default=WIDS, metavar="NAME", help="file name of the wids JSON")
    parser.add_argument(
        "--checksums",
        action="store_true",
        help="read every byte: crc32 of each member for its table, MD5 of each shard for the JSON",
    )
    parser.add_argument(
        "--allow-problems", action="store_true", help="write the indexes whatever is found"
    )
    parser.add_argument(
        "--output", type=Path, metavar="DIR", help="of remote shards: where the indexes are written"
    )
    add_shard_options(parser)
    run_tool("index", _index, parser.parse_args(arguments))


def _index(options: Namespace) -> int:
    files = IndexFiles(
        options.cache,
        tuple(name.strip() for name in options.format.split(",")),
        options.wids,
        options.processes,
        options.output,
    )
    urls = shards_of(options)
    files.require_fit(urls)
    processes, cache = options.processes, options.cache
    surveyed = survey(urls, cache=cache, with_checksums=options.checksums, processes=processes)
    is_damaged = any(shard.is_damaged for shard in surveyed.shards)
    may_write = not surveyed.failures or (options.allow_problems and not is_damaged)
    written = write_index(surveyed, files) if may_write else []
    if written and options.output is None:
        surveyed.findings += find_stale_counts(surveyed)
    if options.json:
        print(json.dumps(_document(surveyed, written)))
    else:
        _print(surveyed, written)
    stale = [finding for finding in surveyed.failures if finding.rule == "stale count"]
    return FAILED if stale or not written else 0


def _document(found: Survey, written: Sequence[Path]) -> dict[str, Any]:
    return {
        "shards": len(found.shards),
        "samples": found.samples,
        "bytes": found.size_bytes,
        "fields": {suffix: sizes.samples for suffix, sizes in found.fields.items()},
        "findings": [finding.as_json() for finding in found.findings],
        "written": [str(path) for path in written],
    }


def _print(found: Survey, written: Sequence[Path]) -> None:
    print_findings(found.findings)
    samples, shards = count_of(found.samples, "sample"), count_of(len(found.shards), "shard")
    print(f"{samples} in {shards}, {human(found.size_bytes)}")
    for path in written[-_MAX_NAMED:]:
        print(f"wrote {path}")
    if len(written) > _MAX_NAMED:
        print(f"and {len(written) - _MAX_NAMED:,} more")
    if not written:
        print("nothing was written: repair the shards, or give --allow-problems")


_MAX_NAMED = 8
