"""python examples/detection.py: finds squares in pictures, of which each holds another number.

Boxes are a JSON list of [left, top, right, bottom], maybe an empty one. `PadCollate` makes them a
tensor of shape (batch, most boxes, 4), and `boxes_length` tells how many are real.
"""

import io
import json
from pathlib import Path

import lightning.pytorch as pl
import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

from lightning_shards import PadCollate, ShardDataModule, ShardWriter

SIZE, CELLS = 64, 4  # pixels and cells along each side of a picture


def write_pictures(folder: Path, count: int) -> None:
    """Noise with up to four bright squares, no two of them with their middles in one cell."""
    rng = np.random.default_rng(count)
    with ShardWriter(folder, max_samples=100) as shards:
        for number in range(count):
            picture, boxes = rng.integers(0, 60, (SIZE, SIZE, 3), np.uint8), []
            for cell in rng.permutation(CELLS**2)[: rng.integers(5)]:
                middle = np.array([cell % CELLS, cell // CELLS]) * SIZE // CELLS + 8
                box = left, top, right, bottom = *(middle - 6), *(middle + rng.integers(3, 7))
                boxes.append(list(map(int, box)))
                picture[top:bottom, left:right] += 150
            png = io.BytesIO()
            Image.fromarray(picture).save(png, "PNG")
            texts = {"__key__": f"{number:06d}", "boxes.json": json.dumps(boxes)}
            shards.write(texts | {"png": png.getvalue()})


def to_boxes(boxes: list[list[float]]) -> np.ndarray:
    """A list of boxes as float32 of shape (boxes, 4), also where there is none."""
    return np.asarray(boxes, np.float32).reshape(-1, 4)


class Detector(pl.LightningModule):
    """Tells for each cell whether the middle of a box is in it, and the edges of that box."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 16, 4, 4), nn.BatchNorm2d(16), nn.ReLU(),
            nn.Conv2d(16, 32, 4, 4), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 5, 1),
        )  # fmt: skip

    def compare(self, batch: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """The loss, and whether all cells of a picture are told right, shape (batch,)."""
        made = self.layers(batch["image"] / 255)  # shape (batch, 5, CELLS, CELLS)
        places = torch.arange(batch["boxes"].shape[1], device=made.device)
        is_real = places < batch["boxes_length"][:, None]  # shape (batch, most boxes)
        picture, boxes = is_real.nonzero()[:, 0], batch["boxes"][is_real] / SIZE
        column, row = ((boxes[:, :2] + boxes[:, 2:]) / 2 * CELLS).long().T
        wanted = torch.zeros_like(made[:, 0])
        wanted[picture, row, column] = 1
        edges = (made[picture, 1:, row, column] - boxes).abs().sum() / max(len(boxes), 1)
        is_there = binary_cross_entropy_with_logits(made[:, 0], wanted)
        return is_there + edges, ((made[:, 0] > 0) == (wanted > 0)).flatten(1).all(1)

    def training_step(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """The loss of one batch."""
        return self.compare(batch)[0]

    def validation_step(self, batch: dict[str, torch.Tensor]) -> None:
        """The share of pictures whose cells are all told right; repeats have weight 0."""
        weight = batch["__weight__"].float()
        right = (self.compare(batch)[1] * weight).sum() / weight.sum()
        self.log("val_right", right, batch_size=int(weight.sum()), sync_dist=True, prog_bar=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam."""
        return torch.optim.Adam(self.parameters(), 0.003)


def main(folder: str = "squares", pictures: int = 1000, **options: object) -> pl.Trainer:
    """Write the pictures, and fit; the trainer knows the share that is right."""
    if not Path(folder).exists():
        write_pictures(Path(folder, "val"), pictures // 10)
        write_pictures(Path(folder, "train"), pictures)
    data = ShardDataModule(
        {"urls": f"{folder}/train/*.tar", "sampling": "shuffled"}, f"{folder}/val/*.tar",
        fields={"image": "png", "boxes": "boxes.json"}, transforms={"boxes": to_boxes},
        collate_fn=PadCollate(["boxes"]), batch_size=25,
    )  # fmt: skip
    trainer = pl.Trainer(default_root_dir=folder, max_epochs=3, **options)
    trainer.fit(Detector(), data)
    return trainer


if __name__ == "__main__":
    main()
