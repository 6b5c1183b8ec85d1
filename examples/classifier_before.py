"""python examples/classifier_before.py: a classifier on hand-written WebDataset pipelines.

The data module has the shape of `ImagenetData` in tmbdev-archive/webdataset-lightning (`train.py`,
BSD-3-Clause), carried to webdataset 1: one pipeline for both splits, cut into
`dataset_size // (batch_size * world_size)` steps. `--resampled` draws shards with replacement, as
webdataset's own distributed notebooks do. `classifier_after.py` is the same training with
lightning_shards.
"""

import argparse

import lightning.pytorch as pl
import webdataset as wds
from classifier.digits import (
    NUM_TRAIN,
    NUM_VAL,
    TRAIN_SHARDS,
    VAL_SHARDS,
    augment,
    to_tensor,
)
from classifier.training import BATCH_SIZE, parse_options, train_and_report


def identity(value: int) -> int:
    """The transform of what needs none."""
    return value


class DigitsData(pl.LightningDataModule):
    """Batches of (images, labels, numbers)."""

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__()
        self.folder, self.num_workers = options.folder, options.num_workers
        self.resampled = options.resampled

    def make_loader(self, mode: str) -> wds.WebLoader:
        """The loader of this rank's part of a split."""
        if mode == "train":
            shards, dataset_size, transform = TRAIN_SHARDS, NUM_TRAIN, augment
            shard_shuffle, shuffle, resampled = 100, 64, self.resampled
        else:
            shards, dataset_size, transform = VAL_SHARDS, NUM_VAL, to_tensor
            shard_shuffle, shuffle, resampled = False, 0, False
        dataset = (
            wds.WebDataset(
                f"{self.folder}/{shards}",
                resampled=resampled,
                shardshuffle=False if resampled else shard_shuffle,
                nodesplitter=wds.split_by_node,
                workersplitter=wds.split_by_worker,
            )
            .shuffle(shuffle)
            .decode("pil")
            .to_tuple("png", "cls", "index")
            .map_tuple(transform, identity, identity)
            .batched(BATCH_SIZE, partial=False)
        )
        loader = wds.WebLoader(dataset, batch_size=None, num_workers=self.num_workers)
        steps = dataset_size // (BATCH_SIZE * self.trainer.world_size)
        return loader.with_epoch(steps).with_length(steps)

    def train_dataloader(self) -> wds.WebLoader:
        """Shuffled, augmented batches."""
        return self.make_loader("train")

    def val_dataloader(self) -> wds.WebLoader:
        """Batches in the order of the files."""
        return self.make_loader("val")


if __name__ == "__main__":
    train_and_report(parse_options(__doc__), DigitsData, list)
