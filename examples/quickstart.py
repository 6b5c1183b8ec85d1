"""python examples/quickstart.py: pack real digits into shards and train on two ranks.

It packs scikit-learn's 8x8 digits into shards of unequal sizes, trains a small network with two DDP
ranks on the CPU, validates every sample once per epoch, and ends with who waited for whom.
"""

import argparse
from pathlib import Path

import lightning.pytorch as pl
import torch
from sklearn.datasets import load_digits
from torch import nn
from torchmetrics.classification import MulticlassAccuracy
from webdataset.writer import ShardWriter

from lightning_shards import DataThroughputMonitor, SetEpoch, ShardDataModule, SplitConfig

NUM_VAL = 297  # of 1,797 digits; an odd number, so that no batch size divides it
SHARD_SIZES = {"train": 230, "val": 70}  # the last shard of each split is smaller


def pack_digits(folder: Path) -> None:
    """Write `train-*.tar` and `val-*.tar`, a PNG and a class a digit, unless they are there."""
    if (folder / "val-000004.tar").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    digits = load_digits()
    order = torch.randperm(len(digits.target), generator=torch.Generator().manual_seed(0)).tolist()
    for split, numbers in {"val": order[:NUM_VAL], "train": order[NUM_VAL:]}.items():
        pattern = str(folder / f"{split}-%06d.tar")
        with ShardWriter(pattern, maxcount=SHARD_SIZES[split], verbose=0) as shards:
            for number in numbers:
                image = (digits.images[number] * 15).astype("uint8")
                label = digits.target[number]
                shards.write({"__key__": f"{number:06d}", "png": image, "cls": label})


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
        train=SplitConfig(f"{arguments.folder}/train-*.tar"),
        val=SplitConfig(f"{arguments.folder}/val-*.tar"),
        fields={"image": "png", "label": "cls"},
        decode={"image": "gray"},
        batch_size=32,
        num_workers=2,
    )
    trainer = pl.Trainer(
        strategy="ddp", accelerator="cpu", devices=2, max_epochs=8, log_every_n_steps=10,
        callbacks=[SetEpoch(), DataThroughputMonitor()],
    )  # fmt: skip
    trainer.fit(DigitsNet(), data)
    trainer.print(f"val accuracy: {trainer.callback_metrics['val_accuracy']:.1%}")


if __name__ == "__main__":
    main()
