"""python examples/audio.py: learns from short clips of sounds what instrument plays.

Samples are a sound and its class: 000017.wav and 000017.cls. The first run packs 500 notes into
data/notes. WAV files are decoded by a function of the example's own, which needs no library; for
FLAC, MP3, Ogg and videos take `DecodeAudioClip` or `DecodeVideoClip` as the transform of the field.
"""

import io
import wave
from pathlib import Path

import lightning.pytorch as pl
import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from lightning_shards import ShardDataModule, ShardWriter

FOLDER = Path("data/notes")
RATE = 8_000  # values a second
CLIP = 1_024  # values of a clip


def decode_wav(data: bytes) -> torch.Tensor:
    """A WAV file of 16 bits as float32 of shape (channels, samples), from -1 to 1."""
    with wave.open(io.BytesIO(data)) as file:
        values = np.frombuffer(file.readframes(file.getnframes()), "<i2")
        values = values.reshape(-1, file.getnchannels()).T
    return torch.from_numpy(values.astype(np.float32) / 2**15)


decode_wav.deterministic = True  # it draws nothing, so nothing is seeded for it


def random_clip(sound: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
    """A clip of one length from anywhere in the sound, as loud as another microphone hears it."""
    start = int(rng.integers(sound.shape[1] - CLIP + 1))
    return sound[:, start : start + CLIP] * float(rng.uniform(0.5, 1.0))


def pack(folder: Path, samples: int, seed: int) -> None:
    """Notes of any pitch and length: a flute has a round wave, a clarinet a square one."""
    rng = np.random.default_rng(seed)
    with ShardWriter(folder, max_samples=100) as writer:
        for number in range(samples):
            seconds, pitch = np.arange(rng.integers(CLIP, RATE)) / RATE, rng.uniform(200, 800)
            note = np.sin(2 * np.pi * pitch * seconds)
            note = (np.sign(note), note)[number % 2] + rng.normal(0, 0.2, len(note))
            writer.write({"__key__": f"{number:06d}", "wav": _wav(note), "cls": str(number % 2)})


def _wav(note: np.ndarray) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setparams((1, 2, RATE, 0, "NONE", ""))
        writer.writeframes((note.clip(-2, 2) * 2**14).clip(max=2**15 - 1).astype("<i2").tobytes())
    return file.getvalue()


class Instrument(pl.LightningModule):
    """Two classes of clips."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv1d(1, 16, 32, stride=4), nn.ReLU(), nn.Conv1d(16, 16, 8, stride=2), nn.ReLU(),
            nn.AdaptiveMaxPool1d(1), nn.Flatten(), nn.Linear(16, 2),
        )  # fmt: skip

    def training_step(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """The loss of a batch of clips."""
        return cross_entropy(self.net(batch["sound"]), batch["label"])

    def validation_step(self, batch: dict[str, torch.Tensor]) -> None:
        """The share of clips that are recognised; repeats, which fill up a batch, count 0."""
        weight = batch["__weight__"].float()
        right = (self.net(batch["sound"]).argmax(1) == batch["label"]) * weight
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
        decode={"sound": decode_wav},
        transforms={"sound": random_clip},
        batch_size=20,
    )
    trainer = pl.Trainer(max_epochs=4, accelerator="cpu", devices=1, logger=False)
    trainer.fit(Instrument(), data)
    print(f"instruments recognised: {100 * trainer.callback_metrics['accuracy']:.0f}%")
