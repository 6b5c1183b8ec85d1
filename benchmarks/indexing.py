"""Headers indexed per second: `python benchmarks/indexing.py [--peer-python PATH]`, 90 MB of disk.

Shards of small members, all in the page cache: what is measured is the work per header. Each case
is run `--rounds` times in turn with the others, and the median and the spread are printed.
`--peer-python` names the interpreter of a virtual environment that has energon (`energon prepare`)
or wids (`python -m wids.wids_index create`); both write the same kind of files as ours.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from time import perf_counter

from lightning_shards.dataprep.index import IndexOptions, index_shards
from lightning_shards.shards.members import scan_members
from lightning_shards.shards.private_files import CacheFolder
from lightning_shards.shards.remote.transport import TransportSettings

SHARDS, SAMPLES, SUFFIXES = 8, 5_000, ("jpg", "cls")


def pack(folder: Path) -> list[str]:
    """Shards of members of a few bytes, with keys that are unique in the data set."""
    paths: list[str] = []
    for shard in range(SHARDS):
        paths.append(str(folder / f"{shard:03d}.tar"))
        with tarfile.open(paths[-1], "w", format=tarfile.USTAR_FORMAT) as archive:
            for sample in range(SAMPLES):
                for suffix in SUFFIXES:
                    info = tarfile.TarInfo(f"{shard:03d}{sample:06d}.{suffix}")
                    info.size = 8
                    archive.addfile(info, BytesIO(b"01234567"))
    return paths


def ours(paths: list[str], cache: Path, processes: int, *formats: str) -> Callable[[], None]:
    """All that `lightning-shards index` does, without the start of the program."""

    def run() -> None:
        shutil.rmtree(cache, ignore_errors=True)
        options = IndexOptions(
            CacheFolder(cache), TransportSettings(), ("wids", *formats), processes=processes
        )
        index_shards(paths, options)

    return run


def with_tarfile(paths: list[str]) -> None:
    """Only the headers, as Python reads them."""
    for path in paths:
        with tarfile.open(path) as archive:
            members = sum(1 for _ in archive)
        if members != SAMPLES * len(SUFFIXES):
            raise SystemExit(f"{members} members in {path}")


def peer(python: str, *arguments: str, cwd: Path) -> Callable[[], None]:
    """A program of a peer, its start included."""

    def run() -> None:
        subprocess.run(  # noqa: S603 the user names the interpreter
            [python, *arguments], cwd=cwd, check=True, capture_output=True, timeout=600
        )

    return run


def cases(folder: Path, paths: list[str], python: str | None) -> dict[str, Callable[[], None]]:
    """What is measured, by name."""
    cache = folder / "cache"
    found: dict[str, Callable[[], None]] = {
        "our walk and table alone": lambda: [scan_members(path) for path in paths] and None,
        "index, 1 process": ours(paths, cache, 1),
        f"index, {os.cpu_count()} processes": ours(paths, cache, os.cpu_count() or 1),
        "index and DALI's files, 1 process": ours(paths, cache, 1, "dali"),
        "tarfile, headers alone": lambda: with_tarfile(paths),
    }
    ours_whole = ["-m", "lightning_shards", "index", "*.tar", "--cache-dir", "cache"]
    shutil.rmtree(cache, ignore_errors=True)
    for name, arguments in (
        ("program: ours, wids", [*ours_whole, "--processes", "1"]),
        ("program: ours, wids and energon", [*ours_whole, "--format", "wids,energon"]),
    ):
        found[name] = fresh(folder, cache, peer(sys.executable, *arguments, cwd=folder))
    if python is not None:
        split = ["--split-ratio", "1,0,0", "--non-interactive", "--force-overwrite"]
        energon = ["-m", "megatron.energon.cli.main", "prepare", ".", *split]
        wids = ["-m", "wids.wids_index", "create", *(Path(path).name for path in paths)]
        for name, arguments in (
            ("program: energon prepare", energon),
            ("program: wids_index create", [*wids, "-o", "peer.json"]),
        ):
            found[name] = fresh(folder, cache, peer(python, *arguments, cwd=folder))
    return found


def fresh(folder: Path, cache: Path, run: Callable[[], None]) -> Callable[[], None]:
    """The same, with nothing left of an earlier run."""

    def call() -> None:
        for path in (cache, folder / ".nv-meta"):
            shutil.rmtree(path, ignore_errors=True)
        for pattern in ("*.idx", "*.json"):
            for path in folder.glob(pattern):
                path.unlink()
        run()

    return call


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peer-python", help="an interpreter that has energon or wids")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        paths = pack(folder)
        runs = cases(folder, paths, options.peer_python)
        seconds: dict[str, list[float]] = {case: [] for case in runs}
        for _ in range(options.rounds):
            for case, run in runs.items():
                begun = perf_counter()
                try:
                    run()
                except subprocess.CalledProcessError as error:
                    print(f"{case}: not measured: {error.stderr.decode()[-200:]}")
                    continue
                seconds[case].append(perf_counter() - begun)
    headers = SHARDS * SAMPLES * len(SUFFIXES)
    print(f"{headers:,} headers in {SHARDS} shards")
    for case, times in seconds.items():
        if times:
            middle = statistics.median(times)
            spread = f"{min(times):.2f} to {max(times):.2f}"
            print(f"{case:40} {headers / middle:12,.0f}/s   {middle:6.2f} s ({spread})")


if __name__ == "__main__":
    main()
