"""`lightning-shards index`: scans shards, reports their faults, and writes their indexes."""

import json
from argparse import BooleanOptionalAction, Namespace
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from lightning_shards.dataprep.indexes.earlier_files import listed_md5s, require_own_index
from lightning_shards.dataprep.indexes.indexing import find_stale_counts, write_index
from lightning_shards.dataprep.indexes.remote_index import Indexed, index_remote
from lightning_shards.dataprep.indexes.wanted_files import (
    FORMATS,
    IndexFiles,
    in_one_spelling,
)
from lightning_shards.dataprep.inspection.survey import Survey, survey
from lightning_shards.errors import count_of
from lightning_shards.shards.beside import WIDS
from lightning_shards.shards.remote.transport import TransportSettings
from lightning_shards.shards.storage.schemes import has_ranges
from lightning_shards.shards.urls import is_local
from lightning_shards.tools.console import (
    FAILED,
    human,
    print_findings,
    run_tool,
    shard_parser,
    status_of,
)
from lightning_shards.tools.shard_options import add_shard_options, settings_of, shards_of

_EPILOG = """Formats: wids (the index of this package and of webdataset's wids), members
(NAME.tar.members beside each shard: its member table with crc32s, by which training reads samples
of remote shards), sizes (sizes.json of open_clip), dali (NAME.idx of wds2idx beside each shard),
energon (NAME.tar.idx and .nv-meta), card (a README.md for the Hugging Face Hub). Remote shards are
read once, as streams, and nothing is copied; of members above 4 MiB only headers are read with
--no-checksums. What was read is kept in the cache folder, so that a run that was killed goes on
when the same command is given again. Training finds beside remote shards what --upload puts there.
Exit status: 0 written, 1 something is wrong with the shards, 2 not done, or some shards could not
be read."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = shard_parser("index", "Count samples, list members, write indexes.", _EPILOG)
    parser.add_argument(
        "--format", default="wids", metavar="A,B", help=f"any of {', '.join(FORMATS)}"
    )
    parser.add_argument("--wids", default=WIDS, metavar="NAME", help="file name of the wids JSON")
    parser.add_argument(
        "--checksums",
        action=BooleanOptionalAction,
        help="read every byte: crc32 of each member for its table, MD5 of each shard for the JSON; "
        "default: of remote shards, and with the format members",
    )
    parser.add_argument(
        "--allow-problems", action="store_true", help="write the indexes whatever is found"
    )
    parser.add_argument(
        "--output", type=Path, metavar="DIR", help="of remote shards: where the indexes are written"
    )
    parser.add_argument(
        "--upload", action="store_true", help="of remote shards: put the indexes beside them"
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
        options.upload,
    )
    urls = in_one_spelling(shards_of(options))
    files.require_fit(urls)
    may_write = partial(_may_write, are_problems_allowed=options.allow_problems)
    settings = settings_of(options)
    if not is_local(urls[0]) and all(map(has_ranges, urls)):
        found = index_remote(
            urls,
            files,
            settings,
            with_checksums=options.checksums is not False,
            may_write=may_write,
        )
    else:
        found = _index_files(urls, files, settings, options.checksums, may_write)
    if options.json:
        print(json.dumps(_document(found)))
    else:
        _print(found, has_tables="members" in files.formats)
    stale = [finding for finding in found.survey.failures if finding.rule == "stale count"]
    if stale:
        return FAILED
    return 0 if found.written else status_of(found.survey.failures)


def _index_files(
    urls: Sequence[str],
    files: IndexFiles,
    settings: TransportSettings,
    checksums: bool | None,
    may_write: Callable[[Survey], bool],
) -> Indexed:
    """The index of local shards, and of those that are read as a copy."""
    require_own_index(urls, files)
    tables = files.table_paths(urls)
    surveyed = survey(
        urls,
        cache=files.cache,
        settings=settings,
        with_checksums=bool(tables) if checksums is None else checksums,
        table_paths=tables,
        listed=listed_md5s(urls, files),
        processes=files.processes,
    )
    written: list[Path] = []
    if may_write(surveyed):
        written = [*filter(Path.exists, tables), *write_index(surveyed, files)]
    if written and files.output is None:
        surveyed.findings += find_stale_counts(surveyed)
    return Indexed(surveyed, list(map(str, written)), [])


def _may_write(found: Survey, *, are_problems_allowed: bool) -> bool:
    are_readable = all(shard.is_readable for shard in found.shards)
    return not found.failures or (are_problems_allowed and are_readable)


def _document(found: Indexed) -> dict[str, Any]:
    return {
        "shards": len(found.survey.shards),
        "samples": found.survey.samples,
        "bytes": found.survey.size_bytes,
        "fields": {suffix: sizes.samples for suffix, sizes in found.survey.fields.items()},
        "findings": [finding.as_json() for finding in found.survey.findings],
        "written": found.written,
        "replaced": found.replaced,
    }


def _print(found: Indexed, *, has_tables: bool) -> None:
    surveyed, written = found.survey, found.written
    print_findings(surveyed.findings)
    samples = count_of(surveyed.samples, "sample")
    shards = count_of(len(surveyed.shards), "shard")
    print(f"{samples} in {shards}, {human(surveyed.size_bytes)}")
    for path in written[-_MAX_NAMED:]:
        print(f"wrote {path}{' in place of another' if path in found.replaced else ''}")
    if len(written) > _MAX_NAMED:
        print(f"and {len(written) - _MAX_NAMED:,} more")
    if found.replaced:
        print(f"{count_of(len(found.replaced), 'index file')} of other contents were replaced")
    if not written:
        what = "no index but the member tables of readable shards" if has_tables else "nothing"
        print(f"{what} was written: repair the shards, or give --allow-problems")


_MAX_NAMED = 8
