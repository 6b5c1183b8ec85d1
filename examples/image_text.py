"""python examples/image_text.py fit --config configs/image_text.yaml: images with captions.

The shards are as img2dataset writes them and open_clip reads them: 000000000.jpg, 000000000.txt
and 000000000.json a sample. A resampled stream reads them, and each caption is turned into tokens
in the workers. From a table with columns `path`, `caption` and `meta`, shards are made by::

    lightning-shards pack rows.csv --files path=jpg --values caption=txt --values meta=json --out X

To try it on a CPU, add ``--trainer.accelerator cpu --trainer.devices 1 --trainer.precision 32``.
"""

import lightning.pytorch as pl
import torch
from torch import nn
from torch.nn.functional import cross_entropy, normalize

from lightning_shards.cli import main

CONTEXT = 77  # tokens of a caption


def tokenize(caption: str) -> torch.Tensor:
    """A caption as 77 tokens, int64: its bytes, and 0 behind them. Your tokenizer goes here."""
    tokens = torch.zeros(CONTEXT, dtype=torch.int64)
    text = caption.encode()[:CONTEXT]
    tokens[: len(text)] = torch.tensor(list(text), dtype=torch.int64)
    return tokens


class ImageText(pl.LightningModule):
    """Two small towers, pulled together for an image and its caption."""

    def __init__(self, width: int = 64, learning_rate: float = 5e-4) -> None:
        super().__init__()
        self.learning_rate = learning_rate
        self.image_tower = nn.Sequential(
            nn.Conv2d(3, width, 16, stride=16), nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, width),
        )  # fmt: skip
        self.text_tower = nn.Sequential(
            nn.EmbeddingBag(256, width, padding_idx=0), nn.ReLU(), nn.Linear(width, width)
        )
        self.log_scale = nn.Parameter(torch.tensor(2.66))

    def forward(self, batch: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """Where images and captions are, each of shape (batch, width) and length 1."""
        images = self.image_tower(batch["image"].float() / 127.5 - 1)
        return normalize(images), normalize(self.text_tower(batch["text"]))

    def training_step(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """Each image finds its caption among those of all ranks, and each caption its image."""
        images, texts = (  # shape (global batch, width): all ranks have equal batches
            self.all_gather(each, sync_grads=True).view(-1, each.shape[1]) for each in self(batch)
        )
        logits = self.log_scale.exp() * images @ texts.T
        pairs = torch.arange(len(logits), device=logits.device)
        loss = (cross_entropy(logits, pairs) + cross_entropy(logits.T, pairs)) / 2
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW."""
        return torch.optim.AdamW(self.parameters(), self.learning_rate, weight_decay=0.2)


if __name__ == "__main__":
    main()  # the command lightning-shards, which finds `examples.image_text` from this folder
