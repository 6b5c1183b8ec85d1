"""The index of a data set: how many samples each shard holds.

Every order and every epoch is computed from these counts. They come from files beside the shards
(`count_files`), otherwise from a scan of the headers, which is kept for the next run
(`counts.cache`). Remote shards are never scanned. If one of them is counted by no file, the whole
index has no counts, and at most a total is known.
"""

import hashlib
import json
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightning_shards.errors import IndexMismatchError, count_of
from lightning_shards.shards.beside import MAX_INDEX_BYTES, json_object
from lightning_shards.shards.classes import CLASSES, ClassFiles
from lightning_shards.shards.counts.cache import CountsCache
from lightning_shards.shards.counts.count_files import (
    CountClaim,
    FetchBeside,
    http_start,
    local_claims,
    remote_claims,
    remote_total,
)
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.progress_line import progress_line
from lightning_shards.shards.regular_files import stamp_of
from lightning_shards.shards.storage.schemes import Storages, has_ranges
from lightning_shards.shards.tar.plain_runs import count_samples, holds_samples
from lightning_shards.shards.tar.walk import BLOCK
from lightning_shards.shards.urls import (
    is_local,
    redact,
    require_local_shards,
    split_url,
    url_beside,
)

_log = logging.getLogger(__name__)

_FINGERPRINT_LENGTH = 16

_END_OF_URL = "\0"
"""No url and no file name can hold it."""


