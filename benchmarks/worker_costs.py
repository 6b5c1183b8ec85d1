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

It prints a Markdown table: median (minimum to maximum), and the median of the rounds' ratios.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch

from benchmarks.peers.job import BATCH, Data, Job
from benchmarks.peers.processes import ROOT, answer, pss_mb, run_fresh, session_members
from benchmarks.peers.table import interval, markdown, median, number, ratios
from benchmarks.peers.transforms import crop
from lightning_shards import LoaderConfig, ShardDataModule, SplitConfig

IMG = Data("IMG", 1024, 8)
BUILD_S, FILL_S = 2.0, 1.5
STEPS = 40  # batches that were taken when memory is looked at
LIMIT_S = 300
WEBDATASET = "webdataset"


@dataclass(frozen=True)
class Run:
    """What one fresh process measures.

    Attributes:
        action: "first", "fit" or "memory".
        loader: "ours" or "webdataset".
        folder: where the data set lies.
        cache: name of the folder of member tables in it.
        workers: processes.
        in_script: whether the transform lives in the main script.
    """

    action: str
    loader: str
    folder: str
    cache: str = ""
    workers: int = 2
    in_script: bool = False


def crop_of_script(data: bytes, rng: np.random.Generator | None = None) -> Any:
    """The same transform, which workers find in the main script only."""
    return crop(data, rng)


# --- in the fresh process -------------------------------------------------------------------------


def make_module(run: Run) -> ShardDataModule:
    """Our data module."""
    return ShardDataModule(
        SplitConfig(Job("", IMG, run.folder).shards, sampling="shuffled"),
        fields={"image": "jpg", "label": "cls"},
        decode={"image": "raw"},
        transforms={"image": crop_of_script if run.in_script else crop},
        batch_size=BATCH,
        num_workers=run.workers,
        loader=LoaderConfig(cache_dir=f"{run.folder}/{run.cache}"),
    )


def make_webloader(run: Run) -> Any:
    """webdataset's, as its users write it."""
    import webdataset as wds

    job = Job("", IMG, run.folder)
    transform = crop_of_script if run.in_script else crop
    stream = wds.WebDataset(job.shards, shardshuffle=job.data.shards).shuffle(1000)
    stream = stream.to_tuple("jpg", "cls").map_tuple(transform, int).batched(BATCH, partial=False)
    return wds.WebLoader(stream, batch_size=None, num_workers=run.workers).repeat(1000)


def make_loader(run: Run) -> Any:
    """A loader of images with worker processes."""
    return make_webloader(run) if run.loader == WEBDATASET else make_module(run).loader("train")


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
    batches = chain.from_iterable(repeat(make_loader(run)))
    for _ in islice(batches, STEPS):
        pass
    time.sleep(FILL_S)
    started = [pid for pid in session_members(os.getsid(0)) if pid != os.getpid()]
    total, shared = np.sum([pss_mb(pid) for pid in started], axis=0).tolist()
    return {"own": total - shared, "shared": shared, "processes": len(started)}


ACTIONS = {"first": first, "fit": fit, "memory": memory}


def act(run: Run) -> dict[str, Any]:
    """What the fresh process does."""
    torch.set_num_threads(1)
    return ACTIONS[run.action](run)


# --- the driver -----------------------------------------------------------------------------------


def measure(checkout: Path, run: Run) -> dict[str, Any]:
    """Run it in a fresh process with the package of a checkout.

    Raises:
        RuntimeError: it failed.
    """
    path = f"{checkout}{os.pathsep}{ROOT}"
    outcome = run_fresh([sys.executable, __file__, "--result"], run, LIMIT_S, {"PYTHONPATH": path})
    if outcome.error:
        raise RuntimeError(f"{run} of {checkout} failed: {outcome.error}")
    return outcome.result


def checkout_of(revision: str, folder: str) -> Path:
    """The package of a git revision, in a folder that git does not know of."""
    path, archive = Path(folder) / "base", f"{folder}/base.tar"
    command = ["git", "-C", str(ROOT), "archive", f"--output={archive}", revision]
    subprocess.run([*command, "lightning_shards"], check=True)  # noqa: S603
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


PARTS = {"first": start_values, "memory": memory_values}

Rows = dict[str, dict[str, list[float | None]]]
"""For each row of the table, the values of each column, one a round."""


def first_run(column: str, folder: str) -> Run:
    """The run to the first batch, which the others are made from."""
    loader = WEBDATASET if column == WEBDATASET else "ours"
    return Run("first", loader, folder, f"tables-{column}")


def add_round(columns: dict[str, Path], folder: str, part: str, rows: Rows) -> None:
    """Add a value to each cell of these rows."""

    def took(checkout: Path, run: Run, action: str, **changes: Any) -> Any:
        return measure(checkout, replace(run, action=action, **changes))

    for column, checkout in columns.items():
        print(f"{part}: {column}", file=sys.stderr, flush=True)
        for row, value in PARTS[part](partial(took, checkout, first_run(column, folder))).items():
            rows.setdefault(row, {}).setdefault(column, []).append(value)


def table(columns: list[str], rows: Rows) -> str:
    """Each column, and this checkout over the others."""
    here, *others = columns
    header = ["", *columns, *(f"this / {other}" for other in others)]
    lines = [
        [row, *(interval(values.get(name, [])) for name in columns),
         *(number(median(ratios(values[here], values.get(other, [])))) for other in others)]
        for row, values in rows.items()
    ]  # fmt: skip
    return markdown(header, lines)


def main() -> None:
    """Make the data, measure round by round, print."""
    from benchmarks.peers.datasets import make_data

    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--base", help="a git revision to compare with")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--parts", default=",".join(PARTS), help="of the table; all by default")
    parser.add_argument("--folder", help="for the data, kept; a temporary one by default")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        columns = {"this checkout": ROOT}
        if options.base:
            columns[options.base] = checkout_of(options.base, scratch)
        columns[WEBDATASET] = ROOT
        folder, rows = str(Path(options.folder or scratch).resolve()), Rows()
        make_data(Job("", IMG, folder))
        for column, checkout in columns.items():  # to list members and compile modules
            measure(checkout, first_run(column, folder))
        for number_of_round in range(options.rounds):
            names = sorted(columns, reverse=bool(number_of_round % 2))
            for part in options.parts.split(","):
                add_round({name: columns[name] for name in names}, folder, part, rows)
    print(f"median (minimum to maximum) of {options.rounds} rounds, {os.cpu_count()} cores\n")
    print(table(list(columns), rows))


if __name__ == "__main__":
    if "--result" in sys.argv:  # a fresh process
        answer(act)
    main()
