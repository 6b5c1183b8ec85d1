"""python examples/plain_torch.py: torch's own DataLoader and samplers over plain tars.

`ShardDataset` gives samples by number. Lightning runs the training; `SetEpoch` tells the sampler
and the data set which epoch it is, also when a run is resumed. Ranks get equally many samples since
`DistributedSampler` repeats some; `ShardDataModule` (quickstart.py) needs no repeats.
"""

import argparse
from pathlib import Path

import lightning.pytorch as pl
import numpy as np
import torch
from quickstart import DigitsNet, pack_digits
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from lightning_shards import SetEpoch, ShardDataset


def shift(image: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
    """Move a digit by one pixel at most; `rng` belongs to this sample in this epoch."""
    return torch.roll(image, tuple(rng.integers(-1, 2, size=2).tolist()), dims=(1, 2))


def open_digits(pattern: str, **options: object) -> ShardDataset:
    """The digits in these shards: uint8 images of shape (1, 8, 8), and their classes."""
    fields, decode = {"image": "png", "label": "cls"}, {"image": "gray"}
    return ShardDataset(pattern, fields=fields, decode=decode, **options)


class DigitsData(pl.LightningDataModule):
    """Train batches by torch alone."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.dataset = open_digits(f"{folder}/train/train-*.tar", transforms={"image": shift})

    def train_dataloader(self) -> DataLoader:
        """This rank's part of each epoch, in an order that the sampler draws for it."""
        replicas = self.trainer.distributed_sampler_kwargs or {"num_replicas": 1, "rank": 0}
        sampler = DistributedSampler(self.dataset, shuffle=True, seed=0, **replicas)
        return DataLoader(self.dataset, batch_size=32, sampler=sampler, drop_last=True)


@torch.no_grad()
def accuracy(model: DigitsNet, dataset: ShardDataset) -> float:
    """Share of the data set that the model gets right, by a plain loop."""
    model.eval()
    batches = DataLoader(dataset, batch_size=64)
    right = sum((model(b["image"]).argmax(1) == b["label"]).sum().item() for b in batches)
    return right / len(dataset)


def main() -> None:
    """Pack, train, and count what the model gets right."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--folder", type=Path, default=Path("data/digits"))
    parser.add_argument("--devices", type=int, default=1, help="ranks, by DDP if more than one")
    parser.add_argument("--epochs", type=int, default=4)
    options = parser.parse_args()
    pack_digits(options.folder)
    model = DigitsNet()
    trainer = pl.Trainer(
        accelerator="cpu", devices=options.devices, max_epochs=options.epochs, logger=False,
        strategy="ddp" if options.devices > 1 else "auto", limit_val_batches=0,
        enable_checkpointing=False, enable_progress_bar=False, callbacks=[SetEpoch()],
    )  # fmt: skip
    trainer.fit(model, DigitsData(options.folder))
    share = accuracy(model, open_digits(f"{options.folder}/val/val-*.tar"))
    trainer.print(f"val accuracy: {share:.1%}")


if __name__ == "__main__":
    main()
