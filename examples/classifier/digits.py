"""The shards of both classifiers, and the transforms of their images.

Beside an image and a class each sample has its number in its split: it is there to see which ones
a rank was given.
"""

import io
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_digits
from torch import nn
from webdataset.writer import ShardWriter

NUM_TRAIN, NUM_VAL = 1500, 297
SHARD_SIZES = {"train": 100, "val": 30}
TRAIN_SHARDS, VAL_SHARDS = "train-{000000..000014}.tar", "val-{000000..000009}.tar"


def pack_digits(folder: Path) -> None:
    """Write each of scikit-learn's digits as a PNG, a class and a number, unless they are there."""
    if (folder / "val-000009.tar").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    digits = load_digits()
    order = torch.randperm(NUM_TRAIN + NUM_VAL, generator=torch.Generator().manual_seed(0)).tolist()
    for split, chosen in {"train": order[:NUM_TRAIN], "val": order[NUM_TRAIN:]}.items():
        pattern = str(folder / f"{split}-%06d.tar")
        with ShardWriter(pattern, maxcount=SHARD_SIZES[split], verbose=0) as shards:
            for number, digit in enumerate(chosen):
                png = io.BytesIO()
                Image.fromarray((digits.images[digit] * 15).astype("uint8")).save(png, "PNG")
                label, index = str(digits.target[digit]), str(number)
                members = {"png": png.getvalue(), "cls": label, "index": index}
                shards.write({"__key__": f"{number:06d}"} | members)


def to_tensor(image: Image.Image) -> torch.Tensor:
    """The transform for validation: float32 of shape (1, 8, 8), from 0 to 1."""
    return torch.from_numpy(np.array(image.convert("L"))).float()[None] / 255


def augment(image: Image.Image) -> torch.Tensor:
    """The transform for training: a random crop of the padded digit, flipped half of the times."""
    padded = nn.functional.pad(to_tensor(image), (1, 1, 1, 1))
    top, left = torch.randint(3, (2,)).tolist()
    crop = padded[:, top : top + 8, left : left + 8]
    return crop.flip(2) if torch.rand(()) < 0.5 else crop  # noqa: PLR2004 half of the times
