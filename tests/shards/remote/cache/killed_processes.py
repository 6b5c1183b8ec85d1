"""python killed_processes.py FOLDER SETTINGS: processes share a cache and are killed at random.

Each process loads all pieces again and again, in an order of its own, and ends itself when it is
given a wrong byte. One of them is killed after the other, at any time, and started anew. The
settings are a JSON object with the fields of `Settings`; a JSON object says what happened.
"""

import json
import os
import random
import signal
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from cached_bytes import FILE, bytes_of, disk_bytes, make_cache, make_need, piece_number

WRONG = 33


@dataclass
class Settings:
    processes: int
    pieces: int
    limit: int  # pieces
    seconds: float
    kills_per_s: float
    seed: int


@dataclass
class Happened:
    kills: int = 0
    largest: int = 0  # bytes on the disk
    wrong: int = 0  # processes that ended by themselves
    fetched: int = 0
    distinct: int = 0
    loaded: int = 0
    left: int = 0  # files that are no pieces, after the next process has entered


def run_process(folder: Path, settings: Settings, seed: int, parent: int) -> None:
    generator = random.Random(seed)
    need = make_need(settings.limit, reads_bytes=settings.pieces * FILE)
    cache = make_cache(folder, need, f"run-{seed % 3}")
    fetched = os.open(folder / "fetched", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    loaded = os.open(folder / "loaded", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    while os.getppid() == parent:
        for number in generator.sample(range(settings.pieces), settings.pieces):
            piece = piece_number(number)

            def fetch(piece=piece, number=number):
                os.write(fetched, number.to_bytes(4, "big"))
                return bytes_of(piece)

            found = cache.load(piece, fetch, wait_s=0.05)
            if found is None:
                continue  # another one was killed or is slow: such bytes are read without the cache
            if found.read(piece.begin, piece.end) != bytes_of(piece):
                os._exit(WRONG)
            found.close()
            os.write(loaded, b".")


def start(folder: Path, settings: Settings, seed: int) -> int:
    parent, pid = os.getpid(), os.fork()
    if pid == 0:
        try:
            run_process(folder, settings, seed, parent)
        finally:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
    return pid


def end(pid: int) -> bool:
    """Kill a process; whether it had ended by itself."""
    os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != -signal.SIGKILL


def main(folder: Path, settings: Settings) -> Happened:
    generator, happened = random.Random(settings.seed), Happened()
    seeds = iter(range(settings.seed * 10**6, 10**12))
    pids = [start(folder, settings, next(seeds)) for _ in range(settings.processes)]
    try:
        until = time.perf_counter() + settings.seconds
        while time.perf_counter() < until:
            time.sleep(generator.uniform(0, 2 / settings.kills_per_s))
            chosen = generator.randrange(len(pids))
            happened.wrong += end(pids[chosen])
            happened.kills += 1
            pids[chosen] = start(folder, settings, next(seeds))
            happened.largest = max(happened.largest, disk_bytes(folder))
    finally:
        happened.wrong += sum(map(end, pids))
    fetched = (folder / "fetched").read_bytes()
    numbers = [fetched[place : place + 4] for place in range(0, len(fetched), 4)]
    happened.fetched, happened.distinct = len(numbers), len(set(numbers))
    happened.loaded = (folder / "loaded").stat().st_size
    check_what_is_left(folder, settings, happened)
    return happened


def check_what_is_left(folder: Path, settings: Settings, happened: Happened) -> None:
    cache = make_cache(folder, make_need(settings.limit), "afterwards")
    for number in range(settings.pieces):
        piece = piece_number(number)
        found = cache.open(piece)
        happened.wrong += found is not None and found.read(*piece[2:]) != bytes_of(piece)
        if found is not None:
            found.close()
    cache.close()
    happened.left = sum(1 for sub in ("parts", "runs") for _ in (folder / "pieces" / sub).iterdir())


if __name__ == "__main__":
    said = main(Path(sys.argv[1]), Settings(**json.loads(sys.argv[2])))
    sys.stdout.write(json.dumps(asdict(said)) + "\n")
