"""Runs and shards in the sequence of an epoch: permuted by a table, or computed one by one."""

from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from math import isqrt, prod

import numpy as np
from numpy.typing import NDArray

from lightning_shards.plan.epoch import EpochPlan
from lightning_shards.plan.place import Place

MAX_TABLE = 2**16
"""Up to this many runs are permuted by sorting random words: every permutation is equally likely.
A Feistel network over a small domain reaches few of them; over a larger one this cannot be told."""

FEISTEL_ROUNDS = 8
"""Four are the least that theory wants of ideal round functions; ours are merely very good."""


class Purpose(IntEnum):
    """What random words are for; the numbers are part of the order and never change."""

    SHARD_DRAWS = 1
    STREAM_STARTS = 2
    SHARD_ORDER = 3
    TRANSFORMS = 4
    SAMPLE_DRAWS = 5
    RUN_ORDER = 6
    RUN_KEYS = 7
    SAMPLE_BLOCKS = 8
    MIX_SLOTS = 9
    ALIKE_GROUPS = 10
    BALANCED_DRAWS = 11
    STRANDS = 12
    STRAND_RUNS = 13
    STRAND_BLOCKS = 14


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """A permutation of range(n) written out, every one of them equally likely.

    Or several of them, one a row.
    """

    order: NDArray[np.int64]

    def forward(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """The images of these numbers, one row for each of several permutations."""
        return self.order[..., numbers]

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
    keys: tuple[int | NDArray[np.uint64], ...]

    def forward(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """The images of these numbers, one row for each of several permutations."""
        return self._walk(numbers, backwards=False)

    def inverse(self, image: int) -> int:
        """The number that this is the image of."""
        return int(self._walk(np.array([image], dtype=np.int64), backwards=True)[0])

    def _walk(self, numbers: NDArray[np.int64], *, backwards: bool) -> NDArray[np.int64]:
        images = self._pass(numbers.astype(np.uint64), backwards=backwards)
        while (outside := images >= self.size).any():
            images = np.where(outside, self._pass(images, backwards=backwards), images)
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
            halves[side] = (halves[side] + (ranges[side] - added if backwards else added)) % ranges[
                side
            ]
        return halves[0] * ranges[1] + halves[1]


def permute(
    num_runs: int, purpose: Purpose, key: tuple[int, int], shape: tuple[int, ...] = ()
) -> Table | Feistel:
    """A permutation of range(num_runs), or `shape` of them; tables if they have few runs together.

    `key` is (seed, epoch).
    """
    rows = prod(shape)
    is_small = rows * num_runs <= MAX_TABLE
    num_words = num_runs if is_small else FEISTEL_ROUNDS
    words = random_words(purpose, key, (0, rows * num_words))
    words = words.reshape(*shape, num_words)
    if is_small:
        return Table(stable_order(words))
    # of each round one key, of shape (1,), or a column of keys, of shape (rows, 1)
    return Feistel(num_runs, tuple(np.moveaxis(words, -1, 0)[..., None]))


def order_runs(num_runs: int, seed: int, epoch: int) -> tuple[Table | Feistel, int]:
    """Which run is in which slot of an epoch's sequence, and the slot of the last one.

    That run may be short. Up to `MAX_TABLE` runs they are in a `Table`.
    """
    purpose = Purpose.RUN_ORDER if num_runs <= MAX_TABLE else Purpose.RUN_KEYS
    permutation = permute(num_runs, purpose, (seed, epoch))
    return permutation, permutation.inverse(num_runs - 1)


def mix(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A hash of 64 bits to 64 bits, one to one: the last steps of splitmix64."""
    words = (words ^ words >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ words >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return words ^ words >> np.uint64(31)


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


ORDER_VERSION = 1
"""Goes into checkpoints; raised by any change that gives other orders for the same arguments."""

WORDS_PER_BLOCK = 4
"""Philox 4x64 gives four 64-bit words for one value of its counter."""


def shard_draws(
    num_shards: int, seed: int, epoch: int, start: int, stop: int, *, resumed_at: int = 0
) -> NDArray[np.int64]:
    """Draws number start to stop of one endless sequence of uniform shard draws.

    With replacement; int64, shape (stop - start,), each in range(num_shards). The sequence is
    global: to split it over n ranks and workers, each takes every n-th draw. Any two cuts agree::

        shard_draws(n, s, e, 0, 9) == concat(shard_draws(n, s, e, 0, 5), shard_draws(n, s, e, 5, 9))

    Args:
        num_shards: Number of shards to draw from, at least 1.
        seed: 0 <= seed < 2**64.
        epoch: Number of the epoch that the sequence begins in.
        start: Number of the first draw.
        stop: Number after the last draw.
        resumed_at: Samples of this epoch trained before the stream was started. Each value is an
            independent sequence, so a resumed stream does not repeat the shards it had read.
    """
    words = random_words(Purpose.SHARD_DRAWS, (seed, epoch), (start, stop), resumed_at=resumed_at)
    return scale_words(words, num_shards)


def stream_start(counts: NDArray[np.int64], seed: int, stream: int) -> int:
    """How many samples of its first draws a stream passes over, less than the largest shard has.

    So streams that draw one shard, and are as fast as each other, do not give the same batches.

    Args:
        counts: Samples per shard, int64, shape (num_shards,).
        seed: 0 <= seed < 2**64.
        stream: Number of the stream among all of the job.
    """
    words = random_words(Purpose.STREAM_STARTS, (seed, 0), (0, 1), stream=stream)
    return int(words[0]) * int(counts.max()) >> 64


def shard_order(num_shards: int, seed: int, epoch: int, shuffled: bool) -> NDArray[np.int64]:
    """Every shard once, in file order or in a new uniform order each epoch.

    int64, shape (num_shards,).
    """
    if not shuffled:
        return np.arange(num_shards, dtype=np.int64)
    words = random_words(Purpose.SHARD_ORDER, (seed, epoch), (0, num_shards))
    return stable_order(words)


def stable_order(words: NDArray[np.uint64]) -> NDArray[np.int64]:
    """The places of the words in ascending order, along the last axis; equal ones as they come."""
    return np.argsort(words, kind="stable").astype(np.int64, copy=False)


def spans(plan: EpochPlan, place: Place, weight: int) -> list[tuple[int, int]]:
    """The positions (start, stop) of this weight that one worker which reads forward alone reads.

    The distinct samples of the plan are cut into one stretch per rank, rank 0 first, and each
    stretch is cut again into one per worker, as long as the steps of that worker need (worker w
    serves the steps w, w + num_workers, ...). Over all ranks and workers every served position
    comes once with weight 1. Repeats follow, with weight 0: repeat number k, counted in rank
    order, is position k % samples. Spans are never empty; a worker without a sample has none.

    Five samples, two ranks, batch size 2, ``pad``; ``*`` marks a repeat, ``|`` parts the steps::

        rank 0    0 1 | 2 0*
        rank 1    3 4 | 1*2*

    >>> plan = EpochPlan(5, batch_size=2, world_size=2, remainder="pad")
    >>> spans(plan, Place(1, 2), weight=1), spans(plan, Place(1, 2), weight=0)
    ([(3, 5)], [(1, 3)])

    Here a step is not a stretch of the sequence, as it is in `EpochPlan.span`. The samples that
    k steps trained are not the first positions, so this order cannot be resumed within an epoch.
    """
    rank, worker, num_workers = place.rank, place.worker, place.num_workers
    if weight:
        start = plan.done + sum(plan.share(each) for each in range(rank))
        start += sum(plan.share(rank, each, num_workers) for each in range(worker))
        stop = start + plan.share(rank, worker, num_workers)
        return [(start, stop)] if start < stop else []
    last = plan.steps - 1
    if last < 0 or last % num_workers != worker:  # all repeats are in the last step
        return []
    repeats = plan.repeats(last)
    start = sum(repeats[:rank])
    stop, found = start + repeats[rank], list[tuple[int, int]]()
    while start < stop:  # once or twice, unless the data set is tiny
        first = start % plan.samples
        found.append((first, min(first + stop - start, plan.samples)))
        start += plan.samples - first
    return found


def random_words(
    purpose: Purpose,
    key: tuple[int, int],
    numbers: tuple[int, int],
    *,
    resumed_at: int = 0,
    stream: int = 0,
) -> NDArray[np.uint64]:
    """Words number start to stop (`numbers`) of the random stream named by the other arguments.

    uint64, shape (stop - start,); `key` is (seed, epoch). All numbers are below 2**64.
    """
    start, stop = numbers
    block, skipped = divmod(start, WORDS_PER_BLOCK)
    generator = np.random.Philox(
        key=np.array(key, dtype=np.uint64),
        counter=np.array([block, stream, resumed_at, int(purpose)], dtype=np.uint64),
    )
    return generator.random_raw(skipped + stop - start)[skipped:]


def scale_words(words: NDArray[np.uint64], total: int | _Ints) -> _Ints:
    """Uniform numbers in range(total), one per random word: word x total >> 64, 1 <= total < 2**63.

    `total` is the same for all words, or of shape (len(words),).

    No number is more than 2**-64 likelier than another.
    """
    # `words` and all that follows: uint64, shape (len(words),).
    # The product has up to 127 bits, of which the upper 64 are wanted. As in multiplication by
    # hand, with digits of 32 bits: four products of halves, none of which overflows 64 bits.
    half, mask = np.uint64(32), np.uint64(2**32 - 1)
    low, high = words & mask, words >> half
    total_low, total_high = np.uint64(total & 2**32 - 1), np.uint64(total >> 32)
    across, back = low * total_high, high * total_low
    carry = (low * total_low >> half) + (across & mask) + (back & mask)
    upper = high * total_high + (across >> half) + (back >> half) + (carry >> half)
    return upper.astype(np.int64)
