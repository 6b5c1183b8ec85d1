"""Random draws of shards and samples, and the positions that a worker of a stream reads.

Everything here is a pure function of its arguments. Randomness is the raw stream of a Philox
generator, a bijection of a counter under a key, so any draw is reached without the ones before it.
Only raw words, integer arithmetic and a stable sort are used, because numpy promises that the bits
of its bit generators never change, and does not promise this of its `Generator` methods. All uses
share one layout of key and counter, so that no two of them ever get the same word::

    key      seed | epoch
    counter  block of four words | stream | resumed_at | purpose
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from lightning_shards.errors import ConfigError, PlanError
from lightning_shards.plan.epoch import EpochPlan
from lightning_shards.plan.file_order import FileOrder
from lightning_shards.plan.place import Place

ORDER_VERSION = 1
"""Goes into checkpoints; raised by any change that gives other orders for the same arguments."""

WORDS_PER_BLOCK = 4
"""Philox 4x64 gives four 64-bit words for one value of its counter."""

MAX_SHARDS = 2**32 - 1
"""More shards than any pattern can name."""


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


@dataclass(frozen=True, slots=True)
class Span:
    """Positions start to stop of the epoch's sequence.

    Attributes:
        start: First position.
        stop: The position after the last one.
        weight: 1, or 0 where the positions are repeats of samples served elsewhere.
    """

    start: int
    stop: int
    weight: Literal[0, 1]


def shard_draws(
    num_shards: int, seed: int, epoch: int, start: int, stop: int, *, resumed_at: int = 0
) -> NDArray[np.int64]:
    """Draws number start to stop of the epoch's one endless sequence of uniform shard draws.

    With replacement; int64, shape (stop - start,), each in range(num_shards). The sequence is
    global: to split it over n ranks and workers, each takes every n-th draw. Any two cuts agree::

        shard_draws(n, s, e, 0, 9) == concat(shard_draws(n, s, e, 0, 5), shard_draws(n, s, e, 5, 9))

    Args:
        num_shards: Number of shards to draw from, 1 to 2**32 - 1.
        seed: 0 <= seed < 2**64.
        epoch: Number of the epoch.
        start: Number of the first draw.
        stop: Number after the last draw.
        resumed_at: Samples of this epoch trained before the stream was started. Each value is an
            independent sequence, so a resumed stream does not repeat the shards it had read.

    Raises:
        ConfigError: A number out of its range.
    """
    _check_num_shards(num_shards)
    words = random_words(
        Purpose.SHARD_DRAWS, (seed, epoch), (start, stop), resumed_at=resumed_at, stream=0
    )
    return scale_words(words, num_shards)


def draw_sample(
    counts: NDArray[np.int64], seed: int, epoch: int, stream: int, *, resumed_at: int = 0
) -> tuple[int, int]:
    """Where a stream begins: one uniform sample of the data set, as (shard, sample in it).

    A stream reads this shard from that sample to its end, and then whole shards drawn uniformly.
    Every position of such a stream is uniform over the samples, however short the epoch is: the
    stream is a renewal process (each shard is one renewal), and this is its stationary start.
    To see it, let a position be uniform over N samples in K shards. It is the last of its shard
    with probability K / N, so the next position is the first sample of any given shard with
    probability 1 / N. Every other sample inherits the probability of the sample before it.

    A stream that begins at the start of a shard instead favours the first samples of shards, and
    when epochs are shorter than shards it never sees the rest of each shard.

    Args:
        counts: Samples per shard, int64, shape (num_shards,); zeros are allowed.
        seed: 0 <= seed < 2**64.
        epoch: Number of the epoch.
        stream: Number of the stream among all of the job, so that each has its own start.
        resumed_at: As in `shard_draws`.

    Raises:
        ConfigError: A number out of its range.
        PlanError: There is no sample at all.
    """
    file_order = FileOrder(counts)
    total = file_order.samples
    if not total:
        raise PlanError("there is no sample to draw; check the counts in the data set's index")
    words = random_words(
        Purpose.STREAM_STARTS, (seed, epoch), (0, 1), resumed_at=resumed_at, stream=stream
    )
    ((shard, sample),) = file_order.ids(np.array([int(words[0]) * total >> 64])).tolist()
    return shard, sample


def shard_order(num_shards: int, seed: int, epoch: int, shuffled: bool) -> NDArray[np.int64]:
    """Every shard once, in file order or in a new uniform order each epoch.

    int64, shape (num_shards,).

    Raises:
        ConfigError: A number out of its range.
    """
    _check_num_shards(num_shards)
    if not shuffled:
        return np.arange(num_shards, dtype=np.int64)
    words = random_words(
        Purpose.SHARD_ORDER, (seed, epoch), (0, num_shards), resumed_at=0, stream=0
    )
    return stable_order(words)


def stable_order(words: NDArray[np.uint64]) -> NDArray[np.int64]:
    """The same as ``argsort(words, kind="stable")``, four times as fast if words seldom repeat.

    It sorts along the last axis.
    """
    order = np.argsort(words)
    ordered = np.take_along_axis(words, order, axis=-1)
    has_ties = (ordered[..., 1:] == ordered[..., :-1]).any()
    order = np.argsort(words, kind="stable") if has_ties else order
    return order.astype(np.int64, copy=False)


def spans(plan: EpochPlan, place: Place) -> tuple[Span, ...]:
    """The positions that one worker reads, in its order, when it can only read forward.

    The distinct samples of the plan are cut into one stretch per rank, rank 0 first, and each
    stretch is cut again into one per worker, as long as the steps of that worker need (worker w
    serves the steps w, w + num_workers, ...). Over all ranks and workers every served position
    comes once with weight 1. Repeats follow, with weight 0: repeat number k, counted in rank
    order, is position k % samples. Spans are never empty; a worker without a sample has none.

    Five samples, two ranks, batch size 2, ``pad``; ``*`` marks a repeat, ``|`` parts the steps::

        rank 0    0 1 | 2 0*
        rank 1    3 4 | 1*2*

    >>> plan = EpochPlan(5, batch_size=2, world_size=2, remainder="pad")
    >>> [(span.start, span.stop, span.weight) for span in spans(plan, Place(1, 2))]
    [(3, 5, 1), (1, 3, 0)]

    Here a step is not a stretch of the sequence, as it is in `EpochPlan.span`. The samples that
    k steps trained are not the first positions, so this order cannot be resumed within an epoch.

    Raises:
        ConfigError: The place is in a world of another size than the plan.
    """
    if place.world_size != plan.world_size:
        raise ConfigError(
            f"place and plan must have one world size, got {place.world_size} and "
            f"{plan.world_size}; plan the epoch for the world that runs it"
        )
    start = plan.done + sum(plan.share(rank) for rank in range(place.rank))
    start += sum(
        plan.share(place.rank, worker, place.num_workers) for worker in range(place.worker)
    )
    stop = start + plan.share(place.rank, place.worker, place.num_workers)
    distinct = (Span(start, stop, 1),) if stop > start else ()
    return distinct + _repeat_spans(plan, place)


def _repeat_spans(plan: EpochPlan, place: Place) -> tuple[Span, ...]:
    """The repeats of the plan's last step, if this worker makes that step."""
    last = plan.steps - 1
    if last < 0 or last % place.num_workers != place.worker:
        return ()
    repeats = plan.repeats(last)
    start = sum(repeats[: place.rank])
    stop = start + repeats[place.rank]
    repeated: list[Span] = []
    # One pass for each time the sequence wraps round: one or two unless the data set is tiny.
    while start < stop:
        first = start % plan.samples
        length = min(stop - start, plan.samples - first)
        repeated.append(Span(first, first + length, 0))
        start += length
    return tuple(repeated)


