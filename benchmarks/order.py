"""What the order of samples costs and how well it mixes: `python benchmarks/order.py`, a minute.

Seek: the first batch of 256 in the middle of 10^10 samples in 10^6 shards, each case in a fresh
process. "first" is its time from the construction on, "memory" the growth of the process's peak
(VmHWM, Linux) by it, with the 8 MB of counts' sums but without the counts and the imports. "walk"
is the mean time of the 1,000 batches that follow, "warm" that of a batch whose block is at hand.

Pieces: what a node with 8 of 64 ranks needs to fetch from that cursor on, for the rest of its block
and for the next one, with batches of 256 a rank. "first" and "memory" are as above, for both;
"next" is the mean time of each of the 20 blocks that follow.

Mixture: 8 components of 10^9 samples in 10^4 shards, 256 = 160 + 32 + 16 + 16 + 12 + 8 + 8 + 4 of
them a round. "first" and "memory" are as above, for a batch of 256 at position 10^10 of the run,
counts included. "stretch" is the CPU time of a sample in the 50 stretches of 16,384 that follow,
and "single" that of one data set of the same shards, measured in turns.

Strands: a million samples in 1,000 shards, 8 nodes of 8 ranks with batches of 256. "fetches" is how
often all nodes together fetch an epoch, by its first 131,072 positions; "kept" the share of the set
that a node reads in two epochs, and "runs" how many runs the first batch of rank 0 mixes. "seek" is
the CPU time of the first batch in the middle of 10^10 samples in 10^6 shards.

Mix: 200 shards of 500 samples sorted by 100 classes (two shards a class), batches of 256.
"neighbours" is the share of consecutive samples that come from one shard, "TV" the mean total
variation distance between the classes of a batch and the uniform distribution (0.252 for a full
shuffle), "classes" the mean number of distinct classes in a batch (92 of 100). The rows of
webdataset shuffle whole shards and then samples, by its own `webdataset.filters.shuffle` with its
default `initial`. Everything is seeded; means are over three epochs, only the times vary.
"""

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import product, takewhile
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np
from numpy.typing import NDArray
from webdataset.filters import shuffle

from lightning_shards.plan.epoch import EpochSchedule
from lightning_shards.plan.mixture import MixtureComponent, MixtureOrder, component_seed
from lightning_shards.plan.mixture_schedule import schedule_mixture
from lightning_shards.plan.order import Order, SampleOrder, Sampling
from lightning_shards.plan.pieces import pieces_ahead
from lightning_shards.plan.place import Cursor
from lightning_shards.plan.slots import MixtureSlots
from lightning_shards.plan.strands import StrandOrder
from lightning_shards.tools.footprint import sharing_of_nodes

BATCH = 256
STRETCH = 16_384
NUM_EPOCHS = 3
MIXED_COUNTS = np.full(200, 500, dtype=np.int64)
SEEKS: tuple[tuple[Sampling, int, int], ...] = (
    ("sequential", 64, 16_384),
    ("resampled", 64, 16_384),
    ("resampled", 64, 2**20),
    ("resampled", 1, 0),
    ("shuffled", 64, 16_384),
    ("shuffled", 64, 2**20),
    ("shuffled", 1, 16_384),
    ("shuffled", 1, 0),
    ("shuffled", 0, 16_384),
)


def peak_mib() -> float:
    """The most memory that this process ever had resident, in MiB."""
    status = Path("/proc/self/status").read_text()
    return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) / 1024


def measure_seek(sampling: Sampling, run: int, block: int) -> tuple[float, float, float, float]:
    """Seconds to the first batch, MiB for it, microseconds per batch walking on and asked again."""
    generator = np.random.Generator(np.random.Philox(1))
    counts = generator.integers(5_000, 15_001, 10**6)
    middle = int(counts.sum()) // 2
    before = peak_mib()
    started = perf_counter()
    order = SampleOrder(counts, 1, sampling, run, block)
    order.at(3, middle, middle + BATCH)
    first, memory = perf_counter() - started, peak_mib() - before
    walk = seconds_per_call(order, [middle + BATCH * step for step in range(1, 1001)])
    warm = seconds_per_call(order, [middle + BATCH * 1000] * 1000)
    return first, memory, 1e6 * walk, 1e6 * warm


