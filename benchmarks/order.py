"""How well an order of samples mixes, and what nodes fetch of it: `python benchmarks/order.py`.

Strands: a million samples in 1,000 shards, 8 nodes of 8 ranks with batches of 256. "kept" is the
largest share of the set that a node reads in two epochs.

Mix: 200 shards of 500 samples sorted by 100 classes (two shards a class), batches of 256.
"neighbours" is the share of consecutive samples that come from one shard, "TV" the mean total
variation distance between the classes of a batch and the uniform distribution (0.252 for a full
shuffle), "classes" the mean number of distinct classes in a batch (92 of 100). The rows of
webdataset shuffle whole shards and then samples, by its own `webdataset.filters.shuffle` with its
default `initial`. Everything is seeded; means are over three epochs.
"""

from collections.abc import Callable, Iterator
from itertools import product, takewhile

import numpy as np
from numpy.typing import NDArray
from webdataset.filters import shuffle

from lightning_shards.plan.epoch import EpochSchedule
from lightning_shards.plan.order import Order, SampleOrder, Sampling
from lightning_shards.plan.pieces import pieces_ahead
from lightning_shards.plan.place import Cursor
from lightning_shards.plan.strands import StrandOrder

BATCH = 256
NUM_EPOCHS = 3
MIXED_COUNTS = np.full(200, 500, dtype=np.int64)


def measure_strands(strands: int) -> float:
    """The largest share of the set that a node reads in two epochs."""
    whole = SampleOrder(np.full(1000, 1000), 1, "shuffled")
    order: Order = whole if strands == 1 else StrandOrder(whole, strands)
    epochs, shares = EpochSchedule(order.samples, BATCH, "drop"), list[float]()
    for node in range(8):
        is_read = np.zeros((1000, 1000), np.bool_)
        ranks = range(8 * node, 8 * node + 8)
        ahead = pieces_ahead(order, epochs, Cursor(), ranks=ranks, world_size=64)
        for block in takewhile(lambda each: each.turn < NUM_EPOCHS - 1, ahead):
            for shard, start, stop in zip(block.shards, block.starts, block.stops, strict=True):
                is_read[shard, start:stop] = True
        shares.append(float(is_read.mean()))
    return max(shares)


def print_strands() -> None:
    """The table of strands."""
    print("strands: 8 nodes x 8 ranks x 256, a million samples")
    print(f"{'strands':>7}{'kept':>8}")
    for strands in (1, 8, 64):
        print(f"{strands:>7}{measure_strands(strands):>8.1%}")


def by_order(sampling: Sampling, run: int, block: int) -> Callable[[int], NDArray[np.int64]]:
    """The shards of an epoch's samples, in our order, by the epoch."""
    order = SampleOrder(MIXED_COUNTS, 0, sampling, run, block)
    return lambda epoch: order.at(epoch, 0, order.samples)[:, 0]


def by_webdataset(buffer: int) -> Callable[[int], NDArray[np.int64]]:
    """The shards of an epoch's samples behind webdataset's shuffle of shards and of samples."""

    def shards(epoch: int) -> Iterator[int]:
        order = shuffle(len(MIXED_COUNTS), initial=len(MIXED_COUNTS), seed=epoch)
        for shard in order(iter(range(len(MIXED_COUNTS)))):
            yield from [shard] * int(MIXED_COUNTS[shard])

    return lambda epoch: np.array(list(shuffle(buffer, seed=epoch)(shards(epoch))))


def full_shuffle(epoch: int) -> NDArray[np.int64]:
    """The shards of an epoch's samples under a uniform permutation."""
    numbers = np.random.Generator(np.random.Philox(epoch)).permutation(int(MIXED_COUNTS.sum()))
    return numbers // int(MIXED_COUNTS[0])


def measure_mix(shards: NDArray[np.int64]) -> tuple[float, float, float]:
    """Share of neighbours from one shard, mean TV distance, and mean classes of a batch."""
    classes = shards // 2
    num_classes = len(MIXED_COUNTS) // 2
    batches = classes[: len(classes) // BATCH * BATCH].reshape(-1, BATCH)
    # One row a batch, one column a class.
    seen = np.stack([np.bincount(batch, minlength=num_classes) for batch in batches])
    distance = np.abs(seen / BATCH - 1 / num_classes).sum(axis=1) / 2
    neighbours = float((shards[1:] == shards[:-1]).mean())
    return neighbours, float(distance.mean()), float((seen > 0).sum(axis=1).mean())


def print_mixes() -> None:
    """The table of mixes."""
    cases: list[tuple[str, Callable[[int], NDArray[np.int64]]]] = [("full shuffle", full_shuffle)]
    cases += [(f"webdataset shuffle({n:,})", by_webdataset(n)) for n in (1000, 5000, 16_000)]
    for run, block in product((0, 256, 64, 16), (4_096, 16_384, 65_536)):
        name = f"run {run}" if run else "whole shards"
        cases.append((f"shuffled, {name}, block {block:,}", by_order("shuffled", run, block)))
    cases.append(("shuffled, run 64, no block", by_order("shuffled", 64, 0)))
    cases.append(("resampled, run 64, block 16,384", by_order("resampled", 64, 16_384)))
    print(f"mix: 200 shards of 500 samples sorted by class, batches of {BATCH}")
    print(f"{'order':<42}{'neighbours':>10}{'TV':>8}{'classes':>9}")
    for name, shards in cases:
        measured = [measure_mix(shards(epoch)) for epoch in range(NUM_EPOCHS)]
        neighbours, distance, classes = np.mean(measured, axis=0).tolist()
        print(f"{name:<42}{neighbours:>10.3f}{distance:>8.3f}{classes:>9.0f}")


if __name__ == "__main__":
    print_strands()
    print()
    print_mixes()
