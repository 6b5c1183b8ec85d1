"""Transforms that decode and crop in one step, and decode no more of an image than they show.

Each takes the bytes of an image file and gives uint8 of shape (3, size, size), or (1, size, size)
in gray, so that images of any size fit one tensor. Put them in `transforms`; the field is then not
decoded before. Operations on floats, such as a normalisation, belong in `device_transforms`.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import partial
from math import exp, inf, log, sqrt
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from lightning_shards.errors import ConfigError, require_at_least
from lightning_shards.samples.images import (
    Backend,
    Box,
    Pixels,
    put_channels_first,
    require_backend,
    show_part,
)
from lightning_shards.samples.tensors import as_tensor

if TYPE_CHECKING:
    import torch


_TRIES = 10


@dataclass(frozen=True, kw_only=True)
class Crop(ABC):
    """The settings that all crops share.

    Attributes:
        size: Height and width of the result, in pixels.
        backend: `pillow`, or the faster `turbo`, whose pixels differ (see `images`).
        gray: Whether one channel is wanted instead of three.
    """

    size: int
    backend: Backend = "pillow"
    gray: bool = False
    takes_bytes: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_at_least("size", self.size, 1)
        require_backend(self.backend)

    def pixels(self, data: bytes, rng: np.random.Generator | None = None) -> Pixels:
        """The pixels, uint8 of shape (3, size, size), or (1, size, size) in gray."""
        sides = self.size, self.size
        out = np.empty((1 if self.gray else 3, *sides), np.uint8)
        part = np.empty(sides if self.gray else (*sides, 3), np.uint8)
        show_part(data, partial(self._box, rng=rng), part, backend=self.backend)
        put_channels_first(part, out, self.backend, is_flipped=self._is_flipped(rng))
        return out

    def __call__(self, data: bytes, rng: np.random.Generator | None = None) -> "torch.Tensor":
        """The pixels, as `pixels` gives them."""
        return as_tensor(self.pixels(data, rng))

    @abstractmethod
    def _box(self, width: int, height: int, rng: np.random.Generator | None = None) -> Box:
        """The part of an image that is shown; asked again if only Pillow can decode the image."""

    def _is_flipped(self, rng: np.random.Generator | None) -> bool:
        """Whether it is flipped left to right; asked once, when the image is decoded."""
        return False


@dataclass(frozen=True, kw_only=True)
class DecodeRandomResizedCrop(Crop):
    """A random part of the image, resized, and flipped left to right half of the time.

    The part has a uniformly drawn share of the image's area and a log-uniformly drawn ratio of
    width to height. If it does not fit, it is drawn again, up to ten times; after that it is the
    largest central part with an allowed ratio. See Szegedy et al., "Going deeper with convolutions"
    (2014), section 6; the details are those of torchvision's `RandomResizedCrop`.

    Attributes:
        scale: Least and greatest share of the area.
        ratio: Least and greatest ratio of width to height.
        flip: Probability of flipping it left to right.
    """

    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, (first, second) in {"scale": self.scale, "ratio": self.ratio}.items():
            if not 0 < first <= second < inf:
                got = getattr(self, name)
                raise ConfigError(f"{name} must be two growing numbers above 0, got {got!r}")
        if not 0 <= self.flip <= 1:
            raise ConfigError(f"flip must be a probability, got {self.flip!r}")

    def _box(self, width: int, height: int, rng: np.random.Generator | None = None) -> Box:
        if rng is None:
            raise TypeError("a random part needs rng, a numpy.random.Generator; got None")
        (least, most), (narrow, broad) = self.scale, map(log, self.ratio)
        for _ in range(_TRIES):  # to the bit what rng.uniform draws, in a third of its time
            area = width * height * (least + (most - least) * rng.random())
            ratio = exp(narrow + (broad - narrow) * rng.random())
            wide, high = round(sqrt(area * ratio)), round(sqrt(area / ratio))
            if 0 < wide <= width and 0 < high <= height:
                left = int(rng.integers(width - wide + 1))
                return Box(left, int(rng.integers(height - high + 1)), wide, high)
        ratio = min(max(width / height, self.ratio[0]), self.ratio[1])
        wide, high = min(width, round(height * ratio)), min(height, round(width / ratio))
        return Box((width - wide) // 2, (height - high) // 2, max(wide, 1), max(high, 1))

    def _is_flipped(self, rng: np.random.Generator | None) -> bool:
        assert rng is not None
        return rng.random() < self.flip


@dataclass(frozen=True, kw_only=True)
class DecodeCenterCrop(Crop):
    """The central square of an image whose shorter side was resized to `resize`, for evaluation.

    Attributes:
        resize: Pixels of the shorter side, at least `size`; if equal, the whole side is kept.
    """

    resize: int
    deterministic: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least("resize", self.resize, 1)
        if self.resize < self.size:
            raise ConfigError(f"resize must be at least size={self.size}, got {self.resize}")

    def _box(self, width: int, height: int, rng: np.random.Generator | None = None) -> Box:
        side = max(round(min(width, height) * self.size / self.resize), 1)
        return Box((width - side) // 2, (height - side) // 2, side, side)


@dataclass(frozen=True, kw_only=True)
class DecodeResize(Crop):
    """The whole image, resized to a square whatever its ratio is."""

    deterministic: ClassVar[bool] = True

    def _box(self, width: int, height: int, rng: np.random.Generator | None = None) -> Box:
        return Box(0, 0, width, height)
