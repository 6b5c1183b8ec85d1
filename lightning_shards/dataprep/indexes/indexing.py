"""The writer of index files of a data set, for this package and for other tools.

The wids JSON is this package's own index, and has a name of its own for each split in one folder.
Member tables are kept in the cache folder when shards are scanned, and published beside the shards
on request, as all other formats are. All files are functions of the shards alone: a run that is
repeated writes the same bytes.
"""

import json
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from lightning_shards.dataprep.indexes.cards import write_card
from lightning_shards.dataprep.indexes.earlier_files import (
    below_root,
    energon_before,
    require_own_index,
    sizes_before,
    wids_before,
)
from lightning_shards.dataprep.indexes.energon import write_energon
from lightning_shards.dataprep.indexes.idx_files import (
    dali_index,
    dali_path,
    energon_index,
    energon_path,
)
from lightning_shards.dataprep.indexes.index_files import names_table
from lightning_shards.dataprep.indexes.wanted_files import IndexFiles, made_paths
from lightning_shards.dataprep.inspection.findings import Finding
from lightning_shards.dataprep.inspection.survey import ShardSurvey, Survey
from lightning_shards.dataprep.processes import map_parallel
from lightning_shards.errors import IndexMismatchError
from lightning_shards.shards.beside import SIZES, wids_entry, write_wids
from lightning_shards.shards.counts import local_claims
from lightning_shards.shards.files import await_lock, open_folder, replace_file
from lightning_shards.shards.members import ENCODING
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.table_bytes import published_url
from lightning_shards.shards.tables import TableStore

_log = logging.getLogger(__name__)

_SPLITS = (
    ("validation", re.compile(r"(^|[-_./])(val|valid|validation|dev)([-_./\d]|$)")),
    ("test", re.compile(r"(^|[-_./])(test|testing)([-_./\d]|$)")),
)


def write_index(survey: Survey, files: IndexFiles) -> list[Path]:
    """Write the files of a data set whose shards were all read; the wids JSON comes last.

    Raises:
        ConfigError: A file would lose entries of other shards, or its format lacks something.
        FileAccessError: A file cannot be written.
    """
    require_own_index([shard.path for shard in survey.shards], files)
    shards = _placed(survey.shards, files.output)
    folders = _by_folder(shards)
    wids = {folder: _wids_entries(folder, group, files) for folder, group in folders.items()}
    written: list[Path] = []
    paths = [shard.path for shard in shards]
    if "dali" in files.formats:
        written += map_parallel(_write_dali, paths, files.processes)
    root, below = below_root([Path(path) for path in paths])
    counts = dict(zip(below, [shard.samples for shard in shards], strict=True))
    if "energon" in files.formats:
        write = partial(_write_energon_index, cache=files.cache)
        written += map_parallel(write, paths, files.processes)
        store = TableStore(files.cache)
        earlier = split_shards(list(energon_before(root, files)))
        splits = split_shards(below)
        written += write_energon(root, counts, splits, store, earlier=earlier)
    if "card" in files.formats:
        written.append(write_card(root, split_shards(below), counts))
    if "sizes" in files.formats:
        written += [_write_sizes(folder, group, files) for folder, group in folders.items()]
    if "wids" in files.formats:
        written += [_write_wids(folder, entries, files) for folder, entries in wids.items()]
    return written


def find_stale_counts(survey: Survey) -> list[Finding]:
    """Findings about files beside local shards that give wrong counts of them."""
    findings: list[Finding] = []
    for folder, shards in _by_folder(survey.shards).items():
        try:
            claims = local_claims(str(folder), [Path(shard.path).name for shard in shards])
        except IndexMismatchError as error:
            findings.append(Finding("stale count", str(error), str(folder)))
            continue
        for shard in shards:
            claim = claims.get(Path(shard.path).name)
            if claim is not None and claim.samples != shard.samples and shard.is_readable:
                message = (
                    f"{claim.source} counts {claim.samples:,} samples in {shard.path}, which holds "
                    f"{shard.samples:,}; delete or remake that file"
                )
                findings.append(Finding("stale count", message, shard.path))
    return findings


def split_shards(names: Sequence[str]) -> dict[str, list[str]]:
    """Shards by the split that their path names, or `train` if it names none; no split is empty.

    >>> split_shards(["data/train-0.tar", "data/val-0.tar", "test/0.tar"])
    {'train': ['data/train-0.tar'], 'validation': ['data/val-0.tar'], 'test': ['test/0.tar']}
    """
    splits: dict[str, list[str]] = {"train": [], "validation": [], "test": []}
    for name in names:
        stem = name.removesuffix(".tar").lower()
        split = next((split for split, pattern in _SPLITS if pattern.search(stem)), "train")
        splits[split].append(name)
    return {split: shards for split, shards in splits.items() if shards}


def _placed(shards: Sequence[ShardSurvey], output: Path | None) -> Sequence[ShardSurvey]:
    """Remote shards with paths in the output folder, whose folders are made."""
    if output is None:
        return shards
    paths = made_paths([shard.path for shard in shards], output)
    return [replace(shard, path=str(path)) for shard, path in zip(shards, paths, strict=True)]


def _by_folder(shards: Sequence[ShardSurvey]) -> dict[Path, list[ShardSurvey]]:
    folders: dict[Path, list[ShardSurvey]] = {}
    for shard in shards:
        folders.setdefault(Path(shard.path).parent, []).append(shard)
    return folders


def _wids_entries(
    folder: Path, shards: Sequence[ShardSurvey], files: IndexFiles
) -> list[dict[str, str | int]]:
    listed = wids_before(folder, {Path(shard.path).name for shard in shards}, files)
    entries: list[dict[str, str | int]] = []
    for shard in shards:
        name = Path(shard.path).name
        old = listed.get(name, {})
        has_table = "members" in files.formats or (_is_of(old, shard) and names_table(old))
        table = published_url(name) if has_table else None
        entries.append(wids_entry(name, shard.samples, shard.size_bytes, shard.md5, table))
    return entries


def _is_of(entry: Mapping[str, Any], shard: ShardSurvey) -> bool:
    """Whether the entry in an old index has the size and the count of this shard."""
    return (entry.get("filesize"), entry.get("nsamples")) == (shard.size_bytes, shard.samples)


def _write_wids(
    folder: Path, entries: Sequence[Mapping[str, str | int]], files: IndexFiles
) -> Path:
    path = folder / files.wids_name
    with open_folder(folder) as held:
        await_lock(held)
        wids_before(folder, {str(entry["url"]) for entry in entries}, files)
        write_wids(path, entries)
    return path


def _write_sizes(folder: Path, shards: Sequence[ShardSurvey], files: IndexFiles) -> Path:
    """Put the counts into `sizes.json`, beside the counts of other shards that still exist."""
    path = folder / SIZES
    with open_folder(folder) as held:
        await_lock(held)
        counts = {Path(shard.path).name: shard.samples for shard in shards}
        sizes = sizes_before(folder, files)
        if files.output is not None:  # where it may list them as their URLs escape them
            sizes = {name: count for name, count in sizes.items() if unquote(name) not in counts}
        sizes |= counts
        replace_file(path, json.dumps(dict(sorted(sizes.items())), indent=1) + "\n")
    return path


def _write_dali(shard: str) -> Path:
    path = dali_path(shard)
    replace_file(path, dali_index(shard).encode(*ENCODING))
    return path


def _write_energon_index(shard: str, cache: CacheFolder) -> Path:
    path = energon_path(shard)
    replace_file(path, energon_index(TableStore(cache).table_now(shard), shard))
    return path
