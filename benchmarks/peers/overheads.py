"""What is measured of this package beside its rate: epoch ends, imports, the monitor's cost."""

import json
import logging
import statistics
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.peers.job import Job

ROUNDS, STEPS, SKIPPED = 7, 1500, 100
BLOCK = 50
"""Steps timed together, as many as between two logs: the median leaves out what is disturbed."""
EPOCHS = 3
_IMPORTS = """
import json, time
import lightning.pytorch
begun = time.perf_counter()
import lightning_shards
package = time.perf_counter()
from lightning_shards import DataThroughputMonitor, ExactResume, LoaderConfig, ShardDataModule
print(json.dumps([1000 * (package - begun), 1000 * (time.perf_counter() - begun)]))
"""


def imports(_: Job) -> dict[str, Any]:
    """Milliseconds of importing the package after Lightning, alone and with its main names."""
    run = subprocess.run(  # noqa: S603 this interpreter
        [sys.executable, "-c", _IMPORTS], capture_output=True, text=True, check=True
    )
    package, names = json.loads(run.stdout.splitlines()[-1])
    return {"package_ms": package, "names_ms": names}


def epoch_ends(_: Job) -> dict[str, Any]:
    """Milliseconds from a validation's end to the next epoch's first batch, as `epoch_end.py`."""
    from benchmarks import epoch_end as ends

    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        urls = ends.pack(Path(folder))
        loaders = {
            "webdataset": ends.webloader(urls, persistent=False),
            "webdataset, persistent workers": ends.webloader(urls, persistent=True),
            "ours, resampled": ends.ours(urls, folder, "forkserver", "resampled"),
            "ours, shuffled": ends.ours(urls, folder, "forkserver", "shuffled"),
        }
        return {
            name: statistics.median(ends.gaps(loader, EPOCHS)) for name, loader in loaders.items()
        }


def monitor(job: Job) -> dict[str, Any]:
    """Microseconds that a step takes in a bare Lightning loop, by what is added to it."""
    import lightning.pytorch as pl

    from lightning_shards import DataThroughputMonitor

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    loader = _same_batch_again(job)
    kinds: dict[str, tuple[Callable[[], list[Any]], bool]] = {
        "bare": (list, False),
        "empty callback": (lambda: [pl.Callback()], False),
        "DataThroughputMonitor": (lambda: [DataThroughputMonitor()], False),
        "self.log": (list, True),
    }
    steps = min(STEPS, len(loader))
    times: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(ROUNDS):
        for name, (callbacks, logs) in kinds.items():
            times[name].append(_step_us(loader, callbacks(), logs=logs, steps=steps))
    bare = times["bare"]
    added = {
        name: statistics.median(a - b for a, b in zip(each, bare, strict=True))
        for name, each in times.items()
    }
    return {"bare": statistics.median(bare)} | {k: v for k, v in added.items() if k != "bare"}


def _step_us(loader: Any, callbacks: list[Any], *, logs: bool, steps: int) -> float:
    import lightning.pytorch as pl

    stamps: list[float] = []

    class NoStep(pl.LightningModule):
        automatic_optimization = False

        def training_step(self, batch: Any, batch_idx: int) -> None:
            stamps.append(perf_counter())
            if logs:
                self.log("step", 1.0)

        def configure_optimizers(self) -> None:
            return None

    trainer = pl.Trainer(
        accelerator="cpu", devices=1, max_epochs=1, limit_train_batches=steps, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        callbacks=callbacks,
    )  # fmt: skip
    trainer.fit(NoStep(), loader)
    counted = stamps[min(SKIPPED, len(stamps) // 2) :]
    edges = counted[::BLOCK]
    return 1e6 / BLOCK * statistics.median(stop - start for start, stop in pairwise(edges))


class _Constant:
    """A pool and a stream that give the same batch, so that only the loop takes time."""

    def __init__(self, produced: Any) -> None:
        self._produced = produced

    def describe(self) -> Any:
        """What the trainer's own thread is."""
        from lightning_shards.workers.pool import PoolDescription

        return PoolDescription("constant")

    def start(self, source: Any, place: Any, cursor: Any) -> "_Constant":
        return self

    def __next__(self) -> Any:
        return self._produced

    def close(self) -> None:
        """Nothing runs."""


def _same_batch_again(job: Job) -> Any:
    from benchmarks.peers.loaders.shards import LOADERS
    from lightning_shards.plan.place import Cursor
    from lightning_shards.workers.inline import InlinePool

    loader = LOADERS["ours, inline"](job)
    stream = InlinePool().start(loader.source, loader.place, Cursor())
    loader.pool = _Constant(next(stream))
    stream.close()
    return loader


ACTIONS: dict[str, Callable[[Job], dict[str, Any]]] = {
    "imports": imports,
    "epoch_ends": epoch_ends,
    "monitor": monitor,
}
