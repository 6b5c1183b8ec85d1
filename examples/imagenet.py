"""python examples/imagenet.py fit --config configs/imagenet.yaml: image classification.

The configuration has the data: JPEGs are decoded and cropped in one, each sample comes once an
epoch in a new order, and each validation sample is counted once. Here are the model and what is
done to pixels on the device. From folders of classes, shards are made by::

    lightning-shards pack ILSVRC/train --order shuffled --out data/imagenet/train
    lightning-shards pack ILSVRC/val --out data/imagenet/val

To try it on a CPU, add ``--trainer.accelerator cpu --trainer.devices 1 --trainer.precision 32``.
"""

import lightning.pytorch as pl
import torch
from torch import nn
from torch.nn.functional import cross_entropy, relu
from torchmetrics.classification import MulticlassAccuracy

from lightning_shards.cli import main

MEAN, DEVIATION = (123.7, 116.3, 103.5), (58.4, 57.1, 57.4)  # of ImageNet's pixels, 0 to 255


def normalize(images: torch.Tensor) -> torch.Tensor:
    """Pixels as floats around 0; a device transform, so that workers send single bytes."""
    mean, deviation = (
        torch.tensor(numbers, device=images.device).view(3, 1, 1) for numbers in (MEAN, DEVIATION)
    )
    return (images - mean) / deviation


class Residual(nn.Module):
    """Two convolutions beside a shortcut; the result has half the height and width."""

    def __init__(self, channels: int, wider: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(channels, wider, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(wider),
            nn.ReLU(),
            nn.Conv2d(wider, wider, 3, padding=1, bias=False), nn.BatchNorm2d(wider),
        )  # fmt: skip
        self.shortcut = nn.Conv2d(channels, wider, 1, stride=2, bias=False)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """The next map of features."""
        return relu(self.layers(image) + self.shortcut(image))


class Classifier(pl.LightningModule):
    """A small residual network for images of any size."""

    def __init__(
        self, num_classes: int = 1000, channels: int = 64, learning_rate: float = 0.4
    ) -> None:
        super().__init__()
        self.learning_rate = learning_rate
        self.layers = nn.Sequential(
            nn.Conv2d(3, channels, 7, stride=4, padding=3, bias=False), nn.BatchNorm2d(channels),
            nn.ReLU(),
            *(Residual(channels * width, 2 * channels * width) for width in (1, 2, 4)),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8 * channels, num_classes),
        )  # fmt: skip
        self.val_accuracy = MulticlassAccuracy(num_classes, average="micro", ignore_index=-1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Logits, shape (batch, num_classes)."""
        return self.layers(image)

    def training_step(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """The loss of one batch."""
        loss = cross_entropy(self(batch["image"]), batch["label"])
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: dict[str, torch.Tensor]) -> None:
        """Count each sample once: repeats have weight 0."""
        label = batch["label"].masked_fill(batch["__weight__"] == 0, -1)  # -1 is not counted
        self.val_accuracy(self(batch["image"]), label)
        self.log("val_accuracy", self.val_accuracy, on_epoch=True, prog_bar=True)

    def configure_optimizers(self) -> dict[str, object]:
        """SGD; the rate falls to 0 over all steps of the run, which are known before it starts."""
        optimizer = torch.optim.SGD(self.parameters(), self.learning_rate, momentum=0.9)
        steps = int(self.trainer.estimated_stepping_batches)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }


if __name__ == "__main__":
    main()  # the command lightning-shards, which finds `examples.imagenet` from this folder
