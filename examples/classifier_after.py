"""python examples/classifier_after.py: the classifier of `classifier_before.py`, on this package.

The same shards, transforms, model and hyperparameters; only the data module and the callbacks
differ. Both print what each epoch was made of, with a stop and a resume in the middle of epoch 1.
"""

import argparse

import lightning.pytorch as pl
from classifier.digits import TRAIN_SHARDS, VAL_SHARDS, augment, to_tensor
from classifier.training import BATCH_SIZE, parse_options, train_and_report

from lightning_shards import DataThroughputMonitor, ExactResume, ShardDataModule, SplitConfig


def make_data(options: argparse.Namespace) -> ShardDataModule:
    """Batches of (images, labels, numbers)."""
    return ShardDataModule(
        train=SplitConfig(
            f"{options.folder}/{TRAIN_SHARDS}",
            sampling="resampled" if options.resampled else "shuffled",
            transforms={"image": augment},
        ),
        val=SplitConfig(f"{options.folder}/{VAL_SHARDS}", transforms={"image": to_tensor}),
        fields={"image": "png", "label": "cls", "number": "index"},
        decode={"image": "pil"},
        batch_size=BATCH_SIZE,
        num_workers=options.num_workers,
        batch_format="tuple",
    )


def make_callbacks() -> list[pl.Callback]:
    """What goes on at the next sample, and says who waits for whom."""
    return [ExactResume(), DataThroughputMonitor()]


if __name__ == "__main__":
    train_and_report(parse_options(__doc__), make_data, make_callbacks)
