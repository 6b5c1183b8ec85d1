"""How fast samples become shards: `pack` and `reshard` beside webdataset's ShardWriter and tar.

    python benchmarks/packing.py [--samples 20000] [--kib 40] [--folder DIR] [--plan 1000000]

Files of one size (a JPEG's) and a class for each are packed, shuffled, from the page cache, with
the disk's sync at the end of each shard in ours and none in the others'. `--plan` times what comes
before the first byte is written, on so many samples that exist in a catalog only.
"""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from webdataset.writer import ShardWriter as TheirWriter

from lightning_shards.dataprep.input_files import InputExtent, InputFile, InputSample, inline
from lightning_shards.dataprep.packing import Packing, assign, with_unique_keys
from lightning_shards.dataprep.writer import ShardWriter

REPEATS = 3


def make_files(folder: Path, samples: int, size: int) -> None:
    """Files of random bytes in ten folders of classes."""
    noise = np.random.default_rng(0).bytes(size + samples)
    for number in range(samples):
        path = folder / f"class{number % 10}" / f"{number:07d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(noise[number : number + size])


def best(run: Callable[[Path], object], folder: Path) -> float:
    """Seconds of the fastest of three runs, each into a folder of its own."""
    times: list[float] = []
    for _ in range(REPEATS):
        out = folder / "out"
        shutil.rmtree(out, ignore_errors=True)
        begun = time.perf_counter()
        run(out)
        times.append(time.perf_counter() - begun)
    return min(times)


def by_tool(tool: str, *arguments: object) -> Callable[[Path], object]:
    """A run of one of our commands, with the start of Python."""
    command = [sys.executable, "-m", "lightning_shards", tool, *map(str, arguments)]

    def run(out: Path) -> None:
        cache = ["--cache-dir", str(out / "cache")]
        subprocess.run([*command, "--out", str(out), *cache], check=True, capture_output=True)  # noqa: S603

    return run


def by_writers(files: list[Path]) -> dict[str, Callable[[Path], object]]:
    """Both ShardWriters over the same iterable, and tar, all in one process."""

    def ours(out: Path) -> None:
        with ShardWriter(out, max_samples=5000, cache_dir=out / "cache") as writer:
            for path in files:
                writer.write({"__key__": path.stem, "jpg": path.read_bytes(), "cls": "1"})

    def theirs(out: Path) -> None:
        out.mkdir()
        with TheirWriter(str(out / "%06d.tar"), maxcount=5000, maxsize=1e12, verbose=0) as writer:
            for path in files:
                writer.write({"__key__": path.stem, "jpg": path.read_bytes(), "cls": "1"})

    def tar(out: Path) -> None:
        out.mkdir()
        folder = str(files[0].parents[1])
        subprocess.run(["tar", "-cf", str(out / "all.tar"), "-C", folder, "."], check=True)  # noqa: S603, S607

    return {"our ShardWriter": ours, "webdataset's ShardWriter": theirs, "tar": tar}


def time_plan(samples: int) -> dict[str, float]:
    """Seconds and memory from a list of samples to the shard of each."""
    begun = time.perf_counter()
    tar = InputFile("in.tar", samples * 40_000, 0)
    listing = [
        InputSample(
            f"class{number % 10}/{number:09d}",
            (inline("cls", b"1"), InputExtent("jpg", tar, number * 40_000, 40_000, b"")),
        )
        for number in range(samples)
    ]
    listing = with_unique_keys(listing)
    listed = time.perf_counter()
    shards = assign(listing, Packing(order="shuffled", max_samples=10_000, val_fraction=0.01))
    planned = time.perf_counter()
    return {
        "shards": sum(map(len, shards.values())),
        "list_s": round(listed - begun, 2),
        "plan_s": round(planned - listed, 2),
        "max_rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


def main() -> None:
    """Measure, and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--samples", type=int, default=20_000)
    parser.add_argument("--kib", type=int, default=40)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--plan", type=int, default=1_000_000)
    options = parser.parse_args()
    report: dict[str, object] = {"cpus": os.cpu_count(), "python": sys.version.split()[0]}
    report["plan"] = {"samples": options.plan} | time_plan(options.plan)
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        make_files(folder / "files", options.samples, options.kib * 1024)
        files = sorted((folder / "files").glob("*/*.jpg"))
        common = ("--max-samples", 5000)
        by_tool("pack", folder / "files", *common)(folder / "in")
        runs = by_writers(files)
        for processes in (1, 2):
            last = (*common, "--processes", processes)
            runs[f"pack, {processes}"] = by_tool("pack", folder / "files", *last)
            last = (*last, "--order", "shuffled")
            runs[f"reshard, {processes}"] = by_tool("reshard", folder / "in" / "*.tar", *last)
        seconds = {name: best(run, folder) for name, run in runs.items()}
    megabytes = options.samples * options.kib * 1024 / 1e6
    report["megabytes"] = round(megabytes)
    report["mb_per_s"] = {name: round(megabytes / time_s) for name, time_s in seconds.items()}
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
