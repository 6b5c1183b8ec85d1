"""What workers cost: `python -m benchmarks.worker_costs --base REVISION`, Linux, from the root.

This checkout, that of a git revision, and webdataset's WebLoader, each run in a fresh process whose
main script (this file) imports Lightning at its top; rounds alternate between all of them.

"first batch": seconds from the construction of a loader with 2 worker processes to its first batch
of 64 images. The transform lives in a module that needs no torch, or in the main script. "in a fit"
runs from `on_fit_start`, which follows `setup()` and a model that takes 2 s to build, to the first
`on_train_batch_start`.

"memory": PSS of the processes that the pool started (fork server, resource tracker, workers), not
of the trainer. Batches lie in shared memory, which the kernel counts apart (`Pss_Shmem`, in files
of /dev/shm and memfds): they have a row of their own. "each further worker" is half of what 4
workers take above 2. Workers that were forked from the trainer share pages with it.

"threads": the rate of `pool: threads` over that of `inline`, in turns of one process. The trainer
is idle, or spends as long in one C call that releases the GIL as a batch takes inline.

It prints a Markdown table: median (minimum to maximum), and the median of the rounds' ratios.
"""

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch

from benchmarks.peers.job import BATCH, Data, Job
from benchmarks.peers.memory import session_members
from benchmarks.peers.table import interval, markdown, number, ratio
from benchmarks.peers.transforms import crop
from lightning_shards import LoaderConfig, ShardDataModule, SplitConfig

ROOT = Path(__file__).parents[1]
DATA = {
    "IMG": Data("IMG", 1024, 8),
    "SMALL": Data("SMALL", 100_000, 8),
    "TOK": Data("TOK", 20_000, 8),
}
BUILD_S, FILL_S, SLICE_S = 2.0, 1.5, 0.5
STEPS = 40  # batches that were taken when memory is looked at
PAIRS = 6  # turns of threads and inline in one process
LIMIT_S = 300
WEBDATASET = "webdataset"


@dataclass(frozen=True)
class Run:
    """What one fresh process measures.

    Attributes:
        action: "first", "fit", "memory" or "threads".
        loader: "ours" or "webdataset".
        data: name of the data set.
        folder: where the data sets lie.
        cache: name of the folder of member tables in it.
        workers: processes or threads.
        in_script: whether the transform lives in the main script.
    """

    action: str
    loader: str
    data: str
    folder: str
    cache: str = ""
    workers: int = 2
    in_script: bool = False


def crop_of_script(data: bytes, rng: np.random.Generator | None = None) -> Any:
    """The same transform, which workers find in the main script only."""
    return crop(data, rng)


# --- in the fresh process -------------------------------------------------------------------------


def make_module(run: Run, pool: str = "processes") -> ShardDataModule:
    """Our data module."""
    job = Job("", DATA[run.data], run.folder)
    members: dict[str, Any] = {"fields": {"values": "npy"}}
    if job.is_images:
        transform = crop_of_script if run.in_script else crop
        members = {
            "fields": {"image": "jpg", "label": "cls"},
            "decode": {"image": "raw"},
            "transforms": {"image": transform},
        }
    return ShardDataModule(
        train=SplitConfig(job.shards, sampling="shuffled"),
        batch_size=BATCH,
        num_workers=run.workers,
        loader=LoaderConfig(pool=pool, cache_dir=f"{run.folder}/{run.cache}"),  # type: ignore[arg-type]
        **members,
    )


def make_webloader(run: Run) -> Any:
    """webdataset's, as its users write it."""
    import webdataset as wds

    job = Job("", DATA[run.data], run.folder)
    transform = crop_of_script if run.in_script else crop
    stream = wds.WebDataset(job.shards, shardshuffle=job.data.shards).shuffle(1000)
    stream = stream.to_tuple("jpg", "cls").map_tuple(transform, int).batched(BATCH, partial=False)
    return wds.WebLoader(stream, batch_size=None, num_workers=run.workers).repeat(1000)


def make_loader(run: Run) -> Any:
    """A loader of images with worker processes."""
    return make_webloader(run) if run.loader == WEBDATASET else make_module(run).loader("train")


def endless(loader: Any) -> Iterator[Any]:
    """One epoch after the other."""
    while True:
        yield from loader


def first(run: Run) -> dict[str, float]:
    """Seconds to the first batch."""
    begun = time.perf_counter()
    next(iter(make_loader(run)))
    return {"s": time.perf_counter() - begun}


