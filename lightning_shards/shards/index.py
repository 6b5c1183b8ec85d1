"""The index of a data set: how many samples each shard holds.

Every order and every epoch is computed from these counts (`counts`). They come from files beside
the shards, otherwise from their member tables, for which local ones are scanned once. Remote shards
are never scanned. If one of them is counted by no file, the whole index has no counts, and at most
a total is known.
"""

import hashlib
import logging
import os
from collections.abc import Iterable, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from lightning_shards.errors import IndexMismatchError, count_of
from lightning_shards.plan.kept_order import KeptSamples
from lightning_shards.shards.beside import MAX_INDEX_BYTES
from lightning_shards.shards.classes import CLASSES, ClassFiles
from lightning_shards.shards.counts import believed_claims, bytes_beside, folder_total
from lightning_shards.shards.files import stamp_of
from lightning_shards.shards.private_files import CacheFolder, sidecar_name
from lightning_shards.shards.storage.schemes import Storages, has_ranges
from lightning_shards.shards.tables import TableStore, build_tables
from lightning_shards.shards.urls import (
    is_local,
    redact,
    require_local_shards,
    split_url,
    url_beside,
)

_log = logging.getLogger(__name__)

_FINGERPRINT_LENGTH = 16
_FETCHED_TOGETHER = 256  # tables


@dataclass(frozen=True, eq=False)
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
        kept: Which samples are left by a filter, where that is known; None: all.
        components: Of a mixture: the data sets whose shards these are, one after the other.
    """

    urls: tuple[str, ...]
    counts: NDArray[np.int64] | None
    total: int | None = None
    has_tables: bool = False
    class_files: ClassFiles = field(default_factory=dict[str, bytes])
    size_bytes: int | None = None
    kept: KeptSamples | None = None
    components: "tuple[ShardIndex, ...]" = ()

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

    @property
    def kept_counts(self) -> NDArray[np.int64] | None:
        """Samples of each shard that are left by a filter, like `counts`; None when unknown."""
        return self.counts if self.kept is None else self.kept.counts

    @property
    def kept_samples(self) -> int | None:
        """Samples that are left by a filter in all shards together; None when unknown."""
        counts = self.kept_counts
        return None if counts is None else int(counts.sum())

    @property
    def kept_numbers(self) -> NDArray[np.int64]:
        """The numbers in file order of the samples that are left; the counts must be known."""
        assert self.counts is not None
        if self.kept is None:
            return np.arange(int(self.counts.sum()))
        begins = enumerate(np.cumsum(self.counts) - self.counts)
        return np.concatenate([begin + self.kept.of_shard(shard) for shard, begin in begins])

    @property
    def known_samples(self) -> int | None:
        """Those that are left, by the counts or by the folder's `total`; None when unknown."""
        return self.total if self.kept_samples is None else self.kept_samples

    @property
    def parts(self) -> "tuple[ShardIndex, ...]":
        """The shards of each component; of a data set alone these."""
        return self.components or (self,)

    def component_of(self, shard: int) -> int:
        """The number of the component that a shard is of; 0 where there is no mixture."""
        return int(np.searchsorted(self.first_shards, shard, side="right")) - 1

    @property
    def first_shards(self) -> NDArray[np.int64]:
        """The shards before those of each component, int64 of shape (components,); [0] of none."""
        shards = [0, *(each.num_shards for each in self.components[:-1])]
        return np.cumsum(shards, dtype=np.int64)

    @property
    def kept_identity(self) -> dict[str, int | str]:
        """The identity of what is left, if there is a filter."""
        return {} if self.kept is None else {"kept": self.kept.identity}

    def fingerprint(self) -> str:
        """The identity of the data: 16 hex digits over the ordered (file name, count) list.

        Folders, hosts and queries are left out, so the data may move. It is computed once.
        """
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
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
        if (self.urls, self.kept) != (other.urls, other.kept):
            return False
        if self.counts is None or other.counts is None:
            return self.counts is other.counts
        return bool((self.counts == other.counts).all())

    def __hash__(self) -> int:
        return hash(self.urls)


def join_indexes(components: Sequence[ShardIndex]) -> ShardIndex:
    """The shards of the data sets of a mixture, numbered one after the other."""
    known = [each.counts for each in components if each.counts is not None]
    class_files: dict[str, bytes] = {}
    for component in components:
        class_files.update(component.class_files)
    return ShardIndex(
        tuple(url for component in components for url in component.urls),
        np.concatenate(known) if len(known) == len(components) else None,
        has_tables=all(component.has_tables for component in components),
        class_files=class_files,
        size_bytes=_sum_if_known([each.size_bytes for each in components], len(components)),
        components=tuple(components),
    )


