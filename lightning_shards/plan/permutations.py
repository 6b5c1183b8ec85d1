"""Runs and shards in the sequence of an epoch: permuted by a table, or computed one by one."""

from dataclasses import dataclass
from math import isqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lightning_shards.plan.draws import Purpose, random_words, shard_order, stable_order

MAX_TABLE = 2**16
"""Up to this many runs are permuted by sorting random words: every permutation is equally likely.
A Feistel network over a small domain reaches few of them; over a larger one this cannot be told."""

FEISTEL_ROUNDS = 8
"""Four are the least that theory wants of ideal round functions; ours are merely very good."""


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """A permutation of range(n) written out, every one of them equally likely."""

    order: NDArray[np.int64]

    def forward(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """The images of these numbers."""
        return self.order[numbers]

    def inverse(self, image: int) -> int:
        """The number that this is the image of."""
        return int(np.flatnonzero(self.order == image)[0])


@dataclass(frozen=True, slots=True)
class Feistel:
    """A permutation of range(size) computed number by number, without any array of that size.

    A Feistel network on pairs (left, right) with left < a and right < b, for the nearly equal a and
    b with the least a x b >= size: each round adds to one half, modulo its range, a hash of the
    other half and the round's key, and the rounds undone in reverse are the inverse. What leaves
    range(size) goes through it again until it comes back ("cycle walking"), seldom more than once:
    a x b exceeds size by less than a. See Black and Rogaway, "Ciphers with arbitrary finite
    domains" (2002).
    """

    size: int
    keys: tuple[int, ...]

    def forward(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """The images of these numbers."""
        return self._walk(numbers, backwards=False)

    def inverse(self, image: int) -> int:
        """The number that this is the image of."""
        return int(self._walk(np.array([image], dtype=np.int64), backwards=True)[0])

    def _walk(self, numbers: NDArray[np.int64], *, backwards: bool) -> NDArray[np.int64]:
        images = self._pass(numbers.astype(np.uint64), backwards=backwards)
        while (outside := np.flatnonzero(images >= self.size)).size:
            images[outside] = self._pass(images[outside], backwards=backwards)
        return images.astype(np.int64)

    def _pass(self, numbers: NDArray[np.uint64], *, backwards: bool) -> NDArray[np.uint64]:
        """All rounds once: a permutation of range(a * b)."""
        num_left = isqrt(self.size - 1) + 1
        ranges = (np.uint64(num_left), np.uint64(-(-self.size // num_left)))
        halves = list(np.divmod(numbers, ranges[1]))
        rounds = list(enumerate(self.keys))
        for number, key in reversed(rounds) if backwards else rounds:
            side = number % 2
            added = mix(halves[1 - side] ^ np.uint64(key)) % ranges[side]
            halves[side] += ranges[side] - added if backwards else added
            halves[side] %= ranges[side]
        return halves[0] * ranges[1] + halves[1]


class RunOrder(NamedTuple):
    """Which run is in which slot of an epoch's sequence, and the slot of the last run."""

    permutation: Table | Feistel
    short_slot: int


class ShardOrder(NamedTuple):
    """Shards in the sequence of an epoch, and the position after the last sample of each."""

    shards: NDArray[np.int64]
    ends: NDArray[np.int64]


def permute_runs(num_runs: int, seed: int, epoch: int) -> Table | Feistel:
    """The permutation of range(num_runs) for this epoch: a `Table` up to `MAX_TABLE`."""
    is_small = num_runs <= MAX_TABLE
    purpose, num_words = (
        (Purpose.RUN_ORDER, num_runs) if is_small else (Purpose.RUN_KEYS, FEISTEL_ROUNDS)
    )
    words = random_words(purpose, (seed, epoch), (0, num_words), resumed_at=0, stream=0)
    if is_small:
        return Table(stable_order(words))
    return Feistel(num_runs, tuple(words.tolist()))


def order_runs(num_runs: int, seed: int, epoch: int) -> RunOrder:
    """The runs in the sequence of this epoch; the last of them may be short."""
    permutation = permute_runs(num_runs, seed, epoch)
    return RunOrder(permutation, permutation.inverse(num_runs - 1))


def order_shards(counts: NDArray[np.int64], seed: int, epoch: int) -> ShardOrder:
    """The shards in the sequence of this epoch."""
    shards = shard_order(len(counts), seed, epoch, shuffled=True)
    return ShardOrder(shards, np.cumsum(counts[shards], dtype=np.int64))


def mix(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A hash of 64 bits to 64 bits, one to one: the last steps of splitmix64."""
    words = (words ^ words >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ words >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return words ^ words >> np.uint64(31)
