"""Dpex's table on FashionMNIST: `python benchmarks/fashion_mnist.py`, ten minutes on two cores.

Two ranks share a cluster: `RAY_AUTH_MODE=token ray start --head --num-cpus 4` comes before it.

A small CNN, Adam 0.001, 100 images a batch and rank, one torch thread; on one process and on two
DDP ranks, with data from worker processes and from Ray actors. Each cell is a fit in a fresh
process. It tells the hash of the final weights, the accuracy on the test set, and images/s without
the start of workers and cluster. Data from Ray must give the same weights to the bit.
"""

import argparse
import gzip
import hashlib
import io
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.nn import functional
from webdataset.writer import TarWriter

from lightning_shards import LoaderConfig, ShardDataModule

DATA = "/usr/share/datasets/fashion-mnist"  # of Debian's package dataset-fashion-mnist


def pack(data: Path, folder: Path) -> None:
    """Shards of 5,000 PNGs each, from the gzipped arrays of the data set."""
    for split, name in (("train", "train"), ("test", "t10k")):
        packed = [data / f"{name}-{kind}-ubyte.gz" for kind in ("images-idx3", "labels-idx1")]
        content, labels = (gzip.decompress(path.read_bytes()) for path in packed)
        images, labels = np.frombuffer(content[16:], np.uint8).reshape(-1, 28, 28), labels[8:]
        for shard in range(-(-len(labels) // 5000)):
            with TarWriter(str(folder / f"{split}-{shard:02d}.tar")) as writer:
                for number in range(5000 * shard, min(5000 * (shard + 1), len(labels))):
                    png = io.BytesIO()
                    Image.fromarray(images[number]).save(png, "PNG")
                    sample = {"png": png.getvalue(), "cls": str(labels[number])}
                    writer.write({"__key__": f"{number:05d}", **sample})


class Classifier(pl.LightningModule):
    """Two convolutions and two layers; the global generators of torch decide its first weights."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(
            *(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(16, 32, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
            *(nn.Linear(800, 64), nn.ReLU(), nn.Linear(64, 10)),
        )

    def training_step(self, batch: dict[str, Any]) -> torch.Tensor:  # noqa: D102
        return functional.cross_entropy(self.network(batch["image"] / 255), batch["label"])

    def test_step(self, batch: dict[str, Any]) -> None:  # noqa: D102
        right = (self.network(batch["image"] / 255).argmax(1) == batch["label"]).float().mean()
        self.log("accuracy", right, sync_dist=True, batch_size=len(batch["label"]))

    def configure_optimizers(self) -> torch.optim.Optimizer:  # noqa: D102
        return torch.optim.Adam(self.parameters(), 0.001)


def run_cell(folder: Path, pool: str, ranks: int, epochs: int, max_steps: int) -> dict[str, Any]:
    """One fit and one test."""
    torch.set_num_threads(1)
    pl.seed_everything(1, verbose=False)
    loader = LoaderConfig(cache_dir=str(folder / "cache"), pool=pool)
    splits = {split: {"urls": f"{folder}/{split}-*.tar"} for split in ("train", "test")}
    splits["train"]["sampling"] = "shuffled"
    fields = {"fields": {"image": "png", "label": "cls"}, "decode": {"image": "gray"}}
    data = ShardDataModule(**splits, **fields, batch_size=100, num_workers=2, loader=loader)
    quiet = ("logger", "enable_progress_bar", "enable_checkpointing", "enable_model_summary")
    kind: dict[str, Any] = {"accelerator": "cpu", "devices": ranks, **dict.fromkeys(quiet, False)}
    kind["strategy"] = "ddp" if ranks > 1 else "auto"
    trainer, model = pl.Trainer(max_epochs=epochs, max_steps=max_steps, **kind), Classifier()
    begin = time.perf_counter()
    trainer.fit(model, datamodule=data)
    seconds = time.perf_counter() - begin - trainer.train_dataloader.times.start_s
    rate = round(100 * ranks * trainer.global_step / seconds)
    accuracy = trainer.test(model, datamodule=data, verbose=False)[0]["accuracy"]
    weights = b"".join(value.numpy().tobytes() for value in model.state_dict().values())
    digest = hashlib.sha256(weights).hexdigest()[:12]
    return {"weights": digest, "accuracy": f"{100 * accuracy:.2f}", "images/s": rate}


def main() -> None:
    """Print the table, or one cell of it."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the four .gz files")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--cell", nargs=3, metavar=("FOLDER", "POOL", "RANKS"))
    options = parser.parse_args()
    if options.cell:
        folder, pool, ranks = options.cell
        print(json.dumps(run_cell(Path(folder), pool, int(ranks), options.epochs, -1)))
        return
    with tempfile.TemporaryDirectory() as folder:
        pack(options.data, Path(folder))
        for ranks in ("1", "2"):
            for pool in ("processes", "ray"):
                arguments = ["--epochs", str(options.epochs), "--cell", folder, pool, ranks]
                command = [sys.executable, __file__, *arguments]
                ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)  # noqa: S603
                print(ranks, pool, *(line for line in ran.stdout.splitlines() if line[:1] == "{"))


if __name__ == "__main__":
    main()
