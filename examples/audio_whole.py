"""python examples/audio_whole.py: learns from whole recordings whether a bird calls in them.

Samples are a sound of any length and its class: 000017.wav and 000017.cls. The first run packs 500
recordings into data/birds. `DecodeAudioClip(seconds=None)` decodes all of a recording, and
`PadCollate` makes a batch of them: `sound` is padded with zeros to the longest one, and
`sound_length` has the lengths, by which the model leaves the padding out. It needs the extra
`media`, and FFmpeg.
"""

import io
import wave
from pathlib import Path

import lightning.pytorch as pl
import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from lightning_shards import DecodeAudioClip, PadCollate, ShardDataModule, ShardWriter

FOLDER = Path("data/birds")
RATE = 8_000  # values a second
HOP = 32  # values from one frame of the model to the next one


def pack(folder: Path, samples: int, seed: int) -> None:
    """Wind of half a second to two seconds; in every second recording a bird calls for a tenth."""
    rng = np.random.default_rng(seed)
    with ShardWriter(folder, max_samples=100) as writer:
        for number in range(samples):
            sound = rng.normal(0, 0.1, rng.integers(RATE // 2, 2 * RATE))
            if number % 2:
                start, seconds = rng.integers(len(sound) - RATE // 10), np.arange(RATE // 10) / RATE
                call = np.sin(2 * np.pi * rng.uniform(1_800, 2_200) * seconds)
                sound[start : start + len(call)] += 0.4 * call
            writer.write({"__key__": f"{number:06d}", "wav": _wav(sound), "cls": number % 2})


def _wav(sound: np.ndarray) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setparams((1, 2, RATE, 0, "NONE", ""))
        writer.writeframes((sound.clip(-1, 1) * (2**15 - 1)).astype("<i2").tobytes())
    return file.getvalue()


class BirdDetector(pl.LightningModule):
    """Two classes of recordings: the loudest frame of each filter decides."""

    def __init__(self) -> None:
        super().__init__()
        self.frames = nn.Sequential(
            nn.Conv1d(1, 16, 2 * HOP, stride=HOP, padding=HOP), nn.ReLU(),
            nn.Conv1d(16, 16, 5, padding=2), nn.ReLU(),
        )  # fmt: skip
        self.classify = nn.Linear(16, 2)

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """Scores of the classes, of shape (batch, 2)."""
        frames = self.frames(batch["sound"])  # (batch, 16, frames of the longest)
        numbers = torch.arange(frames.shape[2], device=self.device)
        is_padding = numbers >= batch["sound_length"][:, None] // HOP
        return self.classify(frames.masked_fill(is_padding[:, None], -torch.inf).amax(2))

    def training_step(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """The loss of a batch of recordings."""
        return cross_entropy(self(batch), batch["label"])

    def validation_step(self, batch: dict[str, torch.Tensor]) -> None:
        """The share of recordings that are recognised; repeats, which fill up a batch, count 0."""
        weight = batch["__weight__"].float()
        right = (self(batch).argmax(1) == batch["label"]) * weight
        self.log("accuracy", right.sum() / weight.sum().clamp(min=1), batch_size=int(weight.sum()))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam."""
        return torch.optim.Adam(self.parameters(), 0.003)


if __name__ == "__main__":
    if not FOLDER.exists():
        pack(FOLDER, 500, seed=0)
    data = ShardDataModule(
        train={"urls": str(FOLDER / "shard-00000{0..3}.tar"), "sampling": "shuffled"},
        val=str(FOLDER / "shard-000004.tar"),
        fields={"sound": "wav", "label": "cls"},
        transforms={"sound": DecodeAudioClip(seconds=None, sample_rate=RATE)},
        collate_fn=PadCollate(["sound"], dim=-1),
        batch_size=20,
    )
    trainer = pl.Trainer(max_epochs=3, accelerator="cpu", devices=1, logger=False)
    trainer.fit(BirdDetector(), data)
    print(f"recordings recognised: {100 * trainer.callback_metrics['accuracy']:.0f}%")
