"""What leaving samples out costs: `python benchmarks/filters.py [SHARDS]`, a minute with 1,000.

10^4 samples a shard, of which a list of keys leaves out 10 %. The shards are empty files of the
right size with member tables of their own, so that everything but the bytes of samples is as in
training; the member that is decoded has none.

Start: CPU time from the construction of the data module to the first batch, with tables and counts
at hand, in turns. "first run" reads all tables once, with the peak of the process's memory.
"later" finds what is left in the cache. Medians of five, and their ranges. On a machine that does
other things, too, their difference is lost in their spread: "its own work" is the CPU time of what
a later start does for the filter alone, to find what is left and look up the first stretch.

Look-ups: CPU time of the ids of a stretch of 16,384 positions, `shuffled` with runs of 64, without
and with a tenth of all samples left out, and with a twentieth kept; in turns, medians of 200.
"""

import json
import os
import resource
import sys
import tempfile
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any

import numpy as np

from lightning_shards import LoaderConfig, ShardDataModule, SplitConfig
from lightning_shards.plan.kept_order import HeldNumbers, KeptOrder, KeptSamples
from lightning_shards.plan.order import Order, SampleOrder
from lightning_shards.shards.files import stamp_of
from lightning_shards.shards.filters.applying import filtered_index
from lightning_shards.shards.filters.sample_filter import sample_filter
from lightning_shards.shards.index import load_index
from lightning_shards.shards.members import MemberTable
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.tables import TableStore, write_table

IN_SHARD = 10_000
STRETCH = 16_384
STARTS = 5
LOOK_UPS = 200


def make_data(folder: Path, num_shards: int) -> None:
    """Shards, counts, tables, and a list of every tenth key."""
    cache, names = CacheFolder(folder / "cache"), list[dict[str, str | int]]()
    endings = [f"{number:04d}" for number in range(IN_SHARD)]
    numbers = np.arange(IN_SHARD, dtype=np.int64)
    with (folder / "out.txt").open("wb") as listed:
        for shard in range(num_shards):
            path = folder / f"{shard:06d}.tar"
            with path.open("wb") as file:
                file.truncate(IN_SHARD * 1024)
            keys = [f"{shard:06d}{ending}".encode() for ending in endings]
            listed.write(b"\n".join(keys[::10]) + b"\n")
            table = MemberTable(
                *(np.frombuffer(b"".join(keys), np.uint8), 10 * np.arange(IN_SHARD + 1)),
                *(np.arange(IN_SHARD + 1), 1024 * numbers + 512, 0 * numbers, None),
                *(np.zeros(IN_SHARD, np.uint32), ("txt",), *stamp_of(path)),
            )
            write_table(cache.sidecar_of(str(path)), table, cache, outlives_power=False)
            names.append({"url": path.name, "nsamples": IN_SHARD})
    (folder / "index.json").write_text(json.dumps({"wids_version": 1, "shardlist": names}))


def start(folder: Path, split: dict[str, Any]) -> float:
    """CPU seconds to the first batch."""
    begin = process_time()
    data = ShardDataModule(
        SplitConfig(str(folder / "*.tar"), sampling="shuffled", **split),
        fields={"text": "txt"},
        batch_size=256,
        num_workers=0,
        loader=LoaderConfig(cache_dir=str(folder / "cache")),
    )
    data.source("train").prepare()
    next(iter(data.loader("train")))
    return process_time() - begin


def own_work(folder: Path) -> float:
    """CPU seconds of finding what is left in the cache, and of the first look-up in it."""
    cache = CacheFolder(folder / "cache")
    index = load_index([str(path) for path in sorted(folder.glob("*.tar"))], cache=cache)
    chosen, tables = sample_filter(None, str(folder / "out.txt")), TableStore(cache)
    assert chosen is not None
    begin = process_time()
    kept = filtered_index(index, chosen, tables, cache).kept
    seconds = process_time() - begin
    assert kept is not None
    ids = SampleOrder(kept.counts, 0, "shuffled").at(0, 0, STRETCH)
    begin = process_time()
    kept.own_ids(ids)
    return seconds + process_time() - begin


def report_starts(num_shards: int) -> None:
    """Print the seconds of starts without and with a filter."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_data(folder, num_shards)
        split = {"exclude": str(folder / "out.txt")}
        rows: dict[str, list[float]] = {"without": [start(folder, {})], "later": []}
        rows["its own work"] = []
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        first = start(folder, split)
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        print(f"{num_shards * IN_SHARD:,} samples in {num_shards:,} shards; a start in CPU s")
        print(f"first run     {first:8.3f}   {grown:.0f} MB more memory than without")
        for _ in range(STARTS):
            rows["without"].append(start(folder, {}))
            rows["later"].append(start(folder, split))
            rows["its own work"].append(own_work(folder))
        for label, seconds in rows.items():
            spread = f"{min(seconds):.3f} to {max(seconds):.3f}"
            print(f"{label:13} {median(seconds):8.3f}   {spread}")
        added = median(rows["its own work"]) / median(rows["without"])
        print(f"added by the filter: {added:.1%}")


def left_by(mask: "np.ndarray[Any, np.dtype[np.bool_]]", num_shards: int) -> KeptSamples:
    """What a mask of all samples leaves."""
    totals = np.full(num_shards, IN_SHARD, np.int64)
    counts = mask.reshape(num_shards, IN_SHARD).sum(axis=1)
    left_out, are_kept = np.flatnonzero(~mask), bool(2 * mask.sum() < mask.size)
    numbers = np.flatnonzero(mask) if are_kept else left_out - np.arange(len(left_out))
    return KeptSamples(totals, counts, HeldNumbers(numbers.astype(np.uint32)), are_kept, "")


def look_up_s(order: Order, turn: int) -> float:
    """CPU seconds of one stretch."""
    first = (turn * 997 * STRETCH) % (order.samples - STRETCH)
    begin = process_time()
    order.at(0, first, first + STRETCH)
    return process_time() - begin


def report_look_ups(num_shards: int) -> None:
    """Print the CPU time of the ids of a stretch."""
    draws = np.random.default_rng(0).random(num_shards * IN_SHARD)
    orders: dict[str, Order] = {"all": SampleOrder(np.full(num_shards, IN_SHARD), 0, "shuffled")}
    for label, share in (("10 % left out", 0.9), ("5 % kept", 0.05)):
        kept = left_by(draws < share, num_shards)
        orders[label] = KeptOrder(SampleOrder(kept.counts, 0, "shuffled"), kept)
    times: dict[str, list[float]] = {label: [] for label in orders}
    for turn in range(LOOK_UPS):
        for label, order in orders.items():
            times[label].append(look_up_s(order, turn))
    whole = median(times["all"])
    for label, seconds in times.items():
        cost, ratio = 1e9 * median(seconds) / STRETCH, median(seconds) / whole
        print(f"{label:13} {cost:8.0f} ns a sample, {ratio:.2f} times")


if __name__ == "__main__":
    given = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    print(f"{os.cpu_count()} cores, numpy {np.__version__}")
    report_starts(given)  # before what needs more memory
    report_look_ups(given)
