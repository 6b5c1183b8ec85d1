"""Image and mask cropped together and apart: `python benchmarks/joint_crops.py`, two minutes.

JPEGs of 500 x 375 (quality 90, noise with the spectrum of photographs) with masks in PNG, of which
a random part of 224 x 224 is cut and flipped half of the time: by one sample transform, which draws
once for both, and by two transforms of fields, which draw each for itself. Decoding and cutting are
the same code. Both readers, inline, on one thread; what is timed is an epoch of batches of 32. The
cases take turns. A line tells the processor's time for a sample, the ratio of the time apart to the
time together, the median of the rounds, and their spread; what is asked for is 0.95.
"""

import argparse
import io
import os
import platform
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any

import cv2
import numpy as np
import simplejpeg
import torch
from PIL import Image

from benchmarks.peers.datasets import HEIGHT, QUALITY, WIDTH, coloured_noise
from lightning_shards import LoaderConfig, ShardDataModule, ShardLoader, ShardWriter, SplitConfig

SIZE = 224
BATCH_SIZE = 32
READERS = ("indexed", "stream")

Pixels = np.ndarray[Any, np.dtype[np.uint8]]


def cut(pixels: Pixels, top: int, left: int, is_flipped: bool) -> Pixels:
    """A part of an image, flipped or not."""
    part = pixels[:, top : top + SIZE, left : left + SIZE]
    return np.ascontiguousarray(part[:, :, ::-1] if is_flipped else part)


def draw(rng: np.random.Generator) -> tuple[int, int, bool]:
    """Where a part is, and whether it is flipped."""
    top, left = rng.integers((HEIGHT - SIZE + 1, WIDTH - SIZE + 1)).tolist()
    return top, left, rng.random() < 0.5  # noqa: PLR2004 half of the time


class Together:
    """A sample transform: image and mask are cut alike."""

    takes_arrays = True
    takes_fields = ("image", "mask")

    def __call__(self, sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        """The sample with the parts."""
        place = draw(rng)
        return {name: cut(sample[name], *place) for name in self.takes_fields}


class Apart:
    """A transform of one field."""

    takes_arrays = True

    def __call__(self, pixels: Pixels, rng: np.random.Generator) -> Pixels:
        """A part of its own."""
        return cut(pixels, *draw(rng))


CASES: dict[str, dict[str, Any]] = {
    "together": {"sample_transforms": [Together()]},
    "apart": {"transforms": {"image": Apart(), "mask": Apart()}},
}


def make_data(folder: Path, count: int) -> None:
    """Write images and masks, the masks with four levels in large areas."""
    rng = np.random.default_rng(0)
    with ShardWriter(folder, max_samples=count) as writer:
        for number in range(count):
            noise = coloured_noise(rng, HEIGHT, WIDTH)
            pixels = np.clip(128 + noise, 0, 255).astype(np.uint8)
            jpeg = simplejpeg.encode_jpeg(pixels, quality=QUALITY, colorsubsampling="420")
            blurred: Any = cv2.blur(np.ascontiguousarray(pixels[..., 0]), (31, 31))
            file = io.BytesIO()
            Image.fromarray(blurred // 64).save(file, "PNG")
            writer.write({"__key__": f"{number:05d}", "jpg": jpeg, "mask.png": file.getvalue()})


@contextmanager
def loader_of(folder: Path, reader: str, case: str) -> Generator[ShardLoader]:
    """The loader of one case."""
    data = ShardDataModule(
        SplitConfig(str(folder / "*.tar"), reader=reader, sampling="sequential"),  # pyright: ignore[reportArgumentType] one of READERS
        fields={"image": "jpg", "mask": "mask.png"},
        decode={"mask": "gray"},
        batch_size=BATCH_SIZE,
        num_workers=0,
        loader=LoaderConfig(cache_dir=str(folder / "cache")),
        **CASES[case],
    )
    with data.loader("train") as loader:
        yield loader


def epoch_s(folder: Path, reader: str, case: str) -> float:
    """CPU seconds of the batches of an epoch."""
    with loader_of(folder, reader, case) as loader:
        batches = iter(loader)
        next(batches)  # what is opened and listed belongs to no case
        begun = process_time()
        for _ in batches:
            pass
        return process_time() - begun


def measure(folder: Path, rounds: int) -> dict[str, dict[str, list[float]]]:
    """CPU seconds by reader and case; the first round warms up and is left out."""
    taken = {reader: {case: list[float]() for case in CASES} for reader in READERS}
    for number in range(rounds + 1):
        for reader in READERS:
            for case in sorted(CASES, reverse=bool(number % 2)):
                seconds = epoch_s(folder, reader, case)
                if number:
                    taken[reader][case].append(seconds)
    return taken


def main() -> None:
    """Measure and print a Markdown table."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--images", type=int, default=256)
    options = parser.parse_args()
    cv2.setNumThreads(0)
    torch.set_num_threads(1)
    print(f"{os.cpu_count()} cores, Python {platform.python_version()}, torch {torch.__version__}")
    print("\n| reader | together, ms CPU | apart, ms CPU | apart / together (spread) | asked for |")
    print("|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as name:
        make_data(Path(name), options.images)
        taken = measure(Path(name), options.rounds)
    samples = options.images - BATCH_SIZE
    for reader, cases in taken.items():
        ratios = [a / b for a, b in zip(cases["apart"], cases["together"], strict=True)]
        cells = [f"{1000 * median(cases[case]) / samples:.2f}" for case in ("together", "apart")]
        spread = f"{median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"
        print(f"| {reader} | {cells[0]} | {cells[1]} | {spread} | 0.95 |")


if __name__ == "__main__":
    main()
