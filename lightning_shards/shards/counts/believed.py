"""Which counts of samples are believed: those of files beside shards, else those of a scan."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from lightning_shards.shards.counts.cache import CountsCache
from lightning_shards.shards.counts.claims import CountClaim
from lightning_shards.shards.counts.count_files import (
    local_claims,
    remote_claims,
    remote_total,
)
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.progress_line import progress_line
from lightning_shards.shards.regular_files import stamp_of
from lightning_shards.shards.storage.schemes import Storages, has_ranges
from lightning_shards.shards.tar.blocks import BLOCK
from lightning_shards.shards.tar.plain_runs import count_samples, holds_samples
from lightning_shards.shards.urls import is_local, redact

_log = logging.getLogger(__name__)


def believed_claims(
    folder: str,
    names: Sequence[str],
    url_of: Mapping[tuple[str, str], str],
    storages: Storages,
) -> dict[str, CountClaim]:
    """The counts that files give for shards of a folder, without a false count of 0."""
    return {
        name: claim
        for name, claim in _claims(url_of[folder, names[0]], folder, names, storages).items()
        if claim.samples or _is_empty(url_of[folder, name], claim, storages)
    }


def _claims(
    shard: str, folder: str, names: Sequence[str], storages: Storages
) -> dict[str, CountClaim]:
    """The counts that files beside this shard give, by file name; none where none can be read."""
    if is_local(folder):
        return local_claims(folder, names)
    return remote_claims(shard, names, storages) if has_ranges(shard) else {}


def folder_total(
    urls: Sequence[str], folders: Mapping[str, object], storages: Storages
) -> int | None:
    """The samples of the remote folder that all shards are in, if a file there counts them."""
    if len(folders) != 1:
        return None
    return remote_total(urls[0], storages) if has_ranges(urls[0]) else None


def _is_empty(url: str, claim: CountClaim, storages: Storages) -> bool:
    """Whether a shard that is said to hold no sample really holds none, by its own headers.

    Of a remote shard only the first header is read, which must be the end marker.
    """
    if is_local(url):
        is_empty, reason = not holds_samples(url), "it holds some"
    else:
        start = storages.of(url).read_whole([url], BLOCK)[0]
        is_empty, reason = start == bytes(BLOCK), "it does not begin with its end"
    if not is_empty:
        _log.warning(
            "%s is not believed that %s holds no sample: %s; remake that file",
            claim.source,
            redact(url),
            reason,
        )
    return is_empty


def scan_all(
    unknown: Mapping[str, Sequence[str]], cache: CacheFolder, show_progress: bool | None
) -> dict[tuple[str, str], int]:
    """The samples of local shards, by folder and file name."""
    return {
        (folder, name): samples
        for folder, names in unknown.items()
        if names
        for name, samples in _scan(folder, names, CountsCache(folder, cache), show_progress).items()
    }


def _scan(
    folder: str, names: Sequence[str], cache: CountsCache, show_progress: bool | None
) -> dict[str, int]:
    """The samples of local shards, by file name; counts are kept even if a later shard fails."""
    cache.load()
    # Taken before any shard is read, so that the next run counts a shard again that changes now.
    stamps = {name: stamp_of(Path(folder, name)) for name in names}
    cached = {name: cache.get(name, stamp) for name, stamp in stamps.items()}
    # A cached count of 0 is never believed: reading such a shard takes no time.
    counts = {name: samples for name, samples in cached.items() if samples}
    to_scan = [name for name in names if name not in counts]
    if not to_scan:
        return counts
    try:
        with progress_line("counted", len(to_scan), folder, show=show_progress) as step:
            for name in to_scan:
                counts[name] = count_samples(Path(folder, name))
                cache.put(name, stamps[name], counts[name])
                step()
    finally:
        cache.store()
    return counts
