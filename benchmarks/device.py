r"""python benchmarks/device.py [--device cuda]: checks of training on the device of this machine.

It packs a few megabytes into a temporary folder, prints a line for each check, and exits with 1 if
one failed. Several nodes find out in the same way whether they work together; on each of them:

  torchrun --nnodes=2 --nproc-per-node=1 --rdzv-backend=c10d --rdzv-endpoint=HOST:29500 \
    benchmarks/device.py --num-nodes 2
"""

import argparse
import copy
import io
import logging
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers.logger import DummyLogger
from lightning.pytorch.profilers import SimpleProfiler

import lightning_shards as ls
from lightning_shards.collectives import gather

SAMPLES, BATCH, SHAPE, STOPPED = 512, 16, (3, 64, 64), 5  # stopped after this step, and resumed
SLOW_S, TOLERANCE = 0.04, 0.1  # of a batch; of what the monitor says and what is measured by hand


class Model(pl.LightningModule):
    """One linear layer, which writes down the ids of its batches."""

    def __init__(self, step_s: float) -> None:
        super().__init__()
        self.step_s, self.ids = step_s, list[Any]()
        self.layer = torch.nn.Linear(int(np.prod(SHAPE)), 10)

    def training_step(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """The loss of one batch."""
        self.ids.append(batch["__id__"].tolist())
        time.sleep(self.step_s)
        logits = self.layer(batch["image"].flatten(1) / 255)
        return torch.nn.functional.cross_entropy(logits, batch["label"])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Plain gradient descent."""
        return torch.optim.SGD(self.parameters(), 1e-3)


class Hand(pl.Callback, DummyLogger):
    """Measures by hand what the monitor reports, and keeps what that says."""

    def __init__(self) -> None:
        super().__init__()
        self.said: dict[str, float] = {}
        self.ends_s: list[float] = []

    def log_metrics(self, metrics: Mapping[str, float], *_: object, **__: object) -> None:
        """Keep the figures."""
        self.said = {name.removeprefix("data/run/"): each for name, each in metrics.items()}

    def on_train_batch_end(self, trainer: pl.Trainer, *_: object) -> None:
        """Note the time."""
        if trainer.strategy.root_device.type == "cuda":
            torch.cuda.synchronize()
        self.ends_s.append(time.perf_counter())


def flip(image: np.ndarray, rng: np.random.Generator, pause: float = 0.0) -> np.ndarray:
    """The image or its mirror image, after a pause."""
    time.sleep(pause)
    return image[..., ::-1].copy() if rng.random() < 0.5 else image  # noqa: PLR2004


def data_of(options: argparse.Namespace, pause: float = 0, **loader: Any) -> ls.ShardDataModule:
    """The data module of the shards."""
    return ls.ShardDataModule(
        ls.SplitConfig(options.urls, sampling="shuffled"),
        fields={"image": "npy", "label": "cls"},
        transforms={"image": partial(flip, pause=pause)},
        batch_size=BATCH,
        num_workers=options.num_workers,
        loader=ls.LoaderConfig(cache_dir=f"{options.folder}/cache", **loader),
    )


def fit(
    options: argparse.Namespace, *callbacks: pl.Callback, model_s: float = 0, pause: float = 0,
    ckpt_path: str | None = None, **of_trainer: Any,
) -> list[Any]:  # fmt: skip
    """The ids of all batches of a fit."""
    model = Model(model_s)
    trainer = pl.Trainer(
        accelerator=options.device,
        devices=1,
        num_nodes=options.num_nodes,
        strategy="ddp" if options.num_nodes > 1 else "auto",
        callbacks=[ls.ExactResume(), ls.EpochDigest(), *callbacks],
        enable_checkpointing=any(isinstance(each, ModelCheckpoint) for each in callbacks),
        enable_progress_bar=False,
        enable_model_summary=False,
        **of_trainer,
    )
    trainer.fit(model, data_of(options, pause), ckpt_path=ckpt_path)
    return model.ids


def same_bytes(options: argparse.Namespace) -> str:
    """Batches on the device, and pinned ones, are those on the CPU, byte for byte."""

    def batches(*, pin: bool) -> Iterator[Any]:
        made = data_of(options, pin_memory=pin).loader("train", rank=0, world_size=1)
        yield from made
        made.close()

    on_cpu = [copy.deepcopy(batch) for batch in batches(pin=False)]
    can_pin = options.device == "cuda" and options.num_workers > 0  # only workers' batches are
    for pin in (pins := (False, True) if can_pin else (False,)):
        for here, batch in zip(on_cpu, batches(pin=pin), strict=True):
            for name in ("image", "label", "__id__"):
                back = batch[name].to(options.device, non_blocking=True).cpu()
                assert torch.equal(here[name], back), f"other bytes with pin_memory={pin}"
            assert batch["image"].is_pinned() == pin, f"is_pinned() is not {pin}"
    return f"batches on {options.device} equal those on the CPU, with pin_memory in {pins}"


def monitor(options: argparse.Namespace) -> str:
    """The monitor reports what is measured by hand, of a slow loader and of a slow model."""
    told, faults = list[str](), list[str]()
    for slow in ({"pause": SLOW_S / BATCH * max(1, options.num_workers)}, {"model_s": SLOW_S}):
        hand, profiler = Hand(), SimpleProfiler()
        watched: dict[str, Any] = {"logger": hand, "profiler": profiler, "max_epochs": 1}
        fit(options, ls.DataThroughputMonitor(), hand, **slow, **watched)
        [waits] = [
            each
            for name, each in profiler.recorded_durations.items()
            if name.endswith("train_dataloader_next")
        ]
        steps, begin = len(hand.ends_s) - 1, hand.ends_s[0]
        ranks: list[Any] = gather((hand.ends_s[-1] - begin, sum(waits[1 : steps + 1])))
        if not hand.said:  # it is rank 0 that logs
            continue
        wall_s, wait_s = (max(times) for times in zip(*ranks, strict=True))
        rate, waited = steps * BATCH * len(ranks) / wall_s, wait_s / wall_s
        told.append(f"{hand.said['samples_per_s']:.0f} samples/s, {hand.said['wait_fraction']:.0%}")
        is_right = abs(hand.said["samples_per_s"] / rate - 1) < TOLERANCE
        if not is_right or abs(hand.said["wait_fraction"] - waited) > TOLERANCE:
            faults.append(f"{told[-1]} waited; by hand {rate:.0f} and {waited:.0%}")
    assert not faults, faults  # only now: the other ranks are in the fits as well
    return f"of a slow loader and a slow model it says what is measured by hand: {told}"


def resumed(options: argparse.Namespace) -> str:
    """A fit that is stopped in its middle goes on with the very next samples, on all ranks."""
    plain = partial(fit, options, logger=False, max_epochs=2)
    whole = plain()
    saved = ModelCheckpoint(Path(options.folder) / "saved", every_n_train_steps=STOPPED)
    begun = plain(saved, max_steps=STOPPED)
    path = Path(saved.best_model_path)  # of rank 0, whose folder other nodes do not have
    content: list[bytes] = gather(path.read_bytes() if path.is_file() else b"")
    (own := Path(options.folder) / "own.ckpt").write_bytes(content[0])
    rest = plain(ckpt_path=str(own))
    assert begun + rest == whole, f"{len(begun)} and {len(rest)} steps are not the {len(whole)}"
    return f"{len(begun)} and {len(rest)} steps are the {len(whole)} of an unbroken fit"


def main() -> None:
    """Run all checks."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    here = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", default=here, choices=("cpu", "cuda", "mps"))
    parser.add_argument("--num-nodes", type=int, default=1, help="as given to torchrun")
    parser.add_argument("--num-workers", type=int, default=2, help="of each loader")
    options, failed = parser.parse_args(), 0
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory(prefix="lightning-shards-device-") as options.folder:
        with ls.ShardWriter(options.folder, max_samples=120) as writer:
            for number in range(SAMPLES):
                stream = io.BytesIO()
                np.save(stream, np.random.default_rng(number).integers(0, 256, SHAPE, np.uint8))
                label, image = str(number % 10), stream.getvalue()
                writer.write({"__key__": f"{number:06d}", "npy": image, "cls": label})
        options.urls = writer.urls
        for check in (same_bytes, monitor, resumed):
            begun = time.perf_counter()
            try:
                outcome = f"ok      {check.__name__}: {check(options)}"
            except AssertionError as fault:
                outcome, failed = f"FAILED  {check.__name__}: {fault}", failed + 1
            print(f"{outcome} ({time.perf_counter() - begun:.0f} s)", flush=True)
    print(f"{failed} of 3 checks failed on {options.device}, nodes: {options.num_nodes}")
    sys.exit(min(failed, 1))


if __name__ == "__main__":
    main()