@dataclass(frozen=True, slots=True, eq=False)
class ShardIndex:
    """The shards of a data set, in order, and how many samples they hold.

    Attributes:
        urls: Shards as `expand_urls` gives them; one may appear several times.
        counts: Samples of each shard, int64, shape (num_shards,), read-only; None when unknown.
        total: Samples of the folder that the shards are in, as a file in it says. It serves for
            nominal epochs only, and is looked up only where there are no counts.
        has_tables: Whether member tables lie beside the remote shards, as far as it was looked up.
        class_files: What is in `classes.json` beside the remote shards, as far as it was looked up.
        size_bytes: Bytes of all shards, if the files that count them say so.
    """

    urls: tuple[str, ...]
    counts: NDArray[np.int64] | None
    total: int | None = None
    has_tables: bool = False
    class_files: ClassFiles = field(default_factory=dict[str, str])
    size_bytes: int | None = None
    _fingerprints: list[str] = field(default_factory=list[str], init=False, repr=False)

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

        Folders, hosts and queries are left out, so the data may move. It is computed once.
        """
        if not self._fingerprints:
            self._fingerprints.append(self._new_fingerprint())
        return self._fingerprints[0]

    def _new_fingerprint(self) -> str:
        counts = ["?"] * self.num_shards if self.counts is None else self.counts.tolist()
        digest = hashlib.sha256()
        for url, count in zip(self.urls, counts, strict=True):
            name = split_url(url)[1]
            digest.update(f"{name}\0{count}\n".encode("utf-8", "surrogateescape"))
        return digest.hexdigest()[:_FINGERPRINT_LENGTH]

    def __repr__(self) -> str:
        """Numbers only, because URLs may hold passwords, and there may be 10^6 of them."""
        return f"ShardIndex({count_of(self.num_shards, 'shard')}, {self.samples} samples)"

    def __reduce__(self) -> tuple[Any, ...]:
        """All urls as one text, which is pickled in half of the time."""
        text = _END_OF_URL.join((*self.urls, ""))
        found = (self.counts, self.total, self.has_tables, self.class_files, self.size_bytes)
        return _unpickled, (text, *found)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ShardIndex):
            return NotImplemented
        if self.counts is None or other.counts is None:
            return self.urls == other.urls and self.counts is other.counts
        return self.urls == other.urls and bool((self.counts == other.counts).all())

    def __hash__(self) -> int:
        return hash(self.urls)


def _unpickled(text: str, *others: Any) -> ShardIndex:
    return ShardIndex(tuple(text.split(_END_OF_URL)[:-1]), *others)


def load_index(
    urls: Sequence[str],
    *,
    cache: CacheFolder,
    show_progress: bool | None = None,
    wants_total: bool = False,
    storages: Storages | None = None,
) -> ShardIndex:
    """Find out how many samples each of these expanded urls holds.

    Sources are tried in this order: wids JSON files and `sizes.json` beside the shards (of remote
    ones `sizes.json` and `wids.json`), earlier scans in `cache`, and the headers of local tars.
    If a remote shard has no count, there are no counts at all, and nothing is scanned.
    `show_progress` draws a line on stderr while shards are scanned; None does so on a terminal.
    `wants_total` asks for a total of the one remote folder of all shards if they have no counts.
    `storages` read what is beside remote shards; without them only http(s) servers are asked.

    Raises:
        ShardNotFoundError: A local shard does not exist.
        IndexMismatchError: Two sources of counts disagree, or a shard changed since it was indexed.
        DamagedShardError: A shard that had to be scanned is not a whole tar.
    """
    require_local_shards(urls)
    url_of = {split_url(url): url for url in urls}
    known: dict[tuple[str, str], int] = {}
    sizes: list[int | None] = []
    unknown: dict[str, list[str]] = {}
    for folder, names in _names_by_folder(url_of).items():
        claims = _believed_claims(folder, names, url_of, storages)
        sizes += [claim.size_bytes for claim in claims.values()]
        known |= {(folder, name): claim.samples for name, claim in claims.items()}
        unknown[folder] = [name for name in names if name not in claims]
    if any(names and not is_local(folder) for folder, names in unknown.items()):
        return ShardIndex(tuple(urls), None, _total(list(unknown) if wants_total else [], storages))
    for folder, names in unknown.items():
        counts = _scan(folder, names, CountsCache(folder, cache), show_progress) if names else {}
        known |= {(folder, name): samples for name, samples in counts.items()}
    _report_empty([url_of[path] for path, samples in known.items() if not samples], len(known))
    in_order = np.fromiter((known[split_url(url)] for url in urls), np.int64, count=len(urls))
    return ShardIndex(tuple(urls), in_order, size_bytes=_sum_if_known(sizes, len(urls)))


def _sum_if_known(sizes: Iterable[int | None], number: int) -> int | None:
    """The sum of so many sizes; None if one of them is not known."""
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == number else None


def remote_class_files(urls: Sequence[str], storages: Storages) -> dict[str, str]:
    """What is in the `classes.json` of each remote folder of these shards that has one.

    Raises:
        ShardError: A store does not answer.
    """
    first_of = {split_url(url)[0]: url for url in reversed(urls) if not is_local(url)}
    found: dict[str, str] = {}
    for folder, url in first_of.items():
        fetch = _fetching(url, storages)
        data = fetch(url_beside(url, CLASSES), MAX_INDEX_BYTES) if fetch else None
        if data is not None:
            found[folder] = data.decode("utf-8", "surrogateescape")
    return found


def keep_index(index: ShardIndex, cache: CacheFolder, wanted: str) -> None:
    """Keep what was found out about remote shards for the other ranks of this node.

    Args:
        index: The shards, and what is known of them.
        cache: Where it is kept.
        wanted: What was looked for. Two splits may read the same shards and want different things.
    """
    counts = None if index.counts is None else index.counts.tolist()
    content = {
        "counts": counts,
        "total": index.total,
        "has_tables": index.has_tables,
        "class_files": dict(index.class_files),
        "size_bytes": index.size_bytes,
    }
    path = _kept_path(index.urls, cache, wanted)
    try:
        path.unlink(missing_ok=True)  # an old one must not stay if no new one can be written
        cache.write(path, json.dumps(content).encode())
    except OSError as error:
        _log.warning("each rank asks for the counts of its remote shards by itself: %s", error)


def kept_index(urls: Sequence[str], cache: CacheFolder, wanted: str) -> ShardIndex | None:
    """What another rank of this node has found out in this run; None if it could not keep it.

    Raises:
        FileAccessError: It could be another user's work.
    """
    file = cache.open(_kept_path(urls, cache, wanted))
    if file is None:
        return None
    try:
        with os.fdopen(file, "rb") as kept:
            content = json_object(json.loads(kept.read()))
        names = ("counts", "total", "has_tables", "class_files", "size_bytes")
        return ShardIndex(tuple(urls), *(content[name] for name in names))
    except (OSError, ValueError, KeyError, RecursionError) as error:
        _log.warning("the counts of remote shards are asked for again: %s", error)
        return None


def _kept_path(urls: Sequence[str], cache: CacheFolder, wanted: str) -> Path:
    text = "\n".join([wanted, *map(redact, urls)])
    digest = hashlib.sha256(text.encode("utf-8", "surrogateescape"))
    return cache.root / "indexes" / f"{digest.hexdigest()[:_FINGERPRINT_LENGTH]}.json"


def _names_by_folder(paths: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    folders: dict[str, list[str]] = {}
    for folder, name in paths:
        folders.setdefault(folder, []).append(name)
    return folders


def _believed_claims(
    folder: str,
    names: Sequence[str],
    url_of: Mapping[tuple[str, str], str],
    storages: Storages | None,
) -> dict[str, CountClaim]:
    """The counts that files give for shards of a folder, without a false count of 0."""
    return {
        name: claim
        for name, claim in _claims(folder, names, storages).items()
        if claim.samples or _is_empty(url_of[folder, name], claim, storages)
    }


def _claims(folder: str, names: Sequence[str], storages: Storages | None) -> dict[str, CountClaim]:
    """The counts that files in this folder give, by file name; none where no file can be read."""
    if is_local(folder):
        return local_claims(folder, names)
    fetch = _fetching(folder, storages)
    return remote_claims(folder, names, fetch) if fetch or _is_http(folder) else {}


def _total(folders: Sequence[str], storages: Storages | None) -> int | None:
    """The samples of the remote folder that all shards are in, if a file there counts them."""
    if len(folders) != 1:
        return None
    fetch = _fetching(folders[0], storages)
    return remote_total(folders[0], fetch) if fetch or _is_http(folders[0]) else None


def _fetching(folder: str, storages: Storages | None) -> FetchBeside | None:
    """What fetches the files of a remote folder; None if no storage reads it."""
    if storages is None or not has_ranges(folder):
        return None

    def fetch(url: str, max_bytes: int) -> bytes | None:
        return storages.of(url).read_whole([url], max_bytes + 1)[0]

    return fetch


def _is_empty(url: str, claim: CountClaim, storages: Storages | None) -> bool:
    """Whether a shard that is said to hold no sample really holds none, by its own headers.

    Of a remote shard only the first header is read, which must be the end marker.
    """
    if is_local(url):
        is_empty, reason = not holds_samples(url), "it holds some"
    else:
        fetch = _fetching(url, storages)
        start = fetch(url, BLOCK - 1) if fetch else http_start(url, BLOCK)
        is_empty, reason = start == bytes(BLOCK), "it does not begin with its end"
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
