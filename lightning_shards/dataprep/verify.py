"""The check of local shards: every header, every byte, and on request every image.

A shard is compared with all that is known of it: its own checksums, the member tables of earlier
indexes (whose crc32s show which member changed), and the wids JSONs and the `sizes.json` beside it.
Nothing is written, so that the table of a sound shard is kept if the shard is damaged later.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from lightning_shards.dataprep.index import file_md5
from lightning_shards.dataprep.survey import (
    Finding,
    ShardSurvey,
    Survey,
    describe_table,
    find_odd_headers,
    survey,
)
from lightning_shards.errors import DamagedShardError, FileAccessError
from lightning_shards.shards.beside import (
    SIZES,
    WIDS,
    json_files,
    json_object,
    read_json,
    shard_entries,
)
from lightning_shards.shards.files import read_regular
from lightning_shards.shards.members import MemberTable, scan_members
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.table_bytes import (
    MAX_PUBLISHED_BYTES,
    published_url,
    unpublished,
)
from lightning_shards.shards.tables import TableStore
from lightning_shards.shards.tar.tar_bytes import open_tar
from lightning_shards.shards.tar.walk import compression_at

Decode = Callable[[bytes], object]
DecoderOf = Callable[[str], Decode | None]
"""Gives the decoder of a suffix, or None; picklable."""

_MAX_NAMED: Final = 1000
"""Most changed members of one shard that are named."""

_MOST_PACKED: Final = 64
"""How many times its bytes a table beside a shard may have unpacked; tables have about eight."""


def verify_shards(
    paths: Sequence[str],
    *,
    cache: CacheFolder,
    decoder_of: DecoderOf | None = None,
    processes: int = 1,
) -> Survey:
    """Check local shards.

    Args:
        paths: The shards, each once.
        cache: Where earlier indexes kept the member tables.
        decoder_of: Gives the decoder of a suffix; None: nothing is decoded.
        processes: Number of processes.
    """
    beside, findings = _listed_beside(paths)
    seen = survey(paths, _Check(cache, decoder_of, beside), processes=processes)
    seen.findings += findings
    return seen


_Facts = Mapping[str, Mapping[str, Any]]
"""What files beside a shard say of it, by the path of the file: nsamples, filesize, md5sum."""


def _listed_beside(paths: Sequence[str]) -> tuple[dict[str, _Facts], list[Finding]]:
    """What files say of the shards beside them, and findings about shards that are missing."""
    by_folder: dict[Path, set[str]] = {}
    for path in map(Path, paths):
        by_folder.setdefault(path.parent, set()).add(path.name)
    beside: dict[str, dict[str, Mapping[str, Any]]] = {path: {} for path in paths}
    path_of = {Path(path): path for path in paths}
    findings: list[Finding] = []
    for folder, names in by_folder.items():
        for source in json_files(folder):
            facts = _facts_in(source)
            if facts is None:
                message = f"{source} is no index that can be read; move it away, and index again"
                findings.append(Finding("unusable index", message, str(folder)))
                continue
            for name in names & facts.keys():
                beside[path_of[folder / name]][str(source)] = facts[name]
            missing = sorted(facts.keys() - names - {""}) if names & facts.keys() else []
            for path in [str(folder / name) for name in missing]:
                if not os.path.isfile(path):  # noqa: PTH113 never raises
                    message = (
                        f"{path} does not exist, but {source} lists it; fetch it, or index again"
                    )
                    findings.append(Finding("missing shard", message, path))
    return dict(beside), findings


def _facts_in(source: Path) -> dict[str, Mapping[str, Any]] | None:
    """What a JSON file says of shards in its folder; None if it is an index that cannot be read."""
    content = read_json(source)
    if source.name == SIZES:
        counts = json_object(content)
        if not isinstance(content, dict):
            return None
        return {name: {"nsamples": count} for name, count in counts.items()}
    entries = shard_entries(content)
    if entries is None:
        return None if source.name == WIDS else {}
    folders = ("", source.parent.absolute().name)
    listed = [(Path(str(entry.get("url"))), entry) for entry in entries]
    return {url.name: entry for url, entry in listed if url.parent.name in folders}


@dataclass(frozen=True, slots=True)
class _Check:
    """The check of one shard; it travels to the processes that do it."""

    cache: CacheFolder
    decoder_of: DecoderOf | None
    beside: Mapping[str, _Facts]

    def __call__(self, path: str) -> ShardSurvey:
        known, findings = known_tables(path, self.cache)
        has_checksums = any(table.crc32 is not None for table in known)
        try:
            table = scan_members(path, with_crc32=True)
        except DamagedShardError as error:
            if compression_at(path):
                raise
            raise DamagedShardError(f"{error}; verify --repair saves what can be saved") from error
        seen = describe_table(path, table)
        seen.findings += findings + find_odd_headers(path, table)
        changed = [finding for old in known for finding in _changed_members(path, table, old)]
        seen.findings += dict.fromkeys(changed)  # two tables say the same as a rule
        seen.findings += _differences(seen, self.beside[path])
        seen.has_checksums = has_checksums or seen.md5 is not None
        if self.decoder_of is not None:
            seen.findings += _undecodable(path, table, self.decoder_of)
        return seen


def known_tables(path: str, cache: CacheFolder) -> tuple[list[MemberTable], list[Finding]]:
    """The tables of earlier indexes, beside a local shard and in the cache, and what is wrong."""
    kept = TableStore(cache).kept_table(path)
    tables = [] if kept is None else [kept]
    beside = Path(published_url(path))
    if not beside.exists():
        return tables, []
    try:
        data = read_regular(beside, MAX_PUBLISHED_BYTES)
        return [unpublished(data, _MOST_PACKED * len(data)), *tables], []
    except (FileAccessError, ValueError, RecursionError) as error:
        message = f"{beside} cannot be used: {error}; make it again by `lightning-shards index`"
        return tables, [Finding("unusable table", message, path)]


def have_same_extents(table: MemberTable, other: MemberTable) -> bool:
    """Whether the members of two tables lie at the same bytes, whatever their names are."""
    same_offsets = np.array_equal(table.offsets, other.offsets)
    return same_offsets and np.array_equal(table.sizes, other.sizes)


def _changed_members(path: str, table: MemberTable, known: MemberTable) -> list[Finding]:
    """Findings about members whose bytes differ from those that were indexed."""
    if known.crc32 is None or known.has_same_members(table):
        return []
    assert table.crc32 is not None  # the scan was with crc32s
    is_same = have_same_extents(known, table)
    changed = np.flatnonzero(known.crc32 != table.crc32).tolist() if is_same else []
    if not changed:
        message = (
            f"its members or their names are not those of its last index ({known.num_samples:,} "
            f"samples then, {table.num_samples:,} now); index it again if it was meant, else fetch "
            "it again"
        )
        return [Finding("changed shard", message, path)]
    owners = np.searchsorted(known.sample_starts, np.array(changed), side="right") - 1
    findings: list[Finding] = []
    for member, sample in zip(changed[:_MAX_NAMED], owners.tolist(), strict=False):
        key, offset = known.key(sample), int(known.offsets[member])
        name = f"{key}.{known.suffixes[known.suffix_ids[member]]}"
        message = f"member {name!r} is not what it was when indexed; fetch the shard again"
        findings.append(Finding("changed member", message, path, key, offset))
    return findings


def _differences(seen: ShardSurvey, beside: _Facts) -> list[Finding]:
    """Findings about facts that files beside the shard state differently."""
    facts: dict[str, object] = {"filesize": seen.size_bytes, "nsamples": seen.samples}
    if any(stated.get("md5sum") for stated in beside.values()):
        seen.md5 = file_md5(seen.path)
        facts["md5sum"] = seen.md5
    findings: list[Finding] = []
    for source, stated in beside.items():
        known = [name for name in facts if stated.get(name) is not None]
        different = [name for name in known if stated[name] != facts[name]]
        if different:
            name = different[0]
            message = (
                f"its {name} is {facts[name]}, {str(stated[name])[:40]} by the index {source}; "
                "index it again if it was written anew, else fetch it again"
            )
            rule = "stale count" if known == ["nsamples"] else "changed shard"
            findings.append(Finding(rule, message, seen.path))
    return findings


def _undecodable(path: str, table: MemberTable, decoder_of: DecoderOf) -> list[Finding]:
    """Findings about members that their decoder refuses."""
    decoders = [decoder_of(suffix) for suffix in table.suffixes]
    owners = np.repeat(np.arange(table.num_samples), np.diff(table.sample_starts))
    columns = (owners, table.suffix_ids, table.offsets, table.sizes)
    rows: list[list[int]] = np.stack(columns, axis=1).astype(np.int64).tolist()
    findings: list[Finding] = []
    with open_tar(path) as data:
        for sample, suffix, offset, size in rows:
            decode = decoders[suffix]
            if decode is None:
                continue
            try:
                decode(data[offset : offset + size])
            except Exception as error:  # noqa: BLE001 a decoder may raise anything at damaged bytes
                message = (
                    f"member {table.suffixes[suffix]} cannot be decoded: {type(error).__name__}: "
                    f"{error}; fetch the shard again, or leave the sample out by `reshard --filter`"
                )
                key = table.key(sample)
                findings.append(Finding("undecodable member", message, path, key, offset))
    return findings
