"""The model of configs/tokens.yaml: the next token of sequences of one length."""

import lightning.pytorch as pl
import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy


def as_ids(tokens: np.ndarray) -> np.ndarray:
    """Shards hold uint16 to save bytes; an embedding wants int64."""
    return tokens.astype(np.int64)


class NextToken(pl.LightningModule):
    """An embedding, a GRU and a linear layer."""

    def __init__(
        self, vocabulary: int = 50_304, width: int = 64, learning_rate: float = 3e-4
    ) -> None:
        super().__init__()
        self.learning_rate = learning_rate
        self.embedding = nn.Embedding(vocabulary, width)
        self.recurrent = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def _losses(self, tokens: torch.Tensor) -> torch.Tensor:
        """The loss of each sequence, shape (batch,), for tokens of shape (batch, length + 1)."""
        hidden, _ = self.recurrent(self.embedding(tokens[:, :-1]))
        logits = self.head(hidden).transpose(1, 2)
        return cross_entropy(logits, tokens[:, 1:], reduction="none").mean(1)

    def training_step(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """The loss of one batch."""
        loss = self._losses(batch["tokens"]).mean()
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: dict[str, torch.Tensor]) -> None:
        """The mean over all sequences: repeats have weight 0, and batches differ in size."""
        weight = batch["__weight__"]
        total = weight.sum()
        loss = (self._losses(batch["tokens"]) * weight).sum() / total.clamp(min=1)
        self.log("val_loss", loss, on_epoch=True, batch_size=int(total), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW."""
        return torch.optim.AdamW(self.parameters(), self.learning_rate)
