"""python examples/segmentation.py: learns masks of images; both are cropped and turned alike.

Samples are an image, and for most of them a mask: 000017.jpg and 000017.mask.png. The first run
packs 600 pictures of disks into data/disks. `crop_alike` is a function of a whole sample: what it
draws belongs to (seed, epoch, position), so that a run resumes exactly, on any number of workers.
"""

import io
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import nn
from torch.nn.functional import cross_entropy

from lightning_shards import ShardDataModule, ShardWriter

FOLDER = Path("data/disks")
CROP = 32
UNKNOWN = 255  # pixels that are not learnt, and all those of a sample without a mask


def crop_alike(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """The same random crop of the image and its mask, mirrored every other time."""
    image, mask = sample["image"], sample["mask"]
    if mask is None:
        mask = torch.full_like(image[:1], UNKNOWN)
    top, left = rng.integers(image.shape[-1] - CROP + 1, size=2).tolist()
    flip = [-1] if rng.integers(2) else []
    crop = (..., slice(top, top + CROP), slice(left, left + CROP))
    return sample | {"image": image[crop].flip(flip), "mask": mask[crop].flip(flip)[0]}


def pack(folder: Path, samples: int, seed: int) -> None:
    """Bright disks on noise, and where they are: 1 in the mask, which every tenth sample lacks."""
    rng = np.random.default_rng(seed)
    with ShardWriter(folder, max_samples=100) as writer:
        for number in range(samples):
            mask = Image.new("L", (48, 48))
            x, y, radius = rng.integers((8, 8, 6), (40, 40, 16)).tolist()
            ImageDraw.Draw(mask).ellipse((x - radius, y - radius, x + radius, y + radius), fill=1)
            noise = rng.integers(160, size=(48, 48, 3)) + 95 * np.array(mask)[..., None]
            files = {"jpg": Image.fromarray(noise.astype(np.uint8))}
            files |= {"mask.png": mask} if number % 10 else {}
            writer.write({"__key__": f"{number:06d}", **{k: _file(k, v) for k, v in files.items()}})


def _file(suffix: str, image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "JPEG" if suffix == "jpg" else "PNG")
    return file.getvalue()


class Segmentation(pl.LightningModule):
    """Two classes for each pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, 16, 5, padding=2), nn.ReLU(),
            nn.Conv2d(16, 16, 5, padding=2), nn.ReLU(), nn.Conv2d(16, 2, 1),
        )  # fmt: skip

    def training_step(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """The loss of the pixels whose class is known."""
        logits, mask = self.net(batch["image"] / 127.5 - 1), batch["mask"].long()
        self.log("accuracy", (logits.argmax(1) == mask)[mask != UNKNOWN].float().mean())
        return cross_entropy(logits, mask, ignore_index=UNKNOWN)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam."""
        return torch.optim.Adam(self.parameters(), 0.01)


if __name__ == "__main__":
    if not FOLDER.exists():
        pack(FOLDER, 600, seed=0)
    data = ShardDataModule(
        train={"urls": str(FOLDER / "*.tar"), "sampling": "shuffled"},
        fields={"image": "jpg", "mask": "mask.png?"},
        decode={"mask": "labels"},
        sample_transforms=[crop_alike],
        batch_size=25,
    )
    trainer = pl.Trainer(max_epochs=3, accelerator="cpu", devices=1, logger=False)
    trainer.fit(Segmentation(), data)
    print(f"accuracy of pixels: {100 * trainer.callback_metrics['accuracy']:.1f}%")
