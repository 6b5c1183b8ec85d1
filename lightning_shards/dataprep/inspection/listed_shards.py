"""What the JSON files beside shards say of them: sizes, counts, MD5s, and which are missing."""

import os
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from lightning_shards.dataprep.inspection.findings import Finding
from lightning_shards.errors import IndexMismatchError
from lightning_shards.shards.beside import json_files, read_json
from lightning_shards.shards.counts.count_files import remote_claims
from lightning_shards.shards.counts.wids import MARKER, entries_by_name
from lightning_shards.shards.remote.retries import LOOK_UP
from lightning_shards.shards.remote.transport import TransportSettings
from lightning_shards.shards.storage.schemes import Storages, has_ranges, remote_storages
from lightning_shards.shards.urls import is_local, split_url


def local_entries(urls: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The entries of all shards in the wids JSONs beside local shards, by path."""
    folders = dict.fromkeys(Path(url).parent for url in urls if is_local(url))
    return {
        str(folder / name): entry | {"source": str(path)}
        for folder in folders
        for path in json_files(folder)
        for name, entry in entries_by_name(read_json(path, containing=MARKER)).items()
    }


def remote_entries(
    urls: Sequence[str], settings: TransportSettings
) -> tuple[dict[str, dict[str, Any]], list[Finding]]:
    """Entries from the JSON files in remote folders, by URL, and findings where they disagree."""
    folders: dict[str, dict[str, str]] = {}
    for url in urls:
        if not is_local(url) and has_ranges(url):
            folder, name = split_url(url)
            folders.setdefault(folder, {})[name] = url
    entries: dict[str, dict[str, Any]] = {}
    findings: list[Finding] = []
    with closing(Storages(remote_storages(replace(settings, policy=LOOK_UP)))) as storages:
        for folder, named in folders.items():
            try:
                one = next(iter(named.values()))
                claims = remote_claims(one, named, partial(_fetched_beside, storages))
            except IndexMismatchError as error:
                findings.append(Finding("stale count", str(error), folder))
                continue
            for name, claim in claims.items():
                facts = {
                    "nsamples": claim.samples,
                    "filesize": claim.size_bytes,
                    "md5sum": claim.md5,
                    "source": claim.source,
                }
                known = {fact: value for fact, value in facts.items() if value is not None}
                entries[named[name]] = known
    return entries, findings


def _fetched_beside(storages: Storages, url: str, max_bytes: int) -> bytes | None:
    return storages.of(url).read_whole([url], max_bytes + 1)[0]


def missing_listed(urls: Sequence[str], indexed: Mapping[str, Mapping[str, Any]]) -> list[Finding]:
    """Findings about shards that do not exist, though an index of these shards lists them."""
    sources = {indexed[str(Path(url))]["source"] for url in urls if str(Path(url)) in indexed}
    return [
        Finding(
            "missing shard",
            f"{path} does not exist, but {entry['source']} lists it; fetch it, or index again",
            path,
        )
        for path, entry in indexed.items()
        if entry["source"] in sources and not os.path.isfile(path)  # noqa: PTH113 never raises
    ]
