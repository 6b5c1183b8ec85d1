"""What an epoch fetches to one node, and the run that suits the network: arithmetic.

The numbers are expected values. They follow from the counts of the shards and the bytes of all of
them together, as if all samples were equally large; no member table is looked at.
"""

import math
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lightning_shards.shards.remote.byte_ranges import (
    MOST_IN_ONE_REQUEST,
    is_sample_the_unit,
    is_whole_faster,
)

LATENCY_S: Final = 0.03
CONNECTION_RATE: Final = 80e6
"""An answer takes so long, and one connection carries so many bytes a second: what is assumed of an
object store."""

_ENOUGH: Final = 1 << 20
"""Bytes of a piece from which on its request is not mostly waiting."""

_RUNS_IN_BLOCK: Final = 256
"""As many as there are by default: what a batch mixes depends on them."""

_LONGEST_RUN: Final = 1 << 12
"""With which a block of `_RUNS_IN_BLOCK` is the largest one that an order has."""


@dataclass(frozen=True, slots=True)
class ReadData:
    """Remote shards, and how their samples are read.

    Attributes:
        counts: Samples of each shard, int64 of shape (num_shards,).
        size_bytes: Bytes of all of them.
        sampling: The order's own word.
        run: Consecutive samples that are kept together; 0: whole shards.
        block: Samples that are shuffled together.
        is_streamed: Whether whole shards are read forward.
    """

    counts: NDArray[np.int64]
    size_bytes: int
    sampling: str
    run: int
    block: int
    is_streamed: bool = False

    @property
    def samples(self) -> int:
        """Samples in all shards."""
        return int(self.counts.sum())

    @property
    def sample_bytes(self) -> float:
        """Mean bytes of a sample."""
        return self.size_bytes / max(self.samples, 1)

    @property
    def num_pieces(self) -> int:
        """The parts of runs that lie in one shard each.

        >>> ReadData(np.array([10, 6, 4]), 0, "shuffled", run=4, block=8).num_pieces
        6
        """
        ends = np.unique(np.cumsum(self.counts))
        if not self.run:
            return int(np.count_nonzero(self.counts))
        inner = ends[(ends > 0) & (ends < self.samples)]
        return -(-self.samples // self.run) + int(np.count_nonzero(inner % self.run))

    @property
    def piece_bytes(self) -> float:
        """Mean bytes of a piece."""
        return self.size_bytes / max(self.num_pieces, 1)

    @property
    def has_pieces(self) -> bool:
        """Whether pieces are fetched ahead and kept: not of streams, nor in the order of files."""
        return not self.is_streamed and self.sampling != "sequential"


class NodeShare(NamedTuple):
    """What one node takes of an epoch.

    Attributes:
        fraction: Its part of each step, above 0 and at most 1.
        samples: Samples that it serves.
        batches: Batches of all its ranks.
    """

    fraction: float
    samples: float
    batches: int


class FetchNeeds(NamedTuple):
    """What one node fetches in an epoch with an empty cache.

    Attributes:
        size_bytes: Bytes.
        requests: Requests.
        is_kept: Whether it fetches pieces, which stay in the cache. If not, it fetches samples one
            by one, or streams.
    """

    size_bytes: int
    requests: int
    is_kept: bool


class RunAndBlock(NamedTuple):
    """The settings `shuffle_run` and `shuffle_block`."""

    run: int
    block: int


def fetch_needs(data: ReadData, node: NodeShare) -> FetchNeeds:
    """What one node fetches in an epoch; tables, two requests a shard, come on top once.

    >>> data = ReadData(np.full(100, 1000), 100_000 * 2600, "shuffled", run=500, block=10_000)
    >>> fetch_needs(data, NodeShare(1.0, 100_000, 100))
    FetchNeeds(size_bytes=260000000, requests=200, is_kept=True)
    """
    taken = round(node.samples * data.sample_bytes)
    if not data.has_pieces:
        # each batch is one range where the order is that of the files
        least = 0 if data.is_streamed else node.batches
        return FetchNeeds(taken, max(least, -(-taken // MOST_IN_ONE_REQUEST)), is_kept=False)
    of_sample = math.ceil(data.sample_bytes / MOST_IN_ONE_REQUEST)
    exactly = FetchNeeds(taken, round(node.samples * of_sample), is_kept=False)
    if is_sample_the_unit(data.size_bytes, data.samples):
        return exactly._replace(is_kept=True)
    in_piece = data.samples / max(data.num_pieces, 1)
    meets = 1 - (1 - node.fraction) ** in_piece  # the chance that the node uses a piece at all
    uses = node.fraction * in_piece / max(meets, 1e-9)
    sizes = np.array([data.piece_bytes, data.sample_bytes, uses])
    if not is_whole_faster(*sizes[:, None])[0]:
        return exactly
    # of drawn runs there are as many as the epoch has samples for
    used = node.samples / node.fraction / max(data.samples, 1) * meets
    parts = math.ceil(data.piece_bytes / MOST_IN_ONE_REQUEST)
    pieces = data.num_pieces * used
    return FetchNeeds(round(data.piece_bytes * pieces), round(pieces * parts), is_kept=True)


def suitable_run(data: ReadData) -> RunAndBlock | None:
    """The run whose pieces have 1 MiB or more, and a block of as many runs as by default.

    >>> small = ReadData(np.full(9, 100_000), 900_000 * 2600, "shuffled", run=64, block=16_384)
    >>> suitable_run(small)
    RunAndBlock(run=512, block=131072)

    Returns:
        None if the run is long enough, no longer one would help, or there are no runs.
    """
    run, sample = data.run, data.sample_bytes
    if not data.has_pieces or not run or data.piece_bytes >= _ENOUGH or not sample:
        return None
    wanted = 1 << math.ceil(math.log2(_ENOUGH / sample))
    in_shard = data.samples / max(int(np.count_nonzero(data.counts)), 1)
    longest = min(_LONGEST_RUN, 1 << max(0, math.floor(math.log2(in_shard))))
    longer = min(wanted, longest)
    if longer <= run:
        return None
    return RunAndBlock(longer, max(data.block, _RUNS_IN_BLOCK * longer))


def connection_rate(piece_bytes: float) -> float:
    """Bytes a second that one connection brings in pieces of so many bytes."""
    return piece_bytes / (LATENCY_S + piece_bytes / CONNECTION_RATE)
