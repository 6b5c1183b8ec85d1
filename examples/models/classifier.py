"""The model and the crops of configs/imagenet.yaml and ddp_multinode.yaml; put your own there."""

import lightning.pytorch as pl
import numpy as np
import torch
import torchmetrics
from torch import nn
from torch.nn.functional import cross_entropy, interpolate


def resize(image: torch.Tensor, size: int) -> torch.Tensor:
    """A uint8 image, shape (3, height, width), as (3, size, size)."""
    resized = interpolate(image[None].float(), (size, size), mode="bilinear", antialias=True)
    return resized[0].round().to(torch.uint8)


class RandomCrop:
    """A square of 1/2 to all of the shorter side, anywhere, half of them mirrored."""

    def __init__(self, size: int = 224) -> None:
        self.size = size

    def __call__(self, image: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
        """Crop one image; `rng` belongs to this sample in this epoch."""
        height, width = image.shape[1:]
        side = round(min(height, width) * rng.uniform(0.5, 1))
        top, left = rng.integers(height - side + 1), rng.integers(width - side + 1)
        crop = image[:, top : top + side, left : left + side]
        return resize(crop.flip(2) if rng.integers(2) else crop, self.size)


class CenterCrop:
    """The square in the middle, 7/8 of the shorter side."""

    def __init__(self, size: int = 224) -> None:
        self.size = size

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        """Crop one image."""
        height, width = image.shape[1:]
        side = min(height, width) * 7 // 8 or 1
        top, left = (height - side) // 2, (width - side) // 2
        return resize(image[:, top : top + side, left : left + side], self.size)


class Classifier(pl.LightningModule):
    """A few convolutions for images of any size."""

    def __init__(
        self, num_classes: int = 1000, channels: int = 32, learning_rate: float = 0.1
    ) -> None:
        super().__init__()
        self.learning_rate = learning_rate
        self.layers = nn.Sequential(
            nn.Conv2d(3, channels, 7, stride=4, padding=3), nn.ReLU(),
            nn.Conv2d(channels, channels, 3, stride=2, padding=1), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, num_classes),
        )  # fmt: skip
        self.val_accuracy = torchmetrics.Accuracy(
            "multiclass", num_classes=num_classes, average="micro", ignore_index=-1
        )

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Logits, shape (batch, num_classes), of uint8 images."""
        return self.layers(image.float() / 127.5 - 1)

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

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """SGD with momentum."""
        return torch.optim.SGD(self.parameters(), self.learning_rate, momentum=0.9)