class Stamped(pl.LightningModule):
    """A model that takes its time to be built, and notes when its first batch comes."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.stamps: list[float] = []

    def configure_model(self) -> None:
        """As long as a large model."""
        time.sleep(BUILD_S)

    def on_fit_start(self) -> None:
        """`setup` was called."""
        self.stamps.append(time.perf_counter())

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """The batch is there."""
        self.stamps.append(time.perf_counter())

    def training_step(self, batch: Any) -> torch.Tensor:
        """A loss."""
        return self.weight * 1.0

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """For Lightning."""
        return torch.optim.SGD(self.parameters(), 0.1)


def fit(run: Run) -> dict[str, float]:
    """Seconds from the start of a fit, after `setup`, to its first batch."""
    model = Stamped()
    trainer = pl.Trainer(
        accelerator="cpu", max_steps=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    if run.loader == WEBDATASET:
        trainer.fit(model, train_dataloaders=make_webloader(run))
    else:
        trainer.fit(model, datamodule=make_module(run))
    return {"s": model.stamps[1] - model.stamps[0]}


def memory(run: Run) -> dict[str, float]:
    """MB of all processes that were started, without and with shared memory alone."""
    batches = endless(make_loader(run))
    for _ in islice(batches, STEPS):
        pass
    time.sleep(FILL_S)
    started = [pid for pid in session_members(os.getsid(0)) if pid != os.getpid()]
    total, shared = np.sum([_pss_mb(pid) for pid in started], axis=0).tolist()
    return {"own": total - shared, "shared": shared, "processes": len(started)}


def _pss_mb(pid: int) -> tuple[float, float]:
    """PSS, and that of shared memory in it."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    sizes = {name: int(size) / 1000 for name, size, _ in map(str.split, lines)}
    return sizes["Pss:"], sizes["Pss_Shmem:"]


def threads(run: Run) -> dict[str, list[float]]:
    """Rates of threads over those of inline, pair by pair."""
    loaders = {
        pool: endless(make_module(run, pool).loader("train")) for pool in ("inline", "threads")
    }
    for batches in loaders.values():
        _rate(batches, b"", 2 * SLICE_S)
    call = _c_call_of(1 / _rate(loaders["inline"], b"", SLICE_S))
    ratios: dict[str, list[float]] = {"idle": [], "busy": []}
    for pair in range(PAIRS):
        for name, work in (("idle", b""), ("busy", call)):
            order = sorted(loaders, reverse=bool(pair % 2))
            rates = {pool: _rate(loaders[pool], work, SLICE_S) for pool in order}
            ratios[name].append(rates["threads"] / rates["inline"])
    return ratios


def _c_call_of(seconds: float) -> bytes:
    """So many bytes that zlib takes this long for their checksum, without the GIL."""
    probe = bytes(2**24)
    begun = time.perf_counter()
    zlib.crc32(probe)
    return bytes(int(len(probe) * seconds / (time.perf_counter() - begun)))


def _rate(batches: Iterator[Any], work: bytes, seconds: float) -> float:
    """Batches a second of a trainer that does this work after each."""
    begun = time.perf_counter()
    for count in range(1, 10**9):
        next(batches)
        if work:
            zlib.crc32(work)
        elapsed = time.perf_counter() - begun
        if elapsed >= seconds:
            return count / elapsed
    raise AssertionError


ACTIONS = {"first": first, "fit": fit, "memory": memory, "threads": threads}


def child(run: Run, result: Path) -> None:
    """Measure, write the result, and end without waiting for anything."""
    torch.set_num_threads(1)
    result.write_text(json.dumps(ACTIONS[run.action](run)))
    sys.stdout.flush()
    os._exit(0)


# --- the driver -----------------------------------------------------------------------------------