def measure_pieces(sampling: Sampling, run: int, block: int) -> tuple[float, float, float, int]:
    """Seconds and MiB for two blocks, ms per block that follows, and pieces of one block."""
    generator = np.random.Generator(np.random.Philox(1))
    counts = generator.integers(5_000, 15_001, 10**6)
    samples = int(counts.sum())
    before = peak_mib()
    started = perf_counter()
    order = SampleOrder(counts, 1, sampling, run, block)
    epochs, cursor = EpochSchedule(samples, BATCH, "drop"), Cursor(3, samples // 2)
    ahead = pieces_ahead(order, epochs, cursor, ranks=range(8), world_size=64)
    _, second = next(ahead), next(ahead)
    first, memory = perf_counter() - started, peak_mib() - before
    started = perf_counter()
    for _ in range(20):
        next(ahead)
    return first, memory, 1e3 * (perf_counter() - started) / 20, len(second.shards)


def measure_strands(strands: int) -> tuple[float, float, int, float]:
    """Fetches of all nodes, the largest share of a node, runs of a batch, ms of CPU of a seek."""

    def order_of(counts: NDArray[np.int64]) -> Order:
        whole = SampleOrder(counts, 1, "shuffled")
        return whole if strands == 1 else StrandOrder(whole, strands)

    order, huge = order_of(np.full(1000, 1000)), order_of(np.full(10**6, 10**4))
    epochs, shares = EpochSchedule(order.samples, BATCH, "drop"), list[float]()
    for node in range(8):
        is_read = np.zeros((1000, 1000), np.bool_)
        ranks = range(8 * node, 8 * node + 8)
        ahead = pieces_ahead(order, epochs, Cursor(), ranks=ranks, world_size=64)
        for block in takewhile(lambda each: each.turn < NUM_EPOCHS - 1, ahead):
            for shard, start, stop in zip(block.shards, block.starts, block.stops, strict=True):
                is_read[shard, start:stop] = True
        shares.append(float(is_read.mean()))
    fetches, runs = sharing_of_nodes(order, epochs, 8, 64)
    started = process_time()
    huge.at(3, huge.samples // 2, huge.samples // 2 + BATCH)
    return fetches, max(shares), runs, 1e3 * (process_time() - started)


def print_strands() -> None:
    """The table of strands."""
    print("strands: 8 nodes x 8 ranks x 256, a million samples")
    print(f"{'strands':>7}{'fetches':>9}{'kept':>8}{'runs':>6}{'seek':>12}")
    for strands in (1, 8, 64):
        fetches, share, runs, seek = measure_strands(strands)
        print(f"{strands:>7}{fetches:>9.2f}{share:>8.1%}{runs:>6}{seek:>9.1f} ms")


def mix_components() -> MixtureOrder:
    """The mixture that is measured; an epoch is a million rounds."""
    weights = dict(zip("abcdefgh", (160, 32, 16, 16, 12, 8, 8, 4), strict=True))
    counts = np.full(10**4, 10**5, dtype=np.int64)
    components = tuple(
        MixtureComponent(name, SampleOrder(counts, component_seed(1, name), "shuffled"), 10**4)
        for name in weights
    )
    epoch_samples = 10**6 * BATCH
    schedule = schedule_mixture(weights, round_units=BATCH, epoch_samples=epoch_samples)
    return MixtureOrder(components, MixtureSlots(tuple(weights), schedule, 1, epoch_samples))


def measure_mixture() -> tuple[float, float, float, float]:
    """Seconds and MiB of the first batch, ns of CPU time per sample of it and of one data set."""
    before = peak_mib()
    started = perf_counter()
    order = mix_components()
    epoch, start = divmod(10**10, order.samples)
    order.at(epoch, start, start + BATCH)
    first, memory = perf_counter() - started, peak_mib() - before
    single = SampleOrder(np.full(10**4, 10**5, dtype=np.int64), 1, "shuffled")
    seconds = {order: 0.0, single: 0.0}
    for number, asked in product(range(50), seconds):
        begin = start + number * STRETCH
        started = process_time()
        asked.at(epoch, begin, begin + STRETCH)
        seconds[asked] += process_time() - started
    mixed, alone = (1e9 * total / 50 / STRETCH for total in seconds.values())
    return first, memory, mixed, alone


def seconds_per_call(order: SampleOrder, starts: list[int]) -> float:
    """Mean time of a batch at each of these positions."""
    started = perf_counter()
    for start in starts:
        order.at(3, start, start + BATCH)
    return (perf_counter() - started) / len(starts)


def print_cases(measure: Callable[[Sampling, int, int], Any], columns: str, text: str) -> None:
    """A table of `SEEKS`; a process per row, so that no row's peak hides another's.

    Args:
        measure: Gives the seconds and the MiB of the first batch or blocks, and two more figures.
        columns: Heads of these two.
        text: Their format.
    """
    print(f"{'sampling':<12}{'run':>5}{'block':>10}{'first':>11}{'memory':>11}{columns}")
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
        rows = [(case, pool.submit(measure, *case)) for case in SEEKS]
        for (sampling, run, block), measured in rows:
            first, memory, *others = measured.result()
            print(f"{sampling:<12}{run:>5}{block:>10,}{first * 1e3:>8.1f} ms", end="")
            print(f"{memory:>7.0f} MiB{text.format(*others)}")


def print_seeks() -> None:
    """The table of seeks."""
    print(f"seek: 10^10 samples in 10^6 shards, batches of {BATCH}")
    columns = f"{'walk':>14}{'warm':>14}"
    print_cases(measure_seek, columns, "{:>8.0f} us/call{:>6.0f} us/call")


def print_pieces() -> None:
    """The table of pieces."""
    print("pieces: 10^10 samples in 10^6 shards, 8 of 64 ranks, two blocks")
    print_cases(measure_pieces, f"{'next':>12}{'pieces':>9}", "{:>9.1f} ms{:>9,}")


def print_mixture() -> None:
    """The row of mixtures."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        first, memory, mixed, alone = pool.submit(measure_mixture).result()
    print("mixture: 8 components of 10^9 samples, first batch at position 10^10 of the run")
    print(f"{'first':>11}{'memory':>11}{'stretch':>18}{'single':>18}{'ratio':>8}")
    print(f"{first * 1e3:>8.1f} ms{memory:>7.0f} MiB{mixed:>11.0f} ns/each", end="")
    print(f"{alone:>11.0f} ns/each{mixed / alone:>8.2f}")


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
    cases.append(("shuffled, run 1, no block", by_order("shuffled", 1, 0)))
    cases.append(("resampled, run 64, block 16,384", by_order("resampled", 64, 16_384)))
    print(f"mix: 200 shards of 500 samples sorted by class, batches of {BATCH}")
    print(f"{'order':<42}{'neighbours':>10}{'TV':>8}{'classes':>9}")
    for name, shards in cases:
        measured = [measure_mix(shards(epoch)) for epoch in range(NUM_EPOCHS)]
        neighbours, distance, classes = np.mean(measured, axis=0).tolist()
        print(f"{name:<42}{neighbours:>10.3f}{distance:>8.3f}{classes:>9.0f}")


if __name__ == "__main__":
    print_seeks()
    print()
    print_pieces()
    print()
    print_mixture()
    print()
    print_strands()
    print()
    print_mixes()
