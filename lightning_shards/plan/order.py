"""The order of samples: which sample stands at which position of an epoch's global sequence.

`Order` is what the readers ask. `SampleOrder` is ours: a pure function of (counts, seed, epoch,
sampling, run, block). It can start at any position without computing the ones before, and never
builds an array of the length of the data set. Seven samples in two shards, ``shuffled`` with runs
of 2 and blocks of 4, seed 4, epoch 0::

    file order, in runs   a0 a1|a2 b0|b1 b2|b3
    runs permuted         b1 b2|a2 b0|b3|a0 a1
    cut in blocks         b1 b2 a2 b0|b3 a0 a1
    blocks shuffled       b2 a2 b1 b0|a1 a0 b3

Runs are mixed, not whole shards: where shards are sorted by class, blocks of whole shards mix
worse than webdataset's buffer, and runs of 64 mix almost as well as a full shuffle
(`benchmarks/order.py`).
"""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import Literal, Protocol, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from lightning_shards.errors import ConfigError, PlanError, require_choice
from lightning_shards.plan.draws import (
    ORDER_VERSION,
    Feistel,
    FileOrder,
    Purpose,
    Table,
    order_runs,
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

_BLOCKS_KEPT = 4
"""Batches are consecutive positions, so a few blocks serve each of them."""

MAX_UNWANTED = 4
"""`at_spans` computes up to this many times the wanted positions to save a call per span."""

ENDLESS = 2**63 - 1
"""Where an endless sequence ends: positions are int64."""

_T = TypeVar("_T")


def remembered(
    number: int = _BLOCKS_KEPT,
) -> Callable[[Callable[..., _T]], "cached_property[Callable[..., _T]]"]:
    """Decorates a method: each object remembers so many of its last results."""
    return lambda method: cached_property(lambda owner: lru_cache(number)(partial(method, owner)))


class Order(Protocol):
    """Says which sample stands at each position of an epoch: one sequence, shared by all ranks.

    A pure function: equal arguments give equal ids in any process and at any time, and nothing is
    remembered that an answer depends on. It travels to worker processes, so it can be pickled;
    several threads may ask it at once; two that compare equal give equal ids. The arrays belong to
    who asked for them. An order of your own inherits from this class and says three things:
    `samples`, `at` and `identity`.
    """

    @property
    @abstractmethod
    def samples(self) -> int:
        """Samples of the data set: at positions 0 to `samples` an epoch without repeats ends."""
        ...

    @abstractmethod
    def at(self, epoch: int, start: int, stop: int) -> NDArray[np.int64]:
        """The sample ids at positions start to stop of an epoch: shard, and sample in it.

        int64, shape (stop - start, 2). Positions from `samples` on are asked for, too: there each
        id is that of an earlier position (padding), or a new draw. Any two cuts agree::

            order.at(e, 0, 9) == concat(order.at(e, 0, 5), order.at(e, 5, 9))

        Raises:
            ConfigError: Numbers that no epoch or range has.
            PlanError: Positions of a data set without samples.
        """
        ...

    @abstractmethod
    def identity(self) -> dict[str, int | str]:
        """All that the order depends on beside the shards, by name: a checkpoint must agree.

        `sampling` is among them, the word by which logs and tools call the order.
        """
        ...

    def at_spans(self, epoch: int, spans: Sequence[tuple[int, int]]) -> NDArray[np.int64]:
        """The results of `at` for each of these spans, concatenated; spans are in rising order."""
        first, last = spans[0][0], spans[-1][1]
        if last - first > MAX_UNWANTED * sum(stop - start for start, stop in spans):
            return np.concatenate([self.at(epoch, *span) for span in spans])
        whole = self.at(epoch, first, last)
        return np.concatenate([whole[start - first : stop - first] for start, stop in spans])

    def following(self, epoch: int, position: int, count: int) -> NDArray[np.int64]:
        """Ids that may stand for a bad sample at this position, the best one first.

        int64, shape (count, 2). More of them begin with the same ones, so that whoever asks finds
        the same first good one. Here it is what comes next in the sequence.

        Raises:
            ConfigError: Numbers that no epoch or range has.
            PlanError: Positions of a data set without samples.
        """
        return self.at(epoch, position + 1, position + 1 + count)

    def footing(self, epoch: int, start: int, stop: int) -> NDArray[np.int64]:
        """The ids of all blocks that these positions draw from: what is worth reading together.

        int64, shape (n, 2), in any sequence; everything in `at(epoch, start, stop)` is there. Here
        it is that: an order without blocks.

        Raises:
            ConfigError: Numbers that no epoch or range has.
            PlanError: Positions of a data set without samples.
        """
        return self.at(epoch, start, stop)

    def as_sets(self, start: int, stop: int) -> "list[tuple[Order, int, int]]":
        """Orders and positions of them, which together have the same ids in any sequence.

        They are for digests, and cost less than the sequence itself. Here they are this order and
        these positions.
        """
        return [(self, start, stop)]


def require_range(samples: int, epoch: int, start: int, stop: int) -> None:
    """Refuse what no epoch or range has.

    Raises:
        ConfigError: Numbers that no epoch or range has.
        PlanError: Positions of a data set without samples.
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
    if start < stop and not samples:
        raise PlanError("there is no sample to order; check the counts in the data set's index")


def in_blocks(
    start: int, stop: int, length: int, block_at: Callable[[int], tuple[int, int, int]]
) -> Iterator[tuple[int, slice]]:
    """The number of each block that positions lie in, and which part of it they are.

    Args:
        start: The first position.
        stop: The position behind the last one.
        length: Positions after which the sequence repeats.
        block_at: Gives for a position below `length` the number of its block, the first position of
            the block and the one behind its last.
    """
    while start < stop:
        position = start % length
        number, begin, end = block_at(position)
        yield number, slice(position - begin, position - begin + stop - start)
        start += end - position


@dataclass(frozen=True, eq=False)
class SampleOrder(Order):
    """The samples of every epoch, each epoch in its own order.

    ``sequential``: file order. ``resampled``: draws with replacement; each draw is a uniform
    sample of the data set and the `run` - 1 that follow it in its shard, wrapping round within the
    shard, so that every sample is equally likely at every position. ``shuffled``: each sample once;
    file order is cut into runs (the last one may be short), and the runs are permuted. A
    ``resampled`` or ``shuffled`` sequence is then cut into blocks, and the samples of each block
    are permuted uniformly.

    Attributes:
        counts: Samples per shard, int64, shape (num_shards,); zeros are allowed. Not copied.
        seed: 0 <= seed < 2**64.
        sampling: See above.
        run: Consecutive samples kept together when shards are mixed; 0 keeps whole shards
            together (``shuffled`` only). With blocks, the samples of a run come near each other
            and not side by side.
        block: Consecutive positions of the mixed sequence that are shuffled; 0 or 1: none.
    """

    counts: NDArray[np.int64]
    seed: int
    sampling: Sampling
    run: int = 64
    block: int = 16_384

    def __post_init__(self) -> None:
        """Refuse arguments that name no order.

        Raises:
            ConfigError: A value out of its range, or whole shards with ``resampled``.
        """
        require_choice("sampling", self.sampling, get_args(Sampling))
        for name, most in (("seed", 2**64 - 1), ("run", 2**32), ("block", MAX_BLOCK)):
            if not 0 <= (value := getattr(self, name)) <= most:
                remedy = "; to mix more, lower shuffle_run: 1 mixes everything" * (name == "block")
                raise ConfigError(f"{name} must be from 0 to {most}, got {value}{remedy}")
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

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SampleOrder):
            return NotImplemented
        is_same = self.identity() == other.identity()
        return is_same and np.array_equal(self.counts, other.counts)

    def __hash__(self) -> int:
        return hash(tuple(self.identity().values()))

    @property
    def samples(self) -> int:
        """Samples of the data set."""
        return self.file_order.samples

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
            ConfigError: Numbers that no epoch or range has.
            PlanError: Positions of a data set without samples.
        """
        require_range(self.samples, epoch, start, stop)
        places = in_blocks(start, stop, self._length, self._block_at)
        if self._has_blocks:
            return self._ids_of(self._shuffled(epoch, number)[place] for number, place in places)
        spans = ((place.start, min(place.stop, self._length)) for _, place in places)
        return self._ids_of(self._mixed(epoch, *span) for span in spans)

    def identity(self) -> dict[str, int | str]:
        """The version of the arithmetic, and its arguments beside the counts."""
        return {
            "order_version": ORDER_VERSION,
            "seed": self.seed,
            "sampling": self.sampling,
            "shuffle_run": self.run,
            "shuffle_block": self.block,
        }

    def footing(self, epoch: int, start: int, stop: int) -> NDArray[np.int64]:
        """The ids of the blocks that these positions lie in, each block once, unshuffled.

        Without blocks, what `at` gives.

        Raises:
            ConfigError: Numbers that no epoch or range has.
            PlanError: Positions of a data set without samples.
        """
        if not self._has_blocks:
            return self.at(epoch, start, stop)
        require_range(self.samples, epoch, start, stop)
        end = min(stop, start + self._length)
        places = in_blocks(start, end, self._length, self._block_at)
        numbers = dict.fromkeys(number for number, _ in places)
        return self._ids_of(self._last_run_first(epoch, number) for number in numbers)

    @cached_property
    def file_order(self) -> FileOrder:
        """The numbers of samples in file order, and their ids."""
        return FileOrder(self.counts)

    # From here on a sample is its number in file order, one int64; `_ids_of` makes the pairs.

    def _ids_of(self, pieces: Iterable[NDArray[np.int64]]) -> NDArray[np.int64]:
        """The ids of these sample numbers, int64 of shape (n, 2)."""
        return self.file_order.ids(np.concatenate([np.empty(0, np.int64), *pieces]))

    @property
    def _has_blocks(self) -> bool:
        return self.block > 1 and self.sampling != "sequential"

    def _block_at(self, position: int) -> tuple[int, int, int]:
        """The number of the block of a position, its first position and the one behind its last.

        Without blocks the whole sequence is one.
        """
        size = self.block if self._has_blocks else self._length
        number = position // size
        return number, number * size, min((number + 1) * size, self._length)

    def _last_run_first(self, epoch: int, block: int) -> NDArray[np.int64]:
        """The sample numbers of a block; no run goes on where the one before it ends."""
        numbers = self._mixed(epoch, *self._block_at(block * self.block)[1:])
        has_runs = self.sampling == "shuffled" and self.run
        return numbers[np.argsort(-(numbers // self.run), kind="stable")] if has_runs else numbers

    @property
    def _length(self) -> int:
        """Positions after which the sequence repeats."""
        return ENDLESS if self.sampling == "resampled" else self.samples

    # Of two epochs, since workers run ahead into the next one.

    @remembered(2)
    def _shard_order(self, epoch: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The shards in their sequence, and the position after the last sample of each of them."""
        shards = shard_order(len(self.counts), self.seed, epoch, shuffled=True)
        return shards, np.cumsum(self.counts[shards], dtype=np.int64)

    @remembered(2)
    def _run_order(self, epoch: int) -> tuple[Table | Feistel, int]:
        return order_runs(-(-self.samples // self.run), self.seed, epoch)

    @remembered()
    def _shuffled(self, epoch: int, number: int) -> NDArray[np.int64]:
        """The sample numbers of a block in their sequence."""
        _, start, stop = self._block_at(number * self.block)
        key, span = (self.seed, epoch), (0, stop - start)
        words = random_words(Purpose.SAMPLE_BLOCKS, key, span, stream=number)
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
        key, span = (self.seed, epoch), (first, last + 1)
        words = random_words(Purpose.SAMPLE_DRAWS, key, span)
        drawn = scale_words(words, self.samples)
        shards, begins, offsets = self.file_order.locate(drawn)
        draws = positions // self.run - first
        # A draw that reaches the end of its shard goes on at the shard's beginning.
        wrapped = (offsets[draws] + positions % self.run) % self.counts[shards][draws]
        return begins[draws] + wrapped

    def _in_runs(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Slot k of the sequence holds the run number permutation(k)."""
        # slots, offsets: one entry per position, shape (len(positions),).
        # permuted: the run in each slot from `first` to `last`, shape (last + 1 - first,).
        permutation, short_slot = self._run_order(epoch)
        # If every run were full, position p would be in slot p // run. The short run lacks
        # `missing` samples, so the positions after it are moved on by that many.
        missing = -self.samples % self.run
        short_stop = short_slot * self.run + self.run - missing
        slots, offsets = np.divmod(positions + missing * (positions >= short_stop), self.run)
        first, last = int(slots[0]), int(slots[-1])
        permuted = permutation.forward(np.arange(first, last + 1, dtype=np.int64))
        return permuted[slots - first] * self.run + offsets

    def _in_shards(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Whole shards one after the other, in the order of the epoch."""
        order, ends = self._shard_order(epoch)
        slots = np.searchsorted(ends, positions, side="right")
        shards = order[slots]
        # A sample is as far from its shard's end in file order as in the order of the epoch.
        return positions + self.file_order.ends[shards] - ends[slots]