def random_words(
    purpose: Purpose,
    key: tuple[int, int],
    numbers: tuple[int, int],
    *,
    resumed_at: int,
    stream: int,
) -> NDArray[np.uint64]:
    """Words number start to stop (`numbers`) of the random stream named by the other arguments.

    uint64, shape (stop - start,); `key` is (seed, epoch).
    """
    start, stop = numbers
    for name, value in (
        ("seed", key[0]),
        ("epoch", key[1]),
        ("resumed_at", resumed_at),
        ("stream", stream),
        ("start", start),
    ):
        if not 0 <= value < 2**64:
            raise ConfigError(
                f"{name} must be at least 0 and below 2**64, got {value}; it names a random stream"
            )
    if stop < start:
        raise ConfigError(f"stop must not be below start, got {start} to {stop}; swap them")
    block, skipped = divmod(start, WORDS_PER_BLOCK)
    generator = np.random.Philox(
        key=np.array(key, dtype=np.uint64),
        counter=np.array([block, stream, resumed_at, int(purpose)], dtype=np.uint64),
    )
    return generator.random_raw(skipped + stop - start)[skipped:]


def scale_words(words: NDArray[np.uint64], total: int) -> NDArray[np.int64]:
    """Uniform numbers in range(total), one per random word: word x total >> 64, 1 <= total < 2**63.

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


def _check_num_shards(num_shards: int) -> None:
    if not 1 <= num_shards <= MAX_SHARDS:
        raise ConfigError(
            f"num_shards must be from 1 to {MAX_SHARDS}, got {num_shards}; check the shard pattern"
        )
