"""python killed_readers.py FOLDER SETTINGS: readers of remote shards share a cache and are killed.

Each process reads batches of the remote shards, from one cursor after the other, and holds every
row against what the local shards gave. One process after the other is killed at any time and
started anew. The settings are a JSON object with the fields of `Settings`; a JSON object says what
happened.
"""

import json
import os
import random
import signal
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

from batch_rows import rows_of

from lightning_shards import LoaderConfig, ShardDataModule, SplitConfig
from lightning_shards.plan.place import Cursor, Place

WRONG = 33
BATCH = 8


@dataclass
class Settings:
    urls: str
    paths: list[str]
    processes: int
    cache_gib: float
    run: int
    block: int
    seconds: float
    kills_per_s: float
    seed: int
    batches: int = 6  # from each cursor


@dataclass
class Happened:
    kills: int = 0
    largest: int = 0  # bytes on the disk
    wrong: int = 0  # processes that ended by themselves
    batches: int = 0
    left: int = 0  # files that are no pieces, after the next process has entered


def source_of(urls, folder, settings, **loader):
    return ShardDataModule(
        SplitConfig(
            urls, sampling="shuffled", shuffle_run=settings.run, shuffle_block=settings.block
        ),
        fields={"image": "png", "label": "cls"},
        batch_size=BATCH,
        num_workers=0,
        loader=LoaderConfig(cache_dir=str(folder), **loader),
    ).source("train")


def read(source, cursor, batches):
    stream = source.batches(Place(), cursor)
    try:
        return [rows_of(each.batch) for each in islice(stream, batches)]
    finally:
        stream.close()


def run_process(folder, source, expected, seed, batches, parent):
    generator = random.Random(seed)
    told = os.open(folder / "batches", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    while os.getppid() == parent:
        first = generator.randrange(len(expected) - batches)
        found = read(source, Cursor(0, first * BATCH), batches)
        if found != expected[first : first + batches]:
            os._exit(WRONG)
        os.write(told, b"." * batches)


def start(folder, source, expected, seed, batches):
    parent, pid = os.getpid(), os.fork()
    if pid == 0:
        try:
            run_process(folder, source, expected, seed, batches, parent)
        finally:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
    return pid


def end(pid):
    """Kill a process; whether it had ended by itself."""
    os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != -signal.SIGKILL


def disk_bytes(folder):
    """What pieces take, those that are being written, too."""
    total = 0
    for path in folder.glob("pieces/*/*[0-9]-*"):
        with suppress(FileNotFoundError):
            total += path.stat().st_size
    return total


def main(folder, settings):
    generator, happened = random.Random(settings.seed), Happened()
    local = source_of(settings.paths, folder / "own", settings)
    samples = local.epochs.samples
    expected = read(local, Cursor(), samples // BATCH)
    remote = source_of(settings.urls, folder, settings, cache_gib=settings.cache_gib)
    seeds = iter(range(settings.seed * 10**6, 10**12))
    started = lambda: start(folder, remote, expected, next(seeds), settings.batches)  # noqa: E731
    pids = [started() for _ in range(settings.processes)]
    try:
        until = time.perf_counter() + settings.seconds
        if not settings.kills_per_s:
            time.sleep(settings.seconds)
        while time.perf_counter() < until:
            time.sleep(generator.uniform(0, 2 / settings.kills_per_s))
            chosen = generator.randrange(len(pids))
            happened.wrong += end(pids[chosen])
            happened.kills += 1
            pids[chosen] = started()
            happened.largest = max(happened.largest, disk_bytes(folder))
    finally:
        happened.wrong += sum(map(end, pids))
    happened.batches = (folder / "batches").stat().st_size
    happened.wrong += read(remote, Cursor(), 3) != expected[:3]
    happened.left = sum(1 for sub in ("parts", "runs") for _ in (folder / "pieces" / sub).iterdir())
    return happened


if __name__ == "__main__":
    said = main(Path(sys.argv[1]), Settings(**json.loads(sys.argv[2])))
    sys.stdout.write(json.dumps(asdict(said)) + "\n")
