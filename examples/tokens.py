"""python examples/tokens.py fit --config configs/tokens.yaml: a language model on packed tokens.

A sample is a block of 1,025 tokens, uint16, so that all batches have one shape. A file of tokens
(such as nanoGPT's `train.bin`) is cut into blocks by::

    python examples/tokens.py pack train.bin data/tokens/train

Blocks are `.npy` members. Raw numbers without a header, `.bin`, are read as well: pack with a last
argument `bin`, fit with ``--data.fields.tokens bin --data.decode.tokens uint16``.

To try it on a CPU, add ``--trainer.accelerator cpu --trainer.devices 1 --trainer.precision 32
--data.batch_size 1 --model.width 32``.
"""

import sys

import lightning.pytorch as pl
import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from lightning_shards import ShardWriter
from lightning_shards.cli import main

LENGTH = 1024


def pack(source: str, folder: str, suffix: str = "npy", length: int = LENGTH) -> None:
    """Write the tokens of a file as shards; the last token of a block begins the next one."""
    tokens = np.memmap(source, np.dtype("<u2"), mode="r")
    with ShardWriter(folder, max_samples=8192) as shards:
        for number, start in enumerate(range(0, len(tokens) - length, length)):
            block = tokens[start : start + length + 1]
            member = block if suffix == "npy" else block.tobytes()
            shards.write({"__key__": f"{number:09d}", suffix: member})


class NextToken(pl.LightningModule):
    """A small causal transformer."""

    def __init__(
        self, vocabulary: int = 50_304, width: int = 256, layers: int = 4,
        length: int = LENGTH, learning_rate: float = 3e-4,
    ) -> None:  # fmt: skip
        super().__init__()
        self.learning_rate = learning_rate
        self.embedding = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(torch.randn(length, width) / width)
        layer = nn.TransformerEncoderLayer(
            width, nhead=width // 32, dim_feedforward=4 * width, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """The loss of each token behind the first, shape (batch, length), of whole blocks."""
        tokens = tokens.long()  # here, on the device: what travels is uint16
        hidden = self.embedding(tokens[:, :-1]) + self.positions[: tokens.shape[1] - 1]
        mask = nn.Transformer.generate_square_subsequent_mask(hidden.shape[1], hidden.device)
        logits = self.head(self.layers(hidden, mask, is_causal=True))
        return cross_entropy(logits.transpose(1, 2), tokens[:, 1:], reduction="none")

    def training_step(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """The loss of one batch."""
        loss = self(batch["tokens"]).mean()
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: dict[str, torch.Tensor]) -> None:
        """The mean over all blocks, each once: repeats have weight 0."""
        weight = batch["__weight__"].float()
        total = weight.sum()
        loss = (self(batch["tokens"]).mean(1) * weight).sum() / total.clamp(min=1)
        self.log("val_loss", loss, on_epoch=True, batch_size=int(total), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW."""
        return torch.optim.AdamW(self.parameters(), self.learning_rate)


if __name__ == "__main__":
    if sys.argv[1:2] == ["pack"]:
        pack(*sys.argv[2:])
    else:
        main()  # the command lightning-shards, which finds `examples.tokens` from this folder
