"""What a mixture loses on other ranks: `python -m benchmarks.peers.resumed_mixtures --help`.

Two components of 3,072 and 1,024 samples are mixed 3 to 1, so that an epoch of 64 batches of 64 has
each sample once. A job of two ranks trains 20 of them and saves the loader's state; a job of one
rank goes on with it, and trains the other 44. Printed is how many samples of the epoch were never
seen and how many were seen again, or the error of the loader that cannot be resumed so. One without
a state begins again. `--same` resumes on two ranks. Each loader is run by an interpreter that has
it, as `benchmarks.peers` installs them below its `--folder`.
"""

import argparse
import json
import socket
import subprocess
import sys
import tempfile
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks.peers.loaders.mixtures import GLOBAL_BATCH, MIXTURES, SIZES, Part

EPOCH = sum(SIZES.values()) // GLOBAL_BATCH
FIRST = 20
RANK_S = 300
_SHOWN = 300
"""Characters of an error."""


class JobError(Exception):
    """A rank ended with an error: the last line that it wrote."""


def train(loader: str, folder: Path, batches: int, ranks: int, resumed: bool) -> list[str]:
    """The names of all samples that a job of so many ranks trains; its states lie in the folder.

    Raises:
        JobError: a rank ended with an error, or did not end.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["--folder", str(folder), "--batches", str(batches), *["--resumed"] * resumed]
    command = [sys.executable, "-m", "benchmarks.peers.resumed_mixtures", loader, *options]
    started = [
        subprocess.Popen(  # noqa: S603
            [*_environment_of(rank, ranks, port), *command, "--rank", f"{rank}/{ranks}"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    try:
        said = [process.communicate(timeout=RANK_S)[1] for process in started]
    except subprocess.TimeoutExpired as error:
        raise JobError(f"no end after {RANK_S} s") from error
    finally:
        for process in started:
            process.kill()
            process.wait()
    for process, text in zip(started, said, strict=True):
        if process.returncode:
            raise JobError((text.strip().splitlines() or ["no word"])[-1][:_SHOWN])
    return names_of(folder, ranks)


def _environment_of(rank: int, ranks: int, port: int) -> list[str]:
    """What torchrun tells a rank of one node."""
    where = ["env", "MASTER_ADDR=127.0.0.1", f"MASTER_PORT={port}", f"RANK={rank}"]
    return [*where, f"LOCAL_RANK={rank}", f"WORLD_SIZE={ranks}", f"LOCAL_WORLD_SIZE={ranks}"]


def run_rank(name: str, folder: Path, batches: int, rank: int, ranks: int, resumed: bool) -> None:
    """One rank: writes the names of its samples, and its state behind them."""
    import torch

    state = torch.load(_state_file(folder, rank), weights_only=False) if resumed else None
    opened = MIXTURES[name].open(Part(folder, rank, ranks, state))
    names = [name for batch in islice(opened.batches, batches) for name in batch]
    _names_file(folder, rank).write_text(json.dumps(names))
    torch.save(opened.save(), _state_file(folder, rank))


def names_of(folder: Path, ranks: int) -> list[str]:
    """What the ranks of a job have written."""
    parts = [json.loads(_names_file(folder, rank).read_text()) for rank in range(ranks)]
    return [name for part in parts for name in part]


def _names_file(folder: Path, rank: int) -> Path:
    return folder / f"names{rank}.json"


def _state_file(folder: Path, rank: int) -> Path:
    return folder / f"state{rank}.pt"


def measure(name: str, folder: Path, ranks_after: int) -> dict[str, Any]:
    """One row of the table."""
    MIXTURES[name].prepare(folder)
    seen = train(name, folder, FIRST, 2, resumed=False)
    row = {"loader": name, "ranks": f"2 -> {ranks_after}"}
    try:
        seen += train(name, folder, EPOCH - FIRST, ranks_after, resumed=True)
    except JobError as error:
        return row | {"error": str(error)}
    return row | counted(seen)


def counted(seen: list[str]) -> dict[str, int]:
    """How many samples were trained, how many never, and how many of them had been before."""
    different = len(set(seen))
    lost, repeated = EPOCH * GLOBAL_BATCH - different, len(seen) - different
    return {"trained": len(seen), "lost": lost, "repeated": repeated}


def main() -> None:
    """Measure one loader, in the interpreter that has it, and print a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("loader", choices=MIXTURES)
    parser.add_argument("--same", action="store_true", help="resume on two ranks, too")
    for option in ("--folder", "--batches", "--rank"):
        parser.add_argument(option, help=argparse.SUPPRESS)
    parser.add_argument("--resumed", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        import torch

        rank, ranks = (int(number) for number in options.rank.split("/"))
        if ranks > 1:
            torch.distributed.init_process_group("gloo")
        folder, batches = Path(options.folder), int(options.batches)
        run_rank(options.loader, folder, batches, rank, ranks, options.resumed)
        return
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(measure(options.loader, Path(folder), 2 if options.same else 1)))


if __name__ == "__main__":
    main()