def measure(checkout: Path, run: Run) -> dict[str, Any]:
    """Run it in a fresh process with the package of a checkout.

    Raises:
        RuntimeError: it failed.
    """
    result = Path(run.folder) / "result"
    result.unlink(missing_ok=True)
    python = ["env", f"PYTHONPATH={checkout}{os.pathsep}{ROOT}", sys.executable]
    command = [*python, __file__, "--run", json.dumps(asdict(run)), "--result", str(result)]
    log = Path(run.folder) / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: S603
            command, cwd=run.folder, stdin=subprocess.DEVNULL, stdout=output,
            stderr=output, start_new_session=True,
        )  # fmt: skip
    try:
        with suppress(subprocess.TimeoutExpired):
            process.wait(LIMIT_S)
    finally:
        for pid in session_members(process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()
    if not result.exists():
        raise RuntimeError(f"{run} of {checkout} failed: {log.read_text()[-2000:]}")
    return json.loads(result.read_text())


def checkout_of(revision: str, folder: str) -> Path:
    """The files of a git revision, in a folder that git does not know of."""
    path, archive = Path(folder) / "base", f"{folder}/base.tar"
    command = ["git", "-C", str(ROOT), "archive", f"--output={archive}", revision]
    subprocess.run(command, check=True)  # noqa: S603
    shutil.unpack_archive(archive, path, filter="data")
    return path


def start_values(took: Callable[..., Any]) -> dict[str, float]:
    """Seconds to first batches."""
    return {
        f"first batch{place}, s; transform in {home}": took(action, in_script=in_script)["s"]
        for action, place in (("first", ""), ("fit", " in a fit"))
        for in_script, home in ((False, "a module"), (True, "the script"))
    }


def memory_values(took: Callable[..., Any]) -> dict[str, float]:
    """MB of what 2 and 4 workers take."""
    two, four = (took("memory", workers=workers) for workers in (2, 4))
    return {
        "2 workers and what they need, MB": two["own"],
        "each further worker, MB": (four["own"] - two["own"]) / 2,
        "shared memory of 2 workers, MB": two["shared"],
    }


def thread_values(took: Callable[..., Any]) -> dict[str, float]:
    """Medians of one process each."""
    return {
        f"threads / inline, {data}, trainer {trainer}": statistics.median(ratios)
        for data in ("SMALL", "TOK")
        for trainer, ratios in took("threads", data=data).items()
    }


PARTS = {"first": start_values, "memory": memory_values, "threads": thread_values}

Rows = dict[str, dict[str, list[float | None]]]
"""For each row of the table, the values of each column, one a round."""


def first_run(column: str, folder: str) -> Run:
    """The run to the first batch, which the others are made from."""
    loader = WEBDATASET if column == WEBDATASET else "ours"
    return Run("first", loader, "IMG", folder, f"tables-{column}")


def add_round(columns: dict[str, Path], folder: str, part: str, rows: Rows) -> None:
    """Add a value to each cell of these rows."""
    for column, checkout in columns.items():
        if part == "threads" and column == WEBDATASET:
            continue
        print(f"{part}: {column}", file=sys.stderr, flush=True)
        took = partial(_took, checkout, first_run(column, folder))
        for row, value in PARTS[part](took).items():
            rows.setdefault(row, {}).setdefault(column, []).append(value)


def _took(checkout: Path, run: Run, action: str, **changes: Any) -> Any:
    return measure(checkout, replace(run, action=action, **changes))


def table(columns: Sequence[str], rows: Rows) -> str:
    """Each column, and this checkout over the others."""
    here, *others = columns
    header = ["", *columns, *(f"this / {other}" for other in others)]
    lines: list[list[str]] = []
    for row, values in rows.items():
        cells = [interval(values[name]) if name in values else "-" for name in columns]
        ratios = [number(ratio(values[here], values.get(other, []))) for other in others]
        lines.append([row, *cells, *ratios])
    return markdown(header, lines)


def main() -> None:
    """Make the data, measure round by round, print."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--base", help="a git revision to compare with")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--parts", default=",".join(PARTS), help="of the table; all by default")
    parser.add_argument("--folder", help="for the data, kept; a temporary one by default")
    parser.add_argument("--run", help=argparse.SUPPRESS)  # of a fresh process
    parser.add_argument("--result", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        child(Run(**json.loads(options.run)), Path(options.result))
    from benchmarks.peers.datasets import make_data

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # it ends as by Ctrl-C
    with tempfile.TemporaryDirectory() as scratch:
        columns = {"this checkout": ROOT}
        if options.base:
            columns[options.base] = checkout_of(options.base, scratch)
        columns[WEBDATASET] = ROOT
        folder = str(Path(options.folder or scratch).resolve())
        for data in DATA.values():
            job = Job("data", data, folder)
            job.home.mkdir(parents=True, exist_ok=True)
            make_data(job)
        parts, rows = options.parts.split(","), Rows()
        for column, checkout in columns.items():  # to list members and compile modules
            measure(checkout, first_run(column, folder))
        for number_of_round in range(options.rounds):
            names = sorted(columns, reverse=bool(number_of_round % 2))
            for part in parts:
                add_round({name: columns[name] for name in names}, folder, part, rows)
    print(f"median (minimum to maximum) of {options.rounds} rounds, {os.cpu_count()} cores\n")
    print(table(list(columns), rows))


if __name__ == "__main__":
    main()
