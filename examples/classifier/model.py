"""The model of both classifiers.

It has the shape of `ImageClassifier` in tmbdev-archive/webdataset-lightning (`train.py`, for
ImageNet; BSD-3-Clause, Copyright 2020 NVIDIA Corporation), written anew for digits and Lightning 2.
"""

from collections.abc import Sequence

import lightning.pytorch as pl
import torch
import torchmetrics
from torch import nn


class ImageClassifier(pl.LightningModule):
    """A small network; its batches are (images, labels, numbers)."""

    def __init__(
        self, learning_rate: float = 0.05, momentum: float = 0.9, weight_decay: float = 1e-4
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.model = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(),
            nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(32 * 4 * 4, 10),
        )  # fmt: skip
        self.val_accuracy = torchmetrics.Accuracy("multiclass", num_classes=10, average="micro")

    def training_step(self, batch: Sequence[torch.Tensor]) -> torch.Tensor:
        """The loss of one batch."""
        images, labels, _ = batch
        return nn.functional.cross_entropy(self.model(images), labels)

    def validation_step(self, batch: Sequence[torch.Tensor]) -> None:
        """Count what is right, over all ranks."""
        images, labels, _ = batch
        self.val_accuracy(self.model(images), labels)
        self.log("val_accuracy", self.val_accuracy)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """SGD."""
        return torch.optim.SGD(
            self.parameters(),
            lr=self.hparams["learning_rate"],
            momentum=self.hparams["momentum"],
            weight_decay=self.hparams["weight_decay"],
        )
