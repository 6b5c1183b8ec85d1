"""From the bytes of a member to what a batch holds: one transform for all loaders."""

from functools import cache, partial
from math import exp, log, sqrt
from typing import Any

import cv2
import numpy as np
import simplejpeg
from PIL import Image

from benchmarks.peers.job import NPY_HEADER, Job

SIZE = 224
SCALE, RATIO, TRIES = (0.08, 1.0), (3 / 4, 4 / 3), 10
ARRAYS = {"SMALL": np.dtype(np.float32), "TOK": np.dtype(np.uint16)}
LENGTHS = {"SMALL": 18, "TOK": 2048}

Pixels = np.ndarray[Any, np.dtype[np.uint8]]

cv2.setNumThreads(0)  # workers are many already


def batch_shape(job: Job) -> tuple[int, ...]:
    """The shape of one sample in a batch."""
    return (3, SIZE, SIZE) if job.is_images else (LENGTHS[job.data.name],)


@cache
def _own_generator() -> np.random.Generator:
    """For loaders that give a transform no randomness of its own."""
    return np.random.default_rng()


def choose_box(width: int, height: int, rng: np.random.Generator) -> tuple[int, int, int, int]:
    """Left, top, width and height of a random part, as torchvision's RandomResizedCrop draws it."""
    for _ in range(TRIES):
        area = width * height * rng.uniform(*SCALE)
        ratio = exp(rng.uniform(log(RATIO[0]), log(RATIO[1])))
        wide, high = round(sqrt(area * ratio)), round(sqrt(area / ratio))
        if 0 < wide <= width and 0 < high <= height:
            left, top = rng.integers(width - wide + 1), rng.integers(height - high + 1)
            return int(left), int(top), wide, high
    return 0, 0, width, height


def crop(data: bytes, rng: np.random.Generator | None = None) -> Pixels:
    """A random part of a JPEG by simplejpeg and OpenCV, turned half of the time; (3, 224, 224)."""
    rng = rng or _own_generator()
    pixels = simplejpeg.decode_jpeg(data, "RGB")
    left, top, wide, high = choose_box(pixels.shape[1], pixels.shape[0], rng)
    part = pixels[top : top + high, left : left + wide]
    resized = cv2.resize(part, (SIZE, SIZE), interpolation=cv2.INTER_LINEAR)
    if rng.random() < 0.5:  # noqa: PLR2004 half of the time
        resized = cv2.flip(resized, 1)
    planes = np.empty((3, SIZE, SIZE), np.uint8)
    cv2.split(resized, list(planes))
    return planes


def crop_pil(image: Image.Image) -> Pixels:
    """The same by Pillow, as torchvision does it for a decoded image."""
    rng = _own_generator()
    left, top, wide, high = choose_box(image.width, image.height, rng)
    part = image.crop((left, top, left + wide, top + high))
    resized = part.resize((SIZE, SIZE), Image.Resampling.BILINEAR)
    if rng.random() < 0.5:  # noqa: PLR2004 half of the time
        resized = resized.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return np.ascontiguousarray(np.asarray(resized).transpose(2, 0, 1))


def array_of(job: Job) -> Any:
    """The function for the arrays of this data set, whose header is known."""
    return partial(np.frombuffer, dtype=ARRAYS[job.data.name], offset=NPY_HEADER)


def transform_of(job: Job) -> Any:
    """The function from the bytes of the data set's main member to a value of a batch."""
    return crop if job.is_images else array_of(job)
