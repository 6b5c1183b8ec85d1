"""The model of configs/image_text.yaml: images and their captions, as CLIP learns them."""

import lightning.pytorch as pl
import torch
from torch import nn
from torch.nn.functional import cross_entropy, normalize

CONTEXT = 77  # tokens of a caption; here a token is a byte, and 0 fills up


def tokenize(caption: str) -> torch.Tensor:
    """The bytes of a caption, int64 of shape (77,); open_clip's tokenizer goes here."""
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
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, width),
        )  # fmt: skip
        self.text_tower = nn.EmbeddingBag(256, width, padding_idx=0)
        self.log_scale = nn.Parameter(torch.tensor(2.66))

    def training_step(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """Each image finds its caption in the batch, and each caption its image."""
        images = normalize(self.image_tower(batch["image"].float() / 127.5 - 1))
        texts = normalize(self.text_tower(batch["text"]))
        logits = self.log_scale.exp() * images @ texts.T
        pairs = torch.arange(len(logits), device=logits.device)
        loss = (cross_entropy(logits, pairs) + cross_entropy(logits.T, pairs)) / 2
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW."""
        return torch.optim.AdamW(self.parameters(), self.learning_rate, weight_decay=0.2)
