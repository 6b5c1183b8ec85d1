"""python examples/quickstart.py: pack real digits into shards, train on two ranks, stop, resume.

It packs scikit-learn's 8x8 digits into shards of unequal sizes and trains a small network with two
DDP ranks on the CPU. The fit is stopped in the middle of an epoch and resumed at the next sample.
Each epoch ends with a proof that the ranks were given the planned samples, each sample is validated
once, and the last lines say who waited for whom.
"""

import argparse
from io import BytesIO
from pathlib import Path

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from PIL import Image
from sklearn.datasets import load_digits
from torch import nn
from torchmetrics.classification import MulticlassAccuracy

from lightning_shards import (
    DataThroughputMonitor,
    EpochDigest,
    SetEpoch,
    ShardDataModule,
    ShardWriter,
    SplitConfig,
)

NUM_VAL = 297  # of 1,797 digits; an odd number, so that no batch size divides it
SHARD_SIZES = {"train": 230, "val": 70}  # the last shard of each split is smaller
STOPPED_AT = 100  # steps; an epoch has 23, so this is in the middle of the fifth


def pack_digits(folder: Path) -> None:
    """Write the folders `train` and `val`, a PNG and a class a digit, unless they are there."""
    digits = load_digits()
    order = torch.randperm(len(digits.target), generator=torch.Generator().manual_seed(0)).tolist()
    for split, numbers in {"val": order[:NUM_VAL], "train": order[NUM_VAL:]}.items():
        if (folder / split / "wids.json").exists():  # it is written last
            continue
        with ShardWriter(folder / split, prefix=split, max_samples=SHARD_SIZES[split]) as shards:
            for number in numbers:
                png = BytesIO()
                Image.fromarray((digits.images[number] * 15).astype("uint8")).save(png, "PNG")
                label = str(digits.target[number])
                shards.write({"__key__": f"{number:06d}", "png": png.getvalue(), "cls": label})


class DigitsNet(pl.LightningModule):
    """Two convolutions and a linear layer, for 8x8 gray images."""

    def __init__(self, learning_rate: float = 3e-3) -> None:
        super().__init__()
        self.learning_rate = learning_rate
        self.layers = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(),
            nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(32 * 4 * 4, 10),
        )  # fmt: skip
        self.val_accuracy = MulticlassAccuracy(10, average="micro", ignore_index=-1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Logits, shape (batch, 10), of uint8 images, shape (batch, 1, 8, 8)."""
        return self.layers(image.float() / 255)

    def training_step(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """The loss of one batch."""
        loss = nn.functional.cross_entropy(self(batch["image"]), batch["label"])
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: dict[str, torch.Tensor]) -> None:
        """Count each sample once: repeats have weight 0."""
        label = batch["label"].masked_fill(batch["__weight__"] == 0, -1)  # -1 is not counted
        self.val_accuracy(self(batch["image"]), label)
        self.log("val_accuracy", self.val_accuracy, on_epoch=True, prog_bar=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam."""
        return torch.optim.Adam(self.parameters(), self.learning_rate)


def main() -> None:
    """Pack, train on two ranks, and report."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--folder", type=Path, default=Path("data/digits"))
    parser.add_argument("--pack-only", action="store_true", help="write the shards and stop")
    arguments = parser.parse_args()
    pack_digits(arguments.folder)
    if arguments.pack_only:
        return
    data = ShardDataModule(
        train=SplitConfig(f"{arguments.folder}/train/train-*.tar", sampling="shuffled"),
        val=SplitConfig(f"{arguments.folder}/val/val-*.tar"),
        fields={"image": "png", "label": "cls"},
        decode={"image": "gray"},
        batch_size=32,
        num_workers=2,
    )
    stopped = make_trainer(arguments.folder, max_steps=STOPPED_AT)
    stopped.fit(DigitsNet(), data)
    stopped.print(f"stopped after {stopped.global_step} steps; it resumes at the next sample")
    trainer = make_trainer(arguments.folder, max_epochs=8)
    trainer.fit(DigitsNet(), data, ckpt_path=arguments.folder / "stopped.ckpt")
    trainer.print(f"val accuracy: {trainer.callback_metrics['val_accuracy']:.1%}")


def make_trainer(folder: Path, **end: int) -> pl.Trainer:
    """A trainer for two ranks on the CPU that ends after `max_steps` or `max_epochs`."""
    checkpoint = ModelCheckpoint(
        folder, "stopped", every_n_train_steps=STOPPED_AT, enable_version_counter=False
    )
    return pl.Trainer(
        strategy="ddp", accelerator="cpu", devices=2, log_every_n_steps=10,
        callbacks=[SetEpoch(), EpochDigest(), DataThroughputMonitor(), checkpoint], **end,
    )  # fmt: skip


if __name__ == "__main__":
    main()
