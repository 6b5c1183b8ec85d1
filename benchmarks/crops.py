"""Our crop beside ten lines of simplejpeg and OpenCV: `python benchmarks/crops.py`, a minute.

Random crops of 224 x 224 from JPEGs in memory (quality 90, 4:2:0, noise with the spectrum of
photographs), written into the rows of one batch, on one thread. The ten lines are those that all
loaders of `benchmarks.peers` share. The cases take turns, image by image, with the same parts. A
line tells the processor's time for an image and the ratio of the ten lines' time to it, the median
of the rounds and their spread; "fastest" is the ratio of the fastest times of each image, which
other work on the machine hardly changes.
"""

import argparse
from collections.abc import Callable
from time import process_time_ns
from typing import Any

import cv2
import numpy as np
import simplejpeg

from benchmarks.peers.datasets import QUALITY, coloured_noise
from benchmarks.peers.transforms import SIZE, crop
from lightning_shards import DecodeRandomResizedCrop

IMAGE_SIZES = ((500, 375), (1024, 768))
SETS = 3  # of random parts
TEN_LINES = "ten lines of simplejpeg and OpenCV"

Pixels = np.ndarray[Any, np.dtype[np.uint8]]
Case = Callable[[bytes, np.random.Generator, int], object]


def make_images(width: int, height: int, count: int) -> list[bytes]:
    """JPEGs of coloured noise."""
    rng = np.random.default_rng(0)
    images: list[bytes] = []
    for _ in range(count):
        pixels = np.clip(128 + coloured_noise(rng, height, width), 0, 255).astype(np.uint8)
        images.append(simplejpeg.encode_jpeg(pixels, quality=QUALITY, colorsubsampling="420"))
    return images


def make_cases(count: int) -> dict[str, Case]:
    """What is measured, by name; each writes an image into a row of a batch of its own."""
    copied = np.empty((count, 3, SIZE, SIZE), np.uint8)

    def ten_lines(data: bytes, rng: np.random.Generator, row: int) -> None:
        copied[row] = crop(data, rng)

    transform = DecodeRandomResizedCrop(size=SIZE, backend="turbo")
    batch = np.empty((count, 3, SIZE, SIZE), np.uint8)

    def ours(data: bytes, rng: np.random.Generator, row: int) -> None:
        batch[row] = transform.pixels(data, rng)

    return {TEN_LINES: ten_lines, "ours": ours}


def measure(images: list[bytes], rounds: int) -> dict[str, Any]:
    """Nanoseconds of each image in each round, by case, shape (rounds, images)."""
    cases = list(make_cases(len(images)).items())
    taken = {name: np.zeros((rounds + 1, len(images))) for name, _ in cases}
    for number in range(rounds + 1):
        for row, data in enumerate(images):
            cases.append(cases.pop(0))  # each begins in turn, with the bytes in no cache
            for name, case in cases:
                rng = np.random.default_rng((number % SETS, row))
                begun = process_time_ns()
                case(data, rng, row)
                taken[name][number, row] = process_time_ns() - begun
    return {name: times[1:] for name, times in taken.items()}  # the first round warms up


def show(taken: dict[str, Any]) -> None:
    """Print a line for each case."""
    reference = taken[TEN_LINES]
    for name, times in taken.items():
        ratios = reference.sum(axis=1) / times.sum(axis=1)
        fastest = _fastest(reference) / _fastest(times)
        spread = f"{np.median(ratios):.2f}x ({ratios.min():.2f} to {ratios.max():.2f})"
        microseconds = np.median(times.mean(axis=1)) / 1000
        print(f"{name:36} {microseconds:8,.0f} us CPU   {spread:24} fastest {fastest:.2f}x")


def _fastest(times: Any) -> float:
    """The sum over all parts of all images, each by its fastest round."""
    return sum(times[part::SETS].min(axis=0).sum() for part in range(min(SETS, len(times))))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--images", type=int, default=64)
    options = parser.parse_args()
    cv2.setNumThreads(0)
    for width, height in IMAGE_SIZES:
        images = make_images(width, height, options.images)
        mean = sum(map(len, images)) // len(images)
        print(
            f"{width} x {height}, {mean:,} bytes, {options.images} images, {options.rounds} rounds"
        )
        show(measure(images, options.rounds))


if __name__ == "__main__":
    main()
