"""File order: all samples of a data set, shard after shard, each with one number."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

_Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class FileOrder:
    """Numbers of samples in file order, and their ids: the shard, and the sample in it.

    Attributes:
        counts: Samples per shard, int64, shape (num_shards,); zeros are allowed.
    """

    counts: _Ints

    @cached_property
    def ends(self) -> _Ints:
        """The number after the last sample of each shard, shape (num_shards,)."""
        return np.cumsum(self.counts, dtype=np.int64)

    @cached_property
    def begins(self) -> _Ints:
        """The number of the first sample of each shard, shape (num_shards,)."""
        return self.ends - self.counts

    @property
    def samples(self) -> int:
        """Samples of all shards."""
        return int(self.ends[-1]) if self.ends.size else 0

    def locate(self, numbers: _Ints) -> tuple[_Ints, _Ints, _Ints]:
        """Shard, number of the shard's first sample, and sample in the shard, of these numbers."""
        # The shard of a number is the first that ends after it; empty shards are passed over.
        shards = np.searchsorted(self.ends, numbers, side="right").astype(np.int64)
        begins = self.begins[shards]
        return shards, begins, numbers - begins

    def ids(self, numbers: _Ints) -> _Ints:
        """The ids of these numbers, int64 of shape (n, 2)."""
        shards, _, samples = self.locate(numbers)
        return np.stack((shards, samples), axis=1)
