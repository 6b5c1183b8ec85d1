"""The index of a data set: how many samples each shard holds; `counts` finds it.

Every order and every epoch is computed from these counts.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from lightning_shards.errors import count_of
from lightning_shards.plan.kept_order import KeptSamples
from lightning_shards.shards.urls import split_url

_FINGERPRINT_LENGTH = 16


@dataclass(frozen=True, eq=False)
class ShardIndex:
    """The shards of a data set, in order, and how many samples they hold.

    Attributes:
        urls: Shards as `expand_urls` gives them; one may appear several times.
        counts: Samples of each shard, int64, shape (num_shards,), read-only; None when unknown.
        total: Samples of the folder that the shards are in, as a file in it says. It serves for
            nominal epochs only, and is looked up only where there are no counts.
        has_tables: Whether member tables lie beside the remote shards, as far as it was looked up.
        class_files: By remote folder what is in its `classes.json`, as far as it was looked up.
        size_bytes: Bytes of all shards, if the files that count them say so.
        kept: Which samples are left by a filter, where that is known; None: all.
        components: Of a mixture: the data sets whose shards these are, one after the other.
    """

    urls: tuple[str, ...]
    counts: NDArray[np.int64] | None
    total: int | None = None
    has_tables: bool = False
    class_files: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    size_bytes: int | None = None
    kept: KeptSamples | None = None
    components: "tuple[ShardIndex, ...]" = ()

    def __post_init__(self) -> None:
        """Make the counts read-only."""
        if self.counts is None:
            return
        counts = np.array(self.counts, dtype=np.int64)  # a copy, which no caller can change
        assert counts.shape == (len(self.urls),)
        assert counts.min(initial=0) >= 0
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
        are_same = (self.urls, self.kept) == (other.urls, other.kept)
        return are_same and self.fingerprint() == other.fingerprint()

    def __hash__(self) -> int:
        return hash(self.urls)


def join_indexes(components: Sequence[ShardIndex]) -> ShardIndex:
    """The shards of the data sets of a mixture, numbered one after the other."""
    known = [each.counts for each in components if each.counts is not None]
    sizes = [each.size_bytes for each in components if each.size_bytes is not None]
    return ShardIndex(
        tuple(url for each in components for url in each.urls),
        np.concatenate(known) if len(known) == len(components) else None,
        has_tables=all(each.has_tables for each in components),
        class_files=dict(item for each in components for item in each.class_files.items()),
        size_bytes=sum(sizes) if len(sizes) == len(components) else None,
        components=tuple(components),
    )
