"""python examples/mixture.py: a small data set is passed 20 times while a large one is passed once.

The large one has 1,440 of scikit-learn's digits with labels of which 4 in 10 are wrong, like those
of a crawl. The small one has 60 digits that somebody labelled with care. Nothing is repacked. An
epoch is one pass of the crawl, and each batch of 22 holds 12 digits of it and 10 labelled by hand.
"""

from collections import Counter
from io import BytesIO
from pathlib import Path

import lightning.pytorch as pl
import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

from lightning_shards import ShardDataModule, ShardWriter

FOLDER = Path("data/mixture")
SETS = ("crawl", "by_hand")
WRONG = 0.4  # of the labels of the crawl


def pack(folder: Path) -> None:
    """The folders `crawl`, `by_hand` and `val`, each with some of the 1,797 digits."""
    digits, rng = load_digits(), np.random.default_rng(0)
    numbers = np.split(rng.permutation(len(digits.target)), [1440, 1500])
    for name, own in zip((*SETS, "val"), numbers, strict=True):
        wrong = rng.integers(1, 10, len(own)) * (rng.random(len(own)) < WRONG) * (name == "crawl")
        with ShardWriter(folder / name, max_samples=300) as shards:
            for number, error in zip(own, wrong, strict=True):
                png = BytesIO()
                Image.fromarray((digits.images[number] * 15).astype("uint8")).save(png, "PNG")
                label = str((digits.target[number] + error) % 10)
                shards.write({"__key__": f"{number:04d}", "png": png.getvalue(), "cls": label})


class Digits(pl.LightningModule):
    """Ten classes of 8x8 images; it notes how often it is trained on each sample."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, Counter[str]] = {name: Counter() for name in SETS}
        self.net = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(),
            nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32 * 4 * 4, 10),
        )  # fmt: skip

    def training_step(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """The loss of a batch, and of what is in it of each data set."""
        losses = cross_entropy(self.net(batch["image"] / 255), batch["label"], reduction="none")
        for number, name in enumerate(SETS):
            self.log(f"loss of {name}", losses[batch["__component__"] == number].mean())
        for number, key in zip(batch["__component__"].tolist(), batch["__key__"], strict=True):
            self.seen[SETS[number]][key] += 1
        return losses.mean()

    def validation_step(self, batch: dict[str, torch.Tensor]) -> None:
        """The share of digits that are recognised; repeats, which fill up a batch, count 0."""
        weight = batch["__weight__"].float()
        right = (self.net(batch["image"] / 255).argmax(1) == batch["label"]) * weight
        self.log("accuracy", right.sum() / weight.sum().clamp(min=1), batch_size=int(weight.sum()))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam."""
        return torch.optim.Adam(self.parameters(), 0.003)


if __name__ == "__main__":
    if not FOLDER.exists():
        pack(FOLDER)
    mix = {
        "crawl": {"urls": str(FOLDER / "crawl" / "*.tar"), "passes": 1},
        "by_hand": {"urls": str(FOLDER / "by_hand" / "*.tar"), "passes": 20},
    }
    data = ShardDataModule(
        train={"mix": mix, "sampling": "shuffled", "epoch_of": "crawl"},
        val=str(FOLDER / "val" / "*.tar"),
        fields={"image": "png", "label": "cls"},
        decode={"image": "gray"},
        batch_size=22,
    )
    model = Digits()
    trainer = pl.Trainer(max_epochs=1, accelerator="cpu", devices=1, logger=False)
    trainer.fit(model, data)
    for name, seen in model.seen.items():
        times = " or ".join(map(str, sorted(set(seen.values()))))
        print(f"{name}: {len(seen):,} digits, each trained {times}x")
    print(f"digits recognised: {100 * trainer.callback_metrics['accuracy']:.0f}%")
