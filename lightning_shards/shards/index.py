"""The index of a data set: how many samples each shard holds.

Every order and every epoch is computed from these counts. They come from files beside the shards
(`count_files`), otherwise from a scan of the headers, which is kept for the next run
(`counts.cache`). Remote shards are never scanned. If one of them is counted by no file, the whole
index has no counts, and at most a total is known.
"""

import hashlib
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lightning_shards.errors import IndexMismatchError, count_of
from lightning_shards.shards.counts.cache import CountsCache
from lightning_shards.shards.counts.count_files import (
    CountClaim,
    http_claims,
    http_start,
    http_total,
    local_claims,
)
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.progress_line import progress_line
from lightning_shards.shards.regular_files import stamp_of
from lightning_shards.shards.storage.schemes import has_ranges
from lightning_shards.shards.tar.plain_runs import count_samples, holds_samples
from lightning_shards.shards.tar.walk import BLOCK
from lightning_shards.shards.urls import is_local, redact, require_local_shards, split_url

_log = logging.getLogger(__name__)

_FINGERPRINT_LENGTH = 16


@dataclass(frozen=True, slots=True, eq=False)
class ShardIndex:
    """The shards of a data set, in order, and how many samples they hold.

    Attributes:
        urls: Shards as `expand_urls` gives them; one may appear several times.
        counts: Samples of each shard, int64, shape (num_shards,), read-only; None when unknown.
        total: Samples of the folder that the shards are in, as a file in it says. It serves for
            nominal epochs only, and is looked up only where there are no counts.
    """

    urls: tuple[str, ...]
    counts: NDArray[np.int64] | None
    total: int | None = None

    def __post_init__(self) -> None:
        """Refuse counts that do not fit the urls, and make them read-only.

        Raises:
            IndexMismatchError: There are more or fewer counts than urls, or a negative one.
        """
        if self.counts is None:
            return
        counts = np.array(self.counts, dtype=np.int64)  # a copy, which no caller can change
        if counts.shape != (len(self.urls),) or (counts < 0).any():
            raise IndexMismatchError(
                f"an index needs one count, 0 or more, for each of its {len(self.urls)} shards; "
                f"got {counts.size} from {counts.min(initial=0)} to {counts.max(initial=0)}"
            )
        counts.setflags(write=False)
        object.__setattr__(self, "counts", counts)

    @property
    def num_shards(self) -> int:
        """Number of shards, repeats included."""
        return len(self.urls)

    @property
    def samples(self) -> int | None:
        """Samples in all shards together; None when unknown."""
        return None if self.counts is None else int(self.counts.sum())

    def fingerprint(self) -> str:
        """The identity of the data: 16 hex digits over the ordered (file name, count) list.

        Folders, hosts and queries are left out, so the data may move.
        """
        counts = ["?"] * self.num_shards if self.counts is None else self.counts.tolist()
        digest = hashlib.sha256()
        for url, count in zip(self.urls, counts, strict=True):
            name = split_url(url)[1]
            digest.update(f"{name}\0{count}\n".encode("utf-8", "surrogateescape"))
        return digest.hexdigest()[:_FINGERPRINT_LENGTH]

    def __repr__(self) -> str:
        """Numbers only, because URLs may hold passwords, and there may be 10^6 of them."""
        return f"ShardIndex({count_of(self.num_shards, 'shard')}, {self.samples} samples)"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ShardIndex):
            return NotImplemented
        if self.counts is None or other.counts is None:
            return self.urls == other.urls and self.counts is other.counts
        return self.urls == other.urls and bool((self.counts == other.counts).all())

    def __hash__(self) -> int:
        return hash(self.urls)


def load_index(
    urls: Sequence[str],
    *,
    cache: CacheFolder,
    show_progress: bool | None = None,
    wants_total: bool = False,
) -> ShardIndex:
    """Find out how many samples each of these expanded urls holds.

    Sources are tried in this order: wids JSON files and `sizes.json` beside the shards (over
    http(s) `sizes.json` and `wids.json`), earlier scans in `cache`, and the headers of local tars.
    If one remote shard has no count, there are no counts at all, and nothing is scanned.
    `show_progress` draws a line on stderr while shards are scanned; None does so on a terminal.
    `wants_total` asks for a total where there are no counts and all shards lie in one folder of an
    http(s) server.

    Raises:
        ShardNotFoundError: A local shard does not exist.
        IndexMismatchError: Two sources of counts disagree, or a shard changed since it was indexed.
        DamagedShardError: A shard that had to be scanned is not a whole tar.
    """
    require_local_shards(urls)
    paths = [split_url(url) for url in urls]
    url_of = dict(zip(paths, urls, strict=True))
    known: dict[tuple[str, str], int] = {}
    unknown: dict[str, list[str]] = {}
    for folder, names in _names_by_folder(url_of).items():
        claims = _believed_claims(folder, names, url_of)
        known |= {(folder, name): claim.samples for name, claim in claims.items()}
        unknown[folder] = [name for name in names if name not in claims]
    if any(names and not has_ranges(folder) for folder, names in unknown.items()):
        total = _total(list(unknown)) if wants_total else None
        return ShardIndex(tuple(urls), None, total)
    for folder, names in unknown.items():
        if names:
            counts = _scan(folder, names, CountsCache(folder, cache), show_progress)
            known |= {(folder, name): samples for name, samples in counts.items()}
    _report_empty([url_of[path] for path, samples in known.items() if not samples], len(known))
    in_order = np.fromiter((known[path] for path in paths), np.int64, count=len(paths))
    return ShardIndex(tuple(urls), in_order)


def _names_by_folder(paths: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    folders: dict[str, list[str]] = {}
    for folder, name in paths:
        folders.setdefault(folder, []).append(name)
    return folders


def _believed_claims(
    folder: str, names: Sequence[str], url_of: Mapping[tuple[str, str], str]
) -> dict[str, CountClaim]:
    """The counts that files give for shards of a folder, without a false count of 0."""
    return {
        name: claim
        for name, claim in _claims(folder, names).items()
        if claim.samples or _is_empty(url_of[folder, name], claim)
    }


def _claims(folder: str, names: Sequence[str]) -> dict[str, CountClaim]:
    """The counts that files in this folder give, by file name; none where no file can be read."""
    if is_local(folder):
        return local_claims(folder, names)
    return http_claims(folder, names) if _is_http(folder) else {}


def _total(folders: Sequence[str]) -> int | None:
    """The samples of the http(s) folder that all shards are in, if a file there counts them."""
    return http_total(folders[0]) if len(folders) == 1 and _is_http(folders[0]) else None


def _is_empty(url: str, claim: CountClaim) -> bool:
    """Whether a shard that is said to hold no sample really holds none, by its own headers.

    Of a shard without ranges only the first header is read, which must be the end marker.
    """
    if has_ranges(url):
        is_empty, reason = not holds_samples(url), "it holds some"
    else:
        is_empty, reason = http_start(url, BLOCK) == bytes(BLOCK), "it does not begin with its end"
    if not is_empty:
        _log.warning(
            "%s is not believed that %s holds no sample: %s; remake that file",
            claim.source,
            redact(url),
            reason,
        )
    return is_empty


def _report_empty(empty: Sequence[str], num_shards: int) -> None:
    """Log that some of the shards hold no sample."""
    if empty and len(empty) < num_shards:
        _log.warning(
            "%d of %d shards hold no sample, first %s; leave them out, or fetch them again if they "
            "should hold some",
            len(empty),
            num_shards,
            redact(empty[0]),
        )


def _is_http(folder: str) -> bool:
    return folder.lower().startswith(("http://", "https://"))


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
