"""The order of samples: which sample stands at which position of an epoch's global sequence.

The order is a pure function of (counts, seed, epoch, sampling, run, block). It can start at any
position without computing the ones before, and never builds an array of the length of the data
set. Seven samples in two shards, ``shuffled`` with runs of 2 and blocks of 4, seed 4, epoch 0::

    file order, in runs   a0 a1|a2 b0|b1 b2|b3
    runs permuted         b1 b2|a2 b0|b3|a0 a1
    cut in blocks         b1 b2 a2 b0|b3 a0 a1
    blocks shuffled       b2 a2 b1 b0|a1 a0 b3

Runs are mixed, not whole shards: where shards are sorted by class, blocks of whole shards mix
worse than webdataset's buffer, and runs of 64 mix almost as well as a full shuffle
(`benchmarks/order.py`).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import isqrt
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from lightning_shards.errors import ConfigError, PlanError
from lightning_shards.plan.draws import (
    Purpose,
    random_words,
    scale_words,
    shard_order,
    stable_order,
)

Sampling = Literal["resampled", "shuffled", "sequential"]
"""With replacement; each sample once in a new order each epoch; each sample once in file order."""

MAX_BLOCK = 2**20
"""A few blocks are held in memory at a time, 8 bytes a sample. To mix more than a block can, take
a smaller run: runs of 1 are a full shuffle without any block."""

BLOCKS_KEPT = 4
"""Blocks remembered: batches are consecutive positions, so a few blocks serve each of them."""

MAX_TABLE = 2**16
"""Up to this many runs are permuted by sorting random words: every permutation is equally likely.
A Feistel network reaches only a few permutations, which is visible in small domains only."""

FEISTEL_ROUNDS = 8
"""Theory asks for four rounds of ideal functions; twice as many make up for a mere good hash."""

_MAX_UNWANTED = 4
"""`at_spans` computes up to this many times the wanted positions to save a call per span."""

ENDLESS = 2**63 - 1
"""Where an endless sequence ends: positions are int64."""


@dataclass(frozen=True, eq=False)
class SampleOrder:
    """The samples of every epoch, each epoch in its own order.

    ``sequential``: file order. ``resampled``: draws with replacement; each draw is a uniform
    sample of the data set and the `run` - 1 that follow it in its shard, wrapping round within the
    shard, so that every sample is equally likely at every position. ``shuffled``: each sample once;
    file order is cut into runs (the last one may be short), and the runs are permuted. A
    ``resampled`` or ``shuffled`` sequence is then cut into blocks, and the samples of each block
    are permuted uniformly.

    Attributes:
        counts: samples per shard, int64, shape (num_shards,); zeros are allowed. Not copied.
        seed: 0 <= seed < 2**64.
        sampling: see above.
        run: consecutive samples kept together when shards are mixed; 0 keeps whole shards
            together (``shuffled`` only). With blocks, the samples of a run come near each other
            and not side by side.
        block: consecutive positions of the mixed sequence that are shuffled; 0 or 1: none.
    """

    counts: NDArray[np.int64]
    seed: int
    sampling: Sampling
    run: int = 64
    block: int = 16_384

    def __post_init__(self) -> None:
        """Refuse arguments that name no order.

        Raises:
            ConfigError: a value out of its range, or whole shards with ``resampled``.
        """
        if self.sampling not in get_args(Sampling):
            raise ConfigError(
                f"sampling must be one of {', '.join(get_args(Sampling))}, got {self.sampling!r}; "
                "train takes 'resampled' or 'shuffled', evaluation 'sequential'"
            )
        for name, value, limit, remedy in (
            ("seed", self.seed, 2**64 - 1, "it names a random stream"),
            ("run", self.run, 2**32, "set shuffle_run, 64 is good"),
            ("block", self.block, MAX_BLOCK, "to mix more, lower shuffle_run: 1 mixes everything"),
        ):
            if not 0 <= value <= limit:
                raise ConfigError(f"{name} must be from 0 to {limit}, got {value}; {remedy}")
        if self.sampling == "resampled" and not self.run:
            raise ConfigError(
                "run must be at least 1 when resampled, got 0: a draw needs a fixed number of "
                "samples; set shuffle_run >= 1"
            )
        if self.counts.ndim != 1 or self.counts.dtype != np.int64 or (self.counts < 0).any():
            raise ConfigError(
                "counts must be one int64 per shard, at least 0, got "
                f"{self.counts.dtype} of shape {self.counts.shape}; check the data set's index"
            )

    def __reduce__(self) -> "tuple[type[SampleOrder], tuple[object, ...]]":
        """Pickle the arguments only: workers compute the rest again."""
        return SampleOrder, (self.counts, self.seed, self.sampling, self.run, self.block)

    @property
    def samples(self) -> int:
        """Samples of the data set."""
        return int(self._ends[-1]) if self._ends.size else 0

    def at(self, epoch: int, start: int, stop: int) -> NDArray[np.int64]:
        """The sample ids at positions start to stop of the epoch's global sequence.

        int64, shape (stop - start, 2): the shard, and the sample in it. The sequence of a
        ``resampled`` epoch is endless; in the others position p >= `samples` repeats position
        p % `samples`, as the padding of an `EpochPlan` asks for. Any two cuts agree::

            order.at(e, 0, 9) == concat(order.at(e, 0, 5), order.at(e, 5, 9))

        >>> order = SampleOrder(np.array([3, 0, 4]), seed=7, sampling="sequential")
        >>> order.at(0, 2, 5).tolist()
        [[0, 2], [2, 0], [2, 1]]

        Raises:
            ConfigError: numbers that no epoch or range has.
            PlanError: positions of a data set without samples.
        """
        if not 0 <= epoch < 2**64:
            raise ConfigError(
                f"epoch must be at least 0 and below 2**64, got {epoch}; epochs count from 0"
            )
        if not 0 <= start <= stop <= ENDLESS:
            raise ConfigError(
                f"positions must be 0 <= start <= stop < 2**63, got {start} to {stop}; "
                "take them from EpochPlan.rank_span"
            )
        if start == stop:
            return np.empty((0, 2), dtype=np.int64)
        if not self.samples:
            raise PlanError("there is no sample to order; check the counts in the data set's index")
        numbers = np.concatenate(list(self._pieces(epoch, start, stop)))
        shards, begins, _ = self._locate(numbers)
        return np.stack((shards, numbers - begins), axis=1)

    def at_spans(self, epoch: int, spans: Sequence[tuple[int, int]]) -> NDArray[np.int64]:
        """The results of `at` for each of these spans, concatenated; spans are in rising order."""
        first, last = spans[0][0], spans[-1][1]
        if last - first > _MAX_UNWANTED * sum(stop - start for start, stop in spans):
            return np.concatenate([self.at(epoch, *span) for span in spans])
        whole = self.at(epoch, first, last)
        if len(spans) == 1:
            return whole
        return np.concatenate([whole[start - first : stop - first] for start, stop in spans])

    # From here on a sample is its number in file order, one int64; `at` turns it into a pair.

    def _pieces(self, epoch: int, start: int, stop: int) -> Iterator[NDArray[np.int64]]:
        """Sample numbers at positions start to stop, block by block."""
        while start < stop:
            position = start % self._length
            if self.block > 1 and self.sampling != "sequential":
                number, skipped = divmod(position, self.block)
                block = self._blocks(epoch, number)
                piece = block[skipped : skipped + stop - start]
            else:
                piece = self._mixed(epoch, position, min(position + stop - start, self._length))
            yield piece
            start += len(piece)

    @cached_property
    def _ends(self) -> NDArray[np.int64]:
        """The number after the last sample of each shard, shape (num_shards,)."""
        return np.cumsum(self.counts, dtype=np.int64)

    @property
    def _length(self) -> int:
        """Positions after which the sequence repeats."""
        return ENDLESS if self.sampling == "resampled" else self.samples

    @cached_property
    def _blocks(self) -> Callable[[int, int], NDArray[np.int64]]:
        """Sample numbers of a block, by (epoch, number of the block)."""
        return lru_cache(maxsize=BLOCKS_KEPT)(self._shuffle_block)

    @cached_property
    def _shard_orders(self) -> "Callable[[int], ShardOrder]":
        """Shards in the order of an epoch; two, since workers run ahead into the next epoch."""
        return lru_cache(maxsize=2)(self._order_shards)

    @cached_property
    def _run_orders(self) -> "Callable[[int], RunOrder]":
        """Runs in the order of an epoch; two, since workers run ahead into the next epoch."""
        return lru_cache(maxsize=2)(self._order_runs)

    def _shuffle_block(self, epoch: int, number: int) -> NDArray[np.int64]:
        start = number * self.block
        stop = min(start + self.block, self._length)
        words = random_words(
            Purpose.SAMPLE_BLOCKS,
            (self.seed, epoch),
            (0, stop - start),
            resumed_at=0,
            stream=number,
        )
        return self._mixed(epoch, start, stop)[stable_order(words)]

    def _mixed(self, epoch: int, start: int, stop: int) -> NDArray[np.int64]:
        """Sample numbers at positions start to stop of the sequence before blocks, start < stop."""
        positions = np.arange(start, stop, dtype=np.int64)
        if self.sampling == "sequential":
            return positions
        if self.sampling == "resampled":
            return self._in_draws(epoch, positions)
        return self._in_runs(epoch, positions) if self.run else self._in_shards(epoch, positions)

    def _in_draws(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Position q is in draw q // run, q % run samples after the first of that draw."""
        # shards, begins, offsets: one entry per draw, shape (last + 1 - first,).
        # draws, wrapped: one entry per position, shape (len(positions),).
        first, last = int(positions[0]) // self.run, int(positions[-1]) // self.run
        words = random_words(
            Purpose.SAMPLE_DRAWS, (self.seed, epoch), (first, last + 1), resumed_at=0, stream=0
        )
        drawn = scale_words(words, self.samples)
        shards, begins, offsets = self._locate(drawn)
        draws = positions // self.run - first
        # A draw that reaches the end of its shard goes on at the shard's beginning.
        wrapped = (offsets[draws] + positions % self.run) % self.counts[shards][draws]
        return begins[draws] + wrapped

    def _in_runs(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Slot k of the sequence holds the run number permutation(k)."""
        # slots, offsets: one entry per position, shape (len(positions),).
        # permuted: the run in each slot from `first` to `last`, shape (last + 1 - first,).
        runs = self._run_orders(epoch)
        # If every run were full, position p would be in slot p // run. The short run lacks
        # `missing` samples, so the positions after it are moved on by that many.
        missing = -self.samples % self.run
        short_stop = runs.short_slot * self.run + self.run - missing
        slots, offsets = np.divmod(positions + missing * (positions >= short_stop), self.run)
        first, last = int(slots[0]), int(slots[-1])
        permuted = runs.permutation.forward(np.arange(first, last + 1, dtype=np.int64))
        return permuted[slots - first] * self.run + offsets

    def _in_shards(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Whole shards one after the other, in the order of the epoch."""
        order = self._shard_orders(epoch)
        slots = np.searchsorted(order.ends, positions, side="right")
        shards = order.shards[slots]
        # A sample is as far from its shard's end in file order as in the order of the epoch.
        return positions + self._ends[shards] - order.ends[slots]

    def _order_runs(self, epoch: int) -> "RunOrder":
        num_runs = -(-self.samples // self.run)
        permutation = permute_runs(num_runs, self.seed, epoch)
        return RunOrder(permutation, permutation.inverse(num_runs - 1))

    def _order_shards(self, epoch: int) -> "ShardOrder":
        shards = shard_order(len(self.counts), self.seed, epoch, shuffled=True)
        return ShardOrder(shards, np.cumsum(self.counts[shards], dtype=np.int64))

    def _locate(
        self, numbers: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Shard, number of the shard's first sample, and sample in the shard, of sample numbers."""
        # The shard of a number is the first that ends after it; empty shards are passed over.
        shards = np.searchsorted(self._ends, numbers, side="right").astype(np.int64)
        begins = self._ends[shards] - self.counts[shards]
        return shards, begins, numbers - begins


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """A permutation of range(n) written out; every permutation is equally likely."""

    order: NDArray[np.int64]

    def forward(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """The images of these numbers."""
        return self.order[numbers]

    def inverse(self, image: int) -> int:
        """The number that has this image."""
        return int(np.flatnonzero(self.order == image)[0])


@dataclass(frozen=True, slots=True)
class Feistel:
    """A permutation of range(size) computed number by number, without any array of that size.

    A Feistel network on pairs (left, right) with left < a and right < b, for the nearly equal a and
    b with the least a x b >= size. Each round adds a hash of one half and the round's key to the
    other half, modulo its range; the inverse undoes the rounds in reverse. An image outside
    range(size) goes through the network again until it lies inside ("cycle walking"), seldom more
    than once, because a x b exceeds size by less than a. See Black and Rogaway, "Ciphers with
    arbitrary finite domains" (2002).
    """

    size: int
    keys: tuple[int, ...]

    def forward(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """The images of these numbers."""
        return self._walk(numbers, backwards=False)

    def inverse(self, image: int) -> int:
        """The number that has this image."""
        return int(self._walk(np.array([image], dtype=np.int64), backwards=True)[0])

    def _walk(self, numbers: NDArray[np.int64], *, backwards: bool) -> NDArray[np.int64]:
        images = self._pass(numbers.astype(np.uint64), backwards=backwards)
        while (outside := np.flatnonzero(images >= self.size)).size:
            images[outside] = self._pass(images[outside], backwards=backwards)
        return images.astype(np.int64)

    def _pass(self, numbers: NDArray[np.uint64], *, backwards: bool) -> NDArray[np.uint64]:
        """All rounds once: a permutation of range(a * b)."""
        # halves: [left, right] of each number = left * b + right, both of the shape of `numbers`.
        # ranges: (a, b). Even rounds change `left`, odd rounds change `right`.
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


def mix(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A one-to-one hash of 64 bits to 64 bits: the last steps of splitmix64."""
    words = (words ^ words >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ words >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return words ^ words >> np.uint64(31)
