"""What runs cost on cold disks: `python benchmarks/cold_runs.py`, Linux, 0.3 GB in a folder.

Reads the first blocks of a shuffled epoch with the indexed reader (one worker, no decoding) when
none of the shards is in the page cache: every file was synced and dropped with POSIX_FADV_DONTNEED.
`read` counts the bytes that the disk gave (/proc/self/io) over those of the samples. Where it is
below 0.9 the cache was not cold, and the row has no times. A host's cache below a virtual disk
cannot be seen from here.

"ratio" is the time over that of one sequential read of as many bytes, also cold, in the same round;
rounds alternate between all cases. "stretches" is arithmetic: contiguous stretches per 1,000
samples, as the reader asks for them block by block in the order of the disk, and "unsorted", in the
order of the samples. A seek of 10 ms makes 1,000 stretches 10 s.
"""

import argparse
import os
import statistics
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import numpy as np
from webdataset.writer import TarWriter

from lightning_shards.plan.cursor import Cursor
from lightning_shards.plan.order import Order, SampleOrder, Sampling
from lightning_shards.plan.place import Place
from lightning_shards.plan.schedule import EpochSchedule
from lightning_shards.readers.indexed import IndexedSource
from lightning_shards.samples.fields import make_fields
from lightning_shards.shards.index import ShardIndex
from lightning_shards.shards.private_files import CacheFolder

BATCH = 64
LEAST_READ = 0.9  # below it a part of the samples came from memory
RUNS = (1, 8, 64, 512, 0)


class Case(NamedTuple):
    """Shards of one size of sample, and how much of an epoch is read."""

    sample_bytes: int
    shards: int
    samples_per_shard: int
    block: int
    samples_read: int


CASES = (Case(4 * 1024, 16, 1_024, 4_096, 4_096), Case(100 * 1024, 8, 256, 512, 512))


def pack(folder: Path, case: Case) -> list[str]:
    """Shards of random bytes."""
    noise = np.random.Generator(np.random.Philox(1))
    folder.mkdir()
    urls = [str(folder / f"{shard:03d}.tar") for shard in range(case.shards)]
    for url in urls:
        with TarWriter(url) as writer:
            for number in range(case.samples_per_shard):
                writer.write({"__key__": f"{number:06d}", "bin": noise.bytes(case.sample_bytes)})
    return urls


def make_source(urls: Sequence[str], case: Case, sampling: Sampling, run: int) -> IndexedSource:
    """The indexed reader over these shards, with their tables beside them."""
    counts = np.full(case.shards, case.samples_per_shard, dtype=np.int64)
    return IndexedSource(
        index=ShardIndex(tuple(urls), counts),
        epochs=EpochSchedule(int(counts.sum()), BATCH, "drop"),
        order=SampleOrder(counts, 0, sampling, run, case.block),
        seed=0,
        fields=make_fields({"data": "bin"}, {"data": "raw"}, frozenset()),
        transforms={},
        cache=CacheFolder(f"{Path(urls[0]).parent}-tables"),
    )


def drop_cache(urls: Sequence[str]) -> None:
    """Put the files out of the page cache."""
    for url in urls:
        with Path(url).open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def bytes_from_disk() -> int:
    """What the disk gave to this process so far."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["read_bytes"])


def read_by_index(source: IndexedSource, case: Case) -> None:
    """The first samples of epoch 0."""
    batches = source.batches(Place(), Cursor())
    for _ in range(case.samples_read // BATCH):
        next(batches)


def read_in_a_row(urls: Sequence[str], case: Case) -> None:
    """As many bytes, from the first shard on."""
    left = case.samples_read * case.sample_bytes
    for url in urls:
        with Path(url).open("rb", buffering=0) as file:
            while left > 0 and (data := file.read(min(left, 2**20))):
                left -= len(data)


def stretches(order: Order, case: Case) -> tuple[float, float]:
    """Contiguous stretches per 1,000 samples: sorted within blocks, and in the samples' order."""
    ids = order.at(0, 0, case.samples_read)
    numbers = ids[:, 0] * (case.samples_per_shard + 1) + ids[:, 1]  # shards do not touch
    in_blocks = np.sort(numbers.reshape(-1, case.block), axis=1)
    breaks = (np.diff(in_blocks, axis=1) != 1).sum() + len(in_blocks)
    unsorted = (np.diff(numbers) != 1).sum() + 1
    return 1000 * float(breaks) / len(ids), 1000 * float(unsorted) / len(ids)


def measure(urls: Sequence[str], case: Case, rounds: int) -> None:
    """Print the table of one size of sample."""
    sources = {f"run {run}" if run else "whole shards": ("shuffled", run) for run in RUNS}
    sources |= {"sequential, by index": ("sequential", 64)}
    readers = {name: make_source(urls, case, *kind) for name, kind in sources.items()}  # type: ignore[arg-type]
    ratios: dict[str, list[float]] = {name: [] for name in readers}
    shares: dict[str, list[float]] = {name: [] for name in readers}
    wanted = case.samples_read * case.sample_bytes
    speeds: list[float] = []
    for source in readers.values():
        source.first_sample(Place())
    for _ in range(rounds):
        seconds, share = timed(urls, wanted, lambda: read_in_a_row(urls, case))
        speeds.append(wanted / seconds / 1e6 if share >= LEAST_READ else float("nan"))
        for name, source in readers.items():
            taken, share = timed(urls, wanted, lambda each=source: read_by_index(each, case))
            shares[name].append(share)
            ratios[name].append(taken / seconds)
    low, middle, high = min(speeds), statistics.median(speeds), max(speeds)
    print(f"{case.sample_bytes // 1024} KiB: {case.samples_read:,} samples in blocks of ", end="")
    print(f"{case.block:,}; in a row {middle:.0f} MB/s ({low:.0f} to {high:.0f})")
    print(
        f"{'order':<22}{'ratio':>7}{'min':>7}{'max':>7}{'read':>7}{'stretches':>11}{'unsorted':>10}"
    )
    for name, values in ratios.items():
        row = f"{statistics.median(values):7.2f}{min(values):7.2f}{max(values):7.2f}"
        if min(shares[name]) < LEAST_READ or np.isnan(speeds).any():
            row = f"{'not cold':>21}"
        row += f"{statistics.median(shares[name]):7.2f}"
        in_blocks, unsorted = stretches(readers[name].order, case)
        print(f"{name:<22}{row}{in_blocks:11.1f}{unsorted:10.1f}", flush=True)


def timed(urls: Sequence[str], wanted: int, read: Callable[[], None]) -> tuple[float, float]:
    """Seconds of a cold read, and the bytes that the disk gave over those wanted."""
    drop_cache(urls)
    before, started = bytes_from_disk(), perf_counter()
    read()
    return perf_counter() - started, (bytes_from_disk() - before) / wanted


def main() -> None:
    """Pack, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--folder", help="on the disk to measure; a temporary one by default")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        for case in CASES:
            urls = pack(Path(folder) / str(case.sample_bytes), case)
            measure(urls, case, arguments.rounds)


if __name__ == "__main__":
    main()