def load_index(
    urls: Sequence[str],
    *,
    cache: CacheFolder,
    wants_total: bool = False,
    storages: Storages | None = None,
) -> ShardIndex:
    """Find out how many samples each of these expanded urls holds.

    Files beside the shards are believed first, and then the member tables of local ones in `cache`.
    If a remote shard has no count, there are none; `wants_total` then asks for that of its folder.

    Raises:
        ShardNotFoundError: A shard does not exist.
        DamagedShardError: One that had to be scanned is not a whole tar.
    """
    require_local_shards(urls)
    url_of = {split_url(url): url for url in urls}
    known, sizes, unknown = dict[tuple[str, str], int](), list[int | None](), dict[str, list[str]]()
    with nullcontext(storages) if storages else closing(Storages()) as reading:
        for folder, names in names_by_folder(url_of).items():
            claims = believed_claims(folder, names, url_of, reading)
            sizes += [claim.size_bytes for claim in claims.values()]
            known |= {(folder, name): claim.samples for name, claim in claims.items()}
            unknown[folder] = [name for name in names if name not in claims]
            for name in unknown[folder][:1] if claims and not is_local(folder) else ():
                _require_there(url_of[folder, name], reading)
        if any(names and not is_local(folder) for folder, names in unknown.items()):
            total = folder_total(urls, unknown, reading) if wants_total else None
            return ShardIndex(tuple(urls), None, total)
    scanned = [url_of[folder, name] for folder, names in unknown.items() for name in names]
    counts = build_tables(scanned, TableStore(cache, takes_split=True))
    known |= {split_url(url): samples for url, samples in counts.items()}
    empty = [redact(url_of[path]) for path, samples in known.items() if not samples]
    if 0 < len(empty) < len(known):
        what = "%d of %d shards hold no sample, first %s; fetch it again if it should hold some"
        _log.warning(what, len(empty), len(known), empty[0])
    in_order = np.fromiter((known[split_url(url)] for url in urls), np.int64, count=len(urls))
    return ShardIndex(tuple(urls), in_order, size_bytes=_sum_if_known(sizes, len(urls)))


def digest_with_shards(
    digest: str, index: ShardIndex, cache: CacheFolder, tables: TableStore
) -> str:
    """A hash of this one, the shards, and what shows that one, or its table, is another now.

    The tables of remote shards are fetched before.

    Raises:
        ShardError: As of `TableStore.fetch`.
    """
    for first in range(0, index.num_shards, _FETCHED_TOGETHER):
        tables.fetch(index.urls[first : first + _FETCHED_TOGETHER])
    hashed = hashlib.sha256(digest.encode())
    counts = [None] * index.num_shards if index.counts is None else index.counts.tolist()
    for url, count in zip(index.urls, counts, strict=True):
        try:
            stamp = stamp_of(url if is_local(url) else cache.sidecar_of(url))
        except OSError:
            stamp = None  # a local shard that is missing is an error elsewhere
        hashed.update(os.fsencode(f"\n{sidecar_name(url)} {count} {stamp}"))
    return hashed.hexdigest()[:32]


def _require_there(url: str, storages: Storages) -> None:
    """Look for a shard that is not among those that are counted: braces may name one too many."""
    storages.of(url).stat(url)
    _log.warning("%s is counted in no file beside it; index the shards again", redact(url))


def _sum_if_known(sizes: Iterable[int | None], number: int) -> int | None:
    """The sum of so many sizes; None if one of them is not known."""
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == number else None


def remote_class_files(urls: Sequence[str], storages: Storages) -> dict[str, bytes]:
    """What is in the `classes.json` of each remote folder of these shards that has one.

    Raises:
        ShardError: A store does not answer.
    """
    first_of = {split_url(url)[0]: url for url in reversed(urls) if not is_local(url)}
    found: dict[str, bytes] = {}
    for folder, url in first_of.items():
        beside = url_beside(url, CLASSES)
        data = bytes_beside(beside, MAX_INDEX_BYTES, storages) if has_ranges(url) else None
        if data is not None:
            found[folder] = data
    return found


def names_by_folder(paths: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """The names of these files by their folders; paths as `split_url` gives them."""
    folders: dict[str, list[str]] = {}
    for folder, name in paths:
        folders.setdefault(folder, []).append(name)
    return folders
